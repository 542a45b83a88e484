"""What becomes of the slots of a real OpenEnv server while gymserve's clients wait, think and disappear.

How to run them is in test_openenv_rollouts.py.
"""

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from openenv_processes import Client, Gymserve, OpenEnvServer, eventually

OVER = "The episode is over; no further call can succeed."
NewClient = Callable[[Gymserve], Client]
StartGymserve = Callable[..., Gymserve]


@pytest.fixture
def meanwhile() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor() as threads:
        yield threads


def test_an_abandoned_session_gives_its_slot_back_after_the_idle_timeout(
    step_server: OpenEnvServer, start_gymserve: StartGymserve, new_client: NewClient, meanwhile: ThreadPoolExecutor
) -> None:
    mark = step_server.mark()
    gymserve = start_gymserve(step_server, "--idle-timeout", "1")
    abandoned, following = new_client(gymserve), new_client(gymserve)
    abandoned.seed()
    asked_at = time.monotonic()
    abandoned.step(reward=1)
    answered_at = time.monotonic()

    seeding = meanwhile.submit(following.seed)  # waits for the only slot
    assert seeding.result(timeout=5).status_code == 200
    [closed_at], [_, reset_at] = mark.times("close"), mark.times("reset")
    assert asked_at + 1 <= closed_at <= answered_at + 1.3
    assert closed_at <= reset_at <= closed_at + 0.3

    gone = abandoned.step()
    assert (gone.status_code, gone.json()) == (410, {"error": "session_expired", "detail": OVER, "done": True})
    assert "session ended" in gymserve.log()
    assert "no request for 1 s, the idle timeout" in gymserve.log()
    verified = abandoned.verify()
    assert (verified["mask_sample"], verified["failure_kind"]) == (True, "session_expired")
    assert "Traceback" not in mark.log()


def test_of_two_seeds_for_one_slot_the_second_gets_in_when_the_first_is_verified(
    step_server: OpenEnvServer, step_gymserve: Gymserve, new_client: NewClient, meanwhile: ThreadPoolExecutor
) -> None:
    mark = step_server.mark()
    clients = [new_client(step_gymserve), new_client(step_gymserve)]
    seeds = [meanwhile.submit(client.seed) for client in clients]
    eventually(lambda: any(seed.done() for seed in seeds), within_seconds=2)
    time.sleep(1)
    assert sorted(seed.done() for seed in seeds) == [False, True]

    first = 0 if seeds[0].done() else 1
    clients[first].verify()
    assert seeds[1 - first].result(timeout=1).status_code == 200
    assert mark.events() == ["reset", "close", "reset"]


def test_a_keepalive_keeps_an_idle_episode_from_openenvs_reaper(
    reaping_server: OpenEnvServer, start_gymserve: StartGymserve, new_client: NewClient
) -> None:
    mark = reaping_server.mark()
    kept = new_client(start_gymserve(reaping_server, "--keepalive", "0.5"))
    reaped = new_client(start_gymserve(reaping_server, "--keepalive", "0"))
    kept.seed(who="kept")
    reaped.seed(who="reaped")
    number = {entry["kwargs"]["who"]: entry["environment"] for entry in mark.entries_since()}
    time.sleep(8)

    assert kept.step(reward=1).json()["steps"] == 1
    closed = [entry["environment"] for entry in mark.entries_since() if entry["event"] == "close"]
    assert closed == [number["reaped"]]
    assert kept.verify()["reward"] == 1


def test_pings_are_answered_while_idle_and_during_a_step(
    pinging_server: OpenEnvServer, start_gymserve: StartGymserve, new_client: NewClient, meanwhile: ThreadPoolExecutor
) -> None:
    mark = pinging_server.mark()
    gymserve = start_gymserve(pinging_server)
    idle, busy = new_client(gymserve), new_client(gymserve)
    idle.seed()
    busy.seed()
    step = meanwhile.submit(busy.step, sleep_seconds=5, reward=1)
    assert b"keepalive ping timeout" in _silence(pinging_server, seconds=4)  # what becomes of who does not answer
    time.sleep(1)
    assert step.result().json()["reward"] == 1
    assert idle.step(reward=1).json()["reward"] == 1
    assert mark.events().count("close") == 1  # of the silent one


def _silence(server: OpenEnvServer, *, seconds: float) -> bytes:
    """Open a WebSocket, say nothing at all; what the server sends until it ends the connection."""
    url = httpx.URL(server.url)
    head = (
        f"GET /ws HTTP/1.1\r\nHost: {url.netloc.decode()}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    heard = b""
    with socket.create_connection((url.host, url.port or 80)) as sock:
        sock.settimeout(seconds)
        sock.sendall(head.encode())
        while b"keepalive ping timeout" not in heard and (more := sock.recv(4096)):
            heard += more
    return heard


def test_sigterm_gives_every_open_episode_back(
    pinging_server: OpenEnvServer, start_gymserve: StartGymserve, new_client: NewClient
) -> None:
    mark = pinging_server.mark()
    gymserve = start_gymserve(pinging_server)
    for number in range(3):
        client = new_client(gymserve)
        client.seed()
        client.step(reward=number)
    assert mark.events().count("close") == 0
    assert gymserve.stop() == 0
    eventually(lambda: mark.events().count("close") == 3, within_seconds=0.5)
    assert "Traceback" not in mark.log()
    assert "Traceback" not in gymserve.log()
