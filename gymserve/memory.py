"""What is remembered for a while."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

import trio

T = TypeVar("T")


class Memory(Generic[T]):
    """Values by key. The oldest are forgotten: each after its time, and any beyond the greatest number."""

    def __init__(self, *, kept_seconds: float, most: int = 100_000) -> None:
        self._kept_seconds = kept_seconds
        self._most = most
        self._kept: OrderedDict[str, tuple[float, T]] = OrderedDict()

    def __len__(self) -> int:
        self._forget()
        return len(self._kept)

    def put(self, key: str, value: T) -> None:
        self._kept.pop(key, None)  # the order is that of the times
        self._kept[key] = (trio.current_time() + self._kept_seconds, value)
        self._forget()

    def get(self, key: str) -> T | None:
        self._forget()
        kept = self._kept.get(key)
        return kept[1] if kept is not None else None

    def items(self) -> Iterator[tuple[str, T]]:
        """The oldest first."""
        self._forget()
        return ((key, value) for key, (_, value) in self._kept.items())

    def pop(self, key: str) -> T | None:
        """The value, which is forgotten now."""
        value = self.get(key)
        self._kept.pop(key, None)
        return value

    def _forget(self) -> None:
        """All are kept for the same time, so those to forget stand first."""
        now = trio.current_time()
        while self._kept:
            forgotten_at, _ = next(iter(self._kept.values()))
            if now < forgotten_at and len(self._kept) <= self._most:
                return
            self._kept.popitem(last=False)
