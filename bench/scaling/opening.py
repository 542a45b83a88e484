"""Many sessions, opened as fast as a few connections can."""

import time
from collections.abc import Callable, Sequence

import trio

from scaling.client import Client


async def open_sessions(
    port: int,
    episodes: Sequence[str],
    idle_timeout_seconds: Callable[[int], float | None] = lambda number: None,
    at_once: int = 8,
) -> None:
    """A session of each name, in order but for the few that are being opened at once.

    :param idle_timeout_seconds: asked for each, by its number, in the moment in which it is seeded.
    :raises Unexpected: one was refused.
    """
    left = iter(enumerate(episodes))

    async def seed_some() -> None:
        async with await Client.connect(port) as client:
            for number, episode in left:
                await client.seed(episode, idle_timeout_seconds=idle_timeout_seconds(number))

    async with trio.open_nursery() as nursery:
        for _ in range(at_once):
            nursery.start_soon(seed_some)


class TooSlow(Exception):
    """The sessions were not open before the first of their deadlines."""


class Deadlines:
    """When sessions that are being opened shall be reclaimed: a while after the last of them is open, as far as can be
    told, each at its own moment. What a session's idle timeout was is only known here.
    """

    def __init__(self, begin: float, apart_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        """:param begin: the first deadline, by CLOCK_MONOTONIC. :param apart_seconds: from one to the next."""
        self.begin = begin
        self._apart_seconds = apart_seconds
        self._clock = clock
        self.idle_timeout_seconds: list[float] = []

    def choose(self, number: int) -> float:
        """The idle timeout of the session that is seeded now. :raises TooSlow"""
        assert number == len(self.idle_timeout_seconds)
        seconds = self.begin + number * self._apart_seconds - self._clock()
        if seconds <= 1:
            raise TooSlow("sessions were opened more slowly than expected: raise --seconds-per-session")
        self.idle_timeout_seconds.append(seconds)
        return seconds
