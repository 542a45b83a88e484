"""Moments that move all the time, a few for each session, and the one task that sleeps until the next of them.

Trio's own deadlines are all acted on in one turn of its loop: where thousands pass at one instant, everybody else waits
for as many ends of sessions. Here one rings in each turn, the earliest first, and others' tasks run between them. To
put a moment off costs next to nothing: it comes up at its old time, and is then looked for at the new one.
"""

import heapq
import itertools
import math
from collections.abc import Callable

import trio

IN_ONE_TURN = 1  # end of a session, which costs a millisecond or two with all that follows from it
_SPARED = 1000  # stopped alarms that need not be swept out


class Alarm:
    """A moment. ``at`` is in Trio's time; infinite, it does not come."""

    __slots__ = ("_alarms", "_ring", "at", "looked_for_at")

    def __init__(self, alarms: "Alarms", ring: Callable[[], None]) -> None:
        """:param ring: called at the moment, or as soon after it as those before it and the other tasks allow. It must
        not fail.
        """
        self.at = math.inf
        self.looked_for_at = math.inf
        self._alarms = alarms
        self._ring: Callable[[], None] | None = ring

    def set(self, at: float) -> None:
        """Ring then, and not when it was to be before."""
        self.at = at
        if at < self.looked_for_at:
            self._alarms.look_for(self)

    def hasten(self) -> None:
        """Ring now; where many do, in its turn."""
        if self._alarms.take_time():
            self.ring()
        else:
            self.set(trio.current_time())

    def stop(self) -> None:
        """Never ring again."""
        if self._ring is not None:
            self.at, self._ring = math.inf, None
            self._alarms.note_stopped(self)

    @property
    def is_stopped(self) -> bool:
        return self._ring is None

    def ring(self) -> None:
        self.at = math.inf
        if self._ring is not None:
            self._ring()


class Alarms:
    """All alarms of a gateway."""

    def __init__(self) -> None:
        self._queue: list[tuple[float, int, Alarm]] = []
        self._numbers = itertools.count()
        self._stopped = 0  # of those in the queue
        self._rung = 0  # in this turn of the loop
        self._sooner = trio.Event()

    def __len__(self) -> int:
        """How many are looked for, those too that were put off or stopped."""
        return len(self._queue)

    def alarm(self, ring: Callable[[], None]) -> Alarm:
        """One more, not set yet. :param ring: as `Alarm` has it."""
        return Alarm(self, ring)

    def look_for(self, alarm: Alarm) -> None:
        """``alarm`` comes sooner than it was expected."""
        alarm.looked_for_at = alarm.at
        heapq.heappush(self._queue, (alarm.at, next(self._numbers), alarm))
        if self._queue[0][2] is alarm:
            self._sooner.set()

    def note_stopped(self, alarm: Alarm) -> None:
        """``alarm`` need not be looked for any more."""
        if alarm.looked_for_at == math.inf:
            return
        self._stopped += 1
        if self._stopped > _SPARED and 2 * self._stopped > len(self._queue):
            self._queue = [entry for entry in self._queue if not entry[2].is_stopped]
            heapq.heapify(self._queue)
            self._stopped = 0

    def take_time(self) -> bool:
        """Whether one more may ring in this turn of the loop; it is counted."""
        if self._rung == IN_ONE_TURN:
            return False
        self._rung += 1
        self._sooner.set()  # it is counted anew in the next one
        return True

    async def run(self) -> None:
        """A task, for ever: it sleeps until the next moment, and rings."""
        while True:
            self._sooner = trio.Event()
            self._rung = 0
            self._ring_those_due()
            if self._rung:
                await trio.lowlevel.checkpoint()
                continue
            with trio.CancelScope(deadline=self._queue[0][0] if self._queue else math.inf):
                await self._sooner.wait()

    def _ring_those_due(self) -> None:
        now = trio.current_time()
        while self._queue and self._queue[0][0] <= now and self._rung < IN_ONE_TURN:
            looked_for_at, _, alarm = heapq.heappop(self._queue)
            if looked_for_at != alarm.looked_for_at:
                continue  # it was looked for sooner, and that has been
            alarm.looked_for_at = math.inf
            self._stopped -= alarm.is_stopped
            if alarm.at <= now:
                self._rung += 1
                alarm.ring()
            elif alarm.at < math.inf:
                self.look_for(alarm)
