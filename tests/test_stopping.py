"""What the log says when gymserve stops: one line when it begins, one when all is over, in virtual time; and of a
process.
"""

import json
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from counting import Counting
from processes import Rollout, running
from stage import raise_the_curtain
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from gymserve.cli.process import first_of
from gymserve.cli.stopping import Stopping
from gymserve.gridsim.faults import parse_fault
from gymserve.gridsim.server import EnvironmentServer

EXIT_SECONDS = 10.0


def counting(capacity: int = 8, *faults: str) -> EnvironmentServer:
    return EnvironmentServer(Counting, capacity=capacity, faults=[parse_fault(fault) for fault in faults])


def at(seconds: float, why: str) -> Callable[[], Awaitable[str]]:
    async def until() -> str:
        await trio.sleep_until(seconds)
        return why

    return until


def told(logs: list[Any]) -> list[dict[str, Any]]:
    return [dict(line) for line in logs if line["event"].startswith("gymserve ")]


async def test_one_line_at_the_signal_and_one_at_the_end(autojump_clock):
    with capture_logs() as logs:
        async with raise_the_curtain(counting(4, "slow-step:2")) as stage:
            stopping = Stopping(stage.gateway, grace_seconds=3)
            clients = [stage.client() for _ in range(4)]
            for client in clients:
                await client.seed()
            await clients[0].verify()
            await trio.sleep_until(9)
            await clients[1].send("POST", "/step", {"by": 1})
            await stopping.begun(at(10, "SIGTERM"))
            [line] = told(logs)
            assert line == {
                "event": "gymserve stops",
                "log_level": "info",
                "reason": "SIGTERM",
                "sessions": 3,
                "grace_seconds": 3,
            }
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stage.gateway.drain, 3)
                assert (await clients[1].answer()).status == 200
            assert trio.current_time() == 11
            await wait_all_tasks_blocked()
        stopping.tell_end()
    assert told(logs)[1:] == [{"event": "gymserve has stopped", "log_level": "info", "cut_short": 3, "took_seconds": 1}]


async def test_a_rollout_that_is_verified_in_the_grace_was_not_cut_short(autojump_clock):
    with capture_logs() as logs:
        async with raise_the_curtain(counting(4, "slow-step:2")) as stage:
            stopping = Stopping(stage.gateway, grace_seconds=3)
            clients = [stage.client() for _ in range(2)]
            for client in clients:
                await client.seed()
            await clients[0].send("POST", "/step", {"by": 1})
            await wait_all_tasks_blocked()
            await stopping.begun(at(1, "SIGINT"))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stage.gateway.drain, 3)
                await wait_all_tasks_blocked()
                assert "mask_sample" not in (await clients[1].verify()).body
        stopping.tell_end()
    assert [line.get("cut_short") for line in told(logs)] == [None, 1]


async def test_a_drain_that_is_over_is_told_as_one(autojump_clock):
    async with raise_the_curtain(counting()) as stage:
        stopping = Stopping(stage.gateway, grace_seconds=3)
        client = stage.client()
        await client.seed()
        with capture_logs() as logs:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stopping.begun, trio.sleep_forever)
                await trio.sleep(5)
                stage.gateway.hold_seeds(100)
                await trio.sleep(5)
                assert told(logs) == []
                await client.verify()
            stopping.tell_end()
    assert [(line["event"], line.get("reason"), line.get("sessions")) for line in told(logs)] == [
        ("gymserve stops", "drained", 0),
        ("gymserve has stopped", None, None),
    ]


async def test_what_never_began_to_stop_has_not_stopped(autojump_clock):
    async with raise_the_curtain(counting()) as stage:
        stopping = Stopping(stage.gateway, grace_seconds=3)
        with capture_logs() as logs:
            stopping.tell_end()
    assert told(logs) == []


async def test_the_first_of_several_waits_is_told(autojump_clock):
    assert await first_of(at(7, "late"), at(3, "early"), trio.sleep_forever) == "early"
    assert trio.current_time() == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_process_tells_which_signal_it_was(number: signal.Signals) -> None:
    with running("serve", "--log-format", "json", "--grace", "2") as server:
        assert (await Rollout(server.url).seed()).status_code == 200
        server.send(number)
        assert await server.exit_status(within_seconds=EXIT_SECONDS) == 0
        lines = [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]
    began, ended = [line for line in lines if line["event"].startswith("gymserve ")]
    assert (began["reason"], began["sessions"], began["grace_seconds"], began["level"]) == (number.name, 1, 2, "info")
    assert (ended["cut_short"], ended["level"]) == (1, "info") and 0 <= ended["took_seconds"] < 2
    assert lines[-1] == ended
