"""Any schedule of arrivals, give-ups, slow resets, refusals by others and drops, in virtual time: what always holds."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import ScriptedServer, agreeable, observed
from stage import Stage, raise_the_curtain
from trio.testing import MockClock

from gymserve.errors import EnvironmentFailed, NoRoom
from gymserve.gridsim.http import HttpConnection
from gymserve.opening import Progress

PATIENCE_SECONDS = 60.0
CLOSE_SECONDS = 5.0


@dataclass(frozen=True)
class Weather:
    """What befalls a server: ``others`` hold slots from one moment to another, every so many handshakes is dropped
    or answered late, every so many resets fails or is slow.
    """

    slots: int
    others: int
    others_until: float
    dropped: int
    late: int
    late_seconds: float
    failed: int
    slow: int
    slow_seconds: float


class WeatheredServer(ScriptedServer):
    """A server with slots, which are taken with the handshake and given back when the connection ends."""

    def __init__(self, weather: Weather) -> None:
        super().__init__(self._reset, upgrade=self._answer)
        self.ours = 0
        self._weather = weather
        self._handshakes = 0
        self._resets = 0

    @property
    def free(self) -> int:
        others = self._weather.others if trio.current_time() < self._weather.others_until else 0
        return self._weather.slots - others - self.ours

    async def _answer(self, connection: HttpConnection, stream: trio.abc.Stream) -> bool:
        self._handshakes += 1
        if happens(self._handshakes, self._weather.dropped):
            await stream.aclose()
            return False
        if happens(self._handshakes, self._weather.late):
            await trio.sleep(self._weather.late_seconds)
        return True

    async def _converse(self, websocket: Any) -> None:
        if self.free <= 0:
            await websocket.send_message(CAPACITY_REACHED % self._weather.slots)
            await websocket.aclose()
            return
        self.ours += 1
        try:
            await super()._converse(websocket)
        finally:
            self.ours -= 1

    async def _reset(self, message: Mapping[str, Any]) -> Any:
        self._resets += 1
        if happens(self._resets, self._weather.slow):
            await trio.sleep(self._weather.slow_seconds)
        return observed(done=True) if happens(self._resets, self._weather.failed) else await agreeable(message)


CAPACITY_REACHED = '{"type":"error","data":{"code":"CAPACITY_REACHED","message":"full","max_sessions":%d}}'


def happens(number: int, every: int) -> bool:
    return every > 0 and number % every == 0


@dataclass(frozen=True)
class Visit:
    at: float
    stay_seconds: float
    hangs_up_after: float
    label: str | None


class Visitors:
    """Sessions reduced to what they do with an opener; when each came, was answered, and how."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self.came: dict[str | None, list[int]] = {}
        self.opened: dict[int, float] = {}
        self.waited: dict[int, float] = {}

    async def come(self, number: int, visit: Visit) -> None:
        await trio.sleep(visit.at)
        self.came.setdefault(visit.label, []).append(number)
        started = trio.current_time()
        with trio.move_on_after(visit.hangs_up_after):
            await self._stay(number, visit, started)

    async def _stay(self, number: int, visit: Visit, started: float) -> None:
        async with trio.open_nursery() as nursery:
            try:
                opened = await self._stage.opener.open(nursery, {}, Progress(), label=visit.label)
            except (NoRoom, EnvironmentFailed):
                return
            finally:
                self.waited[number] = trio.current_time() - started
            try:
                self.opened[number] = trio.current_time()
                await trio.sleep(visit.stay_seconds)
                await opened.episode.goodbye(timeout_seconds=CLOSE_SECONDS)
            finally:
                opened.place.release()
            await opened.episode.leave()
            nursery.cancel_scope.cancel()

    def in_order(self, label: str | None) -> list[float]:
        return [self.opened[number] for number in self.came[label] if number in self.opened]


async def play(visits: list[Visit], weather: Weather, *, in_order: bool) -> None:
    server = WeatheredServer(weather)
    async with raise_the_curtain(
        server, patience_seconds=PATIENCE_SECONDS, close_timeout_seconds=CLOSE_SECONDS
    ) as stage:
        visitors = Visitors(stage)
        if in_order:
            stage.gate.full_said(weather.slots)
            stage.nursery.start_soon(watch, stage, weather.slots + 1)  # one more may be a probe
        async with trio.open_nursery() as nursery:
            for number, visit in enumerate(visits):
                nursery.start_soon(visitors.come, number, visit)
        await trio.sleep(100)  # handshakes that nobody waits for are answered and dismissed
        assert (server.ours, stage.opener.line.held, stage.opener.line.waiting) == (0, 0, 0)
        assert visitors.waited.keys() == set(range(len(visits)))
        assert max(visitors.waited.values(), default=0) <= PATIENCE_SECONDS + 1  # 1 s: many that fail are held back
        if in_order:
            for label in visitors.came:
                assert visitors.in_order(label) == sorted(visitors.in_order(label))


async def watch(stage: Stage, most_held: int) -> None:
    while True:
        await trio.sleep(0.45)
        assert stage.opener.line.held <= most_held


TENTHS = st.integers(0, 300).map(lambda tenth: tenth / 10)
VISITS = st.lists(
    st.builds(
        Visit,
        at=TENTHS,
        stay_seconds=TENTHS,
        hangs_up_after=st.one_of(st.just(math.inf), TENTHS),
        label=st.sampled_from(["x", "y", None]),
    ),
    min_size=1,
    max_size=10,
)
SELDOM = st.sampled_from([0, 0, 2, 3, 7])
ROUGH = st.builds(
    Weather,
    slots=st.integers(1, 3),
    others=st.integers(0, 3),
    others_until=TENTHS,
    dropped=SELDOM,
    late=SELDOM,
    late_seconds=TENTHS,
    failed=SELDOM,
    slow=SELDOM,
    slow_seconds=TENTHS,
)
"""Anything may happen: whoever is first may still open last, as a reset of their own is slow."""

FAIR = st.builds(
    Weather,
    slots=st.integers(1, 3),
    others=st.integers(0, 3),
    others_until=TENTHS,
    dropped=SELDOM,
    late=SELDOM,
    late_seconds=TENTHS,
    failed=st.just(0),
    slow=st.just(0),
    slow_seconds=st.just(0.0),
)
"""Resets take no time, so that sessions open in the order in which they are given connections."""


@settings(deadline=None, max_examples=60, derandomize=True)
@given(VISITS, ROUGH)
def test_no_slot_is_lost_and_everyone_is_answered_within_the_patience(visits, weather):
    trio.run(lambda: play(visits, weather, in_order=False), clock=MockClock(autojump_threshold=0))


@settings(deadline=None, max_examples=60, derandomize=True)
@given(VISITS, FAIR)
def test_nobody_is_overtaken_by_a_later_one_of_their_label_and_no_more_slots_are_taken_than_there_are(visits, weather):
    trio.run(lambda: play(visits, weather, in_order=True), clock=MockClock(autojump_threshold=0))
