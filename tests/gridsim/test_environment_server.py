"""The environment server's side of the wire, over memory streams and in virtual time."""

import logging
from collections.abc import Mapping
from typing import Any

import pytest
import trio
from counting import Counting
from environment_peer import UPGRADE, attach, connect, error_of, exchange
from trio.testing import wait_all_tasks_blocked
from trio_websocket import ConnectionRejected, wrap_client_stream

from gymserve.gridsim.environment import Environment
from gymserve.gridsim.faults import parse_fault
from gymserve.gridsim.server import EnvironmentServer
from gymserve.wire import Observation

FULL = {
    "type": "error",
    "data": {
        "message": "Server at capacity: 1/1 sessions active. Cannot accept new connections.",
        "code": "CAPACITY_REACHED",
        "active_sessions": 1,
        "max_sessions": 1,
    },
}


def episodes(active: int, opened: int, maximum: int = 1) -> dict[str, int]:
    return {"active": active, "max": maximum, "opened": opened, "closed": opened - active}


def counting(*faults: str, capacity: int = 1) -> EnvironmentServer:
    return EnvironmentServer(Counting, capacity=capacity, faults=[parse_fault(text) for text in faults])


class Odd(Environment):
    """Answers what it is told to, or raises it."""

    action_schema: Mapping[str, Any] = {"title": "OddAction", "type": "object"}
    observation_schema: Mapping[str, Any] = {"title": "OddObservation", "type": "object"}

    def reset(self, **kwargs: Any) -> Observation:
        return Observation({"metadata": {}, "kwargs": kwargs})

    def step(self, action: Mapping[str, Any]) -> Observation:
        match action:
            case {"raise": "KeyError"}:
                raise KeyError("missing thing")
            case {"raise": "nothing to say"}:
                raise RuntimeError
            case {"reward": reward}:
                return Observation({"metadata": {}}, float(reward))
            case {"metadata": metadata}:
                return Observation({"metadata": metadata})
            case _:
                return Observation({"metadata": {}, "raw": b"bytes"})


class BadGoodbye(Counting):
    def close(self) -> None:
        raise RuntimeError("the simulator would not die")


# -- room ------------------------------------------------------------------------------------------------------------


async def test_a_full_server_accepts_then_refuses_then_closes(autojump_clock: Any, nursery: trio.Nursery) -> None:
    server = counting()
    seated = await connect(nursery, server)
    turned_away = await connect(nursery, server)
    assert await turned_away.hear() == FULL
    assert await turned_away.ending() == (1000, None)
    assert server.episodes == episodes(active=1, opened=1)
    await seated.reset()
    assert trio.current_time() == 0


async def test_a_question_to_a_full_server_is_swallowed(autojump_clock: Any, nursery: trio.Nursery) -> None:
    server = counting()
    await connect(nursery, server)
    turned_away = await connect(nursery, server)
    await turned_away.say({"type": "reset"})
    assert await turned_away.hear() == FULL
    assert await turned_away.ending() == (1000, None)


async def test_a_connection_holds_a_slot_before_its_first_question(autojump_clock: Any, nursery: trio.Nursery) -> None:
    server = counting(capacity=2)
    await connect(nursery, server)
    await wait_all_tasks_blocked()
    assert server.episodes == episodes(active=1, opened=1, maximum=2)


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_server_without_room_is_refused(capacity: int) -> None:
    with pytest.raises(ValueError, match=r"^capacity must be at least 1, not"):
        EnvironmentServer(Counting, capacity=capacity)


# -- endings ---------------------------------------------------------------------------------------------------------


async def test_after_a_goodbye_the_slot_is_free_before_close_arrives(
    autojump_clock: Any, nursery: trio.Nursery
) -> None:
    server = counting("slow-close:4")
    peer = await connect(nursery, server)
    await peer.reset()
    await peer.say({"type": "close"})
    assert await peer.ending() == (1000, None)
    assert (trio.current_time(), server.episodes) == (4, episodes(active=0, opened=1))
    assert (await (await connect(nursery, server)).reset())["type"] == "observation"


