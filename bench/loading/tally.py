"""What came of a load."""

from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

_QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


@dataclass(slots=True)
class Tally:
    """Counts and times; ``errors`` by what they were, of which no answer counts in the times."""

    rollouts: int = 0
    seconds: float = 0.0
    errors: Counter[str] = field(default_factory=Counter)
    times: dict[str, "array[float]"] = field(default_factory=dict)

    def note(self, kind: str, seconds: float) -> None:
        self.times.setdefault(kind, array("d")).append(seconds)

    @property
    def requests(self) -> int:
        """Those that were answered as they should."""
        return sum(map(len, self.times.values()))

    def report(self) -> dict[str, Any]:
        """As JSON can say it."""
        every = array("d", (each for times in self.times.values() for each in times))
        return {
            "seconds": self.seconds,
            "rollouts": self.rollouts,
            "requests": self.requests,
            "rollouts_per_second": self.rollouts / self.seconds if self.seconds else 0.0,
            "requests_per_second": self.requests / self.seconds if self.seconds else 0.0,
            "milliseconds": {kind: _quantiles(times) for kind, times in {**self.times, "all": every}.items()},
            "errors": dict(self.errors),
        }


def _quantiles(times: "array[float]") -> dict[str, float]:
    if not (ranked := sorted(times)):
        return {}
    shown = {name: ranked[min(len(ranked) - 1, int(share * len(ranked)))] for name, share in _QUANTILES.items()}
    return {name: round(1000 * seconds, 3) for name, seconds in shown.items()}
