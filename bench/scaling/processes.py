"""What a scenario runs against, each a process of its own: the environment server, gymserve, and the prober."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import gymserve
from scaling.environment import Moments

_HERE = Path(__file__).parent
_START_SECONDS = 30.0
_STOP_SECONDS = 30.0
_POLL_SECONDS = 0.02
_PAGE_KIB = os.sysconf("SC_PAGE_SIZE") / 1024


@dataclass(frozen=True, slots=True)
class Pause:
    """A collection. ``at``: its end."""

    at: float
    seconds: float
    generation: int
    collected: int


@dataclass(frozen=True, slots=True)
class FullCollection:
    """Of all that is not frozen. ``collected``: objects that were garbage."""

    seconds: float
    objects: int
    collected: int


class Stage:
    """A gymserve before an environment server."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int, env_port: int, pauses: Path) -> None:
        self.port = port
        self._gymserve = process
        self._env_port = env_port
        self._pauses = pauses

    def memory_kib(self) -> float:
        return int(Path(f"/proc/{self._gymserve.pid}/statm").read_text().split()[1]) * _PAGE_KIB

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self._gymserve.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def moments(self) -> dict[str, Moments]:
        with urlopen(f"http://127.0.0.1:{self._env_port}/moments", timeout=60) as answer:
            return {name: Moments(**moments) for name, moments in json.load(answer).items()}

    def pauses(self) -> list[Pause]:
        return [Pause(**line) for line in self._lines() if "forced" not in line]

    def full_collection(self) -> FullCollection:
        """Have it make one now, of what is not frozen."""
        before = self._forced()
        self._gymserve.send_signal(signal.SIGUSR1)
        while len(forced := self._forced()) == len(before):
            time.sleep(_POLL_SECONDS)
        return FullCollection(forced[-1]["seconds"], forced[-1]["objects"], forced[-1]["collected"])

    def _forced(self) -> list[Any]:
        return [line for line in self._lines() if "forced" in line]

    def _lines(self) -> list[Any]:
        if not self._pauses.exists():
            return []
        return [json.loads(line) for line in self._pauses.read_text().splitlines(keepends=True) if line.endswith("\n")]

    @contextmanager
    def probed(self, *, rate: float, sessions: int) -> Iterator[list[tuple[float, float]]]:
        """Calls of other sessions meanwhile: when each was due, and how long it took; filled in at the end."""
        calls: list[tuple[float, float]] = []
        command = [sys.executable, "-m", "scaling.prober", str(self.port), str(rate), str(sessions)]
        with subprocess.Popen(command, cwd=_HERE.parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as prober:
            assert prober.stdout is not None
            if prober.stdout.readline() != b"ready\n":
                raise SystemExit("the prober could not open its sessions")
            try:
                yield calls
            finally:
                said, _ = prober.communicate(timeout=_STOP_SECONDS)
        calls += [(due, seconds) for due, seconds in json.loads(said)]


@contextmanager
def stage(*options: str) -> Iterator[Stage]:
    """:param options: of ``gymserve serve``."""
    with tempfile.TemporaryDirectory() as name, _environment() as env_port:
        folder = Path(name)
        log, pauses = folder / "log", folder / "pauses"
        command = [sys.executable, str(_HERE / "watched.py"), str(pauses), "serve", "--port", "0", *options]
        command += ["--env", f"http://127.0.0.1:{env_port}"]
        settings = {name: value for name, value in os.environ.items() if not name.startswith("GYMSERVE_")}
        settings["PYTHONPATH"] = str(Path(gymserve.__file__).parents[1])  # installed or not
        with log.open("wb") as stderr:
            process = subprocess.Popen(command, env=settings, stderr=stderr)
        try:
            yield Stage(process, _listening(process, log), env_port, pauses)
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            finally:
                process.kill()


@contextmanager
def _environment() -> Iterator[int]:
    with subprocess.Popen([sys.executable, str(_HERE / "environment.py")], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()


def _listening(process: "subprocess.Popen[bytes]", log: Path) -> int:
    deadline = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if found := re.search(r"^listening on \S+:(\d+)$", log.read_text(), re.MULTILINE):
            return int(found[1])
        time.sleep(_POLL_SECONDS)
    raise SystemExit(f"gymserve does not listen: {log.read_text()}")
