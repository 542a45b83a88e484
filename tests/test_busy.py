"""A busy environment server in virtual time: the line before it, what is said of it, and the incident it is all for."""

from collections.abc import Mapping
from typing import Any

import pytest
import trio
from counting import Counting
from scripted import ScriptedServer, agreeable, refused
from stage import Client, Stage, raise_the_curtain
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from gymserve.gridsim.faults import parse_fault
from gymserve.gridsim.server import EnvironmentServer


def counting(capacity: int = 1, *faults: str) -> EnvironmentServer:
    return EnvironmentServer(Counting, capacity=capacity, faults=[parse_fault(fault) for fault in faults])


class Rollouts:
    """Clients that seed, stay and verify; when each was opened, and how it ended."""

    def __init__(self, stage: Stage, nursery: trio.Nursery) -> None:
        self._stage = stage
        self._nursery = nursery
        self.opened: list[tuple[str, float]] = []
        self.statuses: list[int] = []
        self.verified: list[Mapping[str, Any]] = []

    async def start(
        self, name: str, *, stay_seconds: float, row: Mapping[str, Any] | None = None, **headers: str
    ) -> Client:
        """The client, when it stands in the line or has its session."""
        client = self._stage.client()
        self._nursery.start_soon(self._play, client, name, stay_seconds, row, headers)
        await wait_all_tasks_blocked()
        return client

    async def _play(
        self, client: Client, name: str, stay_seconds: float, row: Mapping[str, Any] | None, headers: dict[str, str]
    ) -> None:
        try:
            seeded = await client.seed(row, **headers)
        except trio.ClosedResourceError:
            return  # it has hung up
        self.statuses.append(seeded.status)
        if seeded.status == 200:
            self.opened.append((name, trio.current_time()))
            await client.step(1)
            await trio.sleep(stay_seconds)
        self.verified.append((await client.verify()).body)

    @property
    def masked(self) -> int:
        return sum("mask_sample" in body for body in self.verified)


def times(opened: list[tuple[str, float]]) -> list[float]:
    return [at for _, at in opened]


# -- the line --------------------------------------------------------------------------------------------------------


STAY_SECONDS = 1.0625
"""So that no stay ends in the tick of a probe, which comes every 30 s."""


async def test_a_hundred_wait_in_order(autojump_clock):
    async with raise_the_curtain(counting(1)) as stage:
        async with trio.open_nursery() as nursery:
            rollouts = Rollouts(stage, nursery)
            for number in range(100):
                await rollouts.start(f"{number}", stay_seconds=STAY_SECONDS)
        await wait_all_tasks_blocked()
        assert rollouts.opened == [(f"{number}", number * STAY_SECONDS) for number in range(100)]
        assert (rollouts.masked, stage.episodes["opened"], stage.opener.line.held) == (0, 100, 0)


async def test_whoever_gives_up_in_the_middle_leaves_the_others_in_order(autojump_clock):
    async with raise_the_curtain(counting(1)) as stage:
        async with trio.open_nursery() as nursery:
            rollouts = Rollouts(stage, nursery)
            clients = {name: await rollouts.start(name, stay_seconds=10) for name in "abcde"}
            await trio.sleep(5)
            for name in "bd":
                await clients[name].hang_up()
        await wait_all_tasks_blocked()
        assert rollouts.opened == [("a", 0), ("c", 10), ("e", 20)]
        assert (stage.opener.line.held, stage.opener.line.waiting, stage.episodes["active"]) == (0, 0, 0)


@pytest.mark.parametrize("hangs_up_first", [True, False])
async def test_whoever_gives_up_in_the_tick_of_a_hand_over_leaks_no_slot(autojump_clock, hangs_up_first):
    environment = counting(1)
    async with raise_the_curtain(environment) as stage:
        holder, heir, following = (stage.client() for _ in range(3))
        await holder.seed()
        for client in (heir, following):
            await client.send("POST", "/seed_session", {})
            await wait_all_tasks_blocked()
        await trio.sleep(10)
        if hangs_up_first:
            await heir.hang_up()
        await holder.send("POST", "/verify", {})
        await heir.hang_up()
        assert (await holder.answer()).status == (await following.answer()).status == 200
        assert trio.current_time() == 10
        await wait_all_tasks_blocked()
        assert (stage.opener.line.held, stage.opener.line.waiting, environment.episodes["active"]) == (1, 0, 1)


