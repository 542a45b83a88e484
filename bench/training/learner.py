"""How the policy learns: GRPO with prime-rl's advantages (reward less its group's mean), clipped ratios, Adam."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from training.policy import CHOICES, Array, Policy, Trajectory

LEARNING_RATE = 0.1
CLIP = 0.2
_ADVANTAGE_SCALE = 8.0
_FIRST_DECAY, _SECOND_DECAY, _TINY = 0.9, 0.99, 1e-8


@dataclass(frozen=True, slots=True)
class Sample:
    """A trajectory, and how much better it was than its group."""

    trajectory: Trajectory
    advantage: float


def advantages(group: Sequence[Trajectory]) -> list[Sample]:
    """None where all were worth the same: there is nothing to learn, and prime-rl prunes such groups."""
    rewards = np.array([trajectory.reward for trajectory in group])
    if len(group) < 2 or np.ptp(rewards) == 0:
        return []
    return [Sample(one, float(gain)) for one, gain in zip(group, rewards - rewards.mean(), strict=True)]


class Learner:
    """The policy that is trained, and Adam's moments."""

    def __init__(self) -> None:
        self.policy = Policy()
        self._first = np.zeros_like(self.policy.weights)
        self._second = np.zeros_like(self.policy.weights)

    def learn(self, batch: Sequence[Sample]) -> None:
        """One step: `policy` is another one afterwards, a version on."""
        slope = np.mean([gradient(self.policy, sample) for sample in batch], axis=0)
        version = self.policy.version + 1
        self._first = _FIRST_DECAY * self._first + (1 - _FIRST_DECAY) * slope
        self._second = _SECOND_DECAY * self._second + (1 - _SECOND_DECAY) * slope**2
        step = self._first / (1 - _FIRST_DECAY**version)
        size = np.sqrt(self._second / (1 - _SECOND_DECAY**version)) + _TINY
        self.policy = Policy(self.policy.weights + LEARNING_RATE * step / size, version)


def gradient(policy: Policy, sample: Sample) -> Array:
    """Of PPO's clipped objective, by the weights: a ratio beyond the clip on its advantage's side has none."""
    trajectory, gain = sample.trajectory, _ADVANTAGE_SCALE * sample.advantage
    features, choices = np.array(trajectory.features), np.array(trajectory.choices)
    chances = policy.chances(features)
    taken = np.take_along_axis(chances, choices[..., None], axis=-1)[..., 0]
    ratio = taken / np.array(trajectory.chances)
    counts = ratio < 1 + CLIP if gain > 0 else ratio > 1 - CLIP
    pull = (np.eye(CHOICES)[choices] - chances) * (gain * ratio * counts)[..., None]
    return np.asarray(np.einsum("hmc,hmf->mcf", pull, features))
