"""Overdue sessions that live on until their slot is wanted, and what is seen of those that were ended too soon, in
virtual time.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import trio
from counting import Counting
from lines import wakeups_of
from scripted import ScriptedServer, agreeable, is_ping, refused
from stage import ADDRESS, Answer, Client, Stage, raise_the_curtain, typed_seed
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from gymserve.address import parse_address
from gymserve.gridsim.faults import parse_fault
from gymserve.gridsim.server import EnvironmentServer
from gymserve.shares import parse_share

A, B = ADDRESS, parse_address("b:8000")

Curtain = Callable[..., Any]
when_wanted: Curtain = partial(
    raise_the_curtain, reclaims_when_wanted=True, idle_timeout_seconds=100, idle_timeout_max_seconds=500
)
strictly: Curtain = partial(raise_the_curtain, idle_timeout_seconds=100, idle_timeout_max_seconds=500)


def counting(capacity: int = 1, *faults: str) -> EnvironmentServer:
    return EnvironmentServer(Counting, capacity=capacity, faults=[parse_fault(fault) for fault in faults])


class Run:
    """Clients by name; when each was opened."""

    def __init__(self, stage: Stage, nursery: trio.Nursery) -> None:
        self._stage = stage
        self._nursery = nursery
        self.clients: dict[str, Client] = {}
        self.opened: dict[str, float] = {}

    async def seed(self, *names: str, label: str = "run", **row: Any) -> None:
        """In this order; each has its session, or stands in the line."""
        for name in names:
            self.clients[name] = self._stage.client()
            self._nursery.start_soon(self._seed, name, {"gymserve_label": label, "name": name, **row})
            await wait_all_tasks_blocked()

    async def _seed(self, name: str, row: dict[str, Any]) -> None:
        try:
            if (await self.clients[name].seed(row)).status == 200:
                self.opened[name] = round(trio.current_time(), 6)
        except trio.ClosedResourceError:
            pass  # it has hung up

    async def step(self, *names: str) -> None:
        for name in names:
            assert (await self.clients[name].step(1)).status == 200

    def start_step(self, name: str) -> None:
        self._nursery.start_soon(self.clients[name].step)

    async def ended(self) -> dict[str, str]:
        """Why, of those that are masked."""
        await wait_all_tasks_blocked()
        names = {name: (await self.clients[name].verify()).body.get("failure_reason") for name in self.opened}
        return {name: reason for name, reason in names.items() if reason is not None}


class Endings(list[tuple[str, float]]):
    """Which session ended when, by the name in its row's label."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        stage.gateway.telemetry.listen(self._hear)

    def _hear(self, fact: Any) -> None:
        if type(fact).__name__ == "Ended" and fact.ending == "idle timeout":
            self.append((fact.label, round(trio.current_time(), 6)))


# -- nobody waits ----------------------------------------------------------------------------------------------------


async def test_while_nobody_waits_an_overdue_session_lives_on_to_the_maximum(autojump_clock):
    async with when_wanted(ScriptedServer(), keepalive_seconds=math.inf) as stage:
        endings = Endings(stage)
        client = stage.client()
        await client.seed({"gymserve_label": "a"})
        [session] = (await stage.listing())["sessions"]
        assert session["idle_deadline_in_seconds"] == 500
        await trio.sleep_until(450)
        assert (await client.step()).status == 200
        await trio.sleep_until(600)
        assert await wakeups_of(partial(trio.sleep_until, 949)) <= 2
        await trio.sleep_until(1000)
        assert endings == [("a", 950)]
        masked = (await client.verify()).body
        assert (masked["failure_kind"], masked["failure_reason"]) == (
            "session_expired",
            "no request for 500 s, the idle timeout's maximum",
        )


async def test_strictly_an_overdue_session_ends_at_once(autojump_clock):
    async with strictly(counting(2)) as stage:
        endings = Endings(stage)
        client = stage.client()
        await client.seed({"gymserve_label": "a"})
        await trio.sleep_until(200)
        assert endings == [("a", 100)]
        assert (await client.verify()).body["failure_reason"] == "no request for 100 s, the idle timeout"


# -- somebody waits --------------------------------------------------------------------------------------------------


