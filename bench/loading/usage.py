"""What a process takes of the machine, as Linux tells it."""

import os
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_NANOSECONDS = 1e9


def cpu_seconds(pid: int) -> float:
    """Of all threads of that process, since it was started. :raises OSError: there is none."""
    try:
        tasks = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    except FileNotFoundError:  # a kernel without it, or a thread that ended meanwhile
        tasks = []
    if tasks:
        return sum(int(text.split()[0]) for text in tasks) / _NANOSECONDS
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND
