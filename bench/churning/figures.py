"""What a churn comes to: how much of the slots was used, who waited how long, and how late slots came back."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from reporting import percentile

from churning.records import Churn, Outcome, RolloutRecord


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time in which nothing changed. ``live`` of the ``busy`` slots have a client that goes on, and
    ``useful`` one that gets to its end.
    """

    began_at: float
    ended_at: float
    busy: int
    live: int
    useful: int
    waiting: int

    @property
    def seconds(self) -> float:
        return self.ended_at - self.began_at


def spans(churn: Churn) -> Iterator[Span]:
    """From the churn's beginning to its end."""
    count: Counter[str] = Counter()
    before = churn.began_at
    for at, what, more in sorted(_changes(churn)):
        if at >= churn.ended_at:
            break
        if at > before:
            yield Span(before, at, count["busy"], count["live"], count["useful"], count["waiting"])
            before = at
        count[what] += more
    if churn.ended_at > before:
        yield Span(before, churn.ended_at, count["busy"], count["live"], count["useful"], count["waiting"])


def _changes(churn: Churn) -> Iterator[tuple[float, str, int]]:
    for episode in churn.episodes:
        closed_at = episode.closed_at or churn.ended_at
        rollout = churn.rollouts[episode.rollout]
        ends_at = {"busy": closed_at, "live": max(episode.reset_at, min(rollout.left_at or closed_at, closed_at))}
        if rollout.outcome is Outcome.FINISHED:
            ends_at["useful"] = closed_at
        for what, at in ends_at.items():
            yield episode.reset_at, what, 1
            yield at, what, -1
    for rollout in churn.rollouts:
        yield rollout.seeded_at, "waiting", 1
        yield rollout.opened_at or rollout.left_at or churn.ended_at, "waiting", -1


@dataclass(frozen=True, slots=True)
class Use:
    """Shares of all slots, in the time in which there was work for all of them (``contended_seconds``).

    ``busy``: an episode between its first reset and the end of its environment; ``live``: one whose client goes on;
    ``useful``: one whose client gets to its end.
    """

    busy: float
    live: float
    useful: float
    contended_seconds: float


def use(churn: Churn) -> Use | None:
    """None where there never was work for all slots."""
    full = [span for span in spans(churn) if span.busy + span.waiting >= churn.slots]
    seconds = sum(span.seconds for span in full)
    if not seconds:
        return None
    everything = churn.slots * seconds
    return Use(
        busy=sum(span.busy * span.seconds for span in full) / everything,
        live=sum(span.live * span.seconds for span in full) / everything,
        useful=sum(span.useful * span.seconds for span in full) / everything,
        contended_seconds=seconds,
    )


def gaps(churn: Churn) -> list[float]:
    """Seconds from the end of an episode to the reset that takes its place, while there is work for all slots."""
    resets = sorted(episode.reset_at for episode in churn.episodes)
    closes = sorted(episode.closed_at for episode in churn.episodes if episode.closed_at is not None)
    pairs = zip(closes, resets[churn.slots :], strict=False)
    return [max(0.0, reset_at - closed_at) for closed_at, reset_at in pairs if reset_at <= churn.ended_at]


def overshoots(churn: Churn) -> list[float]:
    """Seconds from each silent session's deadline to the end of its environment, both by the environment's clock: it
    had its last answer a little before gymserve, so that these are a little more than what gymserve is late.
    """
    silent = {rollout.number for rollout in churn.rollouts if rollout.went_silent}
    return [
        episode.closed_at - (episode.last_at + churn.idle_timeout_seconds)
        for episode in churn.episodes
        if episode.rollout in silent and episode.closed_at is not None
    ]


def waits(churn: Churn) -> list[float]:
    """Seconds from a seed to its answer."""
    return [rollout.opened_at - rollout.seeded_at for rollout in churn.rollouts if rollout.opened_at is not None]


def outcomes(churn: Churn) -> Counter[str]:
    return Counter(str(rollout.outcome) for rollout in churn.rollouts)


def phases(churn: Churn) -> dict[str, int]:
    """Where clients left, by what the environment saw of it: a seed that was hung up on while its episode was opened
    has one.
    """
    opened = {episode.rollout for episode in churn.episodes}
    return dict(Counter(_phase(rollout, opened) for rollout in churn.rollouts if _left(rollout)).most_common())


def _left(rollout: RolloutRecord) -> bool:
    return rollout.outcome in (Outcome.ABANDONED, Outcome.CANCELLED)


def _phase(rollout: RolloutRecord, opened: set[int]) -> str:
    if rollout.opened_at is None:
        return "while it was opened" if rollout.number in opened else "in the line"
    return rollout.phase or "with its group"


def episode_seconds(churn: Churn) -> float | None:
    """The mean of those that were finished."""
    finished = {rollout.number for rollout in churn.rollouts if rollout.outcome is Outcome.FINISHED}
    lengths = [
        episode.closed_at - episode.reset_at
        for episode in churn.episodes
        if episode.rollout in finished and episode.closed_at is not None
    ]
    return sum(lengths) / len(lengths) if lengths else None


def figures(churn: Churn) -> dict[str, Any]:
    """All of them, for the table and for JSON. Seconds."""
    counted, late, waited, used = outcomes(churn), overshoots(churn), waits(churn), use(churn)
    between, seconds = gaps(churn), churn.ended_at - churn.began_at
    return {
        "seconds": round(seconds, 1),
        "rollouts": len(churn.rollouts),
        **{str(outcome): counted[outcome] for outcome in Outcome},
        "left without a word": phases(churn),
        "pauses of all": len(churn.pauses),
        "rollouts finished per second": counted[Outcome.FINISHED] / seconds,
        "requests per second": churn.requests / seconds,
        "mean episode (s)": episode_seconds(churn),
        "slots busy while there is work for all": None if used is None else used.busy,
        "slots with a live rollout then": None if used is None else used.live,
        "seconds with work for all slots": None if used is None else used.contended_seconds,
        "slots whose rollout is finished then": None if used is None else used.useful,
        "from an episode to the next in its slot, p50 (s)": percentile(between, 50),
        "from an episode to the next in its slot, p99 (s)": percentile(between, 99),
        "wait for a slot, p50 (s)": percentile(waited, 50),
        "wait for a slot, p99 (s)": percentile(waited, 99),
        "reclaimed after going silent": len(late),
        "reclaim after the deadline, p50 (s)": percentile(late, 50),
        "reclaim after the deadline, p99 (s)": percentile(late, 99),
        "reclaim after the deadline, max (s)": max(late, default=None),
        "left in the end": dict(churn.left),
        "leaked": sum(churn.left.values()),
        "complaints": churn.complaints,
    }
