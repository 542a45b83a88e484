"""What happens to sessions, as facts for whoever counts or shows them.

A one-way feed: who tells a fact neither waits for those who hear it nor fails with them, and nothing that acts on
sessions listens here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar

import structlog

from gymserve.contents import Content

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Waiting:
    """A session waits for a slot. ``session`` is the short id, here as in all facts."""

    session: str
    label: str | None
    why: str
    place: int


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """A session has its episode. ``idle_seconds_left``: until its deadline, here as in all facts; None while there is
    none.
    """

    session: str
    label: str | None
    env: str
    waited_seconds: float
    reset_seconds: float
    tries: int
    idle_seconds_left: float | None


@dataclass(frozen=True, slots=True)
class Called:
    """A call is about to be sent, ``think_seconds`` after the answer to the one before."""

    session: str
    label: str | None
    think_seconds: float


@dataclass(frozen=True, slots=True)
class Stepped:
    """The environment answered a step, or failed to. ``steps``, ``reward`` and ``done`` are the episode's so far."""

    session: str
    label: str | None
    step_seconds: float
    steps: int
    reward: float
    done: bool
    idle_seconds_left: float | None


@dataclass(frozen=True, slots=True)
class Touched:
    """A client that thinks for long had the idle clock of its session start again."""

    session: str
    label: str | None
    idle_seconds_left: float | None


@dataclass(frozen=True, slots=True)
class Ended:
    """A session is over. ``ending`` is a word for why; ``overshoot_seconds``: how late an idle deadline was acted on,
    None for other endings.
    """

    session: str
    label: str | None
    env: str | None
    ending: str
    reason: str
    scored: bool
    reward: float
    steps: int
    overshoot_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class SlotFreed:
    """A session's slot was given back, its goodbye over."""

    session: str
    label: str | None
    env: str
    goodbye_seconds: float


@dataclass(frozen=True, slots=True)
class ReclaimedAlive:
    """A client asked for a session that its idle timeout had ended; ``silent_seconds`` after it was last heard."""

    session: str
    label: str | None
    silent_seconds: float
    idle_timeout_seconds: float


@dataclass(frozen=True, slots=True)
class Verified:
    """A verify was answered; ``masked_kind`` where the result is masked."""

    session: str | None
    label: str | None
    masked_kind: str | None
    reward: float


@dataclass(frozen=True, slots=True)
class Stopping:
    """No new sessions are taken: this process stops. ``sessions``: those that it ends."""

    sessions: int


@dataclass(frozen=True, slots=True)
class LinesLost:
    """Lines of trajectories were lost: ``dropped``, as there was no room for them, or ``unwritten``, by the disk."""

    lines: int
    why: Literal["dropped", "unwritten"]


Fact = (
    LinesLost
    | Waiting
    | SessionOpened
    | Called
    | Stepped
    | Touched
    | Ended
    | SlotFreed
    | ReclaimedAlive
    | Verified
    | Stopping
)
Listener = Callable[[Fact], None]
Recorder = Callable[[Fact | Content], None]


class Telemetry:
    """The feed. A listener must only take note, and must not wait."""

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._recorders: list[Recorder] = []

    def listen(self, listener: Listener) -> None:
        self._listeners.append(listener)

    def record(self, recorder: Recorder) -> None:
        """Have ``recorder`` hear contents too."""
        self._listeners.append(recorder)
        self._recorders.append(recorder)

    @property
    def is_recorded(self) -> bool:
        """Whether anybody hears contents: where nobody does they need not be put together."""
        return bool(self._recorders)

    def tell(self, fact: Fact) -> None:
        for listener in self._listeners:
            _hand_to(listener, fact)

    def tell_content(self, content: Content) -> None:
        for recorder in self._recorders:
            _hand_to(recorder, content)


_Told = TypeVar("_Told")


def _hand_to(listener: Callable[[_Told], None], told: _Told) -> None:
    try:
        listener(told)
    except Exception:  # what counts sessions must not end them
        _log.exception("a listener of the telemetry failed")
