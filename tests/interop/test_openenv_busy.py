"""A real OpenEnv server that is frozen, full, restarted or slow, with more rollouts at hand than it has slots.

How to run them is in test_openenv_rollouts.py. Connections are counted in Linux's /proc.
"""

import random
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from openenv_processes import Client, Gymserve, Mark, OpenEnvServer, eventually

FREEZE_SECONDS = 30
DOWN_SECONDS = 5
SLOW_CLOSE_SECONDS = 20
MAX_HANDSHAKES = 16
PATIENT_SECONDS = 60

NewClients = Callable[..., list[Client]]
StartGymserve = Callable[..., Gymserve]
StartServer = Callable[..., OpenEnvServer]


@pytest.fixture
def meanwhile() -> Iterator[ThreadPoolExecutor]:
    """Asked for first, so that it waits for its threads when gymserve has ended, also after a failure."""
    with ThreadPoolExecutor(max_workers=64) as threads:
        yield threads


@pytest.fixture
def go_on() -> Iterator[threading.Event]:
    """What rollouts wait for; set at the latest when the test is over."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def new_clients() -> Iterator[NewClients]:
    """``new_clients(gymserve, count)``: clients that wait for longer than any test takes, or ``timeout_seconds``."""
    with ExitStack() as stack:

        def new(gymserve: Gymserve, count: int, timeout_seconds: float = PATIENT_SECONDS) -> list[Client]:
            return [stack.enter_context(gymserve.client(timeout_seconds)) for _ in range(count)]

        yield new


@pytest.fixture
def start_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    with ExitStack() as stack:

        def start(*flags: str, capacity: int) -> OpenEnvServer:
            directory = tmp_path_factory.mktemp("busy_app")
            return stack.enter_context(OpenEnvServer("busy_app", directory, *flags, capacity=capacity))

        yield start


@pytest.fixture(scope="module")
def four_slots(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenEnvServer]:
    with OpenEnvServer("busy_app", tmp_path_factory.mktemp("busy_app"), capacity=4) as server:
        yield server


def play(client: Client, may_go_on: threading.Event | None = None) -> dict[str, Any]:
    """A whole rollout, which scores 1.5 and waits after its seed for ``may_go_on``; its verify."""
    seeded = client.seed()
    assert seeded.status_code == 200, seeded.text
    assert may_go_on is None or may_go_on.wait(PATIENT_SECONDS)
    assert client.step(reward=0.5, sleep_seconds=0.05).status_code == 200
    assert client.step(reward=1, sleep_seconds=0.05).status_code == 200
    return client.verify()


def scores(rollouts: list["Future[dict[str, Any]]"]) -> list[float]:
    """The rewards of rollouts none of which is masked."""
    verified = [rollout.result(timeout=PATIENT_SECONDS) for rollout in rollouts]
    assert [result for result in verified if "mask_sample" in result] == []
    return [result["reward"] for result in verified]


def most_alive(mark: Mark) -> int:
    """How many environments there were at one time, each from when it was built until its close was over."""
    changes = {"build": 1, "close": -1}
    alive = most = 0
    for event in mark.events():
        alive += changes.get(event, 0)
        most = max(most, alive)
    return most


def told(gymserve: Gymserve) -> tuple[int, int | None]:
    """What gymserve says of its environment server: how many slots it holds there, and how many there are."""
    [server] = gymserve.get("/gymserve/sessions").json()["servers"]
    return server["held"], server["capacity"]


def connections_to(url: str) -> set[int]:
    """The local ports of the established IPv4 connections to the server at ``url``."""
    rows = [line.split()[1:4] for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]]
    ends = [(local, remote) for local, remote, state in rows if state == "01"]
    return {_port(local) for local, remote in ends if _port(remote) == httpx.URL(url).port}


def _port(address: str) -> int:
    return int(address.partition(":")[2], 16)


def handshakes(mark: Mark) -> list[int]:
    """Their client's ports."""
    return [entry["port"] for entry in mark.entries_since() if entry["event"] == "handshake"]


def port_of_its_own() -> int:
    """A free port that stays free: it is below those that the kernel takes for connections."""
    while True:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as sock:
            if sock.connect_ex(("127.0.0.1", port)) != 0:
                return port


