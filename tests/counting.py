"""The smallest environment with an end and a score: count to a target."""

from collections.abc import Mapping
from typing import Any

from gymserve.gridsim.environment import Environment, InvalidAction
from gymserve.wire import Observation

_LARGEST_STEP = 3


class Counting(Environment):
    """Count to ``target`` in steps of 1 to 3.

    A step is rewarded with its share of the way, so a perfect episode sums to 1.0; the step that overshoots the target
    ends the episode with 0.0.
    """

    action_schema: Mapping[str, Any] = {
        "title": "CountingAction",
        "type": "object",
        "properties": {"by": {"type": "integer", "minimum": 1, "maximum": _LARGEST_STEP, "title": "By"}},
        "required": ["by"],
        "additionalProperties": False,
    }
    observation_schema: Mapping[str, Any] = {
        "title": "CountingObservation",
        "type": "object",
        "properties": {
            "count": {"type": "integer", "title": "Count"},
            "target": {"type": "integer", "title": "Target"},
            "metadata": {"type": "object", "title": "Metadata"},
        },
    }

    def __init__(self) -> None:
        self._count = 0
        self._target = 10

    def reset(self, target: Any = 10) -> Observation:
        """:raises ValueError: ``target`` is not a positive integer."""
        if not _is_integer(target) or target < 1:
            raise ValueError(f"target must be an integer of at least 1, not {target!r}")
        self._count, self._target = 0, target
        return self._observe(reward=None)

    def step(self, action: Mapping[str, Any]) -> Observation:
        by = _read_by(action)
        self._count += by
        return self._observe(reward=by / self._target if self._count <= self._target else 0.0)

    def _observe(self, reward: float | None) -> Observation:
        fields = {"count": self._count, "target": self._target, "metadata": {}}
        return Observation(fields, reward, done=self._count >= self._target)


def _read_by(action: Mapping[str, Any]) -> int:
    """:raises InvalidAction: with every fault, in pydantic's words."""
    faults = [_judge(action["by"]) if "by" in action else ("missing", "Field required")]
    errors = [_error(*fault, "by", action.get("by", dict(action))) for fault in faults if fault]
    extras = [key for key in action if key not in ("by", "metadata")]  # every OpenEnv action may carry metadata
    errors += [_error("extra_forbidden", "Extra inputs are not permitted", key, action[key]) for key in extras]
    if errors:
        raise InvalidAction(errors)
    return int(action["by"])


def _judge(by: Any) -> tuple[str, str] | None:
    if not _is_integer(by):
        return "int_type", "Input should be a valid integer"
    if by < 1:
        return "greater_than_equal", "Input should be greater than or equal to 1"
    if by > _LARGEST_STEP:
        return "less_than_equal", f"Input should be less than or equal to {_LARGEST_STEP}"
    return None


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _error(kind: str, sentence: str, key: str, value: Any) -> Mapping[str, Any]:
    return {"type": kind, "loc": [key], "msg": sentence, "input": value}
