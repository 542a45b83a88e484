"""What a rollout earned, and what a trainer is told of it. The one place that decides what a masked result looks
like.
"""

import enum
import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

_NO_COMPONENTS: Mapping[str, float] = {}


class RewardRule(enum.StrEnum):
    """How an episode's reward comes from the rewards of its observations."""

    SUM = "sum"
    LAST = "last"
    MAX = "max"


class Ending(enum.Enum):
    """Why a session ended."""

    VERIFIED = "verified"
    EXPIRED = "idle timeout"
    OUTLIVED = "maximum lifetime"
    CLOSED = "closed by the client"
    LOST = "lost"
    TIMED_OUT = "step timeout"
    ACTION_ENDED = "ended by an action"
    SHUTDOWN = "shutdown"
    NEVER_OPENED = "never opened"
    UNSCORED = "the verify action failed"


#: What a trainer reads. The plain kinds are NeMo Gym's vocabulary (``nemo_gym/failure_kinds.py``); our own carry our
#: name.
_MASKED_KINDS = {
    Ending.EXPIRED: "session_expired",
    Ending.OUTLIVED: "session_expired",
    Ending.CLOSED: "cancelled",
    Ending.LOST: "session_lost",
    Ending.TIMED_OUT: "session_lost",
    Ending.SHUTDOWN: "shutdown",
    Ending.NEVER_OPENED: "provider_unavailable",
    Ending.UNSCORED: "verifier_error",
}
MASKED_KINDS = sorted(set(_MASKED_KINDS.values()))
"""Every ``failure_kind`` of a masked result."""

_SCORED_KINDS = {
    Ending.ACTION_ENDED: "gymserve:action_ended_episode",
    Ending.TIMED_OUT: "gymserve:step_timed_out",
}


_VERDICTS = frozenset(
    {"mask_sample", "failure_kind", "failure_reason", "no_reward", "reward_components", "_ng_failure_class"}
)


def counts(reward: Any) -> bool:
    """Whether a reward is evidence: numbers and booleans are; null, NaN, infinities and anything else are not."""
    try:
        return isinstance(reward, int | float) and math.isfinite(reward)
    except OverflowError:  # an integer beyond a float's range
        return False


def reward_components(fields: Mapping[str, Any]) -> Mapping[str, float]:
    """The parts of an observation's reward, by name, where its metadata has ``reward_components``."""
    metadata = fields.get("metadata")
    components = metadata.get("reward_components") if isinstance(metadata, dict) else None
    if not isinstance(components, dict):
        return {}
    return {name: float(part) for name, part in components.items() if counts(part)}


class Rewards:
    """The rewards of one episode under a rule, and the parts they are made of, where the environment names some."""

    def __init__(self, rule: RewardRule) -> None:
        self._rule = rule
        self._value: float | None = None
        self._components: Mapping[str, float] = {}

    def add(self, reward: Any, components: Mapping[str, float] = _NO_COMPONENTS) -> None:
        if not counts(reward):
            return
        new = float(reward)
        if self._value is None or self._rule is RewardRule.LAST:
            self._value, self._components = new, components
        elif self._rule is RewardRule.SUM:
            self._value = _finite(self._value + new)
            self._components = _summed(self._components, components)
        elif new > self._value:
            self._value, self._components = new, components

    @property
    def value(self) -> float:
        return 0.0 if self._value is None else self._value

    @property
    def components(self) -> Mapping[str, float]:
        """What `value` is made of; empty where the environment names no parts."""
        return self._components

    @property
    def none_counted(self) -> bool:
        return self._value is None


def _summed(before: Mapping[str, float], more: Mapping[str, float]) -> Mapping[str, float]:
    return {name: _finite(before.get(name, 0.0) + more.get(name, 0.0)) for name in {**before, **more}}


def _finite(value: float) -> float:
    return max(-sys.float_info.max, min(sys.float_info.max, value))


@dataclass(slots=True)
class Spent:
    """Seconds a session spent waiting for room and connecting, in reset, in steps, and between calls (the policy
    thinking).
    """

    waiting: float = 0.0
    resetting: float = 0.0
    stepping: float = 0.0
    thinking: float = 0.0


