"""What is run, and what is written down of it."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from gymserve.gridsim.day import EVALUATION_DAYS
from training.dispatcher import Flight
from training.environment import Event
from training.incident import Pace


@dataclass(frozen=True, slots=True)
class Arm:
    """A way to the environment server. Seconds; None where there is no gymserve."""

    name: str
    title: str
    patience_seconds: float | None = None
    idle_seconds: float | None = None


DIRECT = Arm("direct", "bare OpenEnv client")
IMPATIENT = Arm("impatient", "gymserve, patience 0, idle 600", 0.0, 600.0)
PATIENT = Arm("patient", "gymserve, patience 600, idle 120", 600.0, 120.0)
ARMS = {arm.name: arm for arm in (DIRECT, IMPATIENT, PATIENT)}


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run. :param outage_after: the step after which the environment server is down for 30 s; None: never."""

    scale: float
    seed: int
    steps: int
    evaluated_steps: tuple[int, ...]
    evaluation_days: int = len(EVALUATION_DAYS)
    outage_after: int | None = None

    @property
    def days(self) -> range:
        return EVALUATION_DAYS[: self.evaluation_days]


@dataclass(slots=True)
class Batch:
    at: float
    version: int
    rewards: list[float]


@dataclass(slots=True)
class Rollout:
    """A `Flight` as it is written down."""

    name: str
    kind: str
    step: int
    dispatched_at: float
    answered_at: float | None
    ended_at: float
    outcome: str
    is_abandoned: bool
    reward: float
    waited_seconds: float

    @classmethod
    def of(cls, flight: Flight) -> "Rollout":
        return cls(
            name=flight.name,
            kind=flight.group.kind,
            step=flight.group.step,
            dispatched_at=flight.dispatched_at,
            answered_at=flight.seat.answered_at,
            ended_at=flight.ended_at,
            outcome=flight.outcome,
            is_abandoned=flight.is_abandoned,
            reward=flight.reward,
            waited_seconds=flight.seat.waited_seconds,
        )


@dataclass
class Record:
    """Moments are of CLOCK_MONOTONIC. ``aborted`` says why the trainer gave up; ``slots_left`` are held at the very
    end.
    """

    arm: str
    plan: Plan
    began_at: float
    ended_at: float = 0.0
    batches: list[Batch] = field(default_factory=list)
    rollouts: list[Rollout] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    groups: dict[str, int] = field(default_factory=dict)
    outage: tuple[float, float] | None = None
    aborted: str = ""
    slots_left: int | None = None
    load_average: float | None = None
    """Of the minute before it began."""

    @property
    def pace(self) -> Pace:
        return Pace(self.plan.scale)

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Record":
        said: dict[str, Any] = json.loads(text)
        plan = said["plan"] | {"evaluated_steps": tuple(said["plan"]["evaluated_steps"])}
        return cls(
            **said
            | {
                "plan": Plan(**plan),
                "batches": [Batch(**one) for one in said["batches"]],
                "rollouts": [Rollout(**one) for one in said["rollouts"]],
                "events": [Event(**one) for one in said["events"]],
                "outage": said["outage"] and tuple(said["outage"]),
            }
        )
