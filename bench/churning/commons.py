"""What all clients of a churn have in common: a clock, the pauses, and what they can tell of the line by themselves."""

import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio


class Commons:
    """:param nursery: for what happens later; cancelled when all is over.
    :param now: the clock that the environments use too.
    :param opening_seconds: about how long it takes from a free slot to the answer to a seed.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        now: Callable[[], float],
        *,
        idle_timeout_seconds: float,
        opening_seconds: float,
        chance: random.Random,
    ) -> None:
        self._nursery = nursery
        self._idle_timeout_seconds = idle_timeout_seconds
        self.now = now
        self.opening_seconds = opening_seconds
        self.usual_wait_seconds = opening_seconds
        self.pauses: list[tuple[float, float]] = []
        self._chance = chance
        self._line: dict[int, trio.CancelScope | None] = {}  # in the order of their seeds
        self._acting = trio.Event()
        self._acting.set()

    @contextmanager
    def in_line(self, number: int, leaving: trio.CancelScope | None) -> Iterator[None]:
        """While that rollout's seed is not answered.

        :param leaving: of a client that hangs up while it is being opened, if it ever is.
        """
        self._line[number] = leaving
        try:
            yield
        finally:
            del self._line[number]

    def left(self, *, silently: bool) -> None:
        """A rollout has left; its slot is free now, or after the idle timeout."""
        self._nursery.start_soon(self._open_the_next_after, self._idle_timeout_seconds if silently else 0.0)

    async def _open_the_next_after(self, seconds: float) -> None:
        await trio.sleep(seconds)
        leaving = next(iter(self._line.values()), None)
        if leaving is not None and leaving.deadline == math.inf:
            leaving.deadline = trio.current_time() + self._chance.uniform(0, self.opening_seconds)

    def waited(self, seconds: float) -> None:
        """A seed was answered after so long."""
        self.usual_wait_seconds += 0.1 * (seconds - self.usual_wait_seconds)

    async def pause_now_and_then(self, every_seconds: float, for_seconds: float) -> None:
        """A task, for ever: nobody acts for a while, as when a trainer updates its weights."""
        while True:
            await trio.sleep(every_seconds)
            began = self.now()
            self._acting = trio.Event()
            await trio.sleep(for_seconds)
            self._acting.set()
            self.pauses.append((began, self.now()))

    async def not_paused(self) -> None:
        await self._acting.wait()
