"""The moments of one connection, and the one task that looks out for them.

A request moves each of them once or twice. So that it costs no timer, what is put off is looked for at its old time,
and then at the new one.
"""

import math
from collections.abc import Awaitable, Callable

import trio


class Moment:
    """When something is to be done; ``at`` is infinite while nothing is."""

    __slots__ = ("_watch", "act", "at")

    def __init__(self, watch: "Watch", act: Callable[[], Awaitable[None]]) -> None:
        self.at = math.inf
        self.act = act
        self._watch = watch

    def set(self, at: float) -> None:
        self.at = at
        self._watch.look_out_at(at)


class Watch:
    """One at a time of its moments is acted on, in the task that is in `during`."""

    def __init__(self) -> None:
        self._moments: list[Moment] = []
        self._scope = trio.CancelScope()

    def moment(self, act: Callable[[], Awaitable[None]]) -> Moment:
        """A new one. ``act`` is awaited when it has come, and may set it anew."""
        moment = Moment(self, act)
        self._moments.append(moment)
        return moment

    def look_out_at(self, at: float) -> None:
        """A moment comes then."""
        if at < self._scope.deadline:
            self._scope.deadline = at

    async def during(self, wait: Callable[[], Awaitable[object]]) -> None:
        """Await ``wait()``, with pauses for the moments that come: it is begun anew after each."""
        while True:
            with trio.CancelScope(deadline=min(moment.at for moment in self._moments)) as self._scope:
                await wait()
                return
            for moment in self._moments:
                if trio.current_time() >= moment.at:
                    moment.at = math.inf
                    await moment.act()
