"""What rollouts consist of, as it is: for those who record it. It refers to what sessions have, and is no copy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gymserve import wire


@dataclass(frozen=True, slots=True)
class Seeded:
    """A session begins. ``row`` is what its client seeded it with, of ``row_bytes`` as it was sent; ``reset_kwargs``
    what its environment's reset gets.
    """

    session: str
    label: str | None
    row: Mapping[str, Any] | None
    row_bytes: int
    reset_kwargs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Began:
    """A session's episode begins: what its reset answered. Seconds as `SessionOpened` has them."""

    session: str
    label: str | None
    env: str
    waited_seconds: float
    reset_seconds: float
    tries: int
    observation: wire.Observation


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an action was not answered by an observation.

    ``kind``: ``refused`` by the environment or its server, with OpenEnv's ``code`` and the validator's ``errors``;
    ``timed_out``; ``lost``, the connection; ``cut_short``, the session ended first.
    """

    kind: Literal["refused", "timed_out", "lost", "cut_short"]
    message: str
    code: str | None = None
    errors: Sequence[Any] | None = None


@dataclass(frozen=True, slots=True)
class Acted:
    """An action was sent, and ``step_seconds`` later came to something. ``purpose`` is ``verify`` for the action that
    is sent at verify.
    """

    session: str
    label: str | None
    purpose: Literal["step", "verify"]
    action: wire.Step
    outcome: wire.Observation | Failure
    step_seconds: float


Content = Seeded | Began | Acted
