"""A server as its users have it: a process of its own, which a bench starts, signals, measures and ends."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

import trio

LISTENING = r"^listening on (\S+)$"

_START_SECONDS = 120.0
_STOP_SECONDS = 30.0
_POLL_SECONDS = 0.02
_LOG_CHARACTERS = 2000
_BENCH = Path(__file__).parent
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PAGE_KIB = os.sysconf("SC_PAGE_SIZE") / 1024


class ServerFailed(Exception):
    """A server did not start, or ended by itself; the text says what it said."""


def python(*arguments: str) -> list[str]:
    """This Python with those arguments, as a command."""
    return [sys.executable, *arguments]


class Server:
    """A process that says where it listens; as a context manager it is ended with the block.

    It is no member of our process group, as a Ctrl-C is ours alone to hear, and has our environment but for what
    would configure gymserve or NeMo Gym.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        announcement: str = LISTENING,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """:param log: to whose end it says all it has to say. :param announcement: by which it tells its URL.
        :param environ: variables beside ours.
        """
        self._log = log
        self._said_before = log.stat().st_size if log.exists() else 0
        self._announcement = re.compile(announcement, re.MULTILINE)
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                command,
                env={**_environ(), **(environ or {})},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                process_group=0,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """Its exit status; None while it runs."""
        return self._process.poll()

    # -- its beginning ---------------------------------------------------------------------------------------------

    def await_start(self) -> str:
        """Its URL, once it listens. :raises ServerFailed: it does not."""
        deadline = time.monotonic() + _START_SECONDS
        while (url := self._url(time.monotonic() > deadline)) is None:
            time.sleep(_POLL_SECONDS)
        return url

    async def listening(self) -> str:
        """As `await_start`, beside other tasks."""
        deadline = trio.current_time() + _START_SECONDS
        while (url := self._url(trio.current_time() > deadline)) is None:  # noqa: ASYNC110 - of another process
            await trio.sleep(_POLL_SECONDS)
        return url

    def _url(self, is_late: bool) -> str | None:
        found = self._announcement.search(self._said())
        if found is not None:
            return found[1]
        if self.status is not None or is_late:
            raise ServerFailed(f"{self._log.stem} does not listen:\n{self._said()[-_LOG_CHARACTERS:]}")
        return None

    # -- its life --------------------------------------------------------------------------------------------------

    def cpu_seconds(self) -> float:
        """User and system time so far, of threads that have ended too. :raises ServerFailed: it has ended."""
        if self.status is not None:
            raise ServerFailed(f"{self._log.stem} has ended:\n{self._said()[-_LOG_CHARACTERS:]}")
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND

    def memory_kib(self) -> float:
        """What is resident."""
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * _PAGE_KIB

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    # -- its end ---------------------------------------------------------------------------------------------------

    async def ended(self) -> int:
        """Its exit status, once it has one."""
        while (status := self.status) is None:  # noqa: ASYNC110 - it happens in another process
            await trio.sleep(_POLL_SECONDS)
        return status

    def end(self) -> None:
        """As SIGTERM ends it, or else as SIGKILL does."""
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """End it now, whatever it does, also where it is stopped."""
        self._process.kill()
        self._process.wait()

    def _said(self) -> str:
        with self._log.open("rb") as file:
            file.seek(self._said_before)
            return file.read().decode("utf-8", "replace")


def _environ() -> dict[str, str]:
    """The parts of a bench can be imported, and gymserve where it is not installed."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("GYMSERVE_", "NEMO_GYM_"))}
    paths = filter(None, (str(_BENCH), str(_BENCH.parent), ours.get("PYTHONPATH")))
    return {**ours, "PYTHONPATH": os.pathsep.join(paths)}
