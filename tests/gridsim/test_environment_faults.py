"""What each fault does, to the millisecond, and how they are written."""

from collections.abc import Sequence
from typing import Any

import pytest
import trio
from counting import Counting
from environment_peer import UPGRADE, attach, connect, error_of, exchange
from trio.testing import wait_all_tasks_blocked
from trio_websocket import ConnectionClosed

from gymserve.gridsim.faults import ACCEPTED_FAULTS, Fault, parse_fault
from gymserve.gridsim.server import EnvironmentServer

ABANDONED = b"\x88\x82\0\0\0\0\x03\xe8"  # a CLOSE 1000


def counting(*faults: str, capacity: int = 1) -> EnvironmentServer:
    return EnvironmentServer(Counting, capacity=capacity, faults=[parse_fault(text) for text in faults])


async def test_full_refuses_every_opening(autojump_clock: Any, nursery: trio.Nursery) -> None:
    server = counting("full", capacity=3)
    for _ in range(2):
        peer = await connect(nursery, server)
        answer = await peer.hear()
        assert answer["data"] == {
            "message": "Server at capacity: 3/3 sessions active. Cannot accept new connections.",
            "code": "CAPACITY_REACHED",
            "active_sessions": 3,
            "max_sessions": 3,
        }
        assert await peer.ending() == (1000, None)
    assert server.episodes == {"active": 0, "max": 3, "opened": 0, "closed": 0}


async def test_slow_handshake_delays_the_upgrade_alone(autojump_clock: Any, nursery: trio.Nursery) -> None:
    server = counting("slow-handshake:2.5")
    assert (await exchange(attach(nursery, server), b"GET /health HTTP/1.1\r\nHost: e\r\n\r\n")).startswith(
        b"HTTP/1.1 200 OK\r\n"
    )
    before = trio.current_time()
    await (await connect(nursery, server)).reset()
    assert trio.current_time() - before == 2.5


async def test_an_abandoned_slow_handshake_takes_and_frees_a_slot(autojump_clock: Any, nursery: trio.Nursery) -> None:
    server = counting("slow-handshake:2", "slow-close:1")
    await attach(nursery, server).send_all(UPGRADE + ABANDONED)
    await trio.sleep(2.5)
    assert server.episodes == {"active": 1, "max": 1, "opened": 1, "closed": 0}
    await trio.sleep(0.501)
    assert server.episodes == {"active": 0, "max": 1, "opened": 1, "closed": 1}


async def test_silent_handshake_answers_nothing_at_all_for_a_while(autojump_clock: Any, nursery: trio.Nursery) -> None:
    server = counting("silent-handshake:30")
    health = attach(nursery, server)
    await health.send_all(b"GET /health HTTP/1.1\r\nHost: e\r\n\r\n")
    with trio.move_on_after(29.999):
        raise AssertionError(await health.receive_some())
    assert (await health.receive_some()).startswith(b"HTTP/1.1 200 OK\r\n")
    assert trio.current_time() == 30
    await (await connect(nursery, server)).reset()
    assert trio.current_time() == 60


async def test_slow_reset(autojump_clock: Any, nursery: trio.Nursery) -> None:
    peer = await connect(nursery, counting("slow-reset:4"))
    await peer.reset()
    await peer.step({"by": 1})
    assert trio.current_time() == 4
    await peer.reset()
    assert trio.current_time() == 8


async def test_failed_reset_fails_the_first_of_the_server(autojump_clock: Any, nursery: trio.Nursery) -> None:
    server = counting("failed-reset:2", capacity=2)
    first, second = await connect(nursery, server), await connect(nursery, server)
    failure = ("EXECUTION_ERROR", "this reset was told to fail")
    assert error_of(await first.reset()) == failure
    assert error_of(await second.reset()) == failure
    assert (await second.reset())["type"] == (await first.reset())["type"] == "observation"


async def test_slow_step(autojump_clock: Any, nursery: trio.Nursery) -> None:
    peer = await connect(nursery, counting("slow-step:90"))
    await peer.reset()
    assert trio.current_time() == 0
    await peer.step({"by": 1})
    await peer.step({"by": 1})
    assert trio.current_time() == 180


async def test_slow_close_holds_the_slot(autojump_clock: Any, nursery: trio.Nursery) -> None:
    server = counting("slow-close:7")
    peer = await connect(nursery, server)
    await peer.ws.aclose()
    await trio.sleep(6.999)
    assert server.episodes["active"] == 1
    await trio.sleep(0.002)
    assert server.episodes["active"] == 0


async def test_slow_close_does_not_outlast_the_server(autojump_clock: Any) -> None:
    closed_at = []

    class Watched(Counting):
        def close(self) -> None:
            closed_at.append(trio.current_time())

    server = EnvironmentServer(Watched, capacity=1, faults=[parse_fault("slow-close:100")])
    async with trio.open_nursery() as nursery:
        peer = await connect(nursery, server)
        await peer.ws.aclose()
        await trio.sleep(5)
        nursery.cancel_scope.cancel()
    assert closed_at == [5]