def test_a_frozen_server_is_waited_out_and_not_buried_under_handshakes(
    meanwhile: ThreadPoolExecutor,
    start_server: StartServer,
    start_gymserve: StartGymserve,
    new_clients: NewClients,
) -> None:
    server = start_server(capacity=32)
    gymserve = start_gymserve(server, "--connect-timeout", "2")
    [first], hasty, patient = new_clients(gymserve, 1), new_clients(gymserve, 8, 5), new_clients(gymserve, 32)
    assert play(first)["reward"] == 1.5
    eventually(lambda: connections_to(server.url) == set(), within_seconds=5)
    mark = server.mark()

    with server.frozen():
        thaws_at = time.monotonic() + FREEZE_SECONDS
        given_up = [meanwhile.submit(client.seed) for client in hasty]
        eventually(lambda: len(connections_to(server.url)) >= len(hasty), within_seconds=5)
        seeds = [meanwhile.submit(client.seed) for client in patient]
        seen = []
        while time.monotonic() < thaws_at:
            seen.append(connections_to(server.url))
            time.sleep(0.1)
        ready = gymserve.get("/gymserve/ready")
        assert (ready.status_code, ready.json()["waiting"]) == (503, 32)

    assert [seed.result(timeout=20).status_code for seed in seeds] == [200] * 32
    assert {type(seed.exception()) for seed in given_up} == {httpx.ReadTimeout}
    assert len(handshakes(mark)) == 32  # those that the hasty ones left behind have served others
    assert mark.times("refusal") == []
    assert max(len(ports.intersection(handshakes(mark))) for ports in seen) == MAX_HANDSHAKES
    assert max(len(ports.difference(handshakes(mark))) for ports in seen) == 1  # one asks for all whether it is alive
    assert told(gymserve)[0] == 32
    assert "handshake was lost" not in gymserve.log()


def test_64_rollouts_at_once_on_four_slots(
    meanwhile: ThreadPoolExecutor,
    go_on: threading.Event,
    four_slots: OpenEnvServer,
    start_gymserve: StartGymserve,
    new_clients: NewClients,
) -> None:
    mark = four_slots.mark()
    gymserve = start_gymserve(four_slots)
    rollouts = [meanwhile.submit(play, client, go_on) for client in new_clients(gymserve, 64)]
    eventually(lambda: told(gymserve) == (4, 4), within_seconds=10)  # and so no handshake is under way
    refusals = len(mark.times("refusal"))
    go_on.set()

    assert scores(rollouts) == [1.5] * 64
    assert most_alive(mark) == 4
    assert len(mark.times("refusal")) == refusals <= 2 * MAX_HANDSHAKES
    eventually(lambda: told(gymserve) == (0, 4), within_seconds=1)


def test_a_restart_costs_the_open_episodes_and_no_waiting_rollout(
    meanwhile: ThreadPoolExecutor, start_server: StartServer, start_gymserve: StartGymserve, new_clients: NewClients
) -> None:
    port = str(port_of_its_own())
    server = start_server("--port", port, capacity=2)
    gymserve = start_gymserve(server)
    interrupted = new_clients(gymserve, 2)
    for client in interrupted:
        client.seed()
        client.step(reward=1)
    waiting = [meanwhile.submit(play, client) for client in new_clients(gymserve, 6)]
    eventually(lambda: told(gymserve) == (2, 2), within_seconds=5)

    server.process.kill()
    server.process.wait()
    time.sleep(DOWN_SECONDS)
    assert [client.step().json()["error"] for client in interrupted] == ["session_lost"] * 2
    assert [rollout.done() for rollout in waiting] == [False] * 6
    start_server("--port", port, capacity=2)

    assert scores(waiting) == [1.5] * 6
    for client in interrupted:
        verified = client.verify()
        assert (verified["mask_sample"], verified["failure_kind"]) == (True, "session_lost")
        assert (verified["reward"], verified["steps"]) == (0, 1)


def test_slots_count_as_held_until_a_slow_close_is_over(
    meanwhile: ThreadPoolExecutor, four_slots: OpenEnvServer, start_gymserve: StartGymserve, new_clients: NewClients
) -> None:
    """OpenEnv frees a slot before the environment is closed, and says CLOSE afterwards."""
    mark = four_slots.mark()
    gymserve = start_gymserve(four_slots)
    seated = new_clients(gymserve, 4)
    for client in seated:
        client.seed(close_seconds=SLOW_CLOSE_SECONDS)
    following = [meanwhile.submit(play, client) for client in new_clients(gymserve, 8)]
    eventually(lambda: told(gymserve) == (4, 4), within_seconds=5)

    verified_at = time.monotonic()
    for client in seated:
        client.verify()
    assert time.monotonic() < verified_at + 2  # nobody waits for the close
    while time.monotonic() < verified_at + SLOW_CLOSE_SECONDS - 1:
        assert told(gymserve) == (4, 4)
        time.sleep(0.2)
    assert scores(following) == [1.5] * 8

    assert most_alive(mark) == 4
    assert mark.times("refusal")[-1] < verified_at
    for closed_at, built_at in zip(mark.times("close")[:4], mark.times("build")[4:8], strict=True):
        assert verified_at + SLOW_CLOSE_SECONDS <= closed_at <= built_at <= closed_at + 0.5
