"""How fast a line moves, and so how long one will wait in it."""

from collections import deque

import trio

_KEPT = 32


class HandOvers:
    """The last openings' times."""

    def __init__(self) -> None:
        self._at: deque[float] = deque(maxlen=_KEPT)

    def note(self) -> None:
        """An episode was opened now."""
        self._at.append(trio.current_time())

    @property
    def per_second(self) -> float | None:
        """Openings a second, over the last of them and until now; None before there were two."""
        if len(self._at) < 2:
            return None
        seconds = trio.current_time() - self._at[0]
        return (len(self._at) - 1) / seconds if seconds > 0 else None

    def expected_wait_seconds(self, waiting: int) -> float | None:
        """For whoever stands at the end of a line of that length."""
        rate = self.per_second
        return None if rate is None else waiting / rate
