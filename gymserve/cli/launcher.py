"""The process that started us, and whether it still lives."""

import os
from pathlib import Path

import trio

_POLL_SECONDS = 0.5


class Launcher:
    """Whoever started this process: its parent, or who is behind the shells in between.

    A shell in between is known by ``variable``, which the launcher gave to it and us and has not itself. (It stays
    where a command's output is piped, waits for the command, and would outlive the launcher with it.) Where there is no
    ``/proc`` only the parent is seen.
    """

    def __init__(self, variable: str, value: str) -> None:
        self._mark = f"{variable}={value}".encode()
        self._chain = self._seen()

    async def gone(self) -> None:
        """Return once it has died, or a shell in between; half a second later at most."""
        while self._seen() == self._chain:  # noqa: ASYNC110 - nobody tells of a parent's death on every system
            await trio.sleep(_POLL_SECONDS)

    def _seen(self) -> list[int]:
        chain = [os.getppid()]
        while self._mark in _environment(chain[-1]):
            chain.append(_parent(chain[-1]))
        return chain


def _environment(pid: int) -> list[bytes]:
    """What the process was started with, as far as we may know it."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _parent(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:  # it has just died
        return 0
    return int(status.rpartition(")")[2].split()[1])  # proc(5): the name before may hold anything
