"""What happened in a churn: written down by its rollouts and by its environments, each by the same clock."""

import enum
from dataclasses import dataclass, field


class Outcome(enum.StrEnum):
    FINISHED = "finished"
    ABANDONED = "abandoned"
    CANCELLED = "cancelled"
    RECLAIMED = "reclaimed alive"
    """Its idle timeout ended it while its client was thinking; a verify of it is masked."""
    MASKED = "masked"
    LOST = "lost"


@dataclass(slots=True)
class RolloutRecord:
    """One rollout as its client saw it. Moments are in Trio's time; None is what never came.

    ``left_at`` is its last moment, whatever that was; ``phase`` is where it was then, if its client left.
    """

    number: int
    seeded_at: float
    is_to_finish: bool = True
    """Its client means to go to the end, unless its group is cancelled."""
    opened_at: float | None = None
    left_at: float | None = None
    outcome: Outcome | None = None
    phase: str | None = None
    verified: bool = False
    """A verify was sent: the session's end is its own from then on."""
    longest_silence_seconds: float = 0.0
    """From an answer to the next request."""

    @property
    def went_silent(self) -> bool:
        """Its client left a session that only the idle timeout ends."""
        left = self.outcome in (Outcome.ABANDONED, Outcome.CANCELLED)
        return left and self.opened_at is not None and not self.verified


@dataclass(slots=True)
class EpisodeRecord:
    """One episode as its environment saw it, from its first reset. ``last_at`` is when it last had an answer."""

    rollout: int
    reset_at: float
    last_at: float
    closed_at: float | None = None


@dataclass(slots=True)
class Churn:
    """All of it. ``pauses`` are from and to; ``left`` is what was still held when all should have been given back."""

    slots: int
    idle_timeout_seconds: float
    began_at: float = 0.0
    ended_at: float = 0.0
    rollouts: list[RolloutRecord] = field(default_factory=list)
    episodes: list[EpisodeRecord] = field(default_factory=list)
    pauses: list[tuple[float, float]] = field(default_factory=list)
    requests: int = 0
    left: dict[str, int] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)
