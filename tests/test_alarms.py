"""Alarms: exact to the instant alone, a few at a time where many are due, and gone when they are stopped."""

import itertools
import math
import weakref
from typing import Any

import trio
from trio.testing import wait_all_tasks_blocked

from gymserve.alarms import IN_ONE_TURN, Alarms


class Bells:
    """Alarms by name, and when each rang."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.alarms = Alarms()
        self.rung: list[tuple[str, float]] = []
        nursery.start_soon(self.alarms.run)

    def make(self, name: str, at: float = math.inf):
        alarm = self.alarms.alarm(lambda: self.rung.append((name, trio.current_time())))
        alarm.set(at)
        return alarm


class Turns(trio.abc.Instrument):
    """How long a list is, at the end of each turn of Trio's loop."""

    def __init__(self, watched: list[Any]) -> None:
        self.seen = [len(watched)]
        self._watched = watched

    def before_io_wait(self, timeout: float) -> None:
        self.seen.append(len(self._watched))


async def test_each_rings_once_at_its_moment(autojump_clock, nursery):
    bells = Bells(nursery)
    for name, at in (("c", 30.25), ("a", 10.0), ("b", 20.125)):
        bells.make(name, at)
    never = bells.make("never")
    await trio.sleep(1000)
    assert bells.rung == [("a", 10), ("b", 20.125), ("c", 30.25)]
    assert never.at == math.inf


async def test_it_can_be_put_off_and_brought_forward(autojump_clock, nursery):
    bells = Bells(nursery)
    late, soon = bells.make("late", 10), bells.make("soon", 100)
    await trio.sleep(9)
    late.set(20)
    await trio.sleep(2)  # past the moment at which it was to ring before
    late.set(40)
    soon.set(30)
    await trio.sleep(1000)
    assert bells.rung == [("soon", 30), ("late", 40)]
    late.set(2000)
    late.set(math.inf)
    soon.set(1500)
    soon.set(math.inf)
    soon.set(1600)
    await trio.sleep(10_000)
    assert bells.rung[2:] == [("soon", 1600)]


async def test_one_that_is_set_for_the_past_rings_now(autojump_clock, nursery):
    bells = Bells(nursery)
    await trio.sleep(5)
    bells.make("past", 3)
    await wait_all_tasks_blocked()
    assert bells.rung == [("past", 5)]


async def test_many_at_one_instant_ring_in_order_and_let_the_others_run_between(autojump_clock, nursery):
    bells = Bells(nursery)
    names = [str(number) for number in range(5 * IN_ONE_TURN)]
    for number, name in reversed(list(enumerate(names))):
        bells.make(name, 10 + number / 1e9)
    await trio.lowlevel.checkpoint()  # its task waits for the earliest now
    autojump_clock.autojump_threshold = math.inf
    autojump_clock.jump(11)
    turns = Turns(bells.rung)
    trio.lowlevel.add_instrument(turns)
    while len(bells.rung) < len(names):
        await trio.lowlevel.checkpoint()
    trio.lowlevel.remove_instrument(turns)
    assert bells.rung == [(name, 11) for name in names]
    assert max(later - sooner for sooner, later in itertools.pairwise([*turns.seen, len(names)])) == IN_ONE_TURN


async def test_one_that_is_hastened_rings_at_once_and_many_in_turns(autojump_clock, nursery):
    bells = Bells(nursery)
    alarms = [bells.make(str(number), 100) for number in range(3 * IN_ONE_TURN)]
    turns = Turns(bells.rung)
    trio.lowlevel.add_instrument(turns)
    await trio.sleep(5)
    for alarm in alarms:
        alarm.hasten()
    assert bells.rung == [(str(number), 5) for number in range(IN_ONE_TURN)]
    await wait_all_tasks_blocked()
    trio.lowlevel.remove_instrument(turns)
    assert bells.rung == [(str(number), 5) for number in range(len(alarms))]
    assert max(later - sooner for sooner, later in itertools.pairwise(turns.seen)) == IN_ONE_TURN
    await trio.sleep(1000)
    assert len(bells.rung) == len(alarms)


async def test_a_stopped_one_never_rings_and_is_held_by_nobody(autojump_clock, nursery):
    bells = Bells(nursery)

    class Owner:
        def hear(self) -> None:
            raise AssertionError("it was stopped")

    owner = Owner()
    alarm = bells.alarms.alarm(owner.hear)
    alarm.set(10)
    alarm.stop()
    alarm.stop()
    gone = weakref.ref(owner)
    del owner
    assert gone() is None
    alarm.set(20)
    await trio.sleep(100)
    assert bells.rung == []


async def test_the_stopped_are_swept_out_when_they_are_many(autojump_clock, nursery):
    bells = Bells(nursery)
    kept = [bells.make("kept", 600) for _ in range(10)]
    for _ in range(5000):
        bells.make("stopped", 600).stop()
    assert len(bells.alarms) < 2500
    await trio.sleep(1000)
    assert bells.rung == [("kept", 600)] * len(kept)
    assert len(bells.alarms) == 0
