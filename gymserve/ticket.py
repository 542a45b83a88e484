"""One opener's position in the line."""

import enum
from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from gymserve.call import Reply
from gymserve.episode import Episode

if TYPE_CHECKING:
    from gymserve.gate import Gate


class Stage(enum.Enum):
    """Where an opener stands."""

    OUTSIDE = "not in the line"
    WAITING = "in the line"
    ANSWER = "has a connection with room behind it, and waits for its reset"
    OPEN = "holds an episode, or says goodbye to it"
    __hash__ = object.__hash__  # Enum's own is a function in Python, and stages are counted all the time

    UNWANTED = "nobody's: a connection that came when none was wanted any more, until its goodbye is over"


HOLDING = frozenset({Stage.ANSWER, Stage.OPEN, Stage.UNWANTED})


class Ticket:
    """A position that is kept through every refusal. ``tries`` are the knocks made for it; ``gate`` is the one it came
    through, or was sent away from, last.
    """

    def __init__(self, number: int, label: str | None, on_wait: Callable[[], None], *, patient: bool) -> None:
        self.number = number
        self.label = label
        self.on_wait = on_wait
        self.patient = patient
        self.stage = Stage.OUTSIDE
        self.since_seconds = trio.current_time()
        self.tries = 0
        self.gate: Gate | None = None
        self.connection: Reply[Episode] = Reply()

    def stop_waiting(self) -> None:
        """Let go of what it needed in the line: all of that leads back to it, and would outlive it."""
        self.on_wait = _nobody_to_tell
        self.connection = Reply()


def _nobody_to_tell() -> None:
    """Of a ticket that does not wait."""
