"""The line before one environment server: who gets the next connection, and when the server is knocked at.

Sessions wait in queues, one for each label, first come, first served; the next connection goes to the label that
holds the fewest. Knocks belong to the line and not to the session that was first when they began: whichever is
answered serves whoever is next, and a client that hangs up leaves no second knock behind.

``held`` counts the slots that are ours or may become ours: knocks under way, connections in their reset, episodes,
goodbyes. It never exceeds what the server said that it has, except for one probe every 30 s. Whoever gives a slot back
makes the next knock in the same tick; time matters only after a refusal while others share the server.
"""

import bisect
import enum
import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence

import trio

from gymserve.call import Reply
from gymserve.episode import Episode

_FIRST_BACKOFF_SECONDS = 0.05
_LAST_BACKOFF_SECONDS = 2.0
_PROBE_SECONDS = 30.0


class Stage(enum.Enum):
    """Where an opener stands."""

    OUTSIDE = "not in the line"
    WAITING = "in the line"
    ANSWER = "has a connection with room behind it, and waits for its reset"
    OPEN = "holds an episode, or says goodbye to it"


def _nobody_to_tell() -> None:
    """The default of ``on_wait``."""


class MustWait(Exception):
    """There is no connection without waiting, and the ticket's holder has no patience."""


class Ticket:
    """One opener's position, which it keeps through every refusal. ``tries`` are the knocks made for it."""

    def __init__(self, number: int, label: str | None, on_wait: Callable[[], None], *, patient: bool) -> None:
        self.number = number
        self.label = label
        self.on_wait = on_wait
        self.patient = patient
        self.stage = Stage.OUTSIDE
        self.since_seconds = trio.current_time()
        self.tries = 0
        self.connection: Reply[Episode] = Reply()


