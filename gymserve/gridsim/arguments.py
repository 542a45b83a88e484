"""Reading a tool's arguments: whole numbers within bounds, and every fault told at once."""

import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gymserve.gridsim.tools import InvalidArguments


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number that a tool takes. ``reason`` says where the bounds come from."""

    name: str
    allowed: range
    reason: str = ""
    default: int | None = None

    @property
    def demand(self) -> str:
        reason = f" ({self.reason})" if self.reason else ""
        return f"{self.name} must be a whole number from {self.allowed[0]} to {self.allowed[-1]}{reason}"


def read_arguments(arguments: Mapping[str, Any], *wanted: Whole) -> dict[str, int]:
    """The value of each of ``wanted``, by name.

    As in JSON Schema, 3.0 is a whole number and true is not.

    :raises InvalidArguments: with a sentence for every value that is missing, out of bounds or unknown.
    """
    faults = list(_faults(arguments, wanted))
    if faults:
        raise InvalidArguments("; ".join([*faults, "nothing has changed"]))
    return {whole.name: int(arguments.get(whole.name, whole.default)) for whole in wanted}


def _faults(arguments: Mapping[str, Any], wanted: tuple[Whole, ...]) -> Iterator[str]:
    for whole in wanted:
        if whole.name not in arguments:
            if whole.default is None:
                yield f"{whole.demand}, and is missing"
        elif not _is_in(arguments[whole.name], whole.allowed):
            yield f"{whole.demand}, not {reprlib.repr(arguments[whole.name])}"
    known = [whole.name for whole in wanted]
    for name in arguments:
        if name not in known:
            yield f"there is no argument {reprlib.repr(name)} (known: {', '.join(known) or 'none'})"


def _is_in(value: Any, allowed: range) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value in allowed
