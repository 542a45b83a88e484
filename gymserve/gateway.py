"""Which sessions exist, are being opened, did exist; and how they all stop."""

import contextvars
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import structlog
import trio

from gymserve.errors import NoSession, ShuttingDown
from gymserve.opening import Opener, Readiness
from gymserve.score import Ending, Tombstone, Verification, masked, verification
from gymserve.session import Session, State, Terms, gone
from gymserve.tombstones import Tombstones
from gymserve.traffic import Traffic

_log = structlog.get_logger()

_LAST_SECONDS = 2.0  # for the goodbyes of a gateway that closes: a little more than each session takes for its own


@asynccontextmanager
async def open_gateway(opener: Opener, terms: Terms, *, tombstone_seconds: float) -> AsyncIterator["Gateway"]:
    """A gateway whose sessions live in a nursery of its own; leaving ends them, each with a goodbye.

    It is opened around the HTTP server and never inside a framework's lifespan, whose teardown breaks Trio's nesting.
    """
    async with trio.open_nursery() as nursery:
        gateway = Gateway(nursery, opener, terms, tombstone_seconds=tombstone_seconds)
        try:
            yield gateway
        finally:
            gateway.end_all()
            nursery.cancel_scope.deadline = trio.current_time() + _LAST_SECONDS


class Gateway:
    """All sessions of this process."""

    def __init__(self, nursery: trio.Nursery, opener: Opener, terms: Terms, *, tombstone_seconds: float) -> None:
        self._nursery = nursery
        self._opener = opener
        self._terms = terms
        self._sessions: dict[str, Session] = {}
        self._tombstones = Tombstones(kept_seconds=tombstone_seconds)
        self._traffic = Traffic()
        self._stopping = False
        self._told_of_no_reward = False
        # A task inherits the context it is started from; a request's would keep the request and its app alive as
        # long as the session.
        self._clean_context = contextvars.copy_context()

    # -- rollouts --------------------------------------------------------------------------------------------------

    async def seed(self, session_id: str, label: str | None, reset_kwargs: Mapping[str, Any]) -> Session:
        """A new session, open. Cancelled, it is given up at once.

        :raises ShuttingDown: no new sessions are taken.
        :raises GymserveError: as `Opener.open`.
        """
        if self._stopping:
            raise ShuttingDown
        session = Session(
            session_id, label, self._opener, self._terms, reset_kwargs, traffic=self._traffic, on_end=self._on_end
        )
        self._sessions[session_id] = session
        self._clean_context.run(self._nursery.start_soon, self._run, session)
        await session.opened()
        return session

    async def _run(self, session: Session) -> None:
        try:
            await session.run()
        finally:
            del self._sessions[session.id]

    def _on_end(self, session: Session) -> None:
        stone = session.tombstone
        assert stone is not None
        self._tombstones.put(session.id, stone)
        if stone.scored and stone.score.no_reward and not self._told_of_no_reward:
            self._told_of_no_reward = True
            _log.warning("an episode gave no reward at all: it scores 0.0 (said once)", env=str(self._opener.address))

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
                row, "session_lost", "gymserve does not know this session: it was never seeded, or was forgotten"
            )
        return verification(row, stone)

    async def _stone(self, session_id: str) -> Tombstone | None:
        session = self._sessions.get(session_id)
        if session is None:
            return self._tombstones.get(session_id)
        return await session.verify()

    def close(self, session_id: str | None, reason: str) -> None:
        """End the session of that id at once, if there is one."""
        session = self._sessions.get(session_id) if session_id is not None else None
        if session is not None:
            session.end(Ending.CLOSED, reason)

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
        return replace(readiness, ready=readiness.ready and not self._stopping)

    @property
    def waiting(self) -> int:
        return self._opener.line.waiting

    @property
    def openers(self) -> tuple[Opener, ...]:
        return (self._opener,)