async def test_the_most_overdue_ends_in_the_moment_in_which_somebody_waits(autojump_clock):
    async with when_wanted(counting(3)) as stage, trio.open_nursery() as nursery:
        run, endings = Run(stage, nursery), Endings(stage)
        for name in "abc":
            await run.seed(name, label=name)
        await trio.sleep_until(10)
        await run.step("a")
        await trio.sleep_until(20)
        await run.step("c")
        await trio.sleep_until(150)
        await run.seed("x", label="x")
        assert (endings, run.opened["x"]) == ([("b", 150)], 150)
        assert await run.ended() == {
            "b": "no request for 150 s, and its slot was wanted; the idle timeout is 100 s",
        }


async def test_as_many_end_as_are_wanted_and_no_more_while_they_say_goodbye(autojump_clock):
    async with when_wanted(counting(5, "slow-close:7")) as stage, trio.open_nursery() as nursery:
        run, endings = Run(stage, nursery), Endings(stage)
        for number, name in enumerate("abcde"):
            await trio.sleep_until(number)
            await run.seed(name, label=name)
        await trio.sleep_until(200)
        await run.seed("x", "y")
        assert endings == [("a", 200), ("b", 200)]
        await trio.sleep_until(205)
        await run.seed("z")
        assert endings[2:] == [("c", 205)]
        await trio.sleep_until(300)
        assert [run.opened[name] for name in "xyz"] == [207, 207, 212]
        assert len(endings) == 3


async def test_sessions_that_already_say_goodbye_count(autojump_clock):
    async with when_wanted(counting(2, "slow-close:7")) as stage, trio.open_nursery() as nursery:
        run, endings = Run(stage, nursery), Endings(stage)
        await run.seed("overdue", "leaves", reset_kwargs={"target": 1})
        await trio.sleep_until(200)
        await run.clients["leaves"].verify()
        await trio.sleep_until(202)
        await run.seed("x")
        await trio.sleep_until(208)
        assert (endings, run.opened["x"]) == ([], 207)


async def test_episodes_that_are_done_and_say_goodbye_count(autojump_clock):
    async with when_wanted(counting(2, "slow-close:7")) as stage, trio.open_nursery() as nursery:
        run, endings = Run(stage, nursery), Endings(stage)
        await run.seed("overdue", "done", reset_kwargs={"target": 1})
        await trio.sleep_until(200)
        await run.step("done")
        await trio.sleep_until(202)
        await run.seed("x")
        await trio.sleep_until(208)
        assert (endings, run.opened["x"]) == ([], 207)


async def test_an_unwanted_connection_that_says_goodbye_counts(autojump_clock):
    async with when_wanted(counting(2, "slow-handshake:5", "slow-close:7")) as stage, trio.open_nursery() as nursery:
        run, endings = Run(stage, nursery), Endings(stage)
        stage.opener.pool.add(A, slots=2)
        await run.seed("overdue")
        await trio.sleep_until(200)
        await run.seed("gives up")
        await trio.sleep_until(201)
        await run.clients["gives up"].hang_up()
        await trio.sleep_until(206)
        await run.seed("x")
        await trio.sleep_until(220)
        assert (endings, run.opened["x"]) == ([], 217)  # 205 + 7 + 5


async def test_a_slot_that_is_knocked_for_is_not_fetched_twice_however_slow_the_answer(autojump_clock):
    async with when_wanted(counting(3, "slow-handshake:12")) as stage, trio.open_nursery() as nursery:
        run, endings = Run(stage, nursery), Endings(stage)
        stage.opener.pool.add(A, slots=3)
        for name in "abc":
            await run.seed(name, label=name)
        await trio.sleep_until(200)
        await run.seed("x", label="x")
        await trio.sleep_until(206)
        await run.seed("y", label="y")
        assert len(endings) == 2
        await trio.sleep_until(250)
        assert ([at for _, at in endings], run.opened["x"], run.opened["y"]) == ([200, 206], 212, 218)


async def test_a_busy_session_is_never_ended_and_is_overdue_from_its_answer_on(autojump_clock):
    async with when_wanted(counting(1, "slow-step:333")) as stage, trio.open_nursery() as nursery:
        run, endings = Run(stage, nursery), Endings(stage)
        stage.opener.pool.add(A, slots=1)  # so that no probe looks after it
        await run.seed("a", label="a")
        await trio.sleep_until(50)
        run.start_step("a")
        await trio.sleep_until(60)
        await run.seed("x")
        await trio.sleep_until(2000)
        assert (endings[0], run.opened["x"]) == (("a", 483), 483)


