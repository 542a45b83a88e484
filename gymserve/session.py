"""One rollout: its nursery, its deadline, its score.

Requests wait, the session acts: a request hands its call to the session's task and waits for the answer, so a
client that hangs up cancels only its own waiting. The task's indentation is the session's life::

    nursery                              the connection's reader lives here
        opening                          patience
        deadline                         idle timeout and lifetime
            answer calls
        goodbye                          bounded; nothing expires meanwhile
    deadline                             after `done`: without a slot, until verified or expired
"""

import enum
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import structlog
import trio

from gymserve import wire
from gymserve.address import EnvironmentAddress
from gymserve.agenda import Agenda
from gymserve.alarms import Alarms
from gymserve.call import Call, Reply, Verify
from gymserve.deadline import Deadline
from gymserve.episode import AnswerTimedOut, EpisodeError, EpisodeLost, Refused
from gymserve.errors import (
    EPISODE_IS_OVER,
    BadArguments,
    EnvironmentFailed,
    EpisodeOver,
    GymserveError,
    GymserveFailed,
    SessionClosed,
    SessionExpired,
    SessionGone,
    SessionLost,
    ShuttingDown,
)
from gymserve.identity import session_fields, short
from gymserve.narrator import Narrator
from gymserve.opening import Opened, Opener, Place, Progress
from gymserve.score import Ending, RewardRule, Rewards, Score, Spent, Tombstone, reward_components
from gymserve.telemetry import Called, Ended, SessionOpened, SlotFreed, Stepped, Telemetry, Waiting
from gymserve.toolbox import Toolbox
from gymserve.traffic import Traffic

_log = structlog.get_logger()

_SHUTDOWN_GOODBYE_SECONDS = 1.0
_SHUT_DOWN = "gymserve shut down"


@dataclass(frozen=True, slots=True)
class Terms:
    """What every session of a gateway is held to. Seconds; infinite where a thing is off.

    ``idle_timeout_max_seconds`` caps what a client may ask for instead of the idle timeout. With
    ``reclaims_when_wanted`` a session lives on beyond its idle timeout until somebody waits for its slot, at the
    latest until that cap. ``verify_action`` is sent once, at verify, to an episode that is not done: the score of
    some environments exists only on request.
    """

    idle_timeout_seconds: float = 600.0
    idle_timeout_max_seconds: float = 3600.0
    reclaims_when_wanted: bool = False
    lifetime_seconds: float = math.inf
    step_timeout_seconds: float = 600.0
    close_timeout_seconds: float = 60.0
    keepalive_seconds: float = 30.0
    reward_rule: RewardRule = RewardRule.SUM
    step_timeout_is_scored: bool = False
    verify_action: wire.Step | None = None


@dataclass(frozen=True, slots=True)
class Seed:
    """What a client asks for: ``label`` is its run's name, ``reset_kwargs`` what its episode's reset gets,
    ``idle_timeout_seconds`` its own idle timeout, None for everybody's; ``traceparent`` the trace that its log lines
    belong to. ``row`` is all that it sent, in ``row_bytes``, for whoever records it.
    """

    label: str | None = None
    reset_kwargs: Mapping[str, Any] = field(default_factory=dict)
    idle_timeout_seconds: float | None = None
    traceparent: str | None = None
    row: Mapping[str, Any] | None = None
    row_bytes: int = 0


class State(enum.StrEnum):
    """What a listing shows of a session. ``waiting`` is in the line; ``opening`` has its turn."""

    WAITING = "waiting"
    OPENING = "opening"
    IDLE = "idle"
    BUSY = "busy"
    DONE = "done"
    CLOSING = "closing"


@dataclass(slots=True)
class _Clock:
    """How long a step took, in seconds."""

    started: float
    seconds: float = 0.0