@dataclass(frozen=True, slots=True)
class Score:
    """What is kept of an episode for its verify. ``reward`` is finite."""

    reward: float = 0.0
    no_reward: bool = True
    steps: int = 0
    done: bool = False
    components: Mapping[str, float] = field(default_factory=dict)
    spent: Spent = field(default_factory=Spent)

    @property
    def components_add_up(self) -> bool:
        """NeMo RL ends a run whose ``reward_components`` do not (``nemo_rl/environments/nemo_gym.py``)."""
        return not self.components or math.isclose(
            sum(self.components.values()), self.reward, rel_tol=1e-5, abs_tol=1e-6
        )

    def fields(self) -> dict[str, Any]:
        return {
            "reward": self.reward,
            "steps": self.steps,
            "done": self.done,
            "seconds_waiting": round(self.spent.waiting, 6),
            "seconds_resetting": round(self.spent.resetting, 6),
            "seconds_stepping": round(self.spent.stepping, 6),
            "seconds_thinking": round(self.spent.thinking, 6),
        }


@dataclass(frozen=True, slots=True)
class Tombstone:
    """What is remembered of an ended session: why, when (seconds since the epoch), its score; nothing else.

    ``silent_seconds``: since its last request or answer. ``scored``: the score is evidence about the policy,
    because the episode was done or the policy itself ended it.
    """

    ending: Ending
    reason: str
    at_epoch_seconds: float
    score: Score
    scored: bool
    label: str | None = None
    silent_seconds: float = 0.0
    idle_timeout_seconds: float = 0.0

    def fields(self) -> dict[str, Any]:
        """As JSON can say it; `from_fields` reads it."""
        return {**asdict(self), "ending": self.ending.name}

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> "Tombstone":
        """:raises KeyError, TypeError: they are not a tombstone's."""
        score = Score(**{**fields["score"], "spent": Spent(**fields["score"]["spent"])})
        return cls(**{**fields, "ending": Ending[fields["ending"]], "score": score})


@dataclass(frozen=True, slots=True)
class Verification:
    """The answer to a verify: the body, and whether trainers must not learn from it."""

    body: Mapping[str, Any]
    masked: bool


def verification(row: Mapping[str, Any], stone: Tombstone, *, failure_class: str | None = None) -> Verification:
    """The result of an ended session: its score, or a mask where it ended before ``done`` through no act of the
    policy.

    The parts of a reward stand in ``reward_components``, which trainers with several rewards read, and beside it, as
    metrics are made of top-level numbers only.
    """
    if not stone.scored:
        return masked(row, _MASKED_KINDS[stone.ending], stone.reason, stone.score, failure_class=failure_class)
    body = {**_without_verdicts(row), **stone.score.fields()}
    if stone.score.no_reward:
        body["no_reward"] = True
    if stone.score.components and stone.score.components_add_up:
        body = {**stone.score.components, **body, "reward_components": dict(stone.score.components)}
    if stone.ending in _SCORED_KINDS and not stone.score.done:
        body["failure_kind"] = _SCORED_KINDS[stone.ending]
        body["failure_reason"] = stone.reason
    return Verification(body, masked=False)


def _without_verdicts(row: Mapping[str, Any]) -> dict[str, Any]:
    """The row without what an earlier result said of it: results are fed in again as rows."""
    stale = row.get("reward_components")
    parts = stale.items() if isinstance(stale, dict) else ()
    beside = {name for name, part in parts if row.get(name) == part}
    body = {key: value for key, value in row.items() if key not in _VERDICTS and key not in beside}
    config = body.get("instance_config")
    if isinstance(config, dict):
        body["instance_config"] = {key: value for key, value in config.items() if key != "mask_sample"}
    return body


def masked(
    row: Mapping[str, Any],
    failure_kind: str,
    reason: str,
    score: Score | None = None,
    *,
    failure_class: str | None = None,
) -> Verification:
    """A result that says nothing about the policy.

    NeMo RL reads ``instance_config.mask_sample``, later ``mask_sample`` (NVIDIA-NeMo/RL#3201): both are set. The
    parts of a reward are all 0, as their names must be the same in every result.

    :param failure_class: NeMo Gym's collector keeps a result that has one out of its metrics and tries the row again
        (``_ng_failure_class``).
    """
    score = score or Score()
    config = row.get("instance_config")
    body = {
        **_without_verdicts(row),
        **score.fields(),
        "reward": 0.0,
        "mask_sample": True,
        "instance_config": {**(config if isinstance(config, dict) else {}), "mask_sample": True},
        "failure_kind": failure_kind,
        "failure_reason": reason,
    }
    if score.components:
        body["reward_components"] = dict.fromkeys(score.components, 0.0)
    if failure_class is not None:
        body["_ng_failure_class"] = failure_class
    return Verification(body, masked=True)
