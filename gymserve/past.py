"""What is remembered of sessions that have ended, in this process and, with a journal, in those before it."""

import math
from dataclasses import dataclass

import structlog
import trio

from gymserve.identity import instance_of, session_fields, short
from gymserve.journal import Journal
from gymserve.memory import Memory
from gymserve.score import Ending, Tombstone
from gymserve.telemetry import ReclaimedAlive, Telemetry

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Reclaim:
    """``at`` is in Trio's time."""

    at: float
    traceparent: str | None


class Past:
    """Tombstones by session, each kept for a while."""

    def __init__(
        self, instance: str, telemetry: Telemetry, *, kept_seconds: float, journal: Journal | None = None
    ) -> None:
        """:param instance: this process's own, which its session ids name."""
        self.instance = instance
        self._telemetry = telemetry
        self._journal = journal
        self._stones: Memory[Tombstone] = Memory(kept_seconds=kept_seconds)
        self._reclaimed: Memory[_Reclaim] = Memory(kept_seconds=kept_seconds)
        self.reclaimed_alive = 0

    def note_done(self, session_id: str, stone: Tombstone) -> None:
        """The score of a session that goes on is final; a process after this one can tell it."""
        if self._journal is not None:
            self._journal.append(session_id, stone)

    def put(self, session_id: str, stone: Tombstone, traceparent: str | None = None) -> None:
        """:param traceparent: of its seed."""
        self._stones.put(session_id, stone)
        if stone.ending is Ending.EXPIRED:
            self._reclaimed.put(session_id, _Reclaim(trio.current_time(), traceparent))
        if self._journal is not None:
            self._journal.append(session_id, stone)

    def get(self, session_id: str) -> Tombstone | None:
        stone = self._stones.get(session_id)
        if stone is None and self._journal is not None:
            stone = self._journal.get(session_id)
        return stone

    def find(self, short_id: str) -> Tombstone | None:
        """Of a session of this process, by the id that listings show."""
        return next((stone for session_id, stone in self._stones.items() if short(session_id) == short_id), None)

    def heard_of(self, session_id: str, stone: Tombstone) -> None:
        """A client asked for an ended session: where its idle timeout ended it, it was ended too soon."""
        reclaim = self._reclaimed.pop(session_id)
        if reclaim is None:
            return
        self.reclaimed_alive += 1
        gap = stone.silent_seconds + trio.current_time() - reclaim.at
        self._telemetry.tell(ReclaimedAlive(short(session_id), stone.label, gap, stone.idle_timeout_seconds))
        _log.warning(
            "a session was reclaimed though its client was alive",
            **session_fields(session_id, stone.label, reclaim.traceparent),
            silent_seconds=round(gap, 3),
            idle_timeout_seconds=stone.idle_timeout_seconds,
            advice=f"an --idle-timeout above {math.ceil(gap)} would have kept it",
        )

    def why_unknown(self, session_id: str | None) -> str:
        """For a session that nothing is remembered of."""
        if session_id is None:
            return "this request names no session that gymserve knows: seed one and send its cookie"
        instance = instance_of(session_id)
        if instance == self.instance:
            return "gymserve does not know this session any more: it ended long ago, or its seed was refused"
        if self._journal is not None and self._journal.knows_instance(instance):
            return "gymserve was restarted while this session was under way; what it had earned is lost"
        return "another gymserve opened this session: one that was restarted, or one at another address"
