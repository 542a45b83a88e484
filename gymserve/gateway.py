"""Which sessions exist, are being opened, did exist; and how they all stop."""

import contextvars
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import structlog
import trio

from gymserve.errors import GymserveError, LineFull, NoSession, SeedConflict, ShuttingDown, TooManySessions
from gymserve.identity import new_session_id
from gymserve.memory import Memory
from gymserve.names import Names
from gymserve.opening import Opener, Readiness
from gymserve.score import Ending, Score, Tombstone, Verification, masked, verification
from gymserve.session import Session, State, Terms, gone
from gymserve.traffic import Traffic

_log = structlog.get_logger()

_LAST_SECONDS = 2.0  # for the goodbyes of a gateway that closes: a little more than each session takes for its own


@asynccontextmanager
async def open_gateway(
    opener: Opener,
    terms: Terms,
    *,
    tombstone_seconds: float,
    failure_class: str | None = None,
    max_sessions: int | None = None,
    max_waiting: int | None = None,
) -> AsyncIterator["Gateway"]:
    """A gateway whose sessions live in a nursery of its own; leaving ends them, each with a goodbye.

    It is opened around the HTTP server and never inside a framework's lifespan, whose teardown breaks Trio's nesting.

    :param failure_class: as `score.masked` has it.
    :param max_sessions: those that have not ended; one that is seeded again makes room for itself.
    :param max_waiting: those of them that have no connection to an environment yet.
    """
    async with trio.open_nursery() as nursery:
        gateway = Gateway(
            nursery,
            opener,
            terms,
            tombstone_seconds=tombstone_seconds,
            failure_class=failure_class,
            max_sessions=max_sessions,
            max_waiting=max_waiting,
        )
        try:
            yield gateway
        finally:
            gateway.end_all()
            nursery.cancel_scope.deadline = trio.current_time() + _LAST_SECONDS


