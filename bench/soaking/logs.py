"""What gymserve said: how its sessions ended, and what it should never have to say."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_SHOWN_CHARACTERS = 2000
_BAD_LEVELS = ("error", "critical")


@dataclass(slots=True)
class Said:
    """``endings`` are sessions by how they ended, ``unended`` those that were opened and never did. ``faults`` are
    lines that tell of one.
    """

    endings: Counter[str] = field(default_factory=Counter)
    unended: set[str] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)


def read_log(log: Path) -> Said:
    """What ``log`` has, written with ``--log-format json``."""
    said = Said()
    for line in _lines(log):
        event = _event(line)
        if event is None or event.get("level") in _BAD_LEVELS:
            said.faults.append(line[:_SHOWN_CHARACTERS])
        elif event.get("event") == "session opened":
            said.unended.add(event["session"])
        elif event.get("event") == "session not opened":
            said.endings["never opened"] += 1
        elif event.get("event") == "session ended":
            said.endings[event["ending"]] += 1
            said.unended.discard(event["session"])
    return said


def _lines(log: Path) -> Iterator[str]:
    with log.open(encoding="utf-8", errors="replace") as file:
        yield from (line.rstrip("\n") for line in file if not line.startswith("listening on "))


def _event(line: str) -> dict[str, Any] | None:
    """A log line's fields; None for what is none, such as a traceback that nobody caught."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) else None