async def test_a_close_frame_frees_the_slot_at_once(autojump_clock: Any, nursery: trio.Nursery) -> None:
    server = counting()
    peer = await connect(nursery, server)
    await peer.reset()
    await peer.ws.aclose()
    await wait_all_tasks_blocked()
    assert (trio.current_time(), server.episodes) == (0, episodes(active=0, opened=1))


async def test_a_dropped_connection_frees_the_slot_at_once(autojump_clock: Any, nursery: trio.Nursery) -> None:
    server = counting()
    peer = await connect(nursery, server)
    await peer.reset()
    await peer.stream.aclose()
    await wait_all_tasks_blocked()
    assert (trio.current_time(), server.episodes) == (0, episodes(active=0, opened=1))


@pytest.mark.parametrize("leave", ["close frame", "drop"])
async def test_who_leaves_during_a_step_holds_the_slot_to_its_end(
    autojump_clock: Any, nursery: trio.Nursery, leave: str
) -> None:
    server = counting("slow-step:3", "slow-close:2")
    peer = await connect(nursery, server)
    await peer.reset()
    await peer.say({"type": "step", "data": {"by": 1}})
    await trio.sleep(1)
    await (peer.ws if leave == "close frame" else peer.stream).aclose()
    assert trio.current_time() == 1  # the closing handshake was answered in the middle of the step
    await trio.sleep(3.999)
    assert server.episodes == episodes(active=1, opened=1)
    await trio.sleep(0.002)
    assert server.episodes == episodes(active=0, opened=1)


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        ("[1]", "'list' object has no attribute 'get'"),
        ('"x"', "'str' object has no attribute 'get'"),
        ("null", "'NoneType' object has no attribute 'get'"),
        (b"binary", "'text'"),
    ],
)
async def test_what_ends_a_session_is_said_and_then_closed(
    autojump_clock: Any, nursery: trio.Nursery, message: str | bytes, sentence: str
) -> None:
    server = counting()
    peer = await connect(nursery, server)
    assert error_of(await peer.ask(message)) == ("SESSION_ERROR", sentence)
    assert await peer.ending() == (1000, None)
    assert server.episodes == episodes(active=0, opened=1)


async def test_a_message_over_16_mib_is_1009(autojump_clock: Any, nursery: trio.Nursery) -> None:
    server = counting()
    peer = await connect(nursery, server)
    await peer.reset()
    await peer.say("x" * (2**24 + 1))
    assert await peer.ending() == (1009, "Exceeded maximum message size: 16777216 bytes")
    await wait_all_tasks_blocked()
    assert server.episodes == episodes(active=0, opened=1)


async def test_a_message_of_16_mib_is_taken(autojump_clock: Any, nursery: trio.Nursery) -> None:
    peer = await connect(nursery, counting())
    assert error_of(await peer.ask("x" * 2**24))[0] == "INVALID_JSON"


# -- questions -------------------------------------------------------------------------------------------------------


async def test_questions_are_answered_in_order(autojump_clock: Any, nursery: trio.Nursery) -> None:
    peer = await connect(nursery, counting("slow-step:1"))
    for message in ({"type": "reset"}, {"type": "step", "data": {"by": 2}}, {"type": "state"}, {"type": "bogus"}):
        await peer.say(message)
    assert [(await peer.hear())["type"] for _ in range(4)] == ["observation", "observation", "state", "error"]
    assert trio.current_time() == 1


