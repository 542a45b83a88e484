"""Seeds whose answer nobody got: at which moment their sessions are released, and which are kept."""

from collections.abc import Mapping
from typing import Any

import pytest
import trio
from counting import Counting
from stage import Client, Stage, raise_the_curtain, slow_pair, typed_seed
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from gymserve.gridsim.faults import parse_fault
from gymserve.gridsim.server import EnvironmentServer

STALL_SECONDS = 60  # for which the connection bears a client that takes nothing
SEEDS = ["/seed_session", "/reset", "/ng-rollout/0-1/seed_session", "/ng-rollout/0-1/reset"]
REASON = "the answer to its seed could not be delivered"
HUNG_UP = "the client hung up before its seed was answered"


def server(*faults: str, capacity: int = 1) -> EnvironmentServer:
    return EnvironmentServer(Counting, capacity=capacity, faults=[parse_fault(fault) for fault in faults])


async def states(stage: Stage) -> list[str]:
    await wait_all_tasks_blocked()
    return [session["state"] for session in (await stage.listing())["sessions"]]


async def stop_reading(client: Client) -> None:
    """What is sent to it fails from now on, and it says nothing."""
    assert client.peer is not None
    await client.peer.stream.receive_stream.aclose()


def endings(logs: list[Any]) -> list[tuple[str, str]]:
    """How and why each session ended, but for those that the end of a test ends."""
    ended: list[Mapping[str, str]] = [line for line in logs if line["event"] == "session ended"]
    return [(line["ending"], line["reason"]) for line in ended if line["ending"] != "shutdown"]


@pytest.mark.parametrize("path", SEEDS)
async def test_a_client_that_no_longer_reads_leaves_no_session(autojump_clock, path):
    with capture_logs() as logs:
        async with raise_the_curtain(server("slow-reset:5")) as stage:
            client = stage.client()
            await client.send("POST", path, {})
            await trio.sleep(4)
            await stop_reading(client)
            assert await states(stage) == ["opening"]  # nobody can know yet
            await trio.sleep(1)
            assert (await states(stage), stage.episodes) == ([], {"active": 0, "max": 1, "opened": 1, "closed": 1})
            assert (trio.current_time(), stage.opener.line.held) == (5, 0)
    assert endings(logs) == [("closed by the client", REASON)]


@pytest.mark.parametrize("path", SEEDS)
async def test_a_client_that_hangs_up_while_the_answer_is_on_its_way_leaves_no_session(autojump_clock, path):
    with capture_logs() as logs:
        async with raise_the_curtain(server("slow-reset:5")) as stage:
            client = stage.client(pair=slow_pair(4))
            await client.send("POST", path, {})
            await trio.sleep_until(7)
            await client.hang_up()
            assert await states(stage) == ["idle"]  # the answer may arrive all the same
            await trio.sleep_until(9)
            assert (await states(stage), stage.episodes["active"], trio.current_time()) == ([], 0, 9)
    assert endings(logs) == [("closed by the client", REASON)]


async def test_a_client_that_takes_nothing_leaves_no_session_when_it_is_given_up(autojump_clock):
    async with raise_the_curtain(server()) as stage:
        client = stage.client(pair=slow_pair(1000))
        await client.send("POST", "/seed_session", {})
        await trio.sleep(STALL_SECONDS - 1e-6)
        assert await states(stage) == ["idle"]
        await trio.sleep_until(STALL_SECONDS + 1)
        assert (await states(stage), stage.episodes["active"]) == ([], 0)


async def test_a_client_that_hangs_up_before_its_seed_is_opened_leaves_no_session(autojump_clock):
    with capture_logs() as logs:
        async with raise_the_curtain(server("slow-reset:5")) as stage:
            client = stage.client()
            await client.send("POST", "/reset", {})
            await trio.sleep(2)
            await client.hang_up()
            assert (await states(stage), stage.opener.line.held) == ([], 0)
    assert endings(logs) == [("closed by the client", HUNG_UP)]


