"""Which resets count as failed: a rollout on such an episode would score a zero that the policy did not earn.

Environments fail "softly" too: ``done`` at once and without a reward, or an observation that says so.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gymserve import wire


class ResetFailed(Exception):
    """The reset gave no episode to play; another one may."""


@dataclass(frozen=True, slots=True)
class FailedObservation:
    """An observation whose ``field`` has ``value`` is a failed reset's."""

    field: str
    value: Any

    def is_in(self, observation: wire.Observation) -> bool:
        """In JSON's sense: a field that is missing is not null, and a number is no truth value."""
        if self.field not in observation.fields:
            return False
        found = observation.fields[self.field]
        return bool(found == self.value) and isinstance(found, bool) is isinstance(self.value, bool)


@dataclass(frozen=True, slots=True)
class ResetRules:
    """``retries``: fresh episodes after a failed reset."""

    retries: int = 2
    failed: Sequence[FailedObservation] = ()

    def check(self, observation: wire.Observation) -> None:
        """:raises ResetFailed: the observation is a failed reset's."""
        if observation.done and observation.reward is None:
            raise ResetFailed("the environment was done at once, without a reward")
        for failed in self.failed:
            if failed.is_in(observation):
                raise ResetFailed(f"the observation has {failed.field} = {json.dumps(failed.value)}")

    def check_refusal(self, refusal: wire.Refusal, *, has_opened: bool) -> None:
        """:raises ResetFailed: the environment failed, where another one may not."""
        if refusal.code == wire.EXECUTION_ERROR or (refusal.code == wire.FACTORY_ERROR and has_opened):
            raise ResetFailed(refusal.message or "an error without a message")


def parse_failed_observation(text: str) -> FailedObservation:
    """``FIELD=VALUE``; the value is JSON, or else text.

    :raises ValueError: there is no field, or no ``=``.
    """
    field, separator, value = text.partition("=")
    if not separator or not field:
        raise ValueError("it must be FIELD=VALUE, such as reward_type=reset_error")
    try:
        return FailedObservation(field, json.loads(value))
    except ValueError:
        return FailedObservation(field, value)
