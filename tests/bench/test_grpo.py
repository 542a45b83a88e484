"""The training run's parts: prime-rl's rules in virtual time, the policy, the environment server, and what is read
from a record.
"""

import io
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

pytest.importorskip("numpy")

from training.arm import gymserve_arguments
from training.dispatcher import CANCELLED, MAX_STALENESS, Dispatcher, Group
from training.environment import Event, PlannedGridSim, Work
from training.figures import Figures, lives, rises
from training.http import Browser, Unanswered
from training.incident import BATCH_SIZE, GROUP_SIZE, IN_FLIGHT, SET_UP_SECONDS, Pace
from training.learner import Learner, advantages
from training.playing import RolloutFailed, Seat, play
from training.policy import Policy, Trajectory
from training.record import ARMS, Batch, Plan, Record, Rollout
from training.sink import RunAborted, Sink

from gymserve.gridsim.grid import GridSim

PACE = Pace(1.0)
HASTE = Pace(1e9)


class LocalTools:
    """GridSim without a server."""

    def __init__(self, day: int) -> None:
        self._environment = PlannedGridSim()
        self._environment.reset(day=day)
        self._reward = 0.0

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        result = self._environment.call(name, arguments)
        self._reward += result.reward or 0.0
        data: Mapping[str, Any] = result.data
        return data

    async def score(self) -> float:
        return self._reward


# -- the policy ------------------------------------------------------------------------------------------------------


async def played(policy: Policy, day: int, number: int) -> Trajectory:
    trajectory = Trajectory(policy.version)
    await play(LocalTools(day), policy, trajectory, seed=(0, number), pace=HASTE)
    return trajectory


async def test_a_policy_learns_and_the_same_seeds_teach_the_same() -> None:
    async def rewards(steps: int) -> list[float]:
        learner, means = Learner(), []
        for step in range(steps):
            batch = [
                sample
                for day in range(4)
                for sample in advantages([await played(learner.policy, day, 32 * step + 8 * day + i) for i in range(8)])
            ]
            means.append(sum(sample.trajectory.reward for sample in batch) / len(batch))
            learner.learn(batch)
        return means

    first = await rewards(9)
    assert sum(first[-3:]) > 1.5 * sum(first[:3])
    assert await rewards(1) == first[:1]


async def test_a_schedule_is_its_dispatches_one_by_one() -> None:
    planned, single = PlannedGridSim(), GridSim()
    planned.reset(day=7)
    single.reset(day=7)
    dispatches = [(1, 0), (0, 2), (-2, 4)] * 8
    *_, last = [single.call("dispatch", {"battery_mw": b, "generator_mw": 0}) for b, _ in dispatches]
    whole = planned.call("schedule", {"dispatches": [(b, 0) for b, _ in dispatches]})
    assert (whole.data, whole.reward, whole.done) == (last.data, last.reward, True)


def test_what_all_are_worth_teaches_nothing() -> None:
    assert advantages([Trajectory(0, reward=0.5), Trajectory(0, reward=0.5)]) == []
    assert advantages([Trajectory(0, reward=0.5)]) == []
    assert [one.advantage for one in advantages([Trajectory(0, reward=0.25), Trajectory(0, reward=0.75)])] == [
        -0.25,
        0.25,
    ]


# -- prime-rl's rules ------------------------------------------------------------------------------------------------


class Days:
    """Tools whose episodes take some seconds, or fail after some; ``open`` is how many there are."""

    def __init__(self, *, seconds: float, fails: bool = False) -> None:
        self.open = 0
        self.begun: list[float] = []
        self._seconds = seconds
        self._fails = fails

    @asynccontextmanager
    async def __call__(self, seat: Seat) -> AsyncIterator[LocalTools]:
        self.begun.append(trio.current_time() - SET_UP_SECONDS)
        self.open += 1
        seat.has_episode = True
        try:
            await trio.sleep(self._seconds)
            if self._fails:
                raise RolloutFailed("it was told to")
            yield LocalTools(seat.day)
        finally:
            self.open -= 1


def next_group(number: int) -> Group:
    return Group(number, "train", number % 10, Policy(), 0, GROUP_SIZE, GROUP_SIZE)


async def dispatched(days: Days, seconds: float) -> Dispatcher:
    """After so many seconds it is stopped."""
    dispatcher = Dispatcher(days, PACE, seed=0, next_group=next_group)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(dispatcher.run)
        await trio.sleep(seconds)
        dispatcher.stop_training()
    return dispatcher


