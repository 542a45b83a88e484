"""Stopping in virtual time: what each phase answers, and that every episode gets its goodbye."""

from typing import Any

import trio
from counting import Counting
from scripted import ScriptedServer, agreeable
from stage import Stage, raise_the_curtain
from trio.testing import wait_all_tasks_blocked

from gymserve.gridsim.faults import parse_fault
from gymserve.gridsim.server import EnvironmentServer

GRACE_SECONDS = 3


def server(capacity: int, *faults: str) -> EnvironmentServer:
    return EnvironmentServer(Counting, capacity=capacity, faults=[parse_fault(fault) for fault in faults])


async def drained_at(stage: Stage) -> float:
    await stage.gateway.drain(GRACE_SECONDS)
    return trio.current_time()


async def test_with_idle_sessions_only_it_is_over_at_once(autojump_clock):
    environment = ScriptedServer()
    async with raise_the_curtain(environment) as stage:
        clients = [stage.client() for _ in range(3)]
        for client in clients:
            await client.seed()
        await trio.sleep(5)
        assert await drained_at(stage) == 5
        await wait_all_tasks_blocked()
        assert environment.times("close") == [5, 5, 5]
        assert (await clients[0].call("step", {})).body["error"] == "session_closed"
        masked = await clients[0].verify()
        assert (masked.status, masked.body["mask_sample"], masked.body["failure_kind"]) == (200, True, "shutdown")


async def test_waiting_seeds_and_new_ones_are_refused_and_calls_in_flight_finish(autojump_clock):
    async with raise_the_curtain(server(1, "slow-step:2")) as stage:
        busy, waiting, late = (stage.client() for _ in range(3))
        await busy.seed()
        await waiting.send("POST", "/seed_session", {})
        await trio.sleep(10)
        await busy.send("POST", "/step", {"by": 3})
        await wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.gateway.drain, GRACE_SECONDS)
            refused = await waiting.answer()
            assert (refused.status, refused.body["error"], trio.current_time()) == (503, "shutting_down", 10)
            assert int(refused.headers[b"retry-after"]) > 0 and b"set-cookie" in refused.headers
            assert (await late.seed()).body["error"] == "shutting_down"
            assert (await busy.answer()).body["count"] == 3 and trio.current_time() == 12
        assert trio.current_time() == 12  # nothing is in flight: the rest of the grace is not waited for
        await wait_all_tasks_blocked()
        assert stage.episodes["active"] == 0


async def test_a_call_longer_than_the_grace_is_answered_at_its_end(autojump_clock):
    async def script(message: dict[str, Any]) -> Any:
        return None if message["type"] == "step" else await agreeable(message)

    environment = ScriptedServer(script)
    async with raise_the_curtain(environment) as stage:
        client = stage.client()
        await client.seed()
        await client.send("POST", "/step", {})
        await wait_all_tasks_blocked()
        assert await drained_at(stage) == GRACE_SECONDS
        cut = await client.answer()
        assert (cut.status, cut.body["error"], trio.current_time()) == (410, "session_closed", GRACE_SECONDS)
        await wait_all_tasks_blocked()
        assert environment.closed_at == [(GRACE_SECONDS, 1000)]
        assert (await client.verify()).body["failure_kind"] == "shutdown"


async def test_a_seed_that_is_being_opened_is_refused_and_its_place_given_back(autojump_clock):
    async with raise_the_curtain(server(2, "slow-reset:60")) as stage:
        client = stage.client()
        await client.send("POST", "/seed_session", {})
        await trio.sleep(5)
        assert await drained_at(stage) == 5
        refused = await client.answer()
        assert (refused.status, refused.body["error"], trio.current_time()) == (503, "shutting_down", 5)
        assert stage.opener.line.held == 0


async def test_a_score_survives_until_the_very_end(autojump_clock):
    async with raise_the_curtain(server(1)) as stage:
        client = stage.client()
        await client.seed({"reset_kwargs": {"target": 2}})
        await client.step(2)
        await stage.gateway.drain(GRACE_SECONDS)
        assert (await client.verify()).body["reward"] == 1.0


async def test_leaving_the_gateway_says_goodbye_and_is_bounded_against_a_mute_server(autojump_clock):
    async with raise_the_curtain(server(4, "slow-close:1000")) as stage:
        for _ in range(4):
            await stage.client().seed()
        await trio.sleep(7)
    assert 8 <= trio.current_time() <= 9