async def test_a_session_that_becomes_overdue_while_somebody_waits_ends_in_that_moment(autojump_clock):
    async with when_wanted(counting(2)) as stage, trio.open_nursery() as nursery:
        run, endings = Run(stage, nursery), Endings(stage)
        await run.seed("a", label="a")
        await trio.sleep_until(7)
        await run.seed("b", label="b")
        await trio.sleep_until(10)
        await run.seed("x", "y", label="x")
        await trio.sleep_until(40)
        await run.step("a")
        await trio.sleep_until(145)
        assert (endings, run.opened["x"], run.opened["y"]) == ([("b", 107), ("a", 140)], 107, 140)


async def test_who_is_touched_in_time_is_kept(autojump_clock):
    async with when_wanted(counting(1)) as stage, trio.open_nursery() as nursery:
        run, endings = Run(stage, nursery), Endings(stage)
        await run.seed("a", label="a")
        await run.seed("x", label="x")
        for at in (99, 198, 297):
            await trio.sleep_until(at)
            assert (await run.clients["a"].ask("POST", "/gymserve/touch", {})).body == {"idle_deadline_in_seconds": 500}
        await trio.sleep_until(396.9)
        assert endings == []
        await trio.sleep_until(398)
        assert (endings, run.opened["x"]) == ([("a", 397)], 397)


async def test_who_gives_up_waiting_leaves_the_overdue_alone(autojump_clock):
    async with when_wanted(counting(1)) as stage, trio.open_nursery() as nursery:
        run, endings = Run(stage, nursery), Endings(stage)
        await run.seed("a", label="a")
        await trio.sleep_until(50)
        await run.seed("x")
        await trio.sleep_until(90)
        await run.clients["x"].hang_up()
        await trio.sleep_until(499)
        assert endings == []


async def test_where_the_capacity_is_learned_by_a_refusal_nothing_ends_before_it(autojump_clock):
    async with when_wanted(counting(2)) as stage, trio.open_nursery() as nursery:
        run, endings = Run(stage, nursery), Endings(stage)
        await run.seed("a", label="a")
        await trio.sleep_until(200)
        await run.seed("b", label="b")  # there is room
        assert (endings, stage.opener.line.capacity) == ([], None)
        await run.seed("x", label="x")
        assert (endings, stage.opener.line.capacity, run.opened["x"]) == ([("a", 200)], 2, 200)


async def test_a_server_that_does_not_say_its_capacity_is_full_by_its_refusal(autojump_clock):
    async def script(message: dict[str, Any]) -> Any:
        if is_ping(message) and len(server.times("reset")) - len(server.times("close")) == 2:
            return refused("CAPACITY_REACHED", "at capacity")
        return await agreeable(message)

    server = ScriptedServer(script, welcomes=False)
    async with when_wanted(server, keepalive_seconds=math.inf) as stage, trio.open_nursery() as nursery:
        run, endings = Run(stage, nursery), Endings(stage)
        await run.seed("a", label="a")
        await run.seed("b", label="b")
        await trio.sleep_until(200)
        await run.seed("x", label="x")
        assert (endings, run.opened["x"], stage.opener.line.capacity) == ([("a", 200)], 200, None)


async def test_each_session_is_overdue_by_its_own_idle_timeout(autojump_clock):
    async with when_wanted(counting(3)) as stage, trio.open_nursery() as nursery:
        run, endings = Run(stage, nursery), Endings(stage)
        await run.seed("a", label="a", gymserve_idle_timeout=300)
        await run.seed("b", label="b")
        await run.seed("c", label="c", gymserve_idle_timeout=30)
        await run.seed("x", "y", "z", label="x", gymserve_idle_timeout=400)
        await trio.sleep_until(400)
        assert endings == [("c", 30), ("b", 100), ("a", 300)]
        assert [run.opened[name] for name in "xyz"] == [30, 100, 300]
        await trio.sleep_until(1000)
        assert endings[3:] == [("x", 530), ("x", 600), ("x", 800)]  # 500 s each


