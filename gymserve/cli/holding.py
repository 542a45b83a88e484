"""``gymserve hold``: a run that ends with its trainer, however that ends."""

import os
import shutil
import signal
from collections.abc import AsyncIterator, Mapping, Sequence

import trio

from gymserve.cli.refusals import printable
from gymserve.cli.remote import Denied, Failed, Remote, Unreachable, steer, warn
from gymserve.cli.runs import close_run, told_of_close

_FIRST_LINE_SECONDS = 10.0
_SILENT_SECONDS = 120.0  # gymserve says something every 15 s
_RETRY_SECONDS = 1.0
_CLOSING_TRIES = 10
_WAY_OUT: Mapping[str | None, str] = {"label_closed": " (gymserve close with --for 0 ends that)", "shutting_down": ""}
_PASSING = _WAY_OUT.keys()  # a run that was closed a moment ago, a gymserve that another one follows
_SIGNALLED = 128  # as a shell reports it
_NOT_FOUND = 127
_NOT_EXECUTABLE = 126


def run_hold(url: str, token: str | None, label: str, command: Sequence[str], *, refused_seconds: float) -> int:
    """Run ``command`` while gymserve holds the run of that label for us, and close the run when it has ended.

    The status is the command's, 128 and the signal's number where one ended it; 127 or 126 where it could not be
    started; 1 where there is no gymserve to hold the run, and it was not started.
    """
    if shutil.which(command[0]) is None:  # before anything is held, as what was held is closed
        warn(f"{printable(command[0])}: no such program, or one that cannot be executed")
        return _NOT_FOUND

    async def hold(remote: Remote) -> int:
        return await Hold(remote, label, refused_seconds).around(command)

    return steer(url, token, hold)


class Hold:
    """A run that gymserve closes when the connection of this process ends, be it by SIGKILL."""

    def __init__(self, remote: Remote, label: str, refused_seconds: float) -> None:
        self._remote = remote
        self._label = label
        self._refused_seconds = refused_seconds
        self._told: str | None = None

    async def around(self, command: Sequence[str]) -> int:
        """The status of ``command``, which runs while the run is held. :raises Failed: it could not be held."""
        outcome: int | Failed
        async with trio.open_nursery() as nursery:
            try:
                await nursery.start(self._keep)
                outcome = await _status_of(command)
                await self._close()  # with the run still held: should we be killed now, gymserve does it
            except Failed as exc:  # raised outside, so that the nursery does not wrap it
                outcome = exc
            nursery.cancel_scope.cancel()
        if isinstance(outcome, Failed):
            raise outcome
        return outcome

    async def _keep(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Hold the run, again when gymserve has restarted. :raises Failed: it could not be held once."""
        held_before = False
        while True:
            try:
                async with self._remote.lines("/gymserve/hold", self._run) as lines:
                    with trio.fail_after(_FIRST_LINE_SECONDS):
                        is_held = await anext(lines, None) is not None
                    if is_held and held_before:
                        self._tell("held", f"{self._shown} is held again")
                    elif is_held:
                        self._told, held_before = "held", True
                        task_status.started()
                    await _to_the_end(lines)
                self._tell_loss("gymserve stops")
            except Unreachable as exc:
                if not held_before:
                    raise
                self._tell_loss(str(exc))
            except Denied as exc:
                if not held_before and exc.kind not in _PASSING:
                    raise
                self._tell_loss(f"{exc}{_WAY_OUT.get(exc.kind, '')}", kind=exc.kind)
            except trio.TooSlowError:
                self._tell_loss("gymserve is silent")
            await trio.sleep(_RETRY_SECONDS)

    def _tell_loss(self, why: str, *, kind: str | None = None) -> None:
        self._tell(f"lost {kind}", f"{self._shown} is not held: {why}; trying again every second")

    async def _close(self) -> None:
        for tries_left in reversed(range(_CLOSING_TRIES)):
            try:
                ended = await close_run(self._remote, self._label, self._refused_seconds)
                warn(told_of_close(self._label, ended, self._refused_seconds))
                return
            except Failed as exc:
                if not tries_left or not isinstance(exc, Unreachable):
                    warn(f"{self._shown} could not be closed: {exc}")
                    return
            await trio.sleep(_RETRY_SECONDS)

    def _tell(self, state: str, line: str) -> None:
        """Once, as long as it stays so."""
        if state != self._told:
            self._told = state
            warn(line)

    @property
    def _run(self) -> dict[str, object]:
        return {"label": self._label, "for_seconds": self._refused_seconds}

    @property
    def _shown(self) -> str:
        return printable(self._label)


async def _to_the_end(lines: AsyncIterator[str]) -> None:
    while True:
        with trio.fail_after(_SILENT_SECONDS):
            if await anext(lines, None) is None:
                return


async def _status_of(command: Sequence[str]) -> int:
    """Run it; SIGINT and SIGTERM are its own."""
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        try:
            process = await trio.lowlevel.open_process(list(command))
        except OSError as exc:
            warn(f"{printable(command[0])}: cannot be started: {exc.strerror or exc}")
            return _NOT_EXECUTABLE
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_pass_on, signals, process)
            ended_with = await process.wait()
            nursery.cancel_scope.cancel()
    return ended_with if ended_with >= 0 else _SIGNALLED - ended_with


async def _pass_on(signals: AsyncIterator[int], process: trio.Process) -> None:
    async for number in signals:
        if number != signal.SIGINT or not _is_in_foreground():
            process.send_signal(signal.Signals(number))


def _is_in_foreground() -> bool:
    """Whether a Ctrl-C in our terminal reaches the command itself; two would make many a trainer give up at once."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    finally:
        os.close(terminal)