async def test_drop_mid_step_drops_the_connection_of_each_episode(autojump_clock: Any, nursery: trio.Nursery) -> None:
    server = counting("drop-mid-step:2", "slow-step:3")
    for _ in range(2):
        began = trio.current_time()
        peer = await connect(nursery, server)
        await peer.reset()
        assert (await peer.step({"by": 1}))["type"] == "observation"
        await peer.say({"type": "step", "data": {"by": 1}})
        assert await peer.ending() == (1006, None)
        assert trio.current_time() - began == 6
        await wait_all_tasks_blocked()
    assert server.episodes == {"active": 0, "max": 1, "opened": 2, "closed": 2}


async def test_a_refused_action_is_no_step_to_drop(autojump_clock: Any, nursery: trio.Nursery) -> None:
    peer = await connect(nursery, counting("drop-mid-step:1"))
    await peer.reset()
    assert error_of(await peer.step({"by": 9}))[0] == "VALIDATION_ERROR"
    await peer.say({"type": "step", "data": {"by": 1}})
    assert await peer.ending() == (1006, None)


async def test_drop_mid_step_counts_the_steps_of_an_episode(autojump_clock: Any, nursery: trio.Nursery) -> None:
    peer = await connect(nursery, counting("drop-mid-step:2"))
    for _ in range(3):
        await peer.reset()
        await peer.step({"by": 1})
    await peer.say({"type": "step", "data": {"by": 1}})
    with pytest.raises(ConnectionClosed):
        await peer.hear()


async def test_garbage_replaces_one_answer_of_each_connection(autojump_clock: Any, nursery: trio.Nursery) -> None:
    server = counting("garbage:2", capacity=2)
    for _ in range(2):
        peer = await connect(nursery, server)
        await peer.reset()
        await peer.say({"type": "step", "data": {"by": 2}})
        assert await peer.ws.get_message() == "<html>502 Bad Gateway</html>"
        assert (await peer.step({"by": 1}))["data"]["observation"]["count"] == 3  # the garbled step was taken


async def test_faults_combine(autojump_clock: Any, nursery: trio.Nursery) -> None:
    peer = await connect(nursery, counting("slow-handshake:1", "slow-reset:2", "slow-step:3"))
    await peer.reset()
    await peer.step({"by": 1})
    assert trio.current_time() == 6


# -- how they are written --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("full", Fault("full")),
        ("slow-handshake:2", Fault("slow-handshake", 2)),
        ("silent-handshake:0.5", Fault("silent-handshake", 0.5)),
        ("slow-reset:0", Fault("slow-reset", 0)),
        ("slow-step:1e2", Fault("slow-step", 100)),
        ("slow-close:3", Fault("slow-close", 3)),
        ("failed-reset:1", Fault("failed-reset", 1)),
        ("drop-mid-step:7", Fault("drop-mid-step", 7)),
        ("garbage:3", Fault("garbage", 3)),
    ],
)
def test_a_fault_is_read(text: str, fault: Fault) -> None:
    assert parse_fault(text) == fault
    assert parse_fault(str(fault)) == fault


@pytest.mark.parametrize("name", ["slow-handshake", "silent-handshake", "slow-reset", "slow-step", "slow-close"])
@pytest.mark.parametrize("value", ["", ":", ":-1", ":nan", ":inf", ":soon"])
def test_seconds_are_finite_and_not_negative(name: str, value: str) -> None:
    with pytest.raises(ValueError) as raised:
        parse_fault(name + value)
    assert str(raised.value) == (
        f"fault {name!r} needs seconds, finite and at least 0, as in {name}:2.5, not {value[1:]!r}"
    )


@pytest.mark.parametrize("name", ["failed-reset", "drop-mid-step", "garbage"])
@pytest.mark.parametrize("value", ["", ":", ":0", ":-1", ":1.5", ":one", ":9999999999"])
def test_counts_are_at_least_one(name: str, value: str) -> None:
    with pytest.raises(ValueError) as raised:
        parse_fault(name + value)
    assert str(raised.value) == (
        f"fault {name!r} needs a count, an integer of at least 1, as in {name}:1, not {value[1:]!r}"
    )


@pytest.mark.parametrize("text", ["", "slow", "Full", "slow-handshakes:1", " full"])
def test_an_unknown_fault_names_the_known(text: str) -> None:
    with pytest.raises(ValueError) as raised:
        parse_fault(text)
    assert str(raised.value) == f"there is no fault {text.partition(':')[0]!r}; accepted: {ACCEPTED_FAULTS}"
    assert ACCEPTED_FAULTS == (
        "full, slow-handshake:SECONDS, silent-handshake:SECONDS, slow-reset:SECONDS, slow-step:SECONDS, "
        "slow-close:SECONDS, failed-reset:COUNT, drop-mid-step:COUNT, garbage:COUNT"
    )


def test_full_takes_no_value() -> None:
    with pytest.raises(ValueError, match=r"^fault 'full' takes no value$"):
        parse_fault("full:1")


@pytest.mark.parametrize("faults", [("full", "full"), ("slow-step:1", "full", "slow-step:2")])
def test_a_fault_is_given_once(faults: Sequence[str]) -> None:
    with pytest.raises(ValueError) as raised:
        counting(*faults)
    assert str(raised.value) == f"fault '{faults[0].partition(':')[0]}' is given twice"