async def test_the_number_in_flight_grows_by_a_group_in_five_seconds(autojump_clock: trio.testing.MockClock) -> None:
    days = Days(seconds=1e6)
    dispatcher = await dispatched(days, 100)
    began = [round(at) for at in days.begun]
    assert began == [5 * (number // GROUP_SIZE) for number in range(IN_FLIGHT)]
    assert len(dispatcher.flights) == IN_FLIGHT


async def test_a_failure_gives_its_admission_back_at_once(autojump_clock: trio.testing.MockClock) -> None:
    days = Days(seconds=0.5, fails=True)
    await dispatched(days, 4.9)
    assert sorted({round(at, 1) for at in days.begun}) == [0.0, 2.5]
    assert len(days.begun) == 2 * GROUP_SIZE  # within one window, in which the number in flight may not grow further


async def test_a_cancellation_says_nothing_and_gives_no_admission_back(autojump_clock: trio.testing.MockClock) -> None:
    days = Days(seconds=1e6)
    dispatcher = Dispatcher(days, PACE, seed=0, next_group=next_group)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(dispatcher.run)
        await trio.sleep(13)  # 24 are in flight, and the window's admissions are used up
        dispatcher.evaluate(40, Policy(version=40), range(1000, 1010))
        dispatcher.stop_training()
        assert [flight.outcome for flight in dispatcher.flights] == [CANCELLED] * 24
        assert all(flight.is_abandoned for flight in dispatcher.flights)
        await trio.sleep(20)
        assert [round(at) for at in days.begun[24:]] == [15] * 8 + [20] * 2
        nursery.cancel_scope.cancel()


async def test_an_evaluation_goes_first(autojump_clock: trio.testing.MockClock) -> None:
    dispatcher = Dispatcher(Days(seconds=1e6), PACE, seed=0, next_group=next_group)
    dispatcher.evaluate(0, Policy(), range(1000, 1012))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(dispatcher.run)
        await trio.sleep(6)
        nursery.cancel_scope.cancel()
    assert [flight.group.kind for flight in dispatcher.flights] == ["eval"] * 12 + ["train"] * 4


async def test_a_group_that_is_too_old_is_cancelled(autojump_clock: trio.testing.MockClock) -> None:
    completed: list[Group] = []
    dispatcher = Dispatcher(Days(seconds=1e6), PACE, seed=0, next_group=next_group)
    dispatcher.on_complete = completed.append
    async with trio.open_nursery() as nursery:
        nursery.start_soon(dispatcher.run)
        await trio.sleep(3)
        dispatcher.drop_stale(MAX_STALENESS)
        assert completed == []
        dispatcher.drop_stale(MAX_STALENESS + 1)
        nursery.cancel_scope.cancel()
    [group] = completed
    assert (group.failed, group.done) == (GROUP_SIZE, [])


def group_of(*rewards: float, failed: int = 0, version: int = 0) -> Group:
    group = Group(1, "train", 0, Policy(version=version), 0, GROUP_SIZE, 0)
    group.done = [Trajectory(version, reward=reward) for reward in rewards]
    group.failed = failed
    return group


def test_what_is_left_of_a_group_is_trained_on() -> None:
    sink = Sink()
    sink.add(group_of(0.1, 0.3, failed=6))
    sink.add(group_of(0.1, failed=7))
    sink.add(group_of(*[0.2] * 8))
    assert (len(sink.pending), sink.groups_partial, sink.groups_dropped, sink.groups_pruned) == (2, 1, 1, 1)


def test_a_batch_has_nothing_that_is_too_old() -> None:
    sink = Sink()
    for version in (0, 1, 1, 1):
        sink.add(group_of(*[0.1, 0.2] * 4, version=version))
    assert sink.batch(MAX_STALENESS + 1) is None
    sink.add(group_of(*[0.1, 0.2] * 4, version=2))
    batch = sink.batch(MAX_STALENESS + 1)
    assert batch is not None and len(batch) == BATCH_SIZE and sink.pending == []


def test_ten_empty_batches_abort_the_run() -> None:
    sink = Sink()
    for _ in range(39):
        sink.add(group_of(failed=8))
    sink.add(group_of(0.1, 0.3, failed=6))
    for _ in range(39):
        sink.add(group_of(failed=8))
    with pytest.raises(RunAborted, match="320 rollouts"):
        sink.add(group_of(failed=8))


# -- the servers -----------------------------------------------------------------------------------------------------


def test_a_handshake_takes_longer_under_load() -> None:
    work = Work(8, Pace(10), io.StringIO())
    with work.under_way(), work.under_way():
        assert work.handshake_seconds == 0.05
        with work.under_way():
            assert work.handshake_seconds == 1.2


def test_gymserve_gets_the_times_of_the_incident_scaled() -> None:
    arguments = gymserve_arguments(ARMS["patient"], Pace(10), "http://127.0.0.1:1")
    assert [arguments[arguments.index(flag) + 1] for flag in ("--patience", "--idle-timeout", "--connect-timeout")] == [
        "60",
        "12",
        "1",
    ]


async def test_a_browser_skips_interim_answers_and_keeps_its_cookie() -> None:
    heard: list[bytes] = []

    async def serve(stream: trio.SocketStream) -> None:
        for answer in (
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nSet-Cookie: a=b; Path=/\r\nContent-Length: 2\r\n\r\n{}",
            b'HTTP/1.1 503 No\r\nContent-Length: 12\r\n\r\n{"error": 1}',
        ):
            heard.append(await stream.receive_some())
            await stream.send_all(answer)
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        listener, *_ = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        browser = Browser(f"http://127.0.0.1:{listener.socket.getsockname()[1]}")
        first, second = await browser.post("seed_session", {}), await browser.post("verify", {})
        with pytest.raises(Unanswered):
            await browser.post("verify", {})
        await browser.aclose()
        nursery.cancel_scope.cancel()
    assert (first.status, second.status, second.body) == (200, 503, {"error": 1})
    assert b"Cookie" not in heard[0] and b"Cookie: a=b\r\n" in heard[1]


# -- a record --------------------------------------------------------------------------------------------------------


def rollout(name: str, **more: Any) -> Rollout:
    usual: dict[str, Any] = {
        "kind": "train",
        "step": 0,
        "dispatched_at": 0.0,
        "answered_at": 20.0,
        "ended_at": 30.0,
        "outcome": "",
    }
    return Rollout(name=name, **usual | {"is_abandoned": False, "reward": 0.5, "waited_seconds": 0.0} | more)


def record(**more: Any) -> Record:
    return Record("patient", Plan(10.0, 0, 2, (0,)), began_at=0.0, ended_at=100.0, **more)


LIFE = [
    Event(1.0, "opened", 1),
    Event(2.0, "reset", 1, "r1"),
    Event(3.0, "opened", 2),
    Event(32.02, "goodbye", 1),
    Event(33.0, "closed", 1),
]


def test_an_abandoned_rollout_is_late_by_what_its_goodbye_is_after_its_idle_deadline() -> None:
    figures = Figures(
        record(
            events=LIFE,
            rollouts=[
                rollout("r1", outcome=CANCELLED, is_abandoned=True),
                rollout("r2", outcome=CANCELLED, is_abandoned=True),
            ],
        )
    )
    reclaimed = figures.reclaimed()
    assert reclaimed.late_seconds == pytest.approx([0.02])  # 20 s and 120 s / 10
    assert reclaimed.held_seconds == pytest.approx([20.2])  # 2.02 s, ten times slower as it was
    assert reclaimed.never == 1


def test_a_slot_is_somebodys_at_every_moment() -> None:
    figures = Figures(record(events=LIFE, rollouts=[rollout("r1", outcome=CANCELLED, is_abandoned=True)]))
    minutes, phases = figures.occupancy(101)
    assert minutes[6] == pytest.approx(1.0)
    assert [[phase[second] for phase in phases] for second in (1, 2, 29, 30, 32, 33)] == [
        [1, 0, 0, 0],
        [0, 1, 0, 0],
        [1, 1, 0, 0],  # the second is never reset
        [1, 0, 1, 0],
        [1, 0, 1, 0],
        [1, 0, 0, 0],
    ]


def test_an_outage_ends_all_lives() -> None:
    events = [
        *LIFE[:3],
        Event(10.0, "down"),
        Event(13.0, "began"),
        Event(14.0, "opened", 1),
        Event(15.0, "reset", 1, "r3"),
    ]
    ended = [(life.rollout, life.closed) for life in lives(record(events=events))]
    assert ended == [("r1", 10.0), ("", 10.0), ("r3", float("inf"))]


def test_a_record_survives_being_written_down() -> None:
    whole = record(events=LIFE, rollouts=[rollout("r1")], batches=[Batch(1.0, 1, [0.5])], outage=(1.0, 2.0))
    assert Record.from_json(whole.to_json()) == whole
    assert json.loads(whole.to_json())["plan"]["steps"] == 2


def test_pictures_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from training.drawing import draw_occupancy, draw_rewards

    evaluations = [rollout(f"e{number}", kind="eval", reward=number / 10) for number in range(3)]
    figures = Figures(record(events=LIFE, rollouts=evaluations, batches=[Batch(50.0, 1, [0.5])]))
    for draw in (draw_occupancy, draw_rewards):
        draw([figures], tmp_path / "picture.png")
        assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_blocks_rise_only_if_each_is_above_the_one_before() -> None:
    assert rises([0.1, 0.2, 0.3]) and not rises([0.1, 0.3, 0.2])
