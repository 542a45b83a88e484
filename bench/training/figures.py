"""What a run came to: counts, rewards, what became of the abandoned, and which slot was held for whom."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, stdev

from training.dispatcher import CANCELLED
from training.environment import CLOSED, DOWN, GOODBYE, OPENED, RESET
from training.incident import BATCH_SIZE, CLIENT_HANDSHAKE_SECONDS, SLOTS
from training.record import ARMS, Record, Rollout

BLOCK = 10
"""Steps in a block, of which the mean training reward is told."""
PHASES = ("being reset", "live", "abandoned", "being closed")


@dataclass(frozen=True, slots=True)
class Mean:
    mean: float
    error: float
    """The standard error."""

    def __str__(self) -> str:
        return f"{self.mean:.3f} ± {self.error:.3f}"


@dataclass(frozen=True, slots=True)
class Life:
    """An episode on the environment server, by CLOCK_MONOTONIC; inf for what did not happen any more."""

    rollout: str
    opened: float
    reset: float
    goodbye: float
    closed: float


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """``late_seconds``: how long after the deadline (where there is no gymserve, after the cancellation) each
    abandoned episode was told goodbye; ``held_seconds``: how long after its cancellation, as it were. ``never``
    counts the others.
    """

    late_seconds: list[float]
    held_seconds: list[float]
    never: int


class Figures:
    """Of one arm's record."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.lives = list(lives(record))

    def count(self, *outcomes: str, kind: str = "") -> int:
        """Rollouts whose outcome begins with one of these."""
        return sum(one.outcome.startswith(outcomes) for one in self.record.rollouts if kind in ("", one.kind))

    @property
    def failures(self) -> dict[str, int]:
        """Why rollouts failed, and how often."""
        return dict(Counter(one.outcome for one in self.record.rollouts if is_failure(one)).most_common())

    def evaluation(self, step: int) -> list[Rollout]:
        return [one for one in self.record.rollouts if one.kind == "eval" and one.step == step]

    def evaluation_failed_percent(self, *steps: int) -> float | None:
        every = [one for step in steps for one in self.evaluation(step)]
        return 100 * sum(one.outcome != "" for one in every) / len(every) if every else None

    def evaluation_reward(self, step: int) -> Mean | None:
        """Of those rollouts that did not fail."""
        rewards = [one.reward for one in self.evaluation(step) if one.outcome == ""]
        if len(rewards) < 2:
            return None
        return Mean(fmean(rewards), stdev(rewards) / math.sqrt(len(rewards)))

    @property
    def training_blocks(self) -> list[float]:
        batches = self.record.batches
        blocks = [batches[at : at + BLOCK] for at in range(0, len(batches), BLOCK)]
        return [fmean(reward for batch in block for reward in batch.rewards) for block in blocks]

    @property
    def trained(self) -> int:
        return BATCH_SIZE * len(self.record.batches)

    @property
    def trained_until(self) -> float | None:
        """When the last batch was full; None where none was."""
        return self.record.batches[-1].at if self.record.batches else None

    @property
    def trained_per_slot_hour(self) -> float | None:
        """From the beginning to the last batch, in hours as they were."""
        return self._per_slot_hour(self.trained)

    @property
    def scored_per_slot_hour(self) -> float | None:
        """The same of all rollouts that did not fail: an evaluation that fails at once leaves its slot to training."""
        until = self.trained_until or 0.0
        return self._per_slot_hour(sum(one.outcome == "" and one.ended_at <= until for one in self.record.rollouts))

    @property
    def slots_in_use_percent(self) -> float | None:
        """By episodes that are reset, live or closed, until the last batch."""
        until = self.trained_until
        if until is None:
            return None
        held = sum(max(0.0, min(life.closed, until) - life.opened) for life in self.lives)
        return 100 * held / (SLOTS * (until - self.record.began_at))

    def _per_slot_hour(self, number: int) -> float | None:
        until = self.trained_until
        if until is None:
            return None
        return number / (SLOTS * self.record.pace.as_it_were(until - self.record.began_at) / 3600)

    @property
    def minutes(self) -> float:
        """How long it took, as it were."""
        return self.record.pace.as_it_were(self.record.ended_at - self.record.began_at) / 60

    @property
    def abandoned(self) -> list[Rollout]:
        return [one for one in self.record.rollouts if one.is_abandoned]

    def reclaimed(self) -> Reclaimed:
        idle_seconds = ARMS[self.record.arm].idle_seconds
        goodbyes = {life.rollout: life.goodbye for life in self.lives if life.rollout}
        late, held, never = [], [], 0
        for one in self.abandoned:
            goodbye = goodbyes.get(one.name, math.inf)
            if goodbye == math.inf:
                never += 1
                continue
            assert one.answered_at is not None
            idle_from = one.answered_at + self.record.pace.seconds(idle_seconds or 0)
            late.append(goodbye - (one.ended_at if idle_seconds is None else idle_from))
            held.append(self.record.pace.as_it_were(goodbye - one.ended_at))
        return Reclaimed(late, held, never)

    @property
    def lost_in_outage(self) -> int:
        """Rollouts that failed from its beginning until shortly after its end, or that were under way when it began."""
        down_at = next((event.at for event in self.record.events if event.what == DOWN), math.inf)
        up_at = self.record.outage[1] if self.record.outage else math.inf
        until = up_at + self.record.pace.seconds(CLIENT_HANDSHAKE_SECONDS)
        return sum(
            is_failure(one) and one.ended_at >= down_at and (one.ended_at <= until or one.dispatched_at < down_at)
            for one in self.record.rollouts
        )

    def occupancy(self, points: int) -> tuple[list[float], list[list[int]]]:
        """Minutes as they were, and for each of `PHASES` the slots held at those times."""
        began = self.record.began_at
        ended = max([self.record.ended_at, *(event.at for event in self.record.events)])
        times = [began + (ended - began) * at / (points - 1) for at in range(points)]
        cancelled = {one.name: one.ended_at for one in self.abandoned}
        phases = [[0] * points for _ in PHASES]
        for life in self.lives:
            abandoned = min(max(cancelled.get(life.rollout, math.inf), life.reset), life.goodbye)
            moments = (life.opened, min(life.reset, life.goodbye), abandoned, life.goodbye, life.closed)
            for phase, (since, until) in enumerate(pairwise(moments)):
                for at, time in enumerate(times):
                    phases[phase][at] += since <= time < until
        return [self.record.pace.as_it_were(time - began) / 60 for time in times], phases


