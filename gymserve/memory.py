"""What is remembered of ended sessions, for a while."""

from collections import OrderedDict

import trio

from gymserve.score import Tombstone


class Tombstones:
    """Ended sessions by id. The oldest are forgotten: each after its time, and any beyond the greatest number."""

    def __init__(self, *, kept_seconds: float, most: int = 100_000) -> None:
        self._kept_seconds = kept_seconds
        self._most = most
        self._stones: OrderedDict[str, tuple[float, Tombstone]] = OrderedDict()

    def __len__(self) -> int:
        self._forget()
        return len(self._stones)

    def put(self, session_id: str, stone: Tombstone) -> None:
        self._stones[session_id] = (trio.current_time() + self._kept_seconds, stone)
        self._forget()

    def get(self, session_id: str) -> Tombstone | None:
        self._forget()
        kept = self._stones.get(session_id)
        return kept[1] if kept is not None else None

    def _forget(self) -> None:
        """All are kept for the same time, so those to forget stand first."""
        now = trio.current_time()
        while self._stones:
            forgotten_at, _ = next(iter(self._stones.values()))
            if now < forgotten_at and len(self._stones) <= self._most:
                return
            self._stones.popitem(last=False)
