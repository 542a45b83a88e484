"""The line before one environment server: who may knock next, first come, first served.

A place is held from the knock to the moment the server has the slot back, so ``held`` never exceeds what the server
said it has. There is no clockwork: whoever gives a place back hands it to the head of the line in the same tick;
only the head sleeps, and only when something else than our own sessions decides (a backoff, or the probe for a
server that has grown).
"""

import bisect
import enum
import itertools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import trio

_MAX_HANDSHAKES = 16  # unanswered at a time: a stalled server serves every one of them later, wanted or not
_FIRST_BACKOFF_SECONDS = 0.05
_LAST_BACKOFF_SECONDS = 2.0
_PROBE_SECONDS = 30.0


class Stage(enum.Enum):
    """Where an opener stands. From HANDSHAKE to OPEN it holds a place."""

    OUTSIDE = "not in the line"
    WAITING = "in the line"
    HANDSHAKE = "knocking"
    ANSWER = "let in, waiting for the first answer, which may still be a refusal"
    OPEN = "holding an episode"


_HOLDING = (Stage.HANDSHAKE, Stage.ANSWER, Stage.OPEN)


@dataclass(order=True, slots=True)
class Ticket:
    """One opener's position: it keeps it through every refusal."""

    number: int
    stage: Stage = field(default=Stage.OUTSIDE, compare=False)
    woken: trio.Event = field(default_factory=trio.Event, compare=False)


class Line:
    """Places for episodes on one server.

    ``capacity`` is what the server last said it has, None before it said. ``held`` counts places: knocking, open,
    closing.
    """

    def __init__(self, *, jitter: Callable[[], float]) -> None:
        """:param jitter: a factor for each backoff, about 1: gymserves that share a server shall not knock together."""
        self._jitter = jitter
        self._numbers = itertools.count()
        self._waiting: list[Ticket] = []
        self._count: Counter[Stage] = Counter()
        self._backoff_seconds = 0.0
        self._closed_until = -math.inf
        self._refused_at = -math.inf
        self.capacity: int | None = None

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def held(self) -> int:
        return sum(self._count[stage] for stage in _HOLDING)

    def join(self) -> Ticket:
        """A position behind everybody's."""
        return Ticket(next(self._numbers))

    async def turn(self, ticket: Ticket) -> None:
        """Wait until ``ticket`` holds a place. Cancelled, it has left the line."""
        self._move(ticket, Stage.WAITING)
        bisect.insort(self._waiting, ticket)
        try:
            self._admit()
            while ticket.stage is Stage.WAITING:
                ticket.woken = trio.Event()
                with trio.CancelScope(deadline=self._alarm(ticket)):
                    await ticket.woken.wait()
                self._admit()
        except BaseException:
            self.leave(ticket)
            raise

    def let_in(self, ticket: Ticket) -> None:
        """The server answered the handshake; whether it has room it will say with its first message."""
        self._move(ticket, Stage.ANSWER)
        self._admit()

    def opened(self, ticket: Ticket) -> None:
        """The episode is open: the server has room and answers."""
        self._move(ticket, Stage.OPEN)
        self._backoff_seconds = 0.0
        self._closed_until = -math.inf
        if self.capacity is not None and self._count[Stage.OPEN] > self.capacity:
            self.capacity = self._count[Stage.OPEN]  # it has grown
        self._admit()

    def refused(self, ticket: Ticket, capacity: int | None) -> None:
        """The server is full and has ``capacity`` slots, None where it did not say. The place is given up."""
        self.capacity = capacity if capacity is not None else self.capacity
        self._refused_at = trio.current_time()
        self._move(ticket, Stage.OUTSIDE)
        if self.capacity is None or self.held < self.capacity:
            self._back_off()  # others have the rest
        self._admit()

    def failed(self, ticket: Ticket) -> None:
        """The server did not answer. The place is given up."""
        self._move(ticket, Stage.OUTSIDE)
        self._back_off()
        self._admit()

    def leave(self, ticket: Ticket) -> None:
        """Leave the line, or give the place back, whichever it is. Twice does no harm."""
        if ticket.stage is Stage.WAITING:
            self._waiting.remove(ticket)
        if ticket.stage is Stage.OPEN:
            self._closed_until = -math.inf  # a slot is free, whatever the last refusal said
        self._move(ticket, Stage.OUTSIDE)
        self._admit()

    def _move(self, ticket: Ticket, stage: Stage) -> None:
        self._count[ticket.stage] -= 1
        self._count[stage] += 1
        ticket.stage = stage

    def _admit(self) -> None:
        """Give the free places to those who wait longest, and wake the one who then stands first."""
        while self._waiting and self._has_room():
            ticket = self._waiting.pop(0)
            self._move(ticket, Stage.HANDSHAKE)
            ticket.woken.set()
        if self._waiting:
            self._waiting[0].woken.set()

    @property
    def _unproven(self) -> int:
        return self._count[Stage.HANDSHAKE] + self._count[Stage.ANSWER]

    def _has_room(self) -> bool:
        if trio.current_time() < self._opens_at():
            return False
        if self._backoff_seconds > 0 or self._full:
            return self._unproven == 0  # after a backoff, or for a probe, the head goes alone
        return self._count[Stage.HANDSHAKE] < _MAX_HANDSHAKES

    @property
    def _full(self) -> bool:
        """Whether the server's last word on its capacity leaves no place."""
        return self.capacity is not None and self.held >= self.capacity

    def _opens_at(self) -> float:
        """The moment before which nobody may knock."""
        backed_off_until = self._closed_until if self._backoff_seconds > 0 else -math.inf
        return max(backed_off_until, self._refused_at + _PROBE_SECONDS) if self._full else backed_off_until

    def _alarm(self, ticket: Ticket) -> float:
        """When ``ticket`` should look again by itself (only the head needs to)."""
        return self._opens_at() if self._waiting[0] is ticket and self._unproven == 0 else math.inf

    def _back_off(self) -> None:
        self._backoff_seconds = min(max(2 * self._backoff_seconds, _FIRST_BACKOFF_SECONDS), _LAST_BACKOFF_SECONDS)
        self._closed_until = trio.current_time() + self._backoff_seconds * self._jitter()
