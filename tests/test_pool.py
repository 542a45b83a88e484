"""A whole gymserve before several environment servers, in virtual time: where rollouts go, and what becomes of them
when servers stop, die, come back, are drained and added.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from counting import Counting
from scripted import ScriptedServer, agreeable, observed, refused
from stage import ADDRESS, COOKIE, Client, Stage, raise_the_curtain
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from gymserve.address import parse_address
from gymserve.errors import NoSuchServer
from gymserve.gridsim.faults import parse_fault
from gymserve.gridsim.http import HttpConnection
from gymserve.gridsim.server import EnvironmentServer
from gymserve.shares import parse_share

A, B, C = ADDRESS, parse_address("b:8000"), parse_address("c:8000")
NAMES = {str(A): "a", str(B): "b", str(C): "c"}


def counting(capacity: int = 1, *faults: str) -> EnvironmentServer:
    return EnvironmentServer(Counting, capacity=capacity, faults=[parse_fault(fault) for fault in faults])


async def forbids(connection: HttpConnection, stream: trio.abc.Stream) -> bool:
    await connection.answer(403, {})
    return False


async def says_1008(message: dict[str, Any]) -> int:
    return 1008


@asynccontextmanager
async def stage_of(*servers: Any, slots: Sequence[int | None] = (), **how: Any) -> AsyncIterator[Stage]:
    """A stage before servers a, b, c; ``slots`` are their limits."""
    async with raise_the_curtain(servers[0], **how) as stage:
        for address, server in zip((A, B, C), servers, strict=False):
            stage.network.servers[address] = server
        for address, limit in zip((A, B, C)[: len(servers)], [*slots, None, None, None], strict=False):
            stage.opener.pool.add(address, slots=limit)
        yield stage


class Run:
    """Rollouts: where each was opened and when, and what its verify said."""

    def __init__(self, stage: Stage, nursery: trio.Nursery) -> None:
        self._stage = stage
        self._nursery = nursery
        self.opened: list[tuple[str, str, float]] = []
        self.failed: list[tuple[str, int, float]] = []
        self.results: dict[str, Any] = {}

    async def start(self, *names: str, stay_seconds: float = 1000.0, label: str = "run") -> None:
        for name in names:
            self._nursery.start_soon(self._play, name, stay_seconds, label)
            await wait_all_tasks_blocked()

    async def _play(self, name: str, stay_seconds: float, label: str) -> None:
        client = self._stage.client()
        seeded = await client.seed({"gymserve_label": label, "name": name})
        if seeded.status == 200:
            self.opened.append((name, self._where(client), round(trio.current_time(), 6)))
            await trio.sleep(stay_seconds)
            await client.step(1)
        else:
            self.failed.append((name, seeded.status, round(trio.current_time(), 6)))
        self.results[name] = (await client.verify()).body

    def _where(self, client: Client) -> str:
        session_id = COOKIE.session_id(client.cookies[COOKIE.name])
        assert session_id is not None
        [env] = [session.env for session in self._stage.gateway.all_sessions() if session.id == session_id]
        return NAMES[str(env)]

    @property
    def masked(self) -> list[str]:
        return sorted(name for name, result in self.results.items() if "mask_sample" in result)


def held(stage: Stage) -> dict[str, int]:
    return {NAMES[str(door.address)]: door.gate.held for door in stage.opener.pool.doors}


def states(stage: Stage) -> dict[str, str]:
    return {NAMES[str(door.address)]: door.state for door in stage.opener.pool.doors}


# -- where rollouts go -----------------------------------------------------------------------------------------------


async def test_rollouts_are_spread_over_the_servers_and_the_listing_shows_it(autojump_clock):
    async with (
        stage_of(counting(4), counting(4), counting(4), slots=[None, 3]) as stage,
        trio.open_nursery() as nursery,
    ):
        run = Run(stage, nursery)
        await run.start(*"12345")  # b's slots are known to be free
        assert [server for _, server, _ in run.opened] == ["b", "b", "b", "a", "c"]
        listing = await stage.listing()
        assert listing["servers"] == [
            {"url": "http://environment:8000", "held": 1, "capacity": None, "state": "ready"},
            {"url": "http://b:8000", "held": 3, "capacity": 3, "state": "full"},
            {"url": "http://c:8000", "held": 1, "capacity": None, "state": "ready"},
        ]
        assert sorted(NAMES[session["env"]] for session in listing["sessions"]) == ["a", "b", "b", "b", "c"]
        nursery.cancel_scope.cancel()


async def test_whoever_is_next_gets_the_first_slot_anywhere(autojump_clock):
    async with stage_of(counting(1), counting(1)) as stage, trio.open_nursery() as nursery:
        run = Run(stage, nursery)
        await run.start("on a", stay_seconds=9)
        await run.start("on b", stay_seconds=4)
        await run.start("1", "2", "3", stay_seconds=10)
        await trio.sleep(50)
        assert run.opened[2:] == [("1", "b", 4), ("2", "a", 9), ("3", "b", 14)]
        assert (run.masked, held(stage)) == ([], {"a": 0, "b": 0})


async def test_a_limit_is_never_exceeded(autojump_clock):
    servers = counting(8), counting(8)
    async with stage_of(*servers, slots=[2, 3]) as stage, trio.open_nursery() as nursery:
        run = Run(stage, nursery)
        await run.start(*"12345678", stay_seconds=100)
        await trio.sleep(90)
        assert [server.episodes["max"] for server in servers] == [8, 8]
        assert [server.episodes["active"] for server in servers] == [2, 3]
        await trio.sleep(50)
        assert sorted(at for _, _, at in run.opened) == [0] * 5 + [100] * 3
        nursery.cancel_scope.cancel()


async def test_a_reserve_is_kept_on_a_pool_and_a_max_holds(autojump_clock):
    shares = [parse_share("eval*=reserve:4"), parse_share("train=max:3")]
    async with stage_of(counting(4), counting(4), slots=[4, 4], shares=shares) as stage, trio.open_nursery() as nursery:
        run = Run(stage, nursery)
        await run.start(*["train"] * 6, label="train")
        await run.start(*["other"] * 3, label="other")
        assert held(stage) == {"a": 2, "b": 2}
        await trio.sleep(100)
        await run.start(*["eval"] * 5, label="eval-final")
        assert [(name, at) for name, _, at in run.opened] == [("train", 0)] * 3 + [("other", 0)] + [("eval", 100)] * 4
        assert stage.gateway.waiting == 3 + 2 + 1
        nursery.cancel_scope.cancel()


async def test_why_a_session_waits_below_a_max_is_said(autojump_clock):
    shares = [parse_share("train=max:1")]
    with capture_logs() as logs:
        async with stage_of(counting(4), shares=shares) as stage, trio.open_nursery() as nursery:
            await Run(stage, nursery).start("1", "2", label="train")
            nursery.cancel_scope.cancel()
    [line] = [line for line in logs if line["event"] == "session waits"]
    assert (line["place"], line["reason"]) == (1, "its label's share of the slots is held")


# -- servers that stop -----------------------------------------------------------------------------------------------


async def test_a_stopped_server_is_waited_for_a_second_where_another_has_room(autojump_clock):
    stopped, well = ScriptedServer(), ScriptedServer()
    async with stage_of(stopped, well) as stage, trio.open_nursery() as nursery:
        run = Run(stage, nursery)
        await run.start("1", "2", stay_seconds=5)
        await trio.sleep_until(10)
        stopped.freeze()
        await run.start("3", "4")
        await trio.sleep_until(20)
        await run.start("5")
        # The fourth's knock is answered first, and serves the third; only the slow one is left for the fourth.
        assert run.opened[2:] == [("3", "b", 10), ("4", "b", 11), ("5", "b", 20)]
        stopped.thaw()
        await wait_all_tasks_blocked()
        assert (stopped.knocked, len(stopped.times("close"))) == ([0, 10], 2)
        nursery.cancel_scope.cancel()


async def test_a_server_that_is_stopped_from_the_beginning_is_waited_for_a_second_too(autojump_clock):
    stopped, well = ScriptedServer(), ScriptedServer()
    stopped.freeze()
    async with stage_of(stopped, well) as stage, trio.open_nursery() as nursery:
        run = Run(stage, nursery)
        await run.start("1")
        await trio.sleep_until(2)
        await run.start("2", "3")
        assert run.opened == [("1", "b", 1), ("2", "b", 2), ("3", "b", 2)]
        nursery.cancel_scope.cancel()


async def test_one_stopped_server_gets_no_second_handshake(autojump_clock):
    stopped = ScriptedServer()
    async with stage_of(stopped) as stage, trio.open_nursery() as nursery:
        run = Run(stage, nursery)
        await run.start("1", stay_seconds=5)
        await trio.sleep_until(10)
        stopped.freeze()
        await run.start("2")
        await trio.sleep_until(300)
        stopped.thaw()
        await wait_all_tasks_blocked()
        assert (stopped.knocked, run.opened[1:]) == ([0, 10], [("2", "a", 300)])
        nursery.cancel_scope.cancel()


# -- servers that die and come back ----------------------------------------------------------------------------------


async def test_a_killed_server_loses_its_own_sessions_only_and_is_used_again_when_it_is_back(autojump_clock):
    async with stage_of(counting(2), counting(2), slots=[2, 2]) as stage, trio.open_nursery() as nursery:
        run = Run(stage, nursery)
        await run.start("a1", "b1", "a2", "b2", stay_seconds=30)
        await run.start("1", "2", "3", stay_seconds=30)
        await trio.sleep_until(10)
        stage.network.kill(A)
        await wait_all_tasks_blocked()
        assert (held(stage), states(stage)) == ({"a": 0, "b": 2}, {"a": "restarting", "b": "full"})
        await trio.sleep_until(20)
        stage.network.servers[A] = counting(2)
        await trio.sleep_until(100)
        assert [server for _, server, _ in run.opened[:4]] == ["a", "b", "a", "b"]
        # Knocks at 10, 10.05, 10.15 ... 13.15, then each 2 s.
        assert sorted(run.opened[4:]) == [("1", "a", 21.15), ("2", "a", 21.15), ("3", "b", 30)]
        assert (run.masked, run.failed) == (["a1", "a2"], [])
        assert {run.results[name]["failure_kind"] for name in run.masked} == {"session_lost"}
        assert (held(stage), states(stage)) == ({"a": 0, "b": 0}, {"a": "ready", "b": "ready"})


async def test_a_restarting_server_does_not_hold_up_others(autojump_clock):
    async with stage_of(counting(4), counting(4)) as stage, trio.open_nursery() as nursery:
        run = Run(stage, nursery)
        await run.start("1", "2", stay_seconds=1)
        await trio.sleep_until(10)
        stage.network.kill(A)
        for _ in range(3):
            await run.start("x")
            await trio.sleep(10)
        assert run.opened[2:] == [("x", "b", 10), ("x", "b", 20), ("x", "b", 30)]
        nursery.cancel_scope.cancel()


async def test_a_server_that_does_not_come_back_is_set_aside_and_probed(autojump_clock):
    async with stage_of(counting(1), counting(1), patience_seconds=2000) as stage, trio.open_nursery() as nursery:
        run = Run(stage, nursery)
        await run.start("1", stay_seconds=5)
        await run.start("holder", stay_seconds=1000)
        await trio.sleep_until(10)
        stage.network.kill(A)
        await run.start("2")
        assert states(stage) == {"a": "restarting", "b": "full"}
        await trio.sleep_until(70)
        await wait_all_tasks_blocked()
        assert states(stage) == {"a": "aside", "b": "full"}
        await trio.sleep_until(100)
        stage.network.servers[A] = counting(1)
        await trio.sleep_until(200)
        assert run.opened[2:] == [("2", "a", 101)]  # 70 + 1 + 2 + 4 + 8 + 16
        assert run.failed == []
        nursery.cancel_scope.cancel()


async def test_an_outage_that_outlasts_the_restart_patience_is_one_outage(autojump_clock):
    how = {"restart_patience_seconds": 10, "patience_seconds": 2000}
    async with stage_of(counting(1), counting(1), **how) as stage, trio.open_nursery() as nursery:
        run = Run(stage, nursery)
        await run.start("1", stay_seconds=5)
        await run.start("holder")
        await trio.sleep_until(10)
        stage.network.kill(A)
        await run.start("2")
        await trio.sleep_until(250)
        # Backoffs to 2 s for as long as it may be restarting, and then the pauses of a hopeless one.
        backoffs = [10, 10.05, 10.15, 10.35, 10.75, 11.55, 13.15, 15.15, 17.15, 19.15, 20]
        assert stage.network.refused_at == [*backoffs, 21, 23, 27, 35, 51, 83, 143, 203]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "hopeless", [ScriptedServer(upgrade=forbids), ScriptedServer(says_1008)], ids=["handshake", "reset"]
)
async def test_a_hopeless_server_is_set_aside_with_growing_pauses(autojump_clock, hopeless):
    async with stage_of(hopeless, counting(1), patience_seconds=2000) as stage, trio.open_nursery() as nursery:
        run = Run(stage, nursery)
        await run.start("1", stay_seconds=150)
        assert (run.opened, states(stage)["a"]) == ([("1", "b", 0)], "aside")
        await trio.sleep_until(1.5)
        await run.start("2")
        await trio.sleep_until(200)
        assert hopeless.knocked == [0, 1.5, 3.5, 7.5, 15.5, 31.5, 63.5, 123.5]
        assert (run.opened[1:], run.failed) == ([("2", "b", 150)], [])
        nursery.cancel_scope.cancel()


async def test_a_server_that_is_set_aside_is_warned_of_once_until_it_is_back(autojump_clock):
    hopeless = ScriptedServer(upgrade=forbids)
    with capture_logs() as logs:
        async with stage_of(hopeless, counting(1), patience_seconds=2000) as stage, trio.open_nursery() as nursery:

            def told() -> list[tuple[str, str]]:
                told = [line for line in logs if line["event"] == "an environment server is set aside"]
                assert {line["log_level"] for line in told} <= {"warning"}
                return [(line["env"], line["reason"]) for line in told]

            run = Run(stage, nursery)
            await run.start("1")
            [why] = told()
            assert why[0] == str(A) and "403" in why[1]
            await run.start("2")
            await trio.sleep_until(10)  # knocked at, in vain, again and again
            assert told() == [why]
            hopeless.upgrade = ScriptedServer().upgrade
            await trio.sleep_until(20)
            assert states(stage)["a"] == "ready"
            hopeless.upgrade = forbids
            await run.start("3")
            assert told() == [why, why]
            nursery.cancel_scope.cancel()


async def test_a_seed_fails_only_when_every_server_is_hopeless(autojump_clock):
    servers = ScriptedServer(upgrade=forbids), ScriptedServer(says_1008), ScriptedServer(upgrade=forbids)
    async with stage_of(*servers) as stage:
        failed = await stage.client().seed()
        assert (failed.status, failed.body["error"], trio.current_time()) == (502, "environment_error", 0)
        assert "cannot be used, nor can the other 2: " in failed.body["detail"]
        assert [server.knocked for server in servers] == [[0], [0], [0]]
        assert set(states(stage).values()) == {"aside"} and stage.opener.line.held == 0
        await trio.sleep(3)
        servers[1].script = agreeable
        assert (await stage.client().seed()).status == 200
        assert trio.current_time() == 3


async def test_one_hopeless_server_is_as_before(autojump_clock):
    server = ScriptedServer(upgrade=forbids)
    async with stage_of(server) as stage:
        for _ in range(3):
            failed = await stage.client().seed()
            assert (failed.status, trio.current_time()) == (502, 0)
            assert "http://environment:8000 cannot be used: " in failed.body["detail"]
        assert server.knocked == [0, 0, 0]
        server.upgrade = ScriptedServer().upgrade
        assert (await stage.client().seed()).status == 200
        assert states(stage) == {"a": "ready"}


async def test_without_patience_a_hopeless_server_is_passed_by(autojump_clock):
    async with stage_of(ScriptedServer(upgrade=forbids), counting(1), patience_seconds=0) as stage:
        assert (await stage.client().seed()).status == 200
        refusal = await stage.client().seed()
        assert (refusal.status, trio.current_time()) == (503, 0)


async def test_who_waits_fails_over_to_the_first_that_can(autojump_clock):
    async with stage_of(counting(1), counting(1)) as stage, trio.open_nursery() as nursery:
        run = Run(stage, nursery)
        await run.start("a1", stay_seconds=5)
        await run.start("b1", stay_seconds=20)
        await trio.sleep_until(6)
        stage.network.kill(A)
        await run.start("1", "2")
        await trio.sleep_until(15)
        assert stage.gateway.waiting == 2
        await trio.sleep_until(30)
        stage.network.servers[A] = counting(1)
        await trio.sleep_until(40)
        assert run.opened[2:] == [("1", "b", 20), ("2", "a", 31.15)]
        nursery.cancel_scope.cancel()


# -- servers that come and go ----------------------------------------------------------------------------------------


async def test_a_server_that_is_added_serves_those_who_wait_at_once(autojump_clock):
    async with stage_of(counting(1)) as stage, trio.open_nursery() as nursery:
        run = Run(stage, nursery)
        await run.start(*"1234")
        await trio.sleep_until(7)
        stage.network.servers[B] = counting(4)
        stage.opener.pool.add(B, slots=2)
        await wait_all_tasks_blocked()
        assert sorted(run.opened) == [("1", "a", 0), ("2", "b", 7), ("3", "b", 7)]
        nursery.cancel_scope.cancel()


async def test_a_drained_server_gets_nothing_new_and_is_gone_with_its_last_session(autojump_clock):
    with capture_logs() as logs:
        async with stage_of(counting(2), counting(1, "slow-close:3")) as stage, trio.open_nursery() as nursery:
            run = Run(stage, nursery)
            pool = stage.opener.pool
            await run.start("1", stay_seconds=10)
            await run.start("2", stay_seconds=20)
            assert (pool.drain(B), states(stage)) == (1, {"a": "ready", "b": "draining"})
            await run.start("3", "4", stay_seconds=30)
            assert (run.opened[2:], stage.gateway.waiting) == ([("3", "a", 0)], 1)
            await trio.sleep_until(22.5)
            assert [str(door.address) for door in pool.doors] == [str(A), str(B)]  # its goodbye takes 3 s
            await trio.sleep_until(23.5)
            assert [str(door.address) for door in pool.doors] == [str(A)]
            await trio.sleep_until(50)
            assert (run.opened[3:], run.masked) == ([("4", "a", 10)], [])
            with pytest.raises(
                NoSuchServer, match="there is no environment server http://b:8000; there are http://env"
            ):
                pool.drain(B)
    assert [line["env"] for line in logs if line["event"] == "environment server left"] == [str(B)]


async def test_a_drained_server_that_is_added_again_stays_with_its_sessions(autojump_clock):
    async with stage_of(counting(2)) as stage, trio.open_nursery() as nursery:
        run = Run(stage, nursery)
        pool = stage.opener.pool
        await run.start("1", stay_seconds=10)
        door = pool.doors[0]
        pool.drain(A)
        await run.start("2", stay_seconds=100)
        await trio.sleep_until(5)
        assert pool.add(A, slots=1) is door
        await trio.sleep_until(50)
        assert (run.opened, held(stage)) == ([("1", "a", 0), ("2", "a", 10)], {"a": 1})
        pool.drain(A)
        await trio.sleep_until(200)
        assert pool.doors == ()
        assert pool.add(A) is not door
        await run.start("3", stay_seconds=1)
        assert run.opened[2:] == [("3", "a", 200)]
        nursery.cancel_scope.cancel()


async def test_an_opening_that_is_under_way_at_a_drained_server_is_finished(autojump_clock):
    async with stage_of(counting(1, "slow-reset:5"), counting(1)) as stage, trio.open_nursery() as nursery:
        run = Run(stage, nursery)
        await run.start("1", stay_seconds=10)
        stage.opener.pool.drain(A)
        await trio.sleep_until(7)
        assert run.opened == [("1", "a", 5)]
        await trio.sleep_until(16)
        assert [door.address for door in stage.opener.pool.doors] == [B]
        assert run.masked == []


async def test_a_failed_reset_at_a_drained_server_is_tried_again_elsewhere(autojump_clock):
    async with stage_of(counting(1, "failed-reset:1", "slow-reset:5"), counting(1)) as stage:
        client = stage.client()
        await client.send("POST", "/seed_session", {})
        await wait_all_tasks_blocked()
        stage.opener.pool.drain(A)
        assert (await client.answer()).status == 200
        assert (trio.current_time(), [door.address for door in stage.opener.pool.doors]) == (5, [B])


@pytest.mark.parametrize("answer", [1008, refused("FACTORY_ERROR", "no display")], ids=["lost", "refused"])
async def test_a_hopeless_reset_at_a_drained_server_is_no_verdict_on_the_others(autojump_clock, answer):
    async def fail_slowly(message: dict[str, Any]) -> Any:
        await trio.sleep(2)
        return answer

    async with stage_of(ScriptedServer(fail_slowly), counting(1)) as stage:
        client = stage.client()
        await client.send("POST", "/seed_session", {})
        await wait_all_tasks_blocked()
        stage.opener.pool.drain(A)
        assert (await client.answer()).status == 200
        assert (trio.current_time(), held(stage)) == (2, {"b": 1})


async def test_a_seed_that_fails_in_the_tick_in_which_the_servers_leave_is_told_why(autojump_clock):
    for _ in range(8):  # the order within a tick is Trio's
        async with stage_of(ScriptedServer(upgrade=forbids), ScriptedServer(upgrade=forbids)) as stage:
            client = stage.client()
            pool = stage.opener.pool
            await client.send("POST", "/seed_session", {})
            while not (pool.line.is_hopeless and pool.line.waiting == 0):
                await trio.lowlevel.checkpoint()
            for address in (A, B):
                pool.drain(address)
            failed = await client.answer()
            assert (failed.status, failed.body["error"]) == (502, "environment_error")
            assert "http://b:8000 cannot be used" in failed.body["detail"] and "HTTP 403" in failed.body["detail"]


async def test_when_all_servers_have_left_seeds_wait_for_one_that_is_added(autojump_clock):
    async with stage_of(counting(1), patience_seconds=100) as stage, trio.open_nursery() as nursery:
        run = Run(stage, nursery)
        stage.opener.pool.drain(A)
        refusal = await stage.client().seed()
        assert (refusal.status, refusal.body["error"], trio.current_time()) == (503, "no_room", 100)
        assert refusal.body["detail"] == (
            "there was no environment server within 100 s: all are leaving or have left; add one"
        )
        assert (await stage.client().ask("GET", "/gymserve/ready")).status == 503
        await run.start("1", stay_seconds=1)
        await trio.sleep_until(150)
        stage.opener.pool.add(A)
        await trio.sleep_until(160)
        assert run.opened == [("1", "a", 150)]


# -- what is told and learned ----------------------------------------------------------------------------------------


async def test_ready_where_one_and_the_same_server_is_well_and_has_room(autojump_clock):
    async with stage_of(counting(1), counting(1)) as stage, trio.open_nursery() as nursery:
        run = Run(stage, nursery)
        await run.start("1", stay_seconds=5)
        await run.start("2", stay_seconds=100)
        await trio.sleep_until(10)
        stage.network.kill(A)
        gives_up = stage.client()
        await gives_up.send("POST", "/seed_session", {})  # which tells that b is full, and a in trouble
        await wait_all_tasks_blocked()
        await gives_up.hang_up()
        for at, status in ((20, 503), (40, 200)):  # a has not been tried for 30 s then
            await trio.sleep_until(at)
            answer = await stage.client().ask("GET", "/gymserve/ready")
            assert (answer.status, answer.body["waiting"]) == (status, 0)
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("what", ["frozen", "full", "hopeless"])
async def test_tools_are_learned_from_the_first_server_that_tells_them(autojump_clock, what):
    async def answer_503(connection: HttpConnection, stream: trio.abc.Stream) -> bool:
        await connection.answer(503, {})
        return False

    async def lists_tools(message: dict[str, Any]) -> Any:
        if message["type"] == "mcp" and message["data"]["method"] == "tools/list":
            tools = [{"name": "look", "inputSchema": {"type": "object"}}]
            return {"type": "mcp", "data": {"jsonrpc": "2.0", "id": message["data"]["id"], "result": {"tools": tools}}}
        return await agreeable(message) if message["type"] != "reset" else observed(text="ready")

    upgrade = {"full": answer_503, "hopeless": forbids}.get(what, ScriptedServer().upgrade)
    first = ScriptedServer(lists_tools, action="CallToolAction", upgrade=upgrade)
    if what == "frozen":
        first.freeze()
    async with stage_of(first, ScriptedServer(lists_tools, action="CallToolAction")) as stage:
        lesson = await stage.opener.learn()
        assert [tool["name"] for tool in lesson.tools or ()] == ["look"]
        assert trio.current_time() == (11 if what == "frozen" else 0)
        assert stage.opener.line.held == (1 if what == "frozen" else 0)


async def test_tools_are_waited_for_while_one_server_may_yet_tell_them(autojump_clock):
    frozen = ScriptedServer()
    frozen.freeze()
    async with stage_of(frozen, counting()) as stage:
        stage.network.kill(B)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.opener.learn)
            await trio.sleep_until(15)
            frozen.thaw()
        assert (trio.current_time(), stage.opener.pool.lesson is not None) == (15, True)
        assert frozen.asked == [(0, "/schema"), (11, "/schema")]
