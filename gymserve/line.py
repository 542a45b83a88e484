"""The line before the environment servers: who gets the next connection, and at which server one is asked for.

Sessions wait in queues, one for each label, first come, first served; the next connection, wherever it comes from, goes
to the label that holds the fewest for its weight. Knocks belong to the line and not to the session that was first when
they began: whichever is answered serves whoever is next, and a client that hangs up leaves no second knock behind.
"""

import bisect
import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import trio

from gymserve.call import Reply
from gymserve.episode import Episode
from gymserve.gate import Gate
from gymserve.shares import Allotment, Reserves, Share, Shares
from gymserve.ticket import Stage, Ticket

_COUNTED = frozenset({Stage.ANSWER, Stage.OPEN})  # for labels and shares: somebody's


def _nobody_to_tell() -> None:
    """The default of ``on_wait``."""


@dataclass(frozen=True, slots=True)
class Queue:
    """Those of one label who wait."""

    label: str | None
    waiting: int
    oldest_wait_seconds: float


class MustWait(Exception):
    """There is no connection without waiting, and the ticket's holder has no patience."""


class Line:
    """Queues for all servers, each of which is a gate."""

    def __init__(self, shares: Shares | None = None, *, max_held: float = math.inf) -> None:
        """:param max_held: connections that we can have, whatever the servers can."""
        self._shares = shares or Shares()
        self._reserves = Reserves(self._shares) if self._shares.reserves else None
        self._max_held = max_held
        self._numbers = itertools.count()
        self._queues: dict[str | None, list[Ticket]] = {}
        self._untold: list[Ticket] = []  # those in the queues who may not have to wait
        self._count: Counter[Stage] = Counter()
        self._held_by_label: Counter[str | None] = Counter()
        self._held_by_share: Counter[Share] = Counter()
        self._looks_at = math.inf  # when `watch` wakes, at the latest
        self._sooner = trio.Event()
        self.gates: list[Gate] = []
        self.on_want: Callable[[], None] = _nobody_to_tell

    def add(self, gate: Gate) -> None:
        """A server more, until it has left (`Gate.leave`) and its last slot is given back."""
        self.gates.append(gate)
        self.knock_for_the_waiting()

    # -- what there is ---------------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        return self._count[Stage.WAITING]

    @property
    def held(self) -> int:
        return sum(gate.held for gate in self.gates)

    @property
    def let_in_already(self) -> int:
        """Connections that are not knocks any more."""
        return self._count[Stage.ANSWER] + self._count[Stage.OPEN]

    @property
    def capacity(self) -> int | None:
        """What all servers have that take sessions; None where one has not said."""
        capacities = [gate.capacity for gate in self._serving]
        known = [capacity for capacity in capacities if capacity is not None]
        return sum(known) if len(known) == len(capacities) else None

    def serves_one_more(self, ticket: Ticket, given_back: Sequence[Ticket]) -> bool:
        """Whether one more of the waiting is served if ``ticket`` too gives its slot back."""
        with_it = self._served_without([*given_back, ticket], _gate(ticket))
        return with_it > self._served_without(given_back, _gate(ticket))

    def _served_without(self, tickets: Sequence[Ticket], at: Gate) -> float:
        """How many of the waiting are served if those slots are given back. Knocks at ``at`` count however long they
        take: one more there would not be answered sooner.
        """
        serving = self._serving
        given_back = [gate for ticket in tickets if (gate := _gate(ticket)) in serving]
        held = self._held_by_share - Counter(self._shares.of(ticket.label) for ticket in tickets)
        allotment = Allotment(self._shares, held, self._free + len(given_back))
        slots = sum(gate.knocks if gate is at else gate.prompt_knocks for gate in serving)
        slots += sum(gate.unwanted for gate in serving) + sum(gate.lacks_slots for gate in given_back)
        anywhere = any(gate.may_serve for gate in serving)
        return min(allotment.admitted(self._waiting_by_share()), math.inf if anywhere else slots)

    @property
    def oldest_wait_seconds(self) -> float:
        """How long the one who waits longest has waited; 0 where nobody does."""
        firsts = [queue[0].since_seconds for queue in self._queues.values() if queue]
        return trio.current_time() - min(firsts) if firsts else 0.0

    def queues(self) -> list[Queue]:
        """The line as it stands, by label; the longest queues first."""
        now = trio.current_time()
        queues = [Queue(label, len(queue), now - queue[0].since_seconds) for label, queue in self._queues.items()]
        return sorted(queues, key=lambda queue: -queue.waiting)

    @property
    def is_hopeless(self) -> bool:
        """Whether the last knock was hopeless at each server."""
        return all(gate.is_aside for gate in self._serving)

    @property
    def is_spent(self) -> bool:
        """Whether we ourselves can have no other connection, whatever the servers can."""
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
        self.knock_for_the_waiting()

    async def connection(self, ticket: Ticket) -> Episode:
        """Wait for a connection, of the ticket's ``gate``. Cancelled, the ticket has left the line.

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
        ticket.stop_waiting()
        self._move(ticket, Stage.OPEN)
        _gate(ticket).opened()
        self.knock_for_the_waiting()

    def refused(self, ticket: Ticket, capacity: int | None) -> None:
        """The server is full and has ``capacity`` slots, None where it did not say."""
        self._move(ticket, Stage.OUTSIDE)
        _gate(ticket).full_said(capacity)
        self.knock_for_the_waiting()

    def failed(self, ticket: Ticket) -> None:
        """The server dropped the connection before the reset was answered."""
        self._move(ticket, Stage.OUTSIDE)
        _gate(ticket).back_off()
        self.knock_for_the_waiting()

    def give_up_on_server(self, ticket: Ticket) -> bool:
        """What the ticket's server answered is hopeless: whether another may serve it."""
        self._move(ticket, Stage.OUTSIDE)
        _gate(ticket).set_aside()
        self.knock_for_the_waiting()
        return not self._is_hopeless_for(ticket)

    def leave(self, ticket: Ticket) -> None:
        """Leave the line, or give the slot back, whichever it is. Twice does no harm."""
        if ticket.stage is Stage.WAITING:
            self._queue_out(ticket)
        elif ticket.stage in (Stage.OPEN, Stage.UNWANTED):
            _gate(ticket).slot_is_free()
        ticket.stop_waiting()
        self._move(ticket, Stage.OUTSIDE)
        self.knock_for_the_waiting()

    async def watch(self) -> None:
        """Knock when a backoff, a pause, or the time until the next probe is over. A task beside the knocks, for
        ever.
        """
        while True:
            self._sooner = trio.Event()
            self._looks_at = self._alarm()
            with trio.CancelScope(deadline=self._looks_at):
                await self._sooner.wait()
            self.knock_for_the_waiting()

    # -- for gates -------------------------------------------------------------------------------------------------

    def hand_over(self, episode: Episode, gate: Gate) -> None:
        """A connection is there: for the one who is next, if there is one."""
        ticket = None if gate.is_leaving else self._next(gate)
        if ticket is None:
            ticket = self.join(None)
            self._seat(ticket, gate, Stage.UNWANTED)
            gate.dismiss(episode, ticket)
            self.knock_for_the_waiting()
            return
        self._queue_out(ticket)
        self._seat(ticket, gate, Stage.ANSWER)
        ticket.tries += 1
        ticket.connection.answer(episode)
        self.knock_for_the_waiting()

    def knock_failed(self, exc: Exception, gate: Gate) -> None:
        """In vain; it counts for the one who is next, who hears of it only where there is no patience."""
        ticket = self.count_try(gate)
        if ticket is not None and not ticket.patient:
            self._send_away(ticket, exc, gate)

    def knock_hopeless(self, exc: Exception, gate: Gate) -> None:
        """The one who is next fails with ``exc``, if no server is left that might serve it."""
        ticket = self.count_try(gate)
        if ticket is not None and self._is_hopeless_for(ticket):
            self._send_away(ticket, exc, gate)

    def tell_the_next(self, exc: Exception, gate: Gate) -> None:
        """The one who is next fails with ``exc``."""
        ticket = self.count_try(gate)
        if ticket is not None:
            self._send_away(ticket, exc, gate)

    def count_try(self, gate: Gate) -> Ticket | None:
        """A knock ended in vain; whom it was for, who is next. None where it was for nobody, or at a server that is
        leaving.
        """
        ticket = None if gate.is_leaving else self._next(gate)
        if ticket is not None:
            ticket.tries += 1
        return ticket

    def ignores_pause(self, gate: Gate) -> bool:
        """Whether a server that is set aside is tried all the same: all are, and the one who is next has either not
        been turned away there yet, or been turned away everywhere.
        """
        if not self.is_hopeless:
            return False
        ticket = self._next(gate)
        return ticket is None or not gate.was_hopeless_since(ticket.since_seconds) or self._is_hopeless_for(ticket)

    def knock_unanswered(self, gate: Gate) -> None:
        """Whoever is in the line waits, though a knock may be under way for them all; but for those whom another
        server may answer any moment.
        """
        elsewhere = sum(other.prompt_knocks for other in self._serving if other is not gate)
        self._tell([ticket for ticket in self._untold if self._rank(ticket) > elsewhere])

    def knock_for_the_waiting(self) -> None:
        self._let_go_of_the_empty()
        if not self.waiting:  # as often as not: nothing to knock for, and nothing to look out for
            return
        while (gate := self._gate_to_knock_at()) is not None:
            gate.knock()
        if self.waiting:
            if self._alarm() < self._looks_at:  # else it comes up at the old time, and is then looked for anew
                self._sooner.set()
            knocks = self._knocks
            if self.waiting > knocks:  # else there is one under way for each, whatever their ranks
                self._tell([ticket for ticket in self._untold if self._rank(ticket) > knocks])
            self._compare_reserves()
            self.on_want()

    # -- between them ----------------------------------------------------------------------------------------------

    @property
    def _serving(self) -> list[Gate]:
        return [gate for gate in self.gates if not gate.is_leaving]

    @property
    def _knocks(self) -> int:
        return sum(gate.knocks for gate in self._serving)

    @property
    def _prompt_knocks(self) -> int:
        return sum(gate.prompt_knocks for gate in self._serving)

    def _is_hopeless_for(self, ticket: Ticket) -> bool:
        """Whether each server has turned somebody away since that ticket came, for good."""
        return all(gate.was_hopeless_since(ticket.since_seconds) for gate in self._serving)

    def _let_go_of_the_empty(self) -> None:
        for gate in [gate for gate in self.gates if gate.is_leaving and gate.held == 0]:
            self.gates.remove(gate)
            gate.on_gone()

    def _gate_to_knock_at(self) -> Gate | None:
        if self.is_spent:
            return None
        wanted, at_best = self._admissible(), self._admissible_at_best()
        prompt = self._prompt_knocks
        gates = [
            gate
            for gate in self.gates
            if (admitted := wanted if gate.answers else at_best) > prompt
            and admitted > gate.knocks
            and gate.may_knock()
        ]
        return min(gates, key=lambda gate: gate.preference, default=None)

    def _give_up(self, ticket: Ticket) -> None:
        """Its client left; in the tick in which it was given a connection, the next in the line has that."""
        given = ticket.connection.value
        if given is not None:
            self._move(ticket, Stage.OUTSIDE)
            self.hand_over(given, _gate(ticket))
        elif ticket.stage is Stage.WAITING:
            ticket.tries += self._rank(ticket) <= self._knocks  # the one under way counts
            self.leave(ticket)

    def _send_away(self, ticket: Ticket, exc: Exception, gate: Gate | None) -> None:
        self._queue_out(ticket)
        self._move(ticket, Stage.OUTSIDE)
        ticket.gate = gate
        ticket.connection.fail(exc)

    def _rank(self, ticket: Ticket) -> float:
        """How many of those who may have a slot came before ``ticket``, and it."""
        before: Counter[Share] = Counter()
        for label, queue in self._queues.items():
            before[self._shares.of(label)] += bisect.bisect_left(queue, ticket.number, key=_number)
        return 1 + (before.total() if self._shares.are_equal else self._allotment().admitted(before))

    def _queue_out(self, ticket: Ticket) -> None:
        queue = self._queues[ticket.label]
        queue.remove(ticket)
        if ticket in self._untold:
            self._untold.remove(ticket)
        if not queue:
            del self._queues[ticket.label]

    def _seat(self, ticket: Ticket, gate: Gate, stage: Stage) -> None:
        ticket.gate = gate
        self._move(ticket, stage)

    def _move(self, ticket: Ticket, stage: Stage) -> None:
        before = ticket.stage
        more = (stage in _COUNTED) - (before in _COUNTED)
        _add(self._held_by_label, ticket.label, more)
        _add(self._held_by_share, self._shares.of(ticket.label), more)
        self._count[before] -= 1
        self._count[stage] += 1
        ticket.stage = stage
        if ticket.gate is not None:
            ticket.gate.move(before, stage)

    def _tell(self, tickets: Sequence[Ticket]) -> None:
        for ticket in list(tickets):
            self._untold.remove(ticket)
            ticket.on_wait()
            if not ticket.patient:
                self._send_away(ticket, MustWait(), None)

    def _alarm(self) -> float:
        """When to look again though nothing has happened."""
        if self._admissible_at_best() == 0 or self.is_spent:
            return math.inf
        now = trio.current_time()
        serving = self._serving
        moments = [gate.opens_at() for gate in serving if gate.unproven == 0]
        if len(serving) > 1:
            moments += [gate.slows_at() for gate in serving]
        return min((moment for moment in moments if moment > now), default=math.inf)

    # -- shares ----------------------------------------------------------------------------------------------------

    def _compare_reserves(self) -> None:
        if self._reserves is not None and self._serving and (capacity := self.capacity) is not None:
            self._reserves.compare(capacity)

    def _next(self, gate: Gate) -> Ticket | None:
        """Whom a connection there is for: the first of the label that holds the fewest for its weight; of several such
        labels, the one who came first. None where nobody waits who may have it.
        """
        firsts = [queue[0] for queue in self._queues.values() if queue and self._may_take(queue[0].label, gate)]
        return min(firsts, key=self._precedence, default=None)

    def _precedence(self, ticket: Ticket) -> tuple[float, int]:
        return self._held_by_label[ticket.label] / self._shares.of(ticket.label).weight, ticket.number

    def may_take(self, label: str | None) -> bool:
        """Whether the labels' shares leave a slot for that one."""
        return self._may_take(label, None)

    def _may_take(self, label: str | None, gate: Gate | None) -> bool:
        """The same, with the slots of a server that has just answered, whatever was known of it before."""
        return self._shares.are_equal or self._allotment(gate).left_for(self._shares.of(label)) > 0

    def _admissible(self) -> float:
        """How many of the waiting may have a slot, if there is one."""
        return self.waiting if self._shares.are_equal else self._allotment().admitted(self._waiting_by_share())

    def _admissible_at_best(self) -> float:
        """The same if the servers that do not answer now did: they must be tried to be known."""
        if self._shares.are_equal:
            return self.waiting
        allotment = Allotment(self._shares, self._held_by_share, self._free_at(self._serving))
        return allotment.admitted(self._waiting_by_share())

    def _allotment(self, gate: Gate | None = None) -> Allotment:
        return Allotment(self._shares, self._held_by_share, self._free_at(self._answering(gate)))

    @property
    def _free(self) -> float:
        """Slots that nobody of ours holds; infinite where a server has not said how many it has."""
        return self._free_at(self._answering())

    def _answering(self, gate: Gate | None = None) -> list[Gate]:
        """The servers that count: ``gate``, and those that open episodes now, or all where that is none."""
        serving = self._serving
        return [each for each in serving if each.answers or each is gate] or serving

    def _free_at(self, gates: Sequence[Gate]) -> float:
        free = 0
        for gate in gates:
            if gate.capacity is None:
                return math.inf
            free += gate.capacity - gate.let_in_already
        return free

    def _waiting_by_share(self) -> Counter[Share]:
        waiting: Counter[Share] = Counter()
        for label, queue in self._queues.items():
            waiting[self._shares.of(label)] += len(queue)
        return waiting


def _add(counter: Counter[Any], key: Any, more: int) -> None:
    """A counter that forgets what is 0: labels come and go."""
    counter[key] += more
    if counter[key] == 0:
        del counter[key]


def _gate(ticket: Ticket) -> Gate:
    assert ticket.gate is not None, "it has come through none"
    return ticket.gate


def _number(ticket: Ticket) -> int:
    return ticket.number