async def test_an_overdue_score_without_a_slot_is_not_ended(autojump_clock):
    async with when_wanted(counting(1)) as stage, trio.open_nursery() as nursery:
        run, endings = Run(stage, nursery), Endings(stage)
        await run.seed("done", label="done", reset_kwargs={"target": 1})
        await run.step("done")
        await trio.sleep_until(10)
        await run.seed("a", label="a")
        await trio.sleep_until(200)
        await run.seed("x", label="x")
        assert (endings, run.opened["x"]) == ([("a", 200)], 200)
        assert (await run.clients["done"].verify()).body["reward"] == 1.0


# -- shares ----------------------------------------------------------------------------------------------------------


async def test_who_waits_below_a_max_ends_an_overdue_session_of_its_share_only(autojump_clock):
    shares = [parse_share("train*=max:2")]
    async with when_wanted(counting(9), shares=shares) as stage, trio.open_nursery() as nursery:
        run, endings = Run(stage, nursery), Endings(stage)
        await run.seed("e", label="eval")
        await trio.sleep_until(1)
        await run.seed("1", label="train-1")
        await run.seed("2", label="train-2")
        await trio.sleep_until(200)
        await run.seed("3", label="train-3")
        await wait_all_tasks_blocked()
        assert (endings, run.opened["3"]) == ([("train-1", 200)], 200)
        await run.seed("f", label="eval")
        assert (len(endings), run.opened["f"]) == (1, 200)


async def test_below_a_max_that_others_do_not_share_nothing_ends(autojump_clock):
    shares = [parse_share("train=max:1")]
    async with when_wanted(counting(2), shares=shares) as stage, trio.open_nursery() as nursery:
        run, endings = Run(stage, nursery), Endings(stage)
        await run.seed("e", label="eval")
        await trio.sleep_until(150)
        await run.seed("1", "2", label="train")
        await trio.sleep_until(249)
        assert endings == []
        await trio.sleep_until(260)
        assert (endings, run.opened["2"]) == ([("train", 250)], 250)


async def test_a_slot_that_would_fall_to_anothers_reserve_is_not_taken_from_it(autojump_clock):
    shares = [parse_share("eval=reserve:2")]
    async with when_wanted(counting(4), shares=shares) as stage, trio.open_nursery() as nursery:
        run, endings = Run(stage, nursery), Endings(stage)
        stage.opener.pool.add(A, slots=4)
        await run.seed("e", label="eval")
        await trio.sleep_until(1)
        await run.seed("1", "2", "3", label="train")
        assert stage.gateway.waiting == 1
        await trio.sleep_until(100.5)
        assert endings == []  # eval's, though overdue, would only give back to its own reserve
        await trio.sleep_until(102)
        assert (endings, run.opened["3"]) == ([("train", 101)], 101)


async def test_a_reserve_is_fetched_back_from_the_overdue(autojump_clock):
    shares = [parse_share("eval=reserve:2")]
    async with when_wanted(counting(3), shares=shares) as stage, trio.open_nursery() as nursery:
        run, endings = Run(stage, nursery), Endings(stage)
        await run.seed("1", "2", "3", label="train")  # nobody knows yet how many there are
        await trio.sleep_until(150)
        await run.seed("e", "f", "g", label="eval")
        assert (endings, run.opened["e"], run.opened["f"]) == ([("train", 150)] * 3, 150, 150)


# -- several servers -------------------------------------------------------------------------------------------------


async def test_nothing_ends_while_another_server_has_room(autojump_clock):
    async with when_wanted(counting(1)) as stage, trio.open_nursery() as nursery:
        run, endings = Run(stage, nursery), Endings(stage)
        stage.network.servers[B] = counting(2)
        await run.seed("a", label="a")
        stage.opener.pool.add(B)
        await trio.sleep_until(200)
        await run.seed("b", "c", label="b")
        assert endings == []
        await run.seed("d", label="d")
        assert (endings, run.opened["d"]) == ([("a", 200)], 200)


async def test_the_overdue_of_a_server_that_leaves_are_left_alone(autojump_clock):
    async with when_wanted(counting(1)) as stage, trio.open_nursery() as nursery:
        run, endings = Run(stage, nursery), Endings(stage)
        stage.network.servers[B] = counting(1)
        await run.seed("a", label="a")
        stage.opener.pool.add(B)
        await trio.sleep_until(1)
        await run.seed("b", label="b")
        stage.opener.pool.add(A, slots=1)
        stage.opener.pool.drain(A)
        await trio.sleep_until(200)
        await run.seed("x", label="x")
        assert (endings, run.opened["x"]) == ([("b", 200)], 200)


