"""What a scenario runs against, each a process of its own: the environment server, gymserve, and the prober."""

import json
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
from urllib.parse import urlsplit
from urllib.request import urlopen

from server import Server, python

from scaling.environment import Moments

_HERE = Path(__file__).parent
_STOP_SECONDS = 30.0
_POLL_SECONDS = 0.02


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

    def __init__(self, server: Server, port: int, env_port: int, pauses: Path) -> None:
        self.port = port
        self.server = server
        self._env_port = env_port
        self._pauses = pauses

    def moments(self) -> dict[str, Moments]:
        with urlopen(f"http://127.0.0.1:{self._env_port}/moments", timeout=60) as answer:
            return {name: Moments(**moments) for name, moments in json.load(answer).items()}

    def open_episodes(self) -> set[str]:
        """The names of those that are not closed yet. Cheap, unlike `moments`, for which the server answers nobody else
        for a while.
        """
        with urlopen(f"http://127.0.0.1:{self._env_port}/open", timeout=60) as answer:
            return set(json.load(answer))

    def pauses(self) -> list[Pause]:
        return [Pause(**line) for line in self._lines() if "forced" not in line]

    def full_collection(self) -> FullCollection:
        """Have it make one now, of what is not frozen."""
        before = self._forced()
        self.server.send(signal.SIGUSR1)
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
        pauses = folder / "pauses"
        command = python(str(_HERE / "watched.py"), str(pauses), "serve", "--port", "0", *options)
        with Server([*command, "--env", f"http://127.0.0.1:{env_port}"], folder / "gymserve.log") as server:
            port = urlsplit(server.await_start()).port
            assert port is not None
            yield Stage(server, port, env_port, pauses)


@contextmanager
def _environment() -> Iterator[int]:
    with subprocess.Popen([sys.executable, str(_HERE / "environment.py")], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()