async def test_the_capacity_is_learned_from_a_refusal_and_nobody_knocks_at_a_full_server(autojump_clock):
    async with raise_the_curtain(counting(2)) as stage:
        async with trio.open_nursery() as nursery:
            rollouts = Rollouts(stage, nursery)
            for number in range(8):
                await rollouts.start(f"{number}", stay_seconds=9)
            assert (stage.network.connections, stage.opener.line.capacity) == (1 + 3, 2)
        assert stage.network.connected_at[1:] == [0, 0, 0, 9, 9, 18, 18, 27, 27]  # the very first asks for the schema
        assert times(rollouts.opened) == [0, 0, 9, 9, 18, 18, 27, 27]


async def test_growth_is_found_out_by_one_probe_in_30_s(autojump_clock):
    script = with_slots(1)
    environment = ScriptedServer(script)
    async with raise_the_curtain(environment) as stage, trio.open_nursery() as nursery:
        rollouts = Rollouts(stage, nursery)
        for number in range(4):
            await rollouts.start(f"{number}", stay_seconds=100)
        await trio.sleep_until(45)
        assert environment.knocked == [0, 0, 30]
        script.slots = 3
        await trio.sleep_until(95)
        assert environment.knocked == [0, 0, 30, 60, 60, 60, 90]
        assert rollouts.opened == [("0", 0), ("1", 60), ("2", 60)]
        nursery.cancel_scope.cancel()


async def test_only_the_head_knocks_while_others_share_the_server(autojump_clock):
    script = with_slots(4)
    script.others = 4
    environment = ScriptedServer(script)
    async with raise_the_curtain(environment) as stage, trio.open_nursery() as nursery:
        rollouts = Rollouts(stage, nursery)
        for number in range(6):
            await rollouts.start(f"{number}", stay_seconds=100)
        await trio.sleep_until(4)
        assert environment.knocked == [0, 0.05, 0.15, 0.35, 0.75, 1.55, 3.15]
        script.others = 0
        await trio.sleep_until(20)
        assert times(rollouts.opened) == pytest.approx([5.15] * 4)
        assert rollouts.opened[0][0] == "0"
        assert environment.knocked[7:] == [5.15] * 4  # all four are held then: the others wait
        nursery.cancel_scope.cancel()