def is_failure(rollout: Rollout) -> bool:
    return rollout.outcome not in ("", CANCELLED)


def lives(record: Record) -> Iterator[Life]:
    """Of all episodes; an outage ends those that it finds."""
    open_now: dict[int, dict[str, float]] = {}
    names: dict[int, str] = {}
    for event in record.events:
        match event.what:
            case what if what == OPENED:
                open_now[event.episode] = {OPENED: event.at}
            case what if what in (RESET, GOODBYE):
                open_now[event.episode][event.what] = event.at
                if event.rollout:
                    names[event.episode] = event.rollout
            case what if what == CLOSED:
                yield life_of(names.pop(event.episode, ""), open_now.pop(event.episode), event.at)
            case what if what == DOWN:
                for episode, moments in open_now.items():
                    yield life_of(names.get(episode, ""), {GOODBYE: event.at} | moments, event.at)
                open_now.clear()
                names.clear()
    for episode, moments in open_now.items():
        yield life_of(names.get(episode, ""), moments, math.inf)


def life_of(rollout: str, moments: dict[str, float], closed: float) -> Life:
    goodbye = moments.get(GOODBYE, closed)
    return Life(rollout, moments[OPENED], moments.get(RESET, goodbye), goodbye, closed)


def rises(blocks: Sequence[float]) -> bool:
    return all(later > earlier for earlier, later in pairwise(blocks))
