"""What rollouts do, drawn by chance: how long they think, how many calls they make, where they are given up."""

import enum
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

_Z99 = 2.3263478740408408  # the standard normal distribution's 99th percentile


class Phase(enum.StrEnum):
    """Where a client can leave without a word."""

    LINE = "in the line"
    OPENING = "while it is opened"
    THINKING = "between two calls"
    CALL = "during a call"
    VERIFY = "before verify"


@dataclass(frozen=True, slots=True)
class Think:
    """A lognormal distribution of the time from an answer to the next request. Seconds; longer ones than ``most`` are
    cut to it.
    """

    median_seconds: float
    p99_seconds: float
    most_seconds: float = math.inf

    @property
    def sigma(self) -> float:
        return math.log(self.p99_seconds / self.median_seconds) / _Z99

    @property
    def mean_seconds(self) -> float:
        """Of the whole distribution, uncut."""
        return self.median_seconds * math.exp(self.sigma**2 / 2)

    def draw(self, chance: random.Random) -> float:
        return min(chance.lognormvariate(math.log(self.median_seconds), self.sigma), self.most_seconds)

    def scaled_to(self, mean_seconds: float, *, most_seconds: float = math.inf) -> "Think":
        """The same shape with another mean."""
        factor = mean_seconds / self.mean_seconds
        return Think(self.median_seconds * factor, self.p99_seconds * factor, most_seconds)


THINK = Think(median_seconds=8.0, p99_seconds=120.0)
"""Of a model that thinks before it calls."""


@dataclass(frozen=True, slots=True)
class Habits:
    """A rollout is a seed, ``calls`` tool calls and a verify, with a think before each of these but the seed.

    :param abandoned_share: of rollouts, each in a phase by chance.
    :param cancelled_share: of groups, each as a whole and at a moment by chance.
    """

    calls: int
    think: Think
    step_seconds: float
    abandoned_share: float
    cancelled_share: float
    phases: tuple[Phase, ...] = tuple(Phase)

    @property
    def episode_seconds(self) -> float:
        """The mean of an episode that is played to its end, but for cut thinks and pauses."""
        return (self.calls + 1) * self.think.mean_seconds + self.calls * self.step_seconds

    def fate(self, chance: random.Random) -> Phase | None:
        """Where the next rollout is given up; None: nowhere."""
        return chance.choice(self.phases) if chance.random() < self.abandoned_share else None

    def thinks(self, chance: random.Random) -> Iterator[float]:
        """Seconds, for ever."""
        while True:
            yield self.think.draw(chance)
