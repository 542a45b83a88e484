"""What became of the rollouts, and everything that should not have happened."""

import time
from collections import Counter

_KEPT = 200  # sentences; what goes on going wrong says nothing new


class Wrong(Exception):
    """gymserve answered what it must not, or nothing; the text says what."""


class Ledger:
    """``outcomes`` are rollouts by what became of them, ``parts`` by what their client was up to. ``faults`` are
    sentences, each with the seconds since the soak began.
    """

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.parts: Counter[str] = Counter()
        self.requests = 0
        self.unanswered = 0
        self.wrong_scores = 0
        self.faults: list[str] = []
        self._began = time.monotonic()

    @property
    def rollouts(self) -> int:
        return sum(self.parts.values())

    def fault(self, sentence: str) -> None:
        if len(self.faults) < _KEPT:
            self.faults.append(f"{time.monotonic() - self._began:.1f} s: {sentence}")
