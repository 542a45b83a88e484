"""One environment server as the line sees it: when it may be knocked at, and how much of it is held.

``held`` counts the slots that are ours or may become ours: knocks under way, connections in their reset, episodes,
goodbyes. It never exceeds what the server said that it has, except for one probe every 30 s. Whoever gives a slot back
makes the next knock in the same tick; time matters only after a refusal while others share the server.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import trio

from gymserve.episode import Episode
from gymserve.ticket import HOLDING, Stage, Ticket

if TYPE_CHECKING:
    from gymserve.line import Line

_FIRST_BACKOFF_SECONDS = 0.05
_LAST_BACKOFF_SECONDS = 2.0
_PROBE_SECONDS = 30.0
_FIRST_PAUSE_SECONDS = 1.0
_LAST_PAUSE_SECONDS = 60.0
_PROMPT_SECONDS = 1.0


class Gate:
    """One server of a line, which decides who comes through. ``capacity`` is what the server last said that it has,
    None before it said.
    """

    def __init__(
        self,
        line: "Line",
        *,
        knock: Callable[[], None],
        dismiss: Callable[[Episode, Ticket], None],
        jitter: Callable[[], float],
        max_handshakes: int,
        slots: int | None = None,
        name: str = "",
    ) -> None:
        """:param knock: begins a handshake, whose end is told by one of the methods for knocks.
        :param dismiss: says goodbye to a connection that nobody wants any more, and then `Line.leave`s with the ticket.
        :param jitter: a factor for each backoff, about 1, so that gymserves sharing a server do not knock together.
        :param max_handshakes: unanswered at a time: a stalled server serves each of them later, wanted or not.
        :param slots: the most that may be held here, whatever the server has; None for as many as it has.
        :param name: of the server, for sentences.
        """
        self.name = name
        self._line = line
        self._knock = knock
        self._dismiss = dismiss
        self._jitter = jitter
        self._max_handshakes = max_handshakes
        self._slots: float = math.inf if slots is None else slots
        self._count: Counter[Stage] = Counter()
        self._knocked_at: deque[float] = deque()  # of the knocks under way; as good as in the order of their ends
        self._took_seconds = 0.0  # the last knock that was answered
        self._backoff_seconds = 0.0
        self._closed_until = -math.inf
        self._refused_at = -math.inf
        self._said_full = False
        self._aside = False
        self._pause_seconds = 0.0  # the last one, until an episode is opened
        self._aside_until = -math.inf
        self._hopeless_at = -math.inf
        self._said_capacity: int | None = None
        self._leaving = False
        self.on_gone: Callable[[], None] = _nobody_to_tell
        self.on_aside: Callable[[], None] = _nobody_to_tell

    # -- what there is ---------------------------------------------------------------------------------------------

    @property
    def capacity(self) -> int | None:
        """What there is for us: what the server said, and no more than its limit; None where neither is known."""
        known = min(self._slots, math.inf if self._said_capacity is None else self._said_capacity)
        return None if known == math.inf else int(known)

    @property
    def knocks(self) -> int:
        return len(self._knocked_at)

    @property
    def held(self) -> int:
        return self.knocks + self.let_in_already

    @property
    def let_in_already(self) -> int:
        """Connections that are not knocks any more."""
        return sum(self._count.values())

    @property
    def unwanted(self) -> int:
        """Connections that are given back soon, as nobody wants them."""
        return self._count[Stage.UNWANTED]

    @property
    def prompt_knocks(self) -> int:
        """Knocks that may be answered any moment; who waits for one that takes long may be served sooner elsewhere."""
        return sum(at > trio.current_time() for at in self._slow_at())

    @property
    def is_aside(self) -> bool:
        """Its last knock was hopeless."""
        return self._aside

    def was_hopeless_since(self, moment: float) -> bool:
        """Whether its last knock was, and ended at ``moment`` or later."""
        return self._aside and self._hopeless_at >= moment

    @property
    def aside_until(self) -> float:
        """The end of its last pause, in Trio's time; infinitely long ago where it had none."""
        return self._aside_until

    @property
    def is_leaving(self) -> bool:
        """It gets no new sessions any more."""
        return self._leaving

    @property
    def preference(self) -> tuple[bool, bool, bool, bool, int, int]:
        """Where an episode opens soonest: the least."""
        return (
            self.is_aside,
            self.is_slow,
            self.is_full,
            self.capacity is None,
            self.held,
            self.knocks,
        )

    # -- for the line ----------------------------------------------------------------------------------------------

    def may_knock(self) -> bool:
        if self._leaving or trio.current_time() < self.opens_at():
            return False
        if self._backoff_seconds > 0 or self.is_full or (self.is_aside and not self._line.is_hopeless):
            return self.unproven == 0  # after a backoff, or for a probe, the head goes alone
        return self.knocks < self._max_handshakes

    def knock(self) -> None:
        self._knocked_at.append(trio.current_time())
        self._knock()

    @property
    def unproven(self) -> int:
        return self.knocks + self._count[Stage.ANSWER]

    @property
    def is_full(self) -> bool:
        """Whether the last word on its capacity leaves no place."""
        return self.capacity is not None and self.held >= self.capacity

    @property
    def has_room(self) -> bool:
        """Whether somebody might be let in now."""
        return not self._leaving and not self.is_full and trio.current_time() >= self.opens_at()

    @property
    def lacks_slots(self) -> bool:
        """Whether its last word was that there are no more, so that only one given back helps."""
        return self.is_full or self._said_full

    @property
    def is_slow(self) -> bool:
        """Whether it leaves a knock unanswered for long."""
        return self.prompt_knocks < self.knocks

    @property
    def answers(self) -> bool:
        """Whether it opens episodes as things stand, or would with a slot given back."""
        return not (self.is_aside or self._is_late or (self._backoff_seconds > 0 and not self._said_full))

    @property
    def _is_late(self) -> bool:
        """Whether a knock takes longer than the last answer lets one expect."""
        usual_seconds = max(_PROMPT_SECONDS, 2 * self._took_seconds)
        return self.knocks > 0 and self._knocked_at[0] + usual_seconds <= trio.current_time()

    @property
    def may_serve(self) -> bool:
        """Whether nothing is known that would keep the next away from it."""
        return not (self._leaving or self.lacks_slots or self.is_aside or self.is_slow or self._backoff_seconds > 0)

    def opens_at(self) -> float:
        """The moment before which nobody may knock."""
        opens_at = self._closed_until if self._backoff_seconds > 0 else -math.inf
        if self.is_full:
            probes = self.held < self._slots
            opens_at = max(opens_at, self._refused_at + _PROBE_SECONDS) if probes else math.inf
        if self.is_aside and not self._line.ignores_pause(self):
            opens_at = max(opens_at, self._aside_until)
        return opens_at

    def slows_at(self) -> float:
        """The moment when the next of its knocks takes long."""
        return min((at for at in self._slow_at() if at > trio.current_time()), default=math.inf)

    def _slow_at(self) -> Iterator[float]:
        return (at + _PROMPT_SECONDS for at in self._knocked_at)

    def move(self, stage_before: Stage, stage: Stage) -> None:
        """A ticket of this gate stands elsewhere now."""
        if stage_before in HOLDING:
            self._count[stage_before] -= 1
        if stage in HOLDING:
            self._count[stage] += 1

    def opened(self) -> None:
        """An episode is open: the server has room and answers."""
        self._said_full = False
        self._backoff_seconds = 0.0
        self._closed_until = -math.inf
        self._aside = False
        self._pause_seconds = 0.0
        if self._said_capacity is not None and self._count[Stage.OPEN] > self._said_capacity:
            self._said_capacity = self._count[Stage.OPEN]  # it has grown

    def slot_is_free(self) -> None:
        self._closed_until = -math.inf  # whatever the last refusal said

    def full_said(self, capacity: int | None) -> None:
        """The server is full and has ``capacity`` slots, None where it did not say."""
        self._said_capacity = capacity if capacity is not None else self._said_capacity
        self._refused_at = trio.current_time()
        self._said_full = True
        if self._said_capacity is None or self.held < self._said_capacity:
            self.back_off()  # others have the rest

    def back_off(self) -> None:
        if trio.current_time() < self._closed_until:
            return  # that knock went together with the one that has closed the door
        self._backoff_seconds = min(max(2 * self._backoff_seconds, _FIRST_BACKOFF_SECONDS), _LAST_BACKOFF_SECONDS)
        self._closed_until = trio.current_time() + self._backoff_seconds * self._jitter()

    def set_aside(self) -> None:
        """Waiting here will not help: others serve, and it is knocked at again after a pause."""
        self._hopeless_at = trio.current_time()
        if self._aside and trio.current_time() < self._aside_until:
            return  # that knock went together with the one that has set it aside
        was_aside, self._aside = self._aside, True
        if not was_aside:
            self.on_aside()
        self._pause_seconds = min(max(2 * self._pause_seconds, _FIRST_PAUSE_SECONDS), _LAST_PAUSE_SECONDS)
        self._aside_until = trio.current_time() + self._pause_seconds

    def dismiss(self, episode: Episode, ticket: Ticket) -> None:
        """Nobody has use for a connection: it has shown that the server opens episodes."""
        self._backoff_seconds = 0.0
        self._dismiss(episode, ticket)

    # -- leaving ---------------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """No new sessions from now on; `on_gone` is told when the last slot is given back and the line knows it no
        more.
        """
        self._leaving = True
        self._line.knock_for_the_waiting()

    def stay(self, *, slots: int | None) -> None:
        """It is wanted again, with that limit."""
        self._leaving = False
        self._slots = math.inf if slots is None else slots
        self._line.knock_for_the_waiting()

    # -- for knocks ------------------------------------------------------------------------------------------------

    def let_in(self, episode: Episode) -> None:
        """A knock was answered and there is room."""
        self._answered()
        self._aside = False
        self._line.hand_over(episode, self)

    def knocked_in_vain(self, exc: Exception, *, again_by: float = math.inf) -> None:
        """A handshake came to nothing, and waiting may help; the next one is due at ``again_by`` at the latest."""
        self._ended()
        self._aside = False
        self._line.knock_failed(exc, self)
        self.back_off()
        self._closed_until = min(self._closed_until, again_by)
        self._line.knock_for_the_waiting()

    def knock_refused(self, exc: Exception, capacity: int | None) -> None:
        """There is no room. The server has ``capacity`` slots, None where it did not say."""
        self._answered()
        self._aside = False
        self._line.knock_failed(exc, self)
        self.full_said(capacity)
        self._line.knock_for_the_waiting()

    def knock_lost(self) -> None:
        """A handshake is lost though the server is alive: another is due at once."""
        self._ended()
        self._line.count_try(self)
        self._line.knock_for_the_waiting()

    def knock_hopeless(self, exc: Exception) -> None:
        """Waiting here will not help. Where no other server is left for the one who is next, that one is told, and the
        others find out for themselves.
        """
        self._ended()
        self.set_aside()
        self._line.knock_hopeless(exc, self)
        self._line.knock_for_the_waiting()

    def knock_failed(self, exc: Exception) -> None:
        """There is a server but no environment: for the one who is next to decide."""
        self._ended()
        self._aside = False
        self._line.tell_the_next(exc, self)
        self._line.knock_for_the_waiting()

    def knock_unanswered(self) -> None:
        """A handshake takes long."""
        self._line.knock_unanswered(self)

    def _answered(self) -> None:
        self._took_seconds = trio.current_time() - self._knocked_at[0]
        self._ended()

    def _ended(self) -> None:
        self._knocked_at.popleft()


def _nobody_to_tell() -> None:
    """The default of ``on_gone`` and ``on_aside``."""