async def test_clients_that_hang_up_in_the_moment_of_the_opening_leave_no_session(autojump_clock):
    """Whichever comes first then: what wakes at one time is run in no order."""
    with capture_logs() as logs:
        async with raise_the_curtain(server("slow-reset:5", capacity=20)) as stage:
            for _ in range(20):
                client = stage.client()
                await client.send("POST", "/seed_session", {"reset_kwargs": {"seed": 1}})
                stage.nursery.start_soon(hang_up_at, client, 5)
            await trio.sleep(5)
            assert (await states(stage), stage.episodes["active"], trio.current_time()) == ([], 0, 5)
    assert len(endings(logs)) == 20
    assert set(endings(logs)) <= {("closed by the client", reason) for reason in (REASON, HUNG_UP)}


async def hang_up_at(client: Client, at: float) -> None:
    await trio.sleep_until(at)
    await client.hang_up()


@pytest.mark.parametrize("path", SEEDS)
async def test_a_client_that_leaves_with_its_answer_keeps_its_session(autojump_clock, path):
    """As verifiers does, with a connection for each request."""
    async with raise_the_curtain(server("slow-reset:5"), idle_timeout_seconds=100) as stage:
        client = stage.client()
        assert (await client.ask("POST", path, {})).status == 200
        await client.hang_up()
        await trio.sleep_until(105 - 1e-6)
        assert await states(stage) == ["idle"]
        assert (await client.step(1)).body["count"] == 1


async def test_a_client_that_closes_only_its_own_side_while_the_answer_is_on_its_way_gets_it(autojump_clock):
    async with raise_the_curtain(server("slow-reset:5")) as stage:
        client = stage.client(pair=slow_pair(4))
        await client.send("POST", "/seed_session", {})
        await trio.sleep_until(7)
        assert client.peer is not None
        await client.peer.stream.send_eof()
        assert (await client.answer()).status == 200 and trio.current_time() == 9
        assert await states(stage) == ["idle"]


async def test_a_named_session_waits_for_its_client_to_come_back(autojump_clock):
    async with raise_the_curtain(server("slow-reset:5", capacity=2), idle_timeout_seconds=100) as stage:
        deaf, gone = stage.client(), stage.client(pair=slow_pair(4))
        await deaf.send("POST", "/seed_session", typed_seed("deaf"))
        await gone.send("POST", "/seed_session", typed_seed("gone"))
        await trio.sleep_until(4)
        await stop_reading(deaf)
        await trio.sleep_until(7)
        await gone.hang_up()
        await trio.sleep_until(105 - 1e-6)
        assert await states(stage) == ["idle", "idle"]
        back = stage.client()
        assert (await back.seed(typed_seed("gone"))).status == 200
        await trio.sleep_until(105)
        assert await states(stage) == ["idle"]
        assert (await back.step(1)).body["count"] == 1


async def test_an_interim_answer_finds_out_that_a_client_is_gone(autojump_clock):
    async with raise_the_curtain(server("slow-reset:40", capacity=2)) as stage:
        client, named = stage.client(), stage.client()
        await client.send("POST", "/seed_session", {})
        await named.send("POST", "/seed_session", typed_seed("named"))
        await trio.sleep(1)
        await stop_reading(client)
        await stop_reading(named)
        assert await states(stage) == ["opening", "opening"]
        await trio.sleep_until(15)
        assert (await states(stage), trio.current_time()) == (["opening"], 15)
        assert (await named.seed(typed_seed("named"))).status == 200 and trio.current_time() == 40


async def test_an_error_in_answer_to_a_seed_that_nobody_gets_ends_nothing(autojump_clock):
    async with raise_the_curtain(server(), patience_seconds=5) as stage:
        holder, client = stage.client(), stage.client()
        await holder.seed()
        await client.send("POST", "/seed_session", {})
        await trio.sleep(4)
        await stop_reading(client)
        await trio.sleep(2)
        assert await states(stage) == ["idle"]
        assert (await holder.step(1)).body["count"] == 1


async def test_only_its_own_answer_decides_for_a_session(autojump_clock):
    """An undelivered answer to a step says nothing of the seed."""
    async with raise_the_curtain(server("slow-step:5")) as stage:
        client = stage.client()
        await client.seed()
        await client.send("POST", "/step", {"by": 1})
        await trio.sleep(1)
        await stop_reading(client)
        await trio.sleep_until(6)
        assert await states(stage) == ["idle"]
        assert (await client.step(1)).body["count"] == 2