class Session:
    """A client's rollout, from its seed to its end. All methods but `run` are for requests and return or wait without
    touching the wire.
    """

    traceparent: str | None = None  # an attribute of those only that have one: beyond 29 Python's cost a kilobyte more

    def __init__(
        self,
        session_id: str,
        seed: Seed,
        opener: Opener,
        terms: Terms,
        *,
        alarms: Alarms,
        traffic: Traffic,
        telemetry: Telemetry,
        on_done: Callable[["Session"], None],
        on_end: Callable[["Session"], None],
    ) -> None:
        """:param on_done: told when its score is final though nobody has asked for it.
        :param on_end: told in the moment the session ends, with `tombstone` set; its task may still say goodbye.
        """
        self.id = session_id
        self.label = seed.label
        if seed.traceparent is not None:
            self.traceparent = seed.traceparent
        self.env: EnvironmentAddress | None = None
        self._opener = opener
        self.progress = Progress(on_wait=self._waits)
        self.tombstone: Tombstone | None = None
        self.latest: wire.Observation | None = None
        self._terms = terms
        self.idle_timeout_seconds = min(
            terms.idle_timeout_seconds if seed.idle_timeout_seconds is None else seed.idle_timeout_seconds,
            max(terms.idle_timeout_max_seconds, terms.idle_timeout_seconds),
        )
        self._reset_kwargs = seed.reset_kwargs
        self._alarms = alarms
        self._traffic = traffic
        self._telemetry = telemetry
        self._narrator = Narrator(telemetry, session_id, seed.label)
        self._on_done = on_done
        self._on_end = on_end
        self._ready: Reply[None] = Reply()
        self._scope = trio.CancelScope()
        self._deadline: Deadline | None = None
        self._toolbox: Toolbox | None = None
        self._agenda = Agenda()
        self._keepalive = alarms.alarm(self._agenda.wake)
        self._rewards = Rewards(terms.reward_rule)
        self._spent = Spent()
        self._steps = 0
        self._done = False
        self._place: Place | None = None
        self._started = trio.current_time()
        self._thinking_since = self._started

    @property
    def _log(self) -> Any:
        """Made when there is something to say: a session has little of that, and there may be ten thousand."""
        return _log.bind(**session_fields(self.id, self.label, self.traceparent))

    # -- for requests ----------------------------------------------------------------------------------------------

    async def opened(self) -> None:
        """Wait until the session is open. :raises GymserveError: it could not be opened."""
        await self._ready.wait()

    @property
    def toolbox(self) -> Toolbox:
        assert self._toolbox is not None, "the session is not open"
        return self._toolbox

    @property
    def steps(self) -> int:
        return self._steps

    @property
    def reward(self) -> float:
        return self._rewards.value

    @property
    def is_done(self) -> bool:
        """The episode is; its score can be asked for, and no call can succeed."""
        return self._done

    @property
    def state(self) -> State:
        if self.tombstone is not None:
            return State.CLOSING
        if self._deadline is None:
            return State.WAITING if self.progress.in_line else State.OPENING
        if self._done:
            return State.DONE
        return State.BUSY if self._deadline.in_flight else State.IDLE

    @property
    def place(self) -> Place | None:
        """Its slot of an environment server, from the opening to the end of the goodbye."""
        return self._place

    @property
    def is_leaving_its_place(self) -> bool:
        """Its goodbye is under way, or about to be."""
        return self._place is not None and (self.tombstone is not None or self._done)

    @property
    def age_seconds(self) -> float:
        """Since its seed."""
        return trio.current_time() - self._started

    @property
    def idle_seconds_left(self) -> float | None:
        """Seconds until the deadline; None while there is none (opening, a call in flight, closing)."""
        if self.tombstone is not None or self._deadline is None or self._deadline.in_flight:
            return None
        return max(0.0, self._deadline.at - trio.current_time())

    @property
    def overdue_at(self) -> float:
        """The moment from which it may be reclaimed for another's sake, in Trio's time: the earliest that may be, while
        calls are in flight. Infinite where that never comes.
        """
        if self.tombstone is not None or self._deadline is None or self._done:
            return math.inf
        return self._deadline.overdue_at

    def reclaim(self) -> None:
        """Somebody waits for the slot of this overdue session."""
        assert self._deadline is not None
        self.end(
            Ending.EXPIRED,
            f"no request for {self._deadline.silent_seconds:g} s, and its slot was wanted; "
            f"the idle timeout is {self.idle_timeout_seconds:g} s",
        )

    def touch(self) -> None:
        """A request names the session: its idle clock starts again. :raises SessionGone: it has ended."""
        if self.tombstone is None and self._deadline is not None and self._deadline.passed:
            self._expire()
        if self.tombstone is not None:
            raise gone(self.tombstone)
        if self._deadline is not None:
            self._deadline.touch()

    async def call(self, step: wire.Step) -> wire.Observation:
        """The observation that answers ``step``, after the calls before it. A call whose waiting is cancelled before
        its turn is not sent.

        :raises EpisodeOver: the episode is done. :raises SessionGone: the session ended.
        :raises BadArguments: the environment's validator refused it; the episode goes on.
        :raises EnvironmentFailed: the environment failed; ``done`` tells whether the episode is lost.
        """
        return await self.begin(step).wait()

    def begin(self, step: wire.Step) -> Call:
        """``step`` in its turn, for whoever waits for it later or more than once. :raises GymserveError: as `call`."""
        self.touch()
        if self._done:
            raise EpisodeOver
        call = Call(step)
        self._accept(call)
        return call

    async def verify(self) -> Tombstone:
        """What is remembered of the session, which the client's verify ends after the calls before it, unless it has
        ended by itself.
        """
        try:
            self.touch()
            if self._done:
                self.end(Ending.VERIFIED, "verified")
            else:
                verify = Verify()
                self._accept(verify)
                await verify.wait()
        except SessionGone:
            pass  # the tombstone tells
        assert self.tombstone is not None
        return self.tombstone

    def end(self, ending: Ending, reason: str) -> None:
        """End the session now, whatever it is doing; its task says goodbye. The first ending counts."""
        if self.tombstone is not None:
            return
        self.tombstone = self.stone(ending, reason)
        refusal = gone(self.tombstone)
        self._ready.fail(ShuttingDown() if ending is Ending.SHUTDOWN else refusal)
        self._refuse_the_waiting(refusal)
        self._cut_short()
        self._narrator.ends()
        if ending is not Ending.NEVER_OPENED:  # of which there is a line already
            self._log.info("session ended", ending=ending.value, reason=reason, steps=self._steps, reward=self.reward)
        self._on_end(self)
        self._telemetry.tell(
            Ended(
                short(self.id),
                self.label,
                None if self.env is None else str(self.env),
                ending.value,
                reason,
                self.tombstone.scored,
                self.reward,
                self._steps,
                self._overshoot_seconds(ending),
            )
        )

    def _cut_short(self) -> None:
        """Have the task go on to the goodbye: at once where somebody waits for it, else in its turn, as a whole run may
        end at one instant.
        """
        if self._deadline is None or self._deadline.in_flight:
            self._scope.cancel()
        else:
            self._deadline.cut()

    def _overshoot_seconds(self, ending: Ending) -> float | None:
        if self._deadline is None or ending not in (Ending.EXPIRED, Ending.OUTLIVED):
            return None
        return max(0.0, trio.current_time() - self._deadline.at)

    def _accept(self, item: Call | Verify) -> None:
        assert self._deadline is not None
        if self._deadline.in_flight == 0:
            thinking = trio.current_time() - self._thinking_since
            self._spent.thinking += thinking
            self._telemetry.tell(Called(short(self.id), self.label, thinking))
        self._deadline.begin()
        self._traffic.begin()
        self._agenda.add(item)

    def _settle(self) -> None:
        """An accepted item has been answered, refused or dropped."""
        assert self._deadline is not None
        self._deadline.end()
        self._traffic.end()
        self._thinking_since = trio.current_time()

    def _refuse_the_waiting(self, error: GymserveError) -> None:
        """Answer what has not been taken up; after ``done`` a verify gets what it asks for."""
        for item in self._agenda.clear():
            self._settle()
            if isinstance(item, Call) or self.tombstone is not None:
                item.fail(error)
            elif not item.abandoned:
                self.end(Ending.VERIFIED, "verified")
                item.answer(None)

    # -- the task --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """The session's whole life. One session's failure touches no other: this is its firewall."""
        try:
            await self._live()
        except* Exception as group:
            self._log.error("session failed by a fault of ours", exc_info=group)
            self._ready.fail(GymserveFailed())
            self.end(Ending.LOST, "gymserve failed")
        finally:
            self.end(Ending.SHUTDOWN, _SHUT_DOWN)  # only a cancelled gateway leaves it to this line
            self._keepalive.stop()
            if self._deadline is not None:
                self._deadline.stop()

    async def _live(self) -> None:
        async with trio.open_nursery() as nursery:
            opened = await self._open(nursery)
            if opened is None:
                nursery.cancel_scope.cancel()
                return
            self._place = opened.place
            try:
                await self._answer_calls_until_the_end(opened)
                await self._say_goodbye(opened)
            finally:
                self._place = None
                opened.place.release()
            await opened.episode.leave()
            nursery.cancel_scope.cancel()
        if self.tombstone is None:
            await self._rest()

    async def _open(self, nursery: trio.Nursery) -> Opened | None:
        opened = None
        try:
            with self._scope:
                opened = await self._opener.open(nursery, self._reset_kwargs, self.progress, label=self.label)
        except GymserveError as exc:
            self._ready.fail(exc)
            self._log.warning("session not opened", error=exc.kind, reason=str(exc), tries=self.progress.tries)
            self.end(Ending.NEVER_OPENED, str(exc))
        finally:
            self.progress.stop_telling()
            self._reset_kwargs = {}  # a row can be large, and the session may last for hours
        return opened

    async def _answer_calls_until_the_end(self, opened: Opened) -> None:
        if self.tombstone is not None:
            return
        self._begin(opened)
        assert self._deadline is not None
        with self._deadline.guard() as self._scope:
            while not self._done and self.tombstone is None:
                await self._serve(await self._next_item(opened), opened)
        if self.tombstone is None and not self._done:
            self._expire()
        self._deadline.hold()

    def _waits(self, why: str, place: int) -> None:
        self._log.info("session waits", reason=why, place=place)
        self._telemetry.tell(Waiting(short(self.id), self.label, why, place))

    def _begin(self, opened: Opened) -> None:
        now = trio.current_time()
        self.env = opened.address
        self._toolbox = opened.toolbox
        self._spent.resetting = opened.seconds_resetting
        self._spent.waiting = now - self._started - opened.seconds_resetting
        idle, cap = self.idle_timeout_seconds, self._terms.idle_timeout_max_seconds
        self._deadline = Deadline(
            self._alarms,
            idle_seconds=idle,
            latest_seconds=max(idle, cap) if self._terms.reclaims_when_wanted else idle,
            lifetime_seconds=self._terms.lifetime_seconds,
        )
        self._thinking_since = now
        self._observe(opened.observation)
        self._narrator.begins(opened, self._spent.waiting, self.progress.tries)
        opened.episode.on_lost = self._on_lost
        self._log.info(
            "session opened",
            env=str(opened.address),
            waited_seconds=round(self._spent.waiting, 3),
            tries=self.progress.tries,
        )
        self._telemetry.tell(
            SessionOpened(
                short(self.id),
                self.label,
                str(opened.address),
                self._spent.waiting,
                self._spent.resetting,
                self.progress.tries,
                self.idle_seconds_left,
            )
        )
        self._ready.answer(None)
        if opened.episode.lost is not None:
            self._on_lost(opened.episode.lost)

    async def _next_item(self, opened: Opened) -> Call | Verify:
        assert self._deadline is not None
        while True:
            self._keepalive.set(trio.current_time() + self._terms.keepalive_seconds)
            item = await self._agenda.next()
            self._keepalive.set(math.inf)
            if item is not None:
                return item
            if self.tombstone is not None or self._deadline.passed:
                continue  # the end has come in the same moment, and a ping would stand in the way of its goodbye
            try:
                await opened.episode.stay_alive(timeout_seconds=self._terms.step_timeout_seconds)
            except EpisodeError as exc:
                self.end(Ending.LOST, f"the environment server did not answer a keepalive: {exc}")
                await trio.lowlevel.checkpoint()  # the end cancelled this scope

    async def _serve(self, item: Call | Verify, opened: Opened) -> None:
        if item.abandoned:
            self._settle()
        elif isinstance(item, Call):
            await self._step(item, opened)
        elif self._terms.verify_action is None:
            self._settle()
            self.end(Ending.VERIFIED, "verified")
            item.answer(None)
        else:
            await self._ask_for_the_score(self._terms.verify_action, item, opened)

    async def _ask_for_the_score(self, action: wire.Step, verify: Verify, opened: Opened) -> None:
        """Whoever verifies again meanwhile waits behind this one, and hears the same."""
        self._narrator.asks_for_the_score(action)
        try:
            with self._stepping() as clock:
                answer = await opened.episode.ask(action, timeout_seconds=self._terms.step_timeout_seconds)
        except trio.Cancelled:
            self._tell_of_a_step(clock)
            verify.fail(gone(self._cut()))
            raise
        except EpisodeError as exc:
            self._narrator.fails(exc)
            self._tell_of_a_step(clock)
            self.end(Ending.UNSCORED, f"the verify action failed: {exc}")
        else:
            assert isinstance(answer, wire.Observation)
            self._narrator.hears(answer)
            self._observe(answer)
            self._tell_of_a_step(clock)
            if (error := opened.toolbox.error(answer)) is None:
                self.end(Ending.VERIFIED, "verified")
            else:
                self.end(Ending.UNSCORED, f"the verify action failed: {error}")
        verify.answer(None)

    async def _step(self, call: Call, opened: Opened) -> None:
        self._narrator.acts(call.step)
        try:
            with self._stepping() as clock:
                answer = await opened.episode.ask(call.step, timeout_seconds=self._terms.step_timeout_seconds)
        except trio.Cancelled:
            self._tell_of_a_step(clock)
            call.fail(gone(self._cut()))
            raise
        except EpisodeError as exc:
            self._narrator.fails(exc)
            self._tell_of_a_step(clock)
            call.fail(self._fault(exc))
        else:
            assert isinstance(answer, wire.Observation)
            self._narrator.hears(answer)
            self._steps += 1
            self._observe(answer)
            self._tell_of_a_step(clock)
            call.answer(answer)
            if self._done:
                self._refuse_the_waiting(EpisodeOver())

    @contextmanager
    def _stepping(self) -> Iterator[_Clock]:
        clock = _Clock(trio.current_time())
        try:
            yield clock
        finally:
            clock.seconds = trio.current_time() - clock.started
            self._spent.stepping += clock.seconds
            self._settle()

    def _tell_of_a_step(self, clock: _Clock) -> None:
        """Before anybody hears of what it led to."""
        left = None if self._done else self.idle_seconds_left
        self._telemetry.tell(
            Stepped(short(self.id), self.label, clock.seconds, self._steps, self.reward, self._done, left)
        )

    def _observe(self, observation: wire.Observation) -> None:
        self.latest = observation
        self._rewards.add(observation.reward, reward_components(observation.fields))
        if observation.done and not self._done:
            self._done = True
            self._on_done(self)

    def _fault(self, exc: EpisodeError) -> GymserveError:
        """What the caller gets; where the episode is lost with it, the session ends."""
        match exc:
            case Refused() if not exc.refusal.ends_the_episode:
                return _refused(exc.refusal)
            case Refused(refusal=wire.Refusal(code=wire.SESSION_ERROR)) | EpisodeLost(close_code=1009):
                self.end(Ending.ACTION_ENDED, f"the environment server ended the episode in answer to an action: {exc}")
            case AnswerTimedOut():
                self.end(Ending.TIMED_OUT, f"the environment did not answer a step within the step timeout: {exc}")
            case _:
                self.end(Ending.LOST, f"the environment server failed during a step: {exc}")
        return EnvironmentFailed(EPISODE_IS_OVER, done=True)

    def _on_lost(self, lost: EpisodeLost) -> None:
        """The connection ended while nothing was asked. After ``done`` nobody needs it."""
        if not self._done:
            self.end(Ending.LOST, str(lost))

    def _cut(self) -> Tombstone:
        """A call was cancelled under way; if nobody has ended the session yet, the lifetime did, or the gateway's last
        moment.
        """
        assert self._deadline is not None
        if self._deadline.outlived:
            self._expire()
        self.end(Ending.SHUTDOWN, _SHUT_DOWN)
        assert self.tombstone is not None
        return self.tombstone

    def _expire(self) -> None:
        assert self._deadline is not None
        if self._deadline.outlived:
            self.end(Ending.OUTLIVED, f"the maximum lifetime of {self._terms.lifetime_seconds:g} s passed")
        else:
            if self._terms.reclaims_when_wanted:
                seconds, which = self._terms.idle_timeout_max_seconds, "the idle timeout's maximum"
            else:
                seconds, which = self.idle_timeout_seconds, "the idle timeout"
            self.end(Ending.EXPIRED, f"no request for {seconds:g} s, {which}")

    async def _say_goodbye(self, opened: Opened) -> None:
        stopping = self.tombstone is not None and self.tombstone.ending is Ending.SHUTDOWN
        seconds = _SHUTDOWN_GOODBYE_SECONDS if stopping else self._terms.close_timeout_seconds
        started = trio.current_time()
        await opened.episode.goodbye(timeout_seconds=seconds)
        self._telemetry.tell(SlotFreed(short(self.id), self.label, str(opened.address), trio.current_time() - started))

    async def _rest(self) -> None:
        """Keep the score of a finished episode, without a slot, until it is asked for or the deadline passes."""
        assert self._deadline is not None
        with self._deadline.guard() as self._scope:
            await trio.sleep_forever()
        if self.tombstone is None:
            self._expire()

    def stone(self, ending: Ending, reason: str) -> Tombstone:
        """What would be remembered of it if it ended so now."""
        return Tombstone(
            ending,
            reason,
            time.time(),
            self._score(),
            self._is_scored(ending),
            label=self.label,
            silent_seconds=0.0 if self._deadline is None else self._deadline.silent_seconds,
            idle_timeout_seconds=self.idle_timeout_seconds,
        )

    def _score(self) -> Score:
        return Score(
            reward=self._rewards.value,
            no_reward=self._rewards.none_counted,
            steps=self._steps,
            done=self._done,
            components=self._rewards.components,
            spent=replace(self._spent),
        )

    def _is_scored(self, ending: Ending) -> bool:
        if ending is Ending.UNSCORED:
            return False  # also where the action ended the episode: its score was not to be had
        return (
            self._done
            or ending in (Ending.VERIFIED, Ending.ACTION_ENDED)
            or (ending is Ending.TIMED_OUT and self._terms.step_timeout_is_scored)
        )


def gone(stone: Tombstone) -> SessionGone:
    """The answer to a call on an ended session."""
    match stone.ending:
        case Ending.EXPIRED | Ending.OUTLIVED:
            return SessionExpired()
        case Ending.VERIFIED | Ending.CLOSED | Ending.SHUTDOWN:
            return SessionClosed()
        case _:
            return SessionLost()


def _refused(refusal: wire.Refusal) -> GymserveError:
    if refusal.code == wire.VALIDATION_ERROR:
        return BadArguments(refusal.errors or [{"type": "value_error", "loc": [], "msg": refusal.message}])
    return EnvironmentFailed(f"the environment raised an error: {refusal.message or 'without a message'}")
