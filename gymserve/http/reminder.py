"""Something to be said again and again for as long as a request takes."""

import math
from collections.abc import Awaitable, Callable

import trio

from gymserve.http.watch import Watch


class Reminder:
    """One for each connection: it repeats a call while one is waiting for it to stop."""

    def __init__(self, watch: Watch, *, interval_seconds: float) -> None:
        self._interval_seconds = interval_seconds
        self._remind: Callable[[], Awaitable[None]] | None = None
        self._moment = watch.moment(self._act)

    def start(self, remind: Callable[[], Awaitable[None]]) -> None:
        """Call `remind` an interval from now, and again an interval after each call has ended."""
        self._remind = remind
        self._moment.set(trio.current_time() + self._interval_seconds)

    def stop(self) -> None:
        """Begin no further call; one under way goes on to its end."""
        self._remind = None
        self._moment.at = math.inf

    async def _act(self) -> None:
        if self._remind is not None:
            await self._remind()
        if self._remind is not None:
            self._moment.set(trio.current_time() + self._interval_seconds)
