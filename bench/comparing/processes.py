"""The servers that are compared, each a process of its own, with the processor time that it takes."""

import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

_START_SECONDS = 120.0
_STOP_SECONDS = 10.0
_POLL_SECONDS = 0.05
_LOG_CHARACTERS = 2000
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class ServerFailed(Exception):
    """A server did not start, or ended by itself."""


class Server:
    """A process that says on its log where it listens; as a context manager it is ended with the block.

    It has our environment but for what would configure gymserve or NeMo Gym, and ``bench/`` to import from.
    """

    def __init__(self, command: Sequence[str], log: Path, announcement: str, environ: Mapping[str, str]) -> None:
        self._log = log
        self._announcement = re.compile(announcement)
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env={**_environ(), **environ}
            )
        self.url = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def await_start(self) -> str:
        """Its URL, once it listens. :raises ServerFailed: it ends instead, or does nothing for two minutes."""
        deadline = time.monotonic() + _START_SECONDS
        while (found := self._announcement.search(self._said())) is None:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise ServerFailed(f"{self._log.stem} does not listen:\n{self._said()[-_LOG_CHARACTERS:]}")
            time.sleep(_POLL_SECONDS)
        self.url = found[1]
        return self.url

    def cpu_seconds(self) -> float:
        """User and system time so far, of threads that have ended too. :raises ServerFailed: it has ended."""
        if self._process.poll() is not None:
            raise ServerFailed(f"{self._log.stem} has ended:\n{self._said()[-_LOG_CHARACTERS:]}")
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND

    def _said(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")


def _environ() -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("GYMSERVE_", "NEMO_GYM_"))}
    bench = str(Path(__file__).parents[1])
    return {**ours, "PYTHONPATH": os.pathsep.join(filter(None, (bench, ours.get("PYTHONPATH"))))}
