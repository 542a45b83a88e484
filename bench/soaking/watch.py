"""What a process holds, second by second, and whether that grows."""

import itertools
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

_PAGE_KIB = os.sysconf("SC_PAGE_SIZE") // 1024
_LISTENING = "0A"  # TCP_LISTEN in /proc/net/tcp
_POINTS = 500  # of a line, evenly taken: there are as many pairs as their square


@dataclass(frozen=True, slots=True)
class Holding:
    """What a process holds: resident memory, and file descriptors of all kinds."""

    memory_kib: int
    descriptors: int


def holding(pid: int) -> Holding:
    """:raises OSError: there is no such process."""
    resident_pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return Holding(resident_pages * _PAGE_KIB, len(os.listdir(f"/proc/{pid}/fd")))


def connections(pid: int) -> int:
    """TCP connections of a process, whatever state they are in."""
    rows = (line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:])
    connected = {row[9] for row in rows if row[3] != _LISTENING}
    return sum(inode in connected for inode in _socket_inodes(pid))


def _socket_inodes(pid: int) -> list[str]:
    found = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found += re.findall(r"^socket:\[(\d+)\]$", os.readlink(descriptor))
        except FileNotFoundError:
            pass  # closed meanwhile
    return found


def growth(samples: Sequence[tuple[float, float]]) -> float:
    """What the straight line through (seconds, value) gains from the first sample to the last.

    It is Theil and Sen's line, whose slope is the median of the slopes of all pairs: a quarter of the samples may be
    anything at all without moving it much.

    :raises ValueError: fewer than two samples.
    """
    if len(samples) < 2:
        raise ValueError("two samples are needed for a line")
    points = samples[:: -(-len(samples) // _POINTS)]
    slopes = [(y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in itertools.combinations(points, 2)]
    return median(slopes) * (samples[-1][0] - samples[0][0])
