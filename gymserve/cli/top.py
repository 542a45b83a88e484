"""``gymserve top``: a running gymserve's sessions, line and servers in a terminal."""

import io
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any, Protocol

import trio
from rich.console import Console
from rich.text import Text

from gymserve.cli.listing import Filters, Listing, ask, read
from gymserve.cli.remote import Denied, Failed, Remote, steer, warn, write_json
from gymserve.cli.screen import ORDERS, Answer, Loss, View, next_order, report, screen
from gymserve.cli.terminal import Terminal

_PIPED_WIDTH = 400  # nothing is cut that another program reads
_TICK_SECONDS = 0.25  # for what counts down
_LONGEST_PAUSE_SECONDS = 10.0  # between tries
_NOT_LET_IN = (401, 403)
_ENDING = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)
_SIGNALLED = 128  # plus the signal's number, as a shell reports it
_ESCAPE = "\x1b"
_GONE = _SIGNALLED + signal.SIGHUP


def run_top_once(url: str, token: str | None, filters: Filters, *, as_json: bool) -> int:
    """The sessions, line and servers on stdout; 0, or 1 where that failed."""

    async def show(remote: Remote) -> int:
        told = await ask(remote, filters, ORDERS[0])
        listing = read(remote, told)
        if as_json:
            write_json(told)
        else:
            _take_every_word()
            _write(url, listing, filters)
        return 0

    return steer(url, token, show)


def run_top(url: str, token: str | None, filters: Filters, *, interval_seconds: float) -> int:
    """The same, again and again, until somebody leaves: 0; 128 and the number of the signal that ended it; 1 where
    there is no terminal, or gymserve does not let us in.
    """
    if not Terminal.is_there():
        warn("top needs a terminal to draw on and read keys from; --once prints a table, with --json the listing")
        return 1
    _take_every_word()

    async def watch(remote: Remote) -> int:
        with trio.open_signal_receiver(*_ENDING, signal.SIGTSTP, signal.SIGWINCH) as signals:
            with Terminal() as terminal:
                return await Watch(remote, filters, terminal, interval_seconds=interval_seconds).run(signals)

    return steer(url, token, watch)


def _write(url: str, listing: Listing, filters: Filters) -> None:
    console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else _PIPED_WIDTH)
    with console.capture() as written:
        for line in report(url, listing, filters, console.width):
            console.print(line, no_wrap=True)
    sys.stdout.write(written.get())


def _take_every_word() -> None:
    """What others have called their runs can always be written, escaped where the terminal's encoding lacks it."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


class Drawable(Protocol):
    """What a watch needs of a `Terminal`."""

    @property
    def size(self) -> tuple[int, int]: ...
    def show(self, lines: Sequence[Text]) -> None: ...
    async def typed(self) -> str: ...
    def suspend(self) -> None: ...


class Watch:
    """A running gymserve that is looked at again and again, and what is known of it, drawn."""

    def __init__(self, remote: Remote, filters: Filters, terminal: Drawable, *, interval_seconds: float) -> None:
        self._remote = remote
        self._terminal = terminal
        self._interval_seconds = interval_seconds
        self._view = View(remote.url, filters, ORDERS[0], trio.current_time())
        self._changed = trio.Event()
        self._wanted = trio.Event()
        self._over = trio.Event()
        self._outcome: int | Denied = 0

    async def run(self, signals: AsyncIterator[int]) -> int:
        """The exit status. :raises Denied: we are not let in."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._ask)
            nursery.start_soon(self._draw)
            nursery.start_soon(self._obey_keys)
            nursery.start_soon(self._obey_signals, signals)
            await self._over.wait()
            nursery.cancel_scope.cancel()
        if isinstance(self._outcome, Denied):  # raised outside, so that the nursery does not wrap it
            raise self._outcome
        return self._outcome

    def _leave(self, outcome: int | Denied) -> None:
        if not self._over.is_set():
            self._outcome = outcome
            self._over.set()

    # -- asking ----------------------------------------------------------------------------------------------------

    async def _ask(self) -> None:
        """One answer after the other, so that they never pile up where it is slow."""
        failures = 0
        while True:
            began = trio.current_time()
            self._wanted = trio.Event()
            self._know(asking_since=began)
            try:
                listing = await self._listing()
            except Failed as failure:
                if isinstance(failure, Denied) and failure.status in _NOT_LET_IN:
                    return self._leave(failure)
                pause_seconds = min(_LONGEST_PAUSE_SECONDS, 2.0**failures)
                failures += 1
                self._know_loss(str(failure), pause_seconds)
            else:
                failures = 0
                now = trio.current_time()
                self._know(answer=Answer(listing, now, now - began), loss=None)
                pause_seconds = max(0.0, began + self._interval_seconds - now)
            self._know(asking_since=None)
            await self._pause(pause_seconds)

    async def _listing(self) -> Listing:
        """With no more sessions than could be shown. :raises Failed: there is none."""
        view, (_, height) = self._view, self._terminal.size
        return read(self._remote, await ask(self._remote, view.filters, view.order, limit=height))

    def _know_loss(self, why: str, pause_seconds: float) -> None:
        now = trio.current_time()
        since = now if self._view.loss is None else self._view.loss.since
        self._know(loss=Loss(why, since, now + pause_seconds))

    async def _pause(self, seconds: float) -> None:
        """Shorter if somebody wants to know at once."""
        with trio.move_on_after(seconds):
            await self._wanted.wait()
        if self._view.loss is not None:
            self._know(loss=replace(self._view.loss, next_try_at=None))

    def _know(self, **changes: Any) -> None:
        self._view = replace(self._view, **changes)
        self._changed.set()

    # -- drawing ---------------------------------------------------------------------------------------------------

    async def _draw(self) -> None:
        while True:
            self._changed = trio.Event()
            self._view = replace(self._view, now=trio.current_time())
            try:
                self._terminal.show(screen(self._view, *self._terminal.size))
            except OSError:
                return self._leave(_GONE)
            with trio.move_on_after(_TICK_SECONDS):
                await self._changed.wait()

    # -- being told ------------------------------------------------------------------------------------------------

    async def _obey_keys(self) -> None:
        while typed := await self._terminal.typed():
            for key in "" if typed.startswith(_ESCAPE) else typed:  # an arrow is three characters, none of them a key
                self._obey(key)
        self._leave(_GONE)

    def _obey(self, key: str) -> None:
        match key:
            case "q":
                self._leave(0)
            case "s":
                self._know(order=next_order(self._view.order))
                self._wanted.set()
            case "r":
                self._wanted.set()

    async def _obey_signals(self, signals: AsyncIterator[int]) -> None:
        async for number in signals:
            match number:
                case signal.SIGWINCH:
                    self._changed.set()
                case signal.SIGTSTP:
                    self._terminal.suspend()
                    self._changed.set()
                case signal.SIGINT:
                    self._leave(0)
                case _:
                    self._leave(_SIGNALLED + number)
