"""Which sessions exist, are being opened, did exist; and how they all stop."""

import contextvars
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import structlog
import trio

from gymserve.alarms import Alarms
from gymserve.contents import Seeded
from gymserve.errors import (
    GymserveError,
    LineFull,
    NoSession,
    SeedConflict,
    SessionGone,
    ShuttingDown,
    TooManySessions,
)
from gymserve.identity import new_instance, new_session_id, session_fields, short
from gymserve.journal import Journal
from gymserve.names import Names
from gymserve.opening import Opener, Readiness
from gymserve.past import Past
from gymserve.pool import Pool
from gymserve.reclaiming import Reclaiming
from gymserve.score import Ending, Score, Tombstone, Verification, masked, verification
from gymserve.session import Seed, Session, State, Terms, gone
from gymserve.strays import Strays
from gymserve.telemetry import Stopping, Telemetry, Touched, Verified
from gymserve.toolbox import Toolbox
from gymserve.traffic import Traffic

_log = structlog.get_logger()

_LAST_SECONDS = 2.0  # for the goodbyes of a gateway that closes: a little more than each session takes for its own
_CLOSED = "the client closed it"
_SHUT_DOWN = "gymserve shut down"


@asynccontextmanager
async def open_gateway(
    opener: Opener,
    terms: Terms,
    *,
    tombstone_seconds: float,
    failure_class: str | None = None,
    max_sessions: int | None = None,
    max_waiting: int | None = None,
    instance: str | None = None,
    journal: Journal | None = None,
    telemetry: Telemetry | None = None,
) -> AsyncIterator["Gateway"]:
    """A gateway whose sessions live in a nursery of its own; leaving ends them, each with a goodbye.

    It is opened around the HTTP server and never inside a framework's lifespan, whose teardown breaks Trio's nesting.

    :param failure_class: as `score.masked` has it.
    :param max_sessions: those that have not ended; one that is seeded again makes room for itself.
    :param max_waiting: those of them that have no connection to an environment yet.
    :param instance: of this process, random by default; the journal has it too.
    """
    async with trio.open_nursery() as helpers:
        async with trio.open_nursery() as nursery:
            telemetry = telemetry or Telemetry()
            past = Past(instance or new_instance(), telemetry, kept_seconds=tombstone_seconds, journal=journal)
            names = Names(kept_seconds=tombstone_seconds)
            alarms = Alarms()
            gateway = Gateway(
                nursery,
                opener,
                terms,
                past,
                names,
                alarms,
                telemetry,
                failure_class=failure_class,
                max_sessions=max_sessions,
                max_waiting=max_waiting,
            )
            helpers.start_soon(alarms.run)
            if terms.reclaims_when_wanted:
                helpers.start_soon(Reclaiming(opener.line, gateway.all_sessions).run)
            if journal is not None:
                helpers.start_soon(journal.run)
            try:
                yield gateway
            finally:
                gateway.end_all()
                nursery.cancel_scope.deadline = trio.current_time() + _LAST_SECONDS
        helpers.cancel_scope.cancel()