@pytest.mark.parametrize("trouble", ["killed", "stopped"])
async def test_a_server_in_trouble_does_not_keep_the_overdue_of_another(autojump_clock, trouble):
    stopped = ScriptedServer()
    async with when_wanted(counting(1)) as stage, trio.open_nursery() as nursery:
        run, endings = Run(stage, nursery), Endings(stage)
        await run.seed("a", label="a")
        stage.network.servers[B] = stopped
        stage.opener.pool.add(B, slots=1)
        await run.seed("b", label="b")
        await run.clients["b"].verify()
        if trouble == "killed":
            stage.network.kill(B)
        else:
            stopped.freeze()
        await trio.sleep_until(200)
        await run.seed("x", label="x")
        await trio.sleep_until(210)
        at = 200 if trouble == "killed" else 201  # for a second the stopped one may still answer
        assert (endings, run.opened["x"]) == ([("a", at)], at)


# -- false reclaims --------------------------------------------------------------------------------------------------


FALSELY_RECLAIMED = "a session was reclaimed though its client was alive"


async def listed(stage: Stage) -> int:
    reclaimed = (await stage.listing())["reclaimed_alive"]
    assert isinstance(reclaimed, int)
    return reclaimed


async def test_a_client_that_comes_back_is_counted_once_with_what_would_have_kept_it(autojump_clock):
    with capture_logs() as logs:
        async with strictly(counting(2)) as stage:
            calls, verifies = stage.client(), stage.client()
            await calls.seed({"gymserve_label": "run-7"})
            await verifies.seed()
            await trio.sleep_until(130.25)
            assert (await calls.step()).status == 410
            assert await listed(stage) == 1
            await trio.sleep_until(250)
            for _ in range(2):
                assert (await calls.step()).status == 410
                assert (await verifies.verify()).body["failure_kind"] == "session_expired"
            assert await listed(stage) == 2
    told = [line for line in logs if line["event"] == FALSELY_RECLAIMED]
    assert [(line.get("label"), line["silent_seconds"], line["advice"]) for line in told] == [
        ("run-7", 130.25, "an --idle-timeout above 131 would have kept it"),
        (None, 250, "an --idle-timeout above 250 would have kept it"),
    ]
    assert {(line["idle_timeout_seconds"], line["log_level"]) for line in told} == {(100, "warning")}


async def test_a_client_that_comes_while_its_session_says_goodbye_is_counted_too(autojump_clock):
    async with strictly(counting(1, "slow-close:30")) as stage:
        client = stage.client()
        await client.seed()
        await trio.sleep_until(110)
        assert (await client.step()).status == 410
        assert await listed(stage) == 1


async def test_a_client_that_comes_at_the_deadline_is_counted(autojump_clock):
    async with strictly(counting()) as stage:
        client = stage.client()
        await client.seed()
        await trio.sleep_until(100)
        assert (await client.step()).status == 410
        assert await listed(stage) == 1


async def test_a_session_whose_slot_was_wanted_is_counted_when_its_client_comes_back(autojump_clock):
    async with when_wanted(counting(1)) as stage, trio.open_nursery() as nursery:
        run = Run(stage, nursery)
        await run.seed("a")
        await trio.sleep_until(150)
        await run.seed("x")
        await trio.sleep_until(160)
        with capture_logs() as logs:
            assert (await run.clients["a"].step()).status == 410
        [line] = [line for line in logs if line["event"] == FALSELY_RECLAIMED]
        assert (line["silent_seconds"], line["idle_timeout_seconds"]) == (160, 100)
        assert await listed(stage) == 1


@pytest.mark.parametrize("how", ["close", "lifetime", "verified", "lost", "reseeds"])
async def test_what_is_no_false_reclaim(autojump_clock, how):
    async with strictly(counting(2), lifetime_seconds=50 if how == "lifetime" else 1000) as stage:
        client = stage.client()
        await client.seed()
        await trio.sleep_until(10)
        if how == "verified":
            await client.verify()
        elif how == "lost":
            stage.network.kill(A)
            await wait_all_tasks_blocked()
        await trio.sleep_until(200)
        if how == "close":
            await client.ask("POST", "/close_session", {})
        elif how == "reseeds":
            await client.seed()
        else:
            await client.step()
            await client.verify()
        assert await listed(stage) == 0