class with_slots:
    """A script of a server with so many slots, of which ``others`` hold some."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.others = 0
        self.taken = 0

    async def __call__(self, message: dict[str, Any]) -> Any:
        if message["type"] != "reset":
            return await agreeable(message)
        if self.taken + self.others >= self.slots:
            return refused("CAPACITY_REACHED", "at capacity", max_sessions=self.slots)
        self.taken += 1
        return await agreeable(message)


# -- labels ----------------------------------------------------------------------------------------------------------


LABELLED = [
    pytest.param({}, {"X-Gymserve-Label": "small"}, id="header"),
    pytest.param({"gymserve_label": "small"}, {}, id="row"),
    pytest.param({"agent_ref": {"type": "responses_api_agents", "name": "small"}}, {}, id="agent"),
    pytest.param({"gymserve_label": "flood"}, {"X-Gymserve-Label": "small"}, id="header before row"),
    pytest.param({"agent_ref": {"name": "flood"}, "gymserve_label": "small"}, {}, id="row before agent"),
]


@pytest.mark.parametrize(("row", "headers"), LABELLED)
async def test_of_two_labels_one_flooding_the_other_has_every_second_slot_at_once(autojump_clock, row, headers):
    async with raise_the_curtain(counting(2)) as stage:
        async with trio.open_nursery() as nursery:
            rollouts = Rollouts(stage, nursery)
            for _ in range(20):
                await rollouts.start("flood", stay_seconds=8, row={"gymserve_label": "flood"})
            await trio.sleep(5)
            for number in range(4):
                await rollouts.start(f"small {number}", stay_seconds=8, row=row, **headers)
        small = [(name, at) for name, at in rollouts.opened if name != "flood"]
        assert small == [("small 0", 8), ("small 1", 16), ("small 2", 24), ("small 3", 32)]
        assert len(rollouts.opened) == 24 and rollouts.opened[-1] == ("flood", 88)


async def test_without_labels_there_is_one_queue(autojump_clock):
    async with raise_the_curtain(counting(1)) as stage:
        async with trio.open_nursery() as nursery:
            rollouts = Rollouts(stage, nursery)
            for name in "abc":
                await rollouts.start(name, stay_seconds=1)
            assert stage.opener.line.waiting == 2
        assert rollouts.opened == [("a", 0), ("b", 1), ("c", 2)]


# -- what is said ----------------------------------------------------------------------------------------------------


async def test_who_waits_and_who_opens_is_logged_once_each(autojump_clock):
    with capture_logs() as logs:
        async with raise_the_curtain(counting(1)) as stage, trio.open_nursery() as nursery:
            rollouts = Rollouts(stage, nursery)
            for name in "abc":
                await rollouts.start(name, stay_seconds=10, row={"gymserve_label": "run-7"})
    waits = [line for line in logs if line["event"] == "session waits"]
    why = "CAPACITY_REACHED: Server at capacity: 1/1 sessions active. Cannot accept new connections."
    assert [(line["label"], line["place"], line["reason"]) for line in waits] == [("run-7", 1, why), ("run-7", 2, why)]
    opened = [line for line in logs if line["event"] == "session opened"]
    assert [(line["waited_seconds"], line["tries"]) for line in opened] == [(0, 1), (10, 2), (20, 1)]
    assert {line["env"] for line in opened} == {"http://environment:8000"}
    assert len({line["session"] for line in logs if "session" in line}) == 3


async def test_who_waits_for_a_slot_that_is_known_to_be_held_hears_so(autojump_clock):
    with capture_logs() as logs:
        async with raise_the_curtain(counting(2)) as stage, trio.open_nursery() as nursery:
            rollouts = Rollouts(stage, nursery)
            for name in "abc":
                await rollouts.start(name, stay_seconds=5)
            await trio.sleep_until(7)
            for name in "de":
                await rollouts.start(name, stay_seconds=5)
    waits = [(line["reason"], line["place"]) for line in logs if line["event"] == "session waits"]
    assert waits[1:] == [("2 of the server's 2 slots are held", 1)]


async def test_a_session_that_waits_for_an_unanswered_handshake_says_so(autojump_clock):
    with capture_logs() as logs:
        async with raise_the_curtain(counting(1, "slow-handshake:12")) as stage:
            await stage.client().seed()
    [line] = [line for line in logs if line["event"] == "session waits"]
    assert (line["place"], line["reason"]) == (1, "it has not answered a WebSocket upgrade for 10 s or more")


async def test_a_session_that_waits_after_a_knock_in_vain_says_so(autojump_clock):
    async with raise_the_curtain(counting(1)) as stage:
        await stage.client().seed()
        await stage.client().ask("POST", "/close_session")
        stage.network.refuses = True
        with capture_logs() as logs, trio.move_on_after(9):
            await stage.client().seed()
    [line] = [line for line in logs if line["event"] == "session waits"]
    assert line["place"] == 1 and "Connection refused" in line["reason"]
    [restart] = [line for line in logs if "restarting" in line["event"]]
    assert (restart["log_level"], restart["restart_patience_seconds"]) == ("warning", 60)


async def test_a_line_longer_than_the_patience_is_warned_of_once_a_minute(autojump_clock):
    with capture_logs() as logs:
        async with raise_the_curtain(counting(2), patience_seconds=50) as stage, trio.open_nursery() as nursery:
            rollouts = Rollouts(stage, nursery)
            for number in range(4):  # two openings each 10 s
                await rollouts.start(f"{number}", stay_seconds=10)
            warned: list[tuple[float, dict[str, Any]]] = []
            for at in range(12, 200, 10):
                await trio.sleep_until(at)
                for number in range(8):
                    await rollouts.start(f"{number}", stay_seconds=10)
                warned += [(at, line) for line in logs if "longer than the patience" in line["event"]][len(warned) :]
            nursery.cancel_scope.cancel()
    assert [line["log_level"] for _, line in warned] == ["warning"] * len(warned)
    assert [at for at, _ in warned] == [22, 82, 142]
    # Two openings in 10 s: in the patience of 50 s ten more open, and two are open now.
    assert [(line["waiting"], line["in_flight_that_fit"]) for _, line in warned] == [(12, 13), (33, 12), (33, 12)]
    assert [line["expected_wait_seconds"] for _, line in warned] == [52.8, 159.2, 161.6]
    assert {(line["env"], line["patience_seconds"]) for _, line in warned} == {("http://environment:8000", 50)}


# -- is it ready? ----------------------------------------------------------------------------------------------------


async def ready(stage: Stage) -> tuple[int, Any]:
    answer = await stage.client().ask("GET", "/gymserve/ready")
    return answer.status, answer.body


def unready(waiting: int, oldest: float, expected: float | None) -> tuple[int, Any]:
    return 503, {
        "ready": False,
        "waiting": waiting,
        "oldest_wait_seconds": oldest,
        "expected_wait_seconds": expected,
    }


READY = (200, {"ready": True, "waiting": 0, "oldest_wait_seconds": 0.0, "expected_wait_seconds": 0.0})


async def test_ready_until_the_server_is_full(autojump_clock):
    async with raise_the_curtain(counting(2)) as stage, trio.open_nursery() as nursery:
        rollouts = Rollouts(stage, nursery)
        assert await ready(stage) == READY  # never tried
        await rollouts.start("a", stay_seconds=100)
        assert await ready(stage) == READY
        await trio.sleep_until(10)
        await rollouts.start("b", stay_seconds=100)
        assert await ready(stage) == READY  # how many slots there are, a refusal has yet to say
        gives_up = await rollouts.start("gives up", stay_seconds=100)
        await trio.sleep_until(15)
        await rollouts.start("c", stay_seconds=200)
        await trio.sleep_until(20)
        assert await ready(stage) == unready(2, 10, 60)  # one opening in 20 s, and two before us
        await gives_up.hang_up()
        await wait_all_tasks_blocked()
        assert await ready(stage) == unready(1, 5, 40)
        await trio.sleep_until(105)
        assert await ready(stage) == unready(0, 0, 52.5)  # all slots are held
        await trio.sleep_until(111)
        assert await ready(stage) == READY


async def test_not_ready_while_the_server_fails_and_for_30_s_after(autojump_clock):
    async with raise_the_curtain(counting(2)) as stage:
        stage.network.refuses = True
        assert (await stage.client().seed()).status == 502
        assert await ready(stage) == unready(0, 0, None)
        await trio.sleep_until(29.9)
        assert await ready(stage) == unready(0, 0, None)
        await trio.sleep_until(30)
        assert await ready(stage) == READY  # who waits for it must not wait for ever
        stage.network.refuses = False
        await stage.client().seed()
        assert await ready(stage) == READY


async def test_not_ready_while_a_handshake_is_unanswered(autojump_clock):
    async with raise_the_curtain(counting(1, "slow-handshake:12")) as stage, trio.open_nursery() as nursery:
        await Rollouts(stage, nursery).start("a", stay_seconds=1)
        await trio.sleep_until(11)
        assert await ready(stage) == unready(1, 11, None)
        await trio.sleep_until(14)
        assert await ready(stage) == READY


async def test_not_ready_when_stopping(autojump_clock):
    async with raise_the_curtain(counting(1)) as stage:
        await stage.gateway.drain(1)
        assert await ready(stage) == unready(0, 0, 0)


# -- the incident ----------------------------------------------------------------------------------------------------


async def evaluate(stage: Stage) -> Rollouts:
    """64 rollouts at once."""
    async with trio.open_nursery() as nursery:
        rollouts = Rollouts(stage, nursery)
        for number in range(64):
            await rollouts.start(f"{number}", stay_seconds=40)
    return rollouts


async def test_a_server_that_takes_12_s_for_a_handshake_masks_nothing(autojump_clock):
    environment = counting(8, "slow-handshake:12")
    async with raise_the_curtain(environment) as stage:
        rollouts = await evaluate(stage)
        await wait_all_tasks_blocked()
        assert (rollouts.statuses, rollouts.masked) == ([200] * 64, 0)
        # Eight at a time, each for 12 s of handshake and 40 s of rollout. The first of each later eight came by the
        # probe for growth, which knocks 30 s after a refusal and is answered when there is room again.
        later = [moment + 52 * number for number in range(7) for moment in (54, *[64] * 7)]
        assert times(rollouts.opened) == [12] * 8 + later
        assert environment.episodes == {"active": 0, "max": 8, "opened": 64, "closed": 64}


async def test_without_patience_the_old_failure_is_visible(autojump_clock):
    environment = counting(8, "slow-handshake:12")
    async with raise_the_curtain(environment, patience_seconds=0) as stage:
        rollouts = await evaluate(stage)
        assert (rollouts.statuses, rollouts.masked, trio.current_time()) == ([503] * 64, 64, 10)
        await trio.sleep(10)
        assert (environment.episodes["active"], stage.opener.line.held) == (0, 0)