async def test_state_tells_the_episode_and_its_steps(autojump_clock: Any, nursery: trio.Nursery) -> None:
    peer = await connect(nursery, counting())

    async def state() -> Any:
        return (await peer.ask({"type": "state"}))["data"]

    assert await state() == {"episode_id": None, "step_count": 0}
    await peer.reset(episode_id="ep-1")
    await peer.step({"by": 1})
    await peer.step({"by": 9})  # refused, so no step
    assert await state() == {"episode_id": "ep-1", "step_count": 1}
    await peer.reset()
    assert await state() == {"episode_id": None, "step_count": 0}


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("nonsense", ("INVALID_JSON", "Invalid JSON: Expecting value: line 1 column 1 (char 0)")),
        ({"type": "bogus"}, ("UNKNOWN_TYPE", "Unknown message type: bogus")),
        ({"type": "reset", "data": None}, ("VALIDATION_ERROR", "Invalid message")),
        ({"type": "step", "data": {"raise": "KeyError"}}, ("EXECUTION_ERROR", "'missing thing'")),
        ({"type": "step", "data": {"raise": "nothing to say"}}, ("EXECUTION_ERROR", "")),
        ({"type": "step", "data": {}}, ("EXECUTION_ERROR", "Object of type bytes is not JSON serializable")),
    ],
)
async def test_an_episode_survives_these_errors(
    autojump_clock: Any, nursery: trio.Nursery, message: Any, error: tuple[str, str]
) -> None:
    peer = await connect(nursery, EnvironmentServer(Odd, capacity=1))
    assert error_of(await peer.ask(message)) == error
    assert (await peer.reset())["type"] == "observation"


@pytest.mark.parametrize("reward", ["nan", "inf", "-inf"])
async def test_a_reward_that_json_cannot_say_is_null(autojump_clock: Any, nursery: trio.Nursery, reward: str) -> None:
    peer = await connect(nursery, EnvironmentServer(Odd, capacity=1))
    assert (await peer.step({"reward": reward}))["data"] == {
        "observation": {"metadata": {}},
        "reward": None,
        "done": False,
    }


async def test_metadata_is_said_twice(autojump_clock: Any, nursery: trio.Nursery) -> None:
    peer = await connect(nursery, EnvironmentServer(Odd, capacity=1))
    data = (await peer.step({"metadata": {"a": 1}}))["data"]
    assert (data["observation"], data["metadata"]) == ({"metadata": {"a": 1}}, {"a": 1})


async def test_a_reset_that_takes_anything_gets_everything(autojump_clock: Any, nursery: trio.Nursery) -> None:
    peer = await connect(nursery, EnvironmentServer(Odd, capacity=1))
    assert (await peer.reset(seed=1, x=[2]))["data"]["observation"]["kwargs"] == {"seed": 1, "x": [2]}


# -- the two firewalls -----------------------------------------------------------------------------------------------


