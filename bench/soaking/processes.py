"""gymserve as its users have it: processes of its own, which the soak starts, signals and measures."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import trio

_START_SECONDS = 60.0
_POLL_SECONDS = 0.02


class ProcessFailed(Exception):
    """A process of the soak did not start, or ended by itself."""


class Process:
    """``gymserve ARGUMENTS``, saying what it has to say at the end of ``log``.

    It is no member of our process group: a Ctrl-C is ours alone to hear.
    """

    def __init__(self, *arguments: str, log: Path) -> None:
        self._log = log
        self._said_before = log.stat().st_size if log.exists() else 0
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GYMSERVE_")}
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gymserve", *arguments],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                process_group=0,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Its exit status; None while it runs."""
        return self._process.poll()

    async def listening(self) -> str:
        """Its URL, once it listens. :raises ProcessFailed: it does not."""
        with trio.move_on_after(_START_SECONDS):
            while self.status is None:
                if found := re.search(r"^listening on (\S+)$", self._said(), re.MULTILINE):
                    return found.group(1)
                await trio.sleep(_POLL_SECONDS)
        raise ProcessFailed(f"gymserve does not listen (exit status {self.status}): {self._said()}")

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def ended(self) -> int:
        """Its exit status, once it has one."""
        while (status := self.status) is None:  # noqa: ASYNC110 - it happens in another process
            await trio.sleep(_POLL_SECONDS)
        return status

    def kill(self) -> None:
        """End it now, whatever it does, also where it is stopped."""
        self._process.kill()
        self._process.wait()

    def _said(self) -> str:
        with self._log.open("rb") as file:
            file.seek(self._said_before)
            return file.read().decode("utf-8", "replace")
