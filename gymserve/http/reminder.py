"""When a client whose request waits should hear of it."""

import math
from collections.abc import Awaitable, Callable

import trio


class Reminder:
    """Calls what `start` was given every `interval_seconds` until `stop`, in a task that waits for something else.

    It is started for one request after the other. The first sets a deadline, which then is left alone until it passes,
    however many requests have come and gone meanwhile; only at that moment is it looked at which one is waiting, and
    since when. So a fast request costs no timer.
    """

    def __init__(self, *, interval_seconds: float) -> None:
        self._interval_seconds = interval_seconds
        self._remind: Callable[[], Awaitable[None]] | None = None
        self._last_at = -math.inf
        self._scope = trio.CancelScope()

    def start(self, remind: Callable[[], Awaitable[None]]) -> None:
        """Call `remind` an interval from now, and again an interval after each call has ended."""
        self._remind = remind
        self._last_at = trio.current_time()
        if self._scope.deadline == math.inf:
            self._scope.deadline = self._due_at

    def stop(self) -> None:
        """Begin no further call; one under way goes on to its end."""
        self._remind = None

    async def during(self, wait: Callable[[], Awaitable[object]]) -> None:
        """Await `wait()`, with pauses for the calls that come due: it is begun anew after each."""
        while True:
            with trio.CancelScope(deadline=self._due_at) as self._scope:
                await wait()
                return
            if self._remind is not None and trio.current_time() >= self._due_at:
                await self._remind()
                self._last_at = trio.current_time()

    @property
    def _due_at(self) -> float:
        return math.inf if self._remind is None else self._last_at + self._interval_seconds