# -- a client's own idle timeout -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "headers", "seconds"),
    [
        ({}, {}, 100),
        ({"gymserve_idle_timeout": 30}, {}, 30),
        ({"gymserve_idle_timeout": 300.5}, {}, 300.5),
        ({"gymserve_idle_timeout": 30}, {"X-Gymserve-Idle-Timeout": "200"}, 200),
        ({}, {"X-Gymserve-Idle-Timeout": "1e9"}, 500),
        ({"gymserve_idle_timeout": 501}, {}, 500),
        ({"gymserve_idle_timeout": None}, {}, 100),
    ],
)
async def test_a_clients_own_idle_timeout_is_its_sessions_capped(autojump_clock, row, headers, seconds):
    async with strictly(counting()) as stage:
        endings = Endings(stage)
        await stage.client().seed({"gymserve_label": "a", **row}, **headers)
        await trio.sleep_until(2000)
        assert endings == [("a", seconds)]


async def test_a_cap_below_everybodys_idle_timeout_caps_only_what_is_asked_for_beyond_it(autojump_clock):
    async with raise_the_curtain(counting(3), idle_timeout_seconds=100, idle_timeout_max_seconds=50) as stage:
        endings = Endings(stage)
        for asked in (None, 30, 700):
            await stage.client().seed({"gymserve_label": str(asked), "gymserve_idle_timeout": asked})
        await trio.sleep_until(2000)
        assert sorted(endings, key=lambda ending: ending[1])[0] == ("30", 30)
        assert sorted(endings) == [("30", 30), ("700", 100), ("None", 100)]


async def test_a_typed_seed_has_an_idle_timeout_of_its_own_too(autojump_clock):
    async with strictly(counting()) as stage:
        endings = Endings(stage)
        seed = typed_seed("s-1", {"gymserve_idle_timeout": 30, "gymserve_label": "a"})
        assert (await stage.client().ask("POST", "/seed_session", seed)).status == 200
        await trio.sleep_until(200)
        assert endings == [("a", 30)]


@pytest.mark.parametrize("value", ["soon", "", "0", "-1", "nan", "inf", "1e400"])
async def test_a_header_that_is_no_number_of_seconds_is_refused(autojump_clock, value):
    async with strictly(counting()) as stage:
        refusal: Answer = await stage.client().seed({}, **{"X-Gymserve-Idle-Timeout": value})
        assert (refusal.status, refusal.body["error"]) == (422, "bad_arguments")
        assert refusal.body["detail"] == [
            {
                "type": "greater_than",
                "loc": ["header", "X-Gymserve-Idle-Timeout"],
                "msg": "must be a number of seconds above 0",
            }
        ]
        assert stage.episodes["opened"] == 0


@pytest.mark.parametrize("value", [0, -1, True, "soon", [30], {"seconds": 30}, 10**400])
async def test_a_row_whose_idle_timeout_is_no_number_of_seconds_is_refused(autojump_clock, value):
    async with strictly(counting()) as stage:
        refusal = await stage.client().seed({"gymserve_idle_timeout": value})
        assert (refusal.status, refusal.body["error"]) == (422, "bad_arguments")
        assert refusal.body["detail"][0]["loc"] == ["body", "gymserve_idle_timeout"]
        assert stage.episodes["opened"] == 0


async def test_a_touch_starts_the_idle_clock_again_and_an_ended_session_cannot_be_touched(autojump_clock):
    async with strictly(counting()) as stage:
        client = stage.client()
        await client.seed()
        for at in (60, 120, 180):
            await trio.sleep_until(at)
            touched = await client.ask("POST", "/gymserve/touch", {})
            assert (touched.status, touched.body) == (200, {"idle_deadline_in_seconds": 100})
        await trio.sleep_until(280)
        gone = await client.ask("POST", "/gymserve/touch", {})
        assert (gone.status, gone.body["error"]) == (410, "session_expired")
        assert await listed(stage) == 1