class Gateway:
    """All sessions of this process."""

    def __init__(
        self,
        nursery: trio.Nursery,
        opener: Opener,
        terms: Terms,
        *,
        tombstone_seconds: float,
        failure_class: str | None,
        max_sessions: int | None,
        max_waiting: int | None,
    ) -> None:
        self._nursery = nursery
        self._opener = opener
        self._terms = terms
        self._failure_class = failure_class
        self._max_sessions = max_sessions
        self._max_waiting = max_waiting
        self._sessions: dict[str, Session] = {}
        self._living = 0  # the sessions that have not ended; others of them say goodbye
        self._in_line: set[str] = set()
        self._tombstones: Memory[Tombstone] = Memory(kept_seconds=tombstone_seconds)
        self._names = Names(kept_seconds=tombstone_seconds)
        self._traffic = Traffic()
        self._stopping = False
        self._told: set[str] = set()
        # A task inherits the context it is started from; a request's would keep the request and its app alive as
        # long as the session.
        self._clean_context = contextvars.copy_context()

    # -- rollouts --------------------------------------------------------------------------------------------------

    async def seed(self, session_id: str, label: str | None, reset_kwargs: Mapping[str, Any]) -> Session:
        """A new session, open. Cancelled, it is given up at once.

        :raises ShuttingDown: no new sessions are taken.
        :raises TooManySessions: and :raises LineFull: there are as many as may be.
        :raises GymserveError: as `Opener.open`.
        """
        session = self._begin(session_id, label, reset_kwargs)
        try:
            await session.opened()
        except trio.Cancelled:
            session.end(Ending.CLOSED, "the client hung up before its seed was answered")
            raise
        return session

    def begin_by_name(
        self, name: str, payload: Mapping[str, Any], label: str | None, reset_kwargs: Mapping[str, Any]
    ) -> Session:
        """The session that its client calls ``name``, which opens or is open. Equal seeds share it, and it goes on
        opening though nobody waits: who has the name can seed or close it again.

        :param payload: what the client sent with the name; with another one the name is taken.
        :raises SeedConflict: the name was closed, has another payload, or its session has ended.
        :raises ShuttingDown: no new sessions are taken.
        """
        session_id = self._names.find(name, payload)
        if session_id is not None:
            try:
                return self.find(session_id)
            except GymserveError:
                if self._stopping:
                    raise ShuttingDown from None
                raise SeedConflict(
                    "the session of this resources_session_id has ended; another episode needs another id"
                ) from None
        session_id = new_session_id()
        session = self._begin(session_id, label, reset_kwargs)
        self._names.put(name, session_id, payload)
        return session

    def close_by_name(self, name: str) -> None:
        """End the session of that name, if there is one; from now on it cannot be seeded."""
        self.close(self._names.close(name), "the client closed it")

    def _begin(self, session_id: str, label: str | None, reset_kwargs: Mapping[str, Any]) -> Session:
        self._admit()
        session = Session(
            session_id, label, self._opener, self._terms, reset_kwargs, traffic=self._traffic, on_end=self._on_end
        )
        session.progress.on_turn = partial(self._on_turn, session_id)
        self._sessions[session_id] = session
        self._living += 1
        self._in_line.add(session_id)
        self._clean_context.run(self._nursery.start_soon, self._run, session)
        return session

    def _admit(self) -> None:
        """:raises GymserveError: there can be no other session now."""
        if self._stopping:
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
        self._tombstones.put(session.id, stone)
        self._names.end(session.id, may_be_seeded_again=stone.ending is Ending.NEVER_OPENED)
        if stone.ending is Ending.UNSCORED:
            self._tell_once("a verify action failed, and its result is masked (said once)", reason=stone.reason)
        if stone.scored:
            self._warn_once(stone.score)

    def _warn_once(self, score: Score) -> None:
        if score.no_reward:
            self._tell_once("an episode gave no reward at all: it scores 0.0 (said once)")
        if not score.components_add_up:
            self._tell_once("reward_components do not add up to the reward: they are left out (said once)")

    def _tell_once(self, sentence: str, **details: str) -> None:
        if sentence not in self._told:
            self._told.add(sentence)
            _log.warning(sentence, env=str(self._opener.address), **details)

    def find(self, session_id: str | None) -> Session:
        """The live session of that id, its idle clock started again.

        :raises NoSession: unknown, or forgotten. :raises SessionGone: it has ended.
        """
        session = self._sessions.get(session_id) if session_id is not None else None
        if session is not None:
            session.touch()
            return session
        stone = self._tombstones.get(session_id) if session_id is not None else None
        if stone is not None:
            raise gone(stone)
        raise NoSession("this request names no session that gymserve knows: seed one and send its cookie")

    async def verify(self, session_id: str | None, row: Mapping[str, Any]) -> Verification:
        """The result of a session, masked where it says nothing about the policy. Repeated, the same."""
        stone = await self._stone(session_id) if session_id is not None else None
        if stone is None:
            return masked(
                row,
                "session_lost",
                "gymserve does not know this session: it was never seeded, or was forgotten",
                failure_class=self._failure_class,
            )
        return verification(row, stone, failure_class=self._failure_class)

    async def _stone(self, session_id: str) -> Tombstone | None:
        session = self._sessions.get(session_id)
        if session is None:
            return self._tombstones.get(session_id)
        return await session.verify()

    def close(self, session_id: str | None, reason: str) -> bool:
        """End the session of that id at once; False if there is none that has not ended."""
        session = self._sessions.get(session_id) if session_id is not None else None
        if session is None or session.tombstone is not None:
            return False
        session.end(Ending.CLOSED, reason)
        return True

    # -- stopping --------------------------------------------------------------------------------------------------

    async def drain(self, grace_seconds: float) -> None:
        """Take no new sessions, refuse the waiting ones, let the calls in flight finish for as long as the grace, then
        end all.
        """
        self._stopping = True
        for session in list(self._sessions.values()):
            if session.state is State.OPENING:
                session.end(Ending.SHUTDOWN, "gymserve shut down")
        with trio.move_on_after(grace_seconds):
            await self._traffic.quiet()
        self.end_all()

    def end_all(self) -> None:
        self._stopping = True
        for session in list(self._sessions.values()):
            session.end(Ending.SHUTDOWN, "gymserve shut down")

    # -- what there is ---------------------------------------------------------------------------------------------

    def sessions(self) -> list[Session]:
        """Those that hold a place or a score; the ones still in the line are only counted, by `waiting`."""
        return [
            session
            for session in self._sessions.values()
            if session.state is not State.OPENING or not session.progress.in_line
        ]

    def readiness(self) -> Readiness:
        """Whether a seed now would get a slot without waiting."""
        readiness = self._opener.readiness()
        return replace(readiness, ready=readiness.ready and self._takes_sessions)

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

    @property
    def openers(self) -> tuple[Opener, ...]:
        return (self._opener,)
