"""The servers of a run: processes of their own, that are started, killed and waited for."""

import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio

_START_SECONDS = 60.0
_STOP_SECONDS = 20.0
_POLL_SECONDS = 0.02
_ROOT = Path(__file__).parents[2]


class ProcessFailed(Exception):
    """A server did not start; the text is what it said."""


class Server:
    """``python ARGUMENTS``, which says where it listens at the end of ``log``."""

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        self._log = log
        self._said_before = log.stat().st_size if log.exists() else 0
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GYMSERVE_")}
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, *arguments],
                env=environment | {"PYTHONPATH": f"{_ROOT}{os.pathsep}{_ROOT / 'bench'}"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                process_group=0,
            )

    async def listening(self) -> str:
        """Its URL, once it listens. :raises ProcessFailed: it does not."""
        with trio.move_on_after(_START_SECONDS):
            while self._process.poll() is None:
                if found := re.search(r"^listening on (\S+)$", self._said(), re.MULTILINE):
                    return found.group(1)
                await trio.sleep(_POLL_SECONDS)
        raise ProcessFailed(f"it does not listen (exit status {self._process.poll()}): {self._said()}")

    async def end(self) -> None:
        """As SIGTERM ends it, or else as SIGKILL does."""
        self._process.terminate()
        with trio.move_on_after(_STOP_SECONDS):
            while self._process.poll() is None:  # noqa: ASYNC110 - it happens in another process
                await trio.sleep(_POLL_SECONDS)
        self.kill()

    def kill(self) -> None:
        """A crash."""
        self._process.kill()
        self._process.wait()

    def _said(self) -> str:
        with self._log.open("rb") as file:
            file.seek(self._said_before)
            return file.read().decode("utf-8", "replace")


@asynccontextmanager
async def serving(*arguments: str, log: Path) -> AsyncIterator[str]:
    """A server for the length of a block; its URL. :raises ProcessFailed"""
    server = Server(arguments, log)
    try:
        yield await server.listening()
        await server.end()
    finally:
        server.kill()
