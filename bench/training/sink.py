"""From groups of rollouts to batches, by prime-rl's rules (``orchestrator/train_sink.py``, August 2026).

What failed is left out, and the others are measured by their mean; a group of which fewer than two are left, or all
are worth the same, is dropped. After as many rollouts in a row as ten batches have, without one to train on, the
run is aborted.
"""

from dataclasses import dataclass, field

from training.dispatcher import MAX_STALENESS, Group
from training.incident import BATCH_SIZE
from training.learner import Sample, advantages

EMPTY_BATCHES = 10


class RunAborted(Exception):
    """Nothing that could be trained on came for too long."""


@dataclass
class Sink:
    """``groups_partial`` were trained on with rollouts missing, ``groups_dropped`` not at all, for their failures."""

    pending: list[Sample] = field(default_factory=list)
    groups_partial: int = 0
    groups_dropped: int = 0
    groups_pruned: int = 0
    _barren: int = 0

    def add(self, group: Group) -> None:
        """:raises RunAborted"""
        samples = advantages(group.done)
        self.pending += samples
        self._barren = 0 if samples else self._barren + group.size
        if samples and group.failed:
            self.groups_partial += 1
        elif not samples and group.failed:
            self.groups_dropped += 1
        elif not samples:
            self.groups_pruned += 1
        if self._barren >= EMPTY_BATCHES * BATCH_SIZE:
            raise RunAborted(f"{self._barren} rollouts in a row without one to train on")

    def batch(self, version: int) -> list[Sample] | None:
        """A batch for the policy of ``version``, if there is one. What is too old for it never is in one."""
        self.pending = [one for one in self.pending if version - one.trajectory.version <= MAX_STALENESS]
        if len(self.pending) < BATCH_SIZE:
            return None
        batch, self.pending = self.pending[:BATCH_SIZE], self.pending[BATCH_SIZE:]
        return batch