class Line:
    """Queues for one server. ``capacity`` is what it last said that it has, None before it said."""

    def __init__(
        self,
        *,
        knock: Callable[[], None],
        dismiss: Callable[[Episode, Ticket], None],
        jitter: Callable[[], float],
        max_handshakes: int,
        max_held: float = math.inf,
    ) -> None:
        """:param knock: begins a handshake, whose end is told by `let_in` or `knocked_in_vain`.
        :param dismiss: says goodbye to a connection that nobody wants any more, and then `leave`s with the ticket.
        :param jitter: a factor for each backoff, about 1, so that gymserves sharing a server do not knock together.
        :param max_handshakes: unanswered at a time: a stalled server serves each of them later, wanted or not.
        :param max_held: connections that we can have, whatever the server can.
        """
        self._knock = knock
        self._dismiss = dismiss
        self._jitter = jitter
        self._max_handshakes = max_handshakes
        self._max_held = max_held
        self._numbers = itertools.count()
        self._queues: dict[str | None, list[Ticket]] = {}
        self._untold: list[Ticket] = []  # those in the queues who may not have to wait
        self._count: Counter[Stage] = Counter()
        self._held_by_label: Counter[str | None] = Counter()
        self._knocks = 0
        self._backoff_seconds = 0.0
        self._closed_until = -math.inf
        self._refused_at = -math.inf
        self._changed = trio.Event()
        self.capacity: int | None = None

    # -- what there is ---------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        return self._count[Stage.WAITING]

    @property
    def held(self) -> int:
        return self._knocks + self._count[Stage.ANSWER] + self._count[Stage.OPEN]

    @property
    def let_in_already(self) -> int:
        """Connections that are not knocks any more."""
        return self._count[Stage.ANSWER] + self._count[Stage.OPEN]

    @property
    def oldest_wait_seconds(self) -> float:
        """How long the one who waits longest has waited; 0 where nobody does."""
        firsts = [queue[0].since_seconds for queue in self._queues.values() if queue]
        return trio.current_time() - min(firsts) if firsts else 0.0

    @property
    def has_room(self) -> bool:
        """Whether who came now would not wait for anybody."""
        return self.waiting == 0 and not (self._full or self.is_spent) and trio.current_time() >= self._opens_at()

    @property
    def is_spent(self) -> bool:
        """Whether we ourselves can have no other connection, whatever the server can."""
        return self.held >= self._max_held

    # -- for openers -----------------------------------------------------------------------------------------------

    def join(self, label: str | None, *, on_wait: Callable[[], None] = _nobody_to_tell, patient: bool = True) -> Ticket:
        """A position behind everybody's of that label.

        :param on_wait: told when it has to wait: for a knock, or for a server that is slow to answer one.
        :param patient: whether a knock in vain is waited out; otherwise `connection` raises what it failed with.
        """
        return Ticket(next(self._numbers), label, on_wait, patient=patient)

    def enqueue(self, ticket: Ticket) -> None:
        """Stand in the line, at the ticket's own position; `connection` must follow."""
        ticket.connection = Reply()
        self._move(ticket, Stage.WAITING)
        queue = self._queues.setdefault(ticket.label, [])
        bisect.insort(queue, ticket, key=_number)
        self._untold.append(ticket)
        self._knock_for_the_waiting()

    async def connection(self, ticket: Ticket) -> Episode:
        """Wait for a connection. Cancelled, the ticket has left the line.

        :raises Exception: what a knock failed with, where waiting would not help or is not wanted.
        """
        try:
            episode = await ticket.connection.wait()
            await trio.lowlevel.checkpoint_if_cancelled()
            return episode
        except trio.Cancelled:
            self._give_up(ticket)
            raise

    def place(self, ticket: Ticket) -> int:
        """How many of its label stand before ``ticket``, and it: 1 for the first."""
        return 1 + bisect.bisect_left(self._queues.get(ticket.label, []), ticket.number, key=_number)

    def opened(self, ticket: Ticket) -> None:
        """The episode is open: the server has room and answers."""
        self._move(ticket, Stage.OPEN)
        self._backoff_seconds = 0.0
        self._closed_until = -math.inf
        if self.capacity is not None and self._count[Stage.OPEN] > self.capacity:
            self.capacity = self._count[Stage.OPEN]  # it has grown
        self._knock_for_the_waiting()

    def refused(self, ticket: Ticket, capacity: int | None) -> None:
        """The server is full and has ``capacity`` slots, None where it did not say."""
        self._move(ticket, Stage.OUTSIDE)
        self._full_said(capacity)

    def failed(self, ticket: Ticket) -> None:
        """The server dropped the connection before the reset was answered."""
        self._move(ticket, Stage.OUTSIDE)
        self._back_off()
        self._knock_for_the_waiting()

    def leave(self, ticket: Ticket) -> None:
        """Leave the line, or give the slot back, whichever it is. Twice does no harm."""
        if ticket.stage is Stage.WAITING:
            self._queue_out(ticket)
        elif ticket.stage is Stage.OPEN:
            self._closed_until = -math.inf  # a slot is free, whatever the last refusal said
        self._move(ticket, Stage.OUTSIDE)
        self._knock_for_the_waiting()

    # -- for knocks ------------------------------------------------------------------------------------------------

    def let_in(self, episode: Episode) -> None:
        """A knock was answered and there is room."""
        self._knocks -= 1
        self._hand_over(episode)

    def knocked_in_vain(self, exc: Exception, *, again_by: float = math.inf) -> None:
        """A handshake came to nothing, and waiting may help; the next one is due at ``again_by`` at the latest."""
        self._knock_failed(exc)
        self._back_off()
        self._closed_until = min(self._closed_until, again_by)
        self._knock_for_the_waiting()

    def knock_refused(self, exc: Exception, capacity: int | None) -> None:
        """There is no room. The server has ``capacity`` slots, None where it did not say."""
        self._knock_failed(exc)
        self._full_said(capacity)

    def knock_lost(self) -> None:
        """A handshake is lost though the server is alive: another is due at once."""
        self._knock_ended()
        self._knock_for_the_waiting()

    def knock_hopeless(self, exc: Exception) -> None:
        """Waiting will not help: the one who is next is told, the others find out for themselves."""
        ticket = self._knock_ended()
        if ticket is not None:
            self._send_away(ticket, exc)
        self._knock_for_the_waiting()

    def knock_unanswered(self) -> None:
        """A handshake takes long: whoever is in the line waits, though a knock may be under way for them all."""
        self._tell(self._untold)

    async def watch(self) -> None:
        """Knock when a backoff, or the time until the next probe, is over. A task beside the knocks, for ever."""
        while True:
            self._changed = trio.Event()
            with trio.CancelScope(deadline=self._alarm()):
                await self._changed.wait()
            self._knock_for_the_waiting()

    # -- between them ----------------------------------------------------------------------------------------------

    def _knock_ended(self) -> Ticket | None:
        """In vain; whom it was for, who is next."""
        self._knocks -= 1
        ticket = self._next()
        if ticket is not None:
            ticket.tries += 1
        return ticket

    def _knock_failed(self, exc: Exception) -> None:
        ticket = self._knock_ended()
        if ticket is not None and not ticket.patient:
            self._send_away(ticket, exc)

    def _send_away(self, ticket: Ticket, exc: Exception) -> None:
        self._queue_out(ticket)
        self._move(ticket, Stage.OUTSIDE)
        ticket.connection.fail(exc)

    def _give_up(self, ticket: Ticket) -> None:
        """Its client left; in the tick in which it was given a connection, the next in the line has that."""
        given = ticket.connection.value
        if given is not None:
            self._move(ticket, Stage.OUTSIDE)
            self._hand_over(given)
        elif ticket.stage is Stage.WAITING:
            ticket.tries += self._rank(ticket) <= self._knocks  # the one under way counts
            self.leave(ticket)

    def _hand_over(self, episode: Episode) -> None:
        ticket = self._next()
        if ticket is None:
            ticket = self.join(None)
            self._move(ticket, Stage.OPEN)
            self._dismiss(episode, ticket)
            return
        self._queue_out(ticket)
        self._move(ticket, Stage.ANSWER)
        ticket.tries += 1
        ticket.connection.answer(episode)
        self._knock_for_the_waiting()

    def _next(self) -> Ticket | None:
        """The first of the label that holds the fewest; of several such labels, the one who came first."""
        firsts = [queue[0] for queue in self._queues.values() if queue]
        return min(firsts, key=lambda ticket: (self._held_by_label[ticket.label], ticket.number), default=None)

    def _rank(self, ticket: Ticket) -> int:
        """How many of all labels came before ``ticket``, and it."""
        return 1 + sum(bisect.bisect_left(queue, ticket.number, key=_number) for queue in self._queues.values())

    def _queue_out(self, ticket: Ticket) -> None:
        queue = self._queues[ticket.label]
        queue.remove(ticket)
        if ticket in self._untold:
            self._untold.remove(ticket)
        if not queue:
            del self._queues[ticket.label]

    def _move(self, ticket: Ticket, stage: Stage) -> None:
        self._held_by_label[ticket.label] += (stage in _HOLDING) - (ticket.stage in _HOLDING)
        if self._held_by_label[ticket.label] == 0:
            del self._held_by_label[ticket.label]
        self._count[ticket.stage] -= 1
        self._count[stage] += 1
        ticket.stage = stage

    def _knock_for_the_waiting(self) -> None:
        while self.waiting > self._knocks and self._may_knock():
            self._knocks += 1
            self._knock()
        self._changed.set()
        if self.waiting > self._knocks:
            self._tell([ticket for ticket in self._untold if self._rank(ticket) > self._knocks])

    def _tell(self, tickets: Sequence[Ticket]) -> None:
        for ticket in list(tickets):
            self._untold.remove(ticket)
            ticket.on_wait()
            if not ticket.patient:
                self._send_away(ticket, MustWait())

    def _may_knock(self) -> bool:
        if self.is_spent or trio.current_time() < self._opens_at():
            return False
        if self._backoff_seconds > 0 or self._full:
            return self._unproven == 0  # after a backoff, or for a probe, the head goes alone
        return self._knocks < self._max_handshakes

    @property
    def _unproven(self) -> int:
        return self._knocks + self._count[Stage.ANSWER]

    @property
    def _full(self) -> bool:
        """Whether the server's last word on its capacity leaves no place."""
        return self.capacity is not None and self.held >= self.capacity

    def _opens_at(self) -> float:
        """The moment before which nobody may knock."""
        backed_off_until = self._closed_until if self._backoff_seconds > 0 else -math.inf
        return max(backed_off_until, self._refused_at + _PROBE_SECONDS) if self._full else backed_off_until

    def _alarm(self) -> float:
        """When to look again though nothing has happened."""
        return self._opens_at() if self.waiting > 0 and self._unproven == 0 and not self.is_spent else math.inf

    def _full_said(self, capacity: int | None) -> None:
        self.capacity = capacity if capacity is not None else self.capacity
        self._refused_at = trio.current_time()
        if self.capacity is None or self.held < self.capacity:
            self._back_off()  # others have the rest
        self._knock_for_the_waiting()

    def _back_off(self) -> None:
        if trio.current_time() < self._closed_until:
            return  # that knock went together with the one that has closed the door
        self._backoff_seconds = min(max(2 * self._backoff_seconds, _FIRST_BACKOFF_SECONDS), _LAST_BACKOFF_SECONDS)
        self._closed_until = trio.current_time() + self._backoff_seconds * self._jitter()


_HOLDING = (Stage.ANSWER, Stage.OPEN)


def _number(ticket: Ticket) -> int:
    return ticket.number
