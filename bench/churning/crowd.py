"""Groups of rollouts, as a trainer begins them: some are cancelled as a whole, and now and then all pause."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

import trio

from churning.commons import Commons
from churning.habits import Habits
from churning.links import Link
from churning.records import Churn, RolloutRecord
from churning.rollout import Rollout


@dataclass(frozen=True, slots=True)
class Shape:
    """:param groups: at a time, each followed by another as soon as all of it is over; where ``arrivals_per_second`` is
    given it counts nothing, and groups come by chance at that mean rate (a Poisson process).
    :param seconds: for which groups are begun.
    :param stagger_seconds: between the seeds of a group, which a trainer sends one after the other.
    :param pause_every_seconds: infinite for no pauses.
    """

    groups: int
    group_size: int
    seconds: float
    stagger_seconds: float = 0.0
    arrivals_per_second: float | None = None
    pause_every_seconds: float = math.inf
    pause_seconds: float = 0.0


class Crowd:
    """Writes down in ``churn`` what happens. :param opening_seconds: as `Commons` has it."""

    def __init__(
        self,
        churn: Churn,
        habits: Habits,
        shape: Shape,
        links: Callable[[], Link],
        now: Callable[[], float],
        *,
        seed: int,
        opening_seconds: float,
    ) -> None:
        self._churn = churn
        self._habits = habits
        self._shape = shape
        self._links = links
        self._chance = random.Random(seed)
        self._now = now
        self._opening_seconds = opening_seconds
        self._ends_at = math.inf

    async def run(self) -> None:
        """Until the last rollout is over."""
        churn, shape = self._churn, self._shape
        churn.began_at = self._now()
        churn.ended_at = self._ends_at = churn.began_at + shape.seconds
        async with trio.open_nursery() as beside:
            commons = self._commons = self._meet(beside)
            if shape.pause_every_seconds < math.inf:
                beside.start_soon(commons.pause_now_and_then, shape.pause_every_seconds, shape.pause_seconds)
            async with trio.open_nursery() as groups:
                if shape.arrivals_per_second is None:
                    for _ in range(shape.groups):
                        groups.start_soon(self._one_after_another)
                else:
                    await self._arrive(groups, shape.arrivals_per_second)
            beside.cancel_scope.cancel()
        churn.pauses = commons.pauses

    def _meet(self, beside: trio.Nursery) -> Commons:
        return Commons(
            beside,
            self._now,
            idle_timeout_seconds=self._churn.idle_timeout_seconds,
            opening_seconds=self._opening_seconds,
            chance=random.Random(self._chance.getrandbits(64)),
        )

    @property
    def _goes_on(self) -> bool:
        return self._now() < self._ends_at

    async def _one_after_another(self) -> None:
        while self._goes_on:
            await self._group()

    async def _arrive(self, groups: trio.Nursery, per_second: float) -> None:
        while self._goes_on:
            groups.start_soon(self._group)
            await trio.sleep(self._chance.expovariate(per_second))

    async def _group(self) -> None:
        with trio.CancelScope() as together:
            if self._chance.random() < self._habits.cancelled_share:
                within_seconds = self._habits.episode_seconds + self._commons.usual_wait_seconds
                together.deadline = trio.current_time() + self._chance.uniform(0, within_seconds)
            async with trio.open_nursery() as rollouts:
                for _ in range(self._shape.group_size):
                    rollouts.start_soon(self._rollout().run)
                    await trio.sleep(self._shape.stagger_seconds)

    def _rollout(self) -> Rollout:
        record = RolloutRecord(number=len(self._churn.rollouts), seeded_at=self._now())
        self._churn.rollouts.append(record)
        chance = random.Random(self._chance.getrandbits(64))
        return Rollout(self._churn, record, self._habits, self._commons, self._links(), chance)
