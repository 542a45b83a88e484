"""Faults that an environment server can be told to have, for tests and for watching how a client bears them.

- ``full``: every opening is refused as at capacity.
- ``slow-handshake:S``: the WebSocket upgrade is answered after S seconds.
- ``silent-handshake:S``: a connection is accepted and nothing at all is answered on it for S seconds, ``/health``
  neither; then as normal.
- ``slow-reset:S``: every reset takes S seconds.
- ``failed-reset:N``: the first N resets of this server are answered with EXECUTION_ERROR.
- ``slow-step:S``: every step takes S seconds.
- ``slow-close:S``: closing an environment takes S seconds, with its slot held.
- ``drop-mid-step:N``: the N-th step of each episode is executed and TCP is dropped instead of an answer.
- ``garbage:N``: the N-th message of each episode is acted on and answered with text that is not JSON.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

_SWITCHES = ("full",)
_SECONDS = ("slow-handshake", "silent-handshake", "slow-reset", "slow-step", "slow-close")
_COUNTS = ("failed-reset", "drop-mid-step", "garbage")
ACCEPTED_FAULTS = ", ".join(
    (*_SWITCHES, *(f"{name}:SECONDS" for name in _SECONDS), *(f"{name}:COUNT" for name in _COUNTS))
)


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. ``value`` is seconds or a count, by ``name``; 0 where the fault has none."""

    name: str
    value: float = 0

    def __str__(self) -> str:
        return self.name if self.name in _SWITCHES else f"{self.name}:{self.value:g}"


def parse_fault(text: str) -> Fault:
    """The fault that ``NAME`` or ``NAME:VALUE`` describes.

    :raises ValueError: no such fault, or its value is missing, superfluous or out of range; the message is a sentence.
    """
    name, separator, value = text.partition(":")
    if name in _SWITCHES:
        if separator:
            raise ValueError(f"fault {name!r} takes no value")
        return Fault(name)
    if name in _SECONDS:
        return Fault(name, _parse_seconds(name, value))
    if name in _COUNTS:
        return Fault(name, _parse_count(name, value))
    raise ValueError(f"there is no fault {name!r}; accepted: {ACCEPTED_FAULTS}")


def _parse_seconds(name: str, value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not (0 <= seconds < math.inf):
        raise ValueError(f"fault {name!r} needs seconds, finite and at least 0, as in {name}:2.5, not {value!r}")
    return seconds


def _parse_count(name: str, value: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) < 10 and int(value) >= 1):
        raise ValueError(f"fault {name!r} needs a count, an integer of at least 1, as in {name}:1, not {value!r}")
    return int(value)


class FaultPlan:
    """The faults of one server: what each is set to, and how many failed resets are left.

    :raises ValueError: a fault is named twice.
    """

    def __init__(self, faults: Iterable[Fault] = ()) -> None:
        values: dict[str, float] = {}
        for fault in faults:
            if fault.name in values:
                raise ValueError(f"fault {fault.name!r} is given twice")
            values[fault.name] = fault.value
        self.full = "full" in values
        self.slow_handshake_seconds = values.get("slow-handshake", 0)
        self.silent_handshake_seconds = values.get("silent-handshake", 0)
        self.slow_reset_seconds = values.get("slow-reset", 0)
        self.slow_step_seconds = values.get("slow-step", 0)
        self.slow_close_seconds = values.get("slow-close", 0)
        self.dropped_step = values.get("drop-mid-step")
        self.garbage_message = values.get("garbage")
        self._failing_resets = values.get("failed-reset", 0)

    def reset_fails(self) -> bool:
        """Whether the reset that is being asked for now is one of those that fail."""
        if not self._failing_resets:
            return False
        self._failing_resets -= 1
        return True