class Gateway:
    """All sessions of this process."""

    def __init__(
        self,
        nursery: trio.Nursery,
        opener: Opener,
        terms: Terms,
        past: Past,
        names: Names,
        alarms: Alarms,
        telemetry: Telemetry,
        *,
        failure_class: str | None,
        max_sessions: int | None,
        max_waiting: int | None,
    ) -> None:
        self._nursery = nursery
        self._opener = opener
        self._terms = terms
        self._past = past
        self._names = names
        self._alarms = alarms
        self.telemetry = telemetry
        self._failure_class = failure_class
        self._max_sessions = max_sessions
        self._max_waiting = max_waiting
        self._strays = Strays()
        self._sessions: dict[str, Session] = {}
        self._living = 0  # the sessions that have not ended; others of them say goodbye
        self._in_line: set[str] = set()
        self._traffic = Traffic()
        self._stops = trio.Event()
        self._cut_short = 0
        self._holds_seeds = trio.Event()
        self._emptied = trio.Event()
        self._draining = trio.CancelScope()
        self._held_labels: Counter[str] = Counter()
        self._told: set[str] = set()
        # A task inherits the context it is started from; a request's would keep the request and its app alive as
        # long as the session.
        self._clean_context = contextvars.copy_context()

    # -- rollouts --------------------------------------------------------------------------------------------------

    def new_session_id(self) -> str:
        return new_session_id(self._past.instance)

    async def seed(self, session_id: str, seed: Seed) -> Session:
        """A new session, open. Cancelled, it is given up at once.

        :raises ShuttingDown: no new sessions are taken. :raises LabelClosed: none of that label.
        :raises TooManySessions: and :raises LineFull: there are as many as may be.
        :raises GymserveError: as `Opener.open`.
        """
        await self._while_held()
        session = self._begin(session_id, seed)
        try:
            await session.opened()
        except trio.Cancelled:
            session.end(Ending.CLOSED, "the client hung up before its seed was answered")
            raise
        return session

    async def begin_by_name(self, name: str, payload: Mapping[str, Any], seed: Seed) -> Session:
        """The session that its client calls ``name``, which opens or is open. Equal seeds share it, and it goes on
        opening though nobody waits: who has the name can seed or close it again.

        :param payload: what the client sent with the name; with another one the name is taken.
        :raises SeedConflict: the name was closed, has another payload, or its session has ended.
        :raises ShuttingDown: no new sessions are taken.
        """
        session_id = self._names.find(name, payload)
        if session_id is None:
            await self._while_held()
            session_id = self._names.find(name, payload)
        if session_id is not None:
            try:
                return self.find(session_id)
            except GymserveError:
                if self._stops.is_set():
                    raise ShuttingDown from None
                raise SeedConflict(
                    "the session of this resources_session_id has ended; another episode needs another id"
                ) from None
        session_id = self.new_session_id()
        session = self._begin(session_id, seed)
        self._names.put(name, session_id, payload)
        return session

    def close_by_name(self, name: str) -> None:
        """End the session of that name, if there is one; from now on it cannot be seeded."""
        self.close(self._names.close(name), _CLOSED)

    async def _while_held(self) -> None:
        if self._holds_seeds.is_set():
            await self._stops.wait()

    def _begin(self, session_id: str, seed: Seed) -> Session:
        self._admit()
        self._strays.check(seed.label)
        session = Session(
            session_id,
            seed,
            self._opener,
            self._terms,
            alarms=self._alarms,
            traffic=self._traffic,
            telemetry=self.telemetry,
            on_done=self._on_done,
            on_end=self._on_end,
        )
        session.progress.on_turn = partial(self._on_turn, session_id)
        self._sessions[session_id] = session
        self._living += 1
        self._in_line.add(session_id)
        if self.telemetry.is_recorded:
            self.telemetry.tell_content(
                Seeded(
                    short(session_id),
                    seed.label,
                    seed.row,
                    seed.row_bytes,
                    self._opener.all_reset_kwargs(seed.reset_kwargs),
                )
            )
        self._clean_context.run(self._nursery.start_soon, self._run, session)
        return session

    def _admit(self) -> None:
        """:raises GymserveError: there can be no other session now."""
        if self._stops.is_set():
            raise ShuttingDown
        if self._max_sessions is not None and self._living >= self._max_sessions:
            raise TooManySessions(self._max_sessions)
        if self._max_waiting is not None and len(self._in_line) >= self._max_waiting:
            raise LineFull(self._max_waiting)

    async def _run(self, session: Session) -> None:
        try:
            await session.run()
        finally:
            self._in_line.discard(session.id)
            del self._sessions[session.id]
            self._look_whether_emptied()

    def _on_done(self, session: Session) -> None:
        self._past.note_done(session.id, session.stone(Ending.VERIFIED, "the episode was done"))

    def _on_turn(self, session_id: str, in_line: bool) -> None:
        if in_line:
            self._in_line.add(session_id)
        else:
            self._in_line.discard(session_id)

    def _on_end(self, session: Session) -> None:
        stone = session.tombstone
        assert stone is not None
        self._living -= 1
        self._in_line.discard(session.id)
        self._past.put(session.id, stone, session.traceparent)
        self._names.end(session.id, may_be_seeded_again=stone.ending is Ending.NEVER_OPENED)
        if stone.ending is Ending.UNSCORED:
            self._tell_once(
                "a verify action failed, and its result is masked (said once)", session, reason=stone.reason
            )
        if stone.scored:
            self._warn_once(session, stone.score)

    def _warn_once(self, session: Session, score: Score) -> None:
        if score.no_reward:
            self._tell_once("an episode gave no reward at all: it scores 0.0 (said once)", session)
        if not score.components_add_up:
            self._tell_once("reward_components do not add up to the reward: they are left out (said once)", session)

    def _tell_once(self, sentence: str, session: Session, **details: str) -> None:
        """:param session: the first of which it is so."""
        if sentence not in self._told:
            self._told.add(sentence)
            _log.warning(sentence, **session_fields(session.id, session.label, session.traceparent), **details)

    def find(self, session_id: str | None) -> Session:
        """The live session of that id, its idle clock started again.

        :raises NoSession: unknown, or forgotten. :raises SessionGone: it has ended.
        """
        session = self._sessions.get(session_id) if session_id is not None else None
        if session is not None:
            try:
                session.touch()
            except SessionGone:
                self._remembered(session.id)
                raise
            return session
        stone = self._remembered(session_id)
        if stone is not None:
            raise gone(stone)
        raise NoSession(self._past.why_unknown(session_id))

    def touch(self, session_id: str | None) -> float | None:
        """Seconds until the deadline of the session of that id, whose idle clock started again; None while it has none.

        :raises GymserveError: as `find`.
        """
        session = self.find(session_id)
        left = session.idle_seconds_left
        self.telemetry.tell(Touched(short(session.id), session.label, left))
        return left

    async def verify(self, session_id: str | None, row: Mapping[str, Any]) -> Verification:
        """The result of a session, masked where it says nothing about the policy. Repeated, the same."""
        session = self._sessions.get(session_id) if session_id is not None else None
        if session is not None:
            await session.verify()
        stone = self._remembered(session_id)
        if stone is None:
            why = self._past.why_unknown(session_id)
            result = masked(row, "session_lost", why, failure_class=self._failure_class)
        else:
            result = verification(row, stone, failure_class=self._failure_class)
        self.telemetry.tell(
            Verified(
                None if session_id is None else short(session_id),
                None if stone is None else stone.label,
                result.body["failure_kind"] if result.masked else None,
                result.body["reward"],
            )
        )
        return result

    def _remembered(self, session_id: str | None) -> Tombstone | None:
        """The tombstone that a client asks for."""
        stone = None if session_id is None else self._past.get(session_id)
        if stone is not None and session_id is not None:
            self._past.heard_of(session_id, stone)
        return stone

    async def learn_tools(self) -> Toolbox:
        """What sessions have, asked for of a server where it is not known yet. :raises GymserveError: as
        `Opener.learn`.
        """
        await self._opener.learn()
        toolbox = self.pool.toolbox
        assert toolbox is not None, "it has been learned"
        return toolbox

    def close(self, session_id: str | None, reason: str) -> bool:
        """End the session of that id at once; False if there is none that has not ended."""
        session = self._sessions.get(session_id) if session_id is not None else None
        if session is None or session.tombstone is not None:
            return False
        session.end(Ending.CLOSED, reason)
        return True

    # -- runs ------------------------------------------------------------------------------------------------------

    def close_label(self, label: str, *, refused_seconds: float) -> int:
        """End all sessions of that label, those that wait too, and take none of it for a while. How many there were."""
        self._strays.refuse(label, seconds=refused_seconds)
        ended = [session for session in self._sessions.values() if session.label == label and not session.tombstone]
        for session in ended:
            session.end(Ending.CLOSED, f"the sessions of {label} were closed")
        _log.info("run closed", label=label, sessions=len(ended), refused_seconds=refused_seconds)
        return len(ended)

    def check_label(self, label: str) -> None:
        """:raises LabelClosed: seeds of that label are refused."""
        self._strays.check(label)

    @contextmanager
    def holding(self, label: str, *, refused_seconds: float) -> Iterator[None]:
        """While somebody holds that run; it is closed when the last who does lets go of it, but not because this
        process stops: who holds it goes on to hold it in the next.
        """
        self._held_labels[label] += 1
        try:
            yield
        finally:
            self._held_labels -= Counter([label])
            if label not in self._held_labels and not self._stops.is_set():
                self.close_label(label, refused_seconds=refused_seconds)

    @property
    def held_labels(self) -> list[str]:
        return sorted(self._held_labels)

    # -- stopping --------------------------------------------------------------------------------------------------

    def hold_seeds(self, wait_seconds: float) -> None:
        """Take no new sessions, without refusing them yet: another process is to follow, when the running ones have
        ended, or that time is over. Said again, the new time counts.
        """
        _log.info("seeds are held until gymserve is drained", sessions=self._living, wait_seconds=wait_seconds)
        self._draining.deadline = trio.current_time() + wait_seconds
        self._holds_seeds.set()
        self._look_whether_emptied()

    async def seeds_held_to_the_end(self) -> None:
        """Wait until seeds are held and then until no session is left, or the time for that is over. For one task."""
        await self._holds_seeds.wait()
        with self._draining:
            await self._emptied.wait()

    async def seeds_refused(self) -> int:
        """Wait until this process stops: no sessions are taken any more; how many are ended by it."""
        await self._stops.wait()
        return self._cut_short

    def _look_whether_emptied(self) -> None:
        if self._holds_seeds.is_set() and not self._sessions:
            self._emptied.set()

    async def drain(self, grace_seconds: float) -> None:
        """Take no new sessions, refuse the waiting ones, let the calls in flight finish for as long as the grace, then
        end all.
        """
        self._stop_seeds()
        for session in list(self._sessions.values()):
            if session.state in (State.WAITING, State.OPENING):
                session.end(Ending.SHUTDOWN, _SHUT_DOWN)
        with trio.move_on_after(grace_seconds):
            await self._traffic.quiet()
        self.end_all()

    def end_all(self) -> None:
        self._stop_seeds()
        for session in list(self._sessions.values()):
            session.end(Ending.SHUTDOWN, _SHUT_DOWN)

    def _stop_seeds(self) -> None:
        if not self._stops.is_set():
            self._cut_short = sum(session.tombstone is None for session in self._sessions.values())
            self._stops.set()
            self.telemetry.tell(Stopping(self._cut_short))

    # -- what there is ---------------------------------------------------------------------------------------------

    def all_sessions(self) -> list[Session]:
        """Those that still wait too."""
        return list(self._sessions.values())

    def readiness(self) -> Readiness:
        """Whether a seed now would get a slot without waiting."""
        readiness = self._opener.readiness()
        return replace(readiness, ready=readiness.ready and self._takes_sessions and not self._holds_seeds.is_set())

    @property
    def patience_seconds(self) -> float:
        """How long opening a session may take in all."""
        return self._opener.patience_seconds

    @property
    def _takes_sessions(self) -> bool:
        try:
            self._admit()
        except GymserveError:
            return False
        return True

    @property
    def waiting(self) -> int:
        return self._opener.line.waiting

    def tombstone(self, short_id: str) -> Tombstone | None:
        """Of an ended session of this process, by the id that listings show."""
        return self._past.find(short_id)

    @property
    def is_over(self) -> bool:
        """Whether this process stops, every session has ended, and every slot was given back."""
        return self._stops.is_set() and not any(
            session.place or not session.tombstone for session in self.all_sessions()
        )

    @property
    def instance(self) -> str:
        """What tells this process from another."""
        return self._past.instance

    @property
    def is_holding_seeds(self) -> bool:
        return self._holds_seeds.is_set()

    @property
    def reclaimed_alive(self) -> int:
        """Sessions whose idle timeout ended them though their client came back."""
        return self._past.reclaimed_alive

    @property
    def pool(self) -> Pool:
        return self._opener.pool