async def test_a_factory_that_fails_is_told_and_costs_no_slot(
    autojump_clock: Any, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    def no_gpu() -> Environment:
        raise RuntimeError("no GPU left")

    server = EnvironmentServer(no_gpu, capacity=1)
    peer = await connect(nursery, server)
    answer = await peer.hear()
    assert error_of(answer) == ("FACTORY_ERROR", "Environment factory 'no_gpu' failed to create instance.")
    assert answer["data"]["factory_name"] == "no_gpu"
    assert await peer.ending() == (1000, None)
    assert server.episodes == episodes(active=0, opened=1)
    assert "no GPU left" in caplog.text  # the client is not told why: the log is


async def test_a_failing_connection_harms_no_other(
    autojump_clock: Any, nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    server = EnvironmentServer(BadGoodbye, capacity=2)
    doomed, other = await connect(nursery, server), await connect(nursery, server)
    await doomed.say({"type": "close"})
    assert (await doomed.ending())[0] == 1006
    assert (await other.reset())["type"] == "observation"
    assert server.episodes == episodes(active=1, opened=2, maximum=2)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert "the simulator would not die" in caplog.text


# -- keepalive -------------------------------------------------------------------------------------------------------


async def test_a_client_that_answers_pings_stays(autojump_clock: Any, nursery: trio.Nursery) -> None:
    server = counting()
    peer = await connect(nursery, server)
    await peer.reset()
    await trio.sleep(3600)
    assert (await peer.step({"by": 1}))["type"] == "observation"


async def test_a_ping_is_answered_during_a_step(autojump_clock: Any, nursery: trio.Nursery) -> None:
    peer = await connect(nursery, counting("slow-step:30"))
    await peer.say({"type": "step", "data": {"by": 1}})
    await peer.ws.ping()
    assert trio.current_time() == 0


async def test_a_silent_client_is_dropped_after_forty_seconds(autojump_clock: Any, nursery: trio.Nursery) -> None:
    server = counting()
    stream = attach(nursery, server)
    await stream.send_all(UPGRADE)
    await trio.sleep(39.999)
    assert server.episodes == episodes(active=1, opened=1)
    await trio.sleep(0.002)
    assert server.episodes == episodes(active=0, opened=1)
    received = await exchange(stream, b"")
    assert received.endswith(b"\x88\x18\x03\xf3keepalive ping timeout")  # CLOSE, 24 bytes, 1011
    assert trio.current_time() == 50  # ten seconds for a CLOSE that never came


async def test_keepalive_can_be_set_and_switched_off(autojump_clock: Any, nursery: trio.Nursery) -> None:
    server = EnvironmentServer(Counting, capacity=2, ping_interval_seconds=2, ping_timeout_seconds=3)
    await attach(nursery, server).send_all(UPGRADE)
    patient = EnvironmentServer(Counting, capacity=1, ping_interval_seconds=float("inf"))
    await attach(nursery, patient).send_all(UPGRADE)
    await trio.sleep(4.999)
    assert server.episodes["active"] == 1
    await trio.sleep(0.002)
    assert server.episodes["active"] == 0
    await trio.sleep(10_000)
    assert patient.episodes["active"] == 1


# -- the opening -----------------------------------------------------------------------------------------------------


async def test_another_path_is_403(autojump_clock: Any) -> None:
    with pytest.RaisesGroup(ConnectionRejected) as raised:
        async with trio.open_nursery() as nursery:
            stream = attach(nursery, counting())
            await wrap_client_stream(nursery, stream, "environment", "/mcp")  # type: ignore[arg-type]
    rejected = raised.value.exceptions[0]
    assert isinstance(rejected, ConnectionRejected)
    assert rejected.status_code == 403


async def test_a_question_right_behind_the_upgrade_is_answered(autojump_clock: Any, nursery: trio.Nursery) -> None:
    stream = attach(nursery, counting())
    await stream.send_all(UPGRADE + b'\x81\x90\0\0\0\0{"type":"state"}')
    await wait_all_tasks_blocked()
    received = await stream.receive_some()
    assert received.startswith(b"HTTP/1.1 101 ")
    assert received.endswith(b'{"type":"state","data":{"episode_id":null,"step_count":0}}')
    assert trio.current_time() == 0


@pytest.mark.parametrize(
    ("request_bytes", "status_line"),
    [
        (b"NONSENSE\r\n\r\n", b"HTTP/1.1 400 Bad Request\r\n"),
        (b"GET /health HTTP/1.1\r\n\r\n", b"HTTP/1.1 400 Bad Request\r\n"),  # no Host: RFC 9112 section 3.2
        (
            b"GET /health HTTP/1.1\r\nHost: e\r\nX: " + b"x" * 2**16,
            b"HTTP/1.1 431 Request Header Fields Too Large\r\n",
        ),
        (UPGRADE.replace(b"Sec-WebSocket-Key", b"X"), b"HTTP/1.1 400 \r\n"),
    ],
)
async def test_a_bad_request_is_answered(
    autojump_clock: Any, nursery: trio.Nursery, request_bytes: bytes, status_line: bytes
) -> None:
    server = counting()
    stream = attach(nursery, server)
    assert (await exchange(stream, request_bytes)).startswith(status_line)
    assert server.episodes == episodes(active=0, opened=0)


async def test_a_request_that_never_comes_is_awaited_ten_seconds(autojump_clock: Any, nursery: trio.Nursery) -> None:
    stream = attach(nursery, counting())
    assert await exchange(stream, b"GET /health HTTP/1.1\r\n") == b""
    assert trio.current_time() == 10
