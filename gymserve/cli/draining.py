"""``gymserve drain``: the end of a gymserve that loses nothing."""

import sys
from functools import partial
from typing import Any

import trio

from gymserve.cli.remote import Denied, Failed, Remote, Unreachable, steer, warn

_LOOK_SECONDS = 2.0
_PAUSE_SECONDS = 0.5
_PAUSE_AT_THE_END_SECONDS = 0.05
_LAST_WORD_SECONDS = 1.0
_EXIT_SECONDS = 15.0  # its grace and its goodbyes
_NOBODY_BEHIND_A_PROXY = (502, 503, 504)


def run_drain(url: str, token: str | None, *, wait_seconds: float) -> int:
    """Have gymserve take no new sessions, finish the running ones and exit: 0 when it has, 1 when it has not, some
    seconds after ``wait_seconds``, or cannot be asked to.
    """

    return steer(url, token, partial(drain, wait_seconds=wait_seconds))


async def drain(remote: Remote, wait_seconds: float) -> int:
    """As `run_drain`. :raises Failed: it cannot be reached, or refuses."""
    instance = (await remote.get("/gymserve/sessions")).get("instance")
    return await Draining(remote, instance).run(wait_seconds)


class Draining:
    """A gymserve that is to exit; ``instance`` tells it from one that follows it at the same address."""

    def __init__(self, remote: Remote, instance: str | None) -> None:
        self._remote = remote
        self._instance = instance
        self._over = trio.Event()
        self._answer: dict[str, Any] = {}
        self._denied: Denied | None = None
        self._left: int | None = None

    async def run(self, wait_seconds: float) -> int:
        """The status. :raises Failed: it refuses."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._ask, wait_seconds)
            with trio.move_on_after(wait_seconds + _EXIT_SECONDS) as patience:
                await self._watch()
                with trio.move_on_after(_LAST_WORD_SECONDS):
                    await self._over.wait()
            nursery.cancel_scope.cancel()
        if self._denied is not None:
            raise self._denied
        if patience.cancelled_caught:
            left = "" if self._left is None else f"; {_sessions(self._left)} left"
            warn(f"{self._remote.url} has not exited {_EXIT_SECONDS:g} s after the {wait_seconds:g} s of --wait{left}")
            return 1
        cut_short = self._answer.get("cut_short")
        _say(f"it has exited, and cut short {_sessions(cut_short)}" if cut_short else "it has exited")
        return 0

    async def _ask(self, wait_seconds: float) -> None:
        """It answers when the drain is over."""
        try:
            self._answer = await self._remote.post(
                "/gymserve/drain", {"wait_seconds": wait_seconds}, within_seconds=None
            )
        except Denied as exc:
            if exc.kind is None and exc.status in _NOBODY_BEHIND_A_PROXY:
                return  # it may only have waited too long for the answer
            self._denied = exc
        except Unreachable:
            pass
        self._over.set()

    async def _watch(self) -> None:
        """Until it is there no more, say how many sessions are left."""
        while self._denied is None:
            listing = await self._listing()
            if listing is None or listing.get("instance") != self._instance:
                return
            self._show(listing)
            with trio.move_on_after(_PAUSE_SECONDS):
                await self._over.wait()
                await trio.sleep(_PAUSE_AT_THE_END_SECONDS)

    async def _listing(self) -> dict[str, Any] | None:
        """None where nobody answers: once the drain is over that is said by silence too, as a port that others hold
        open refuses nobody.
        """
        while True:
            try:
                listing: dict[str, Any] = await self._remote.get("/gymserve/sessions", within_seconds=_LOOK_SECONDS)
                return listing
            except Unreachable as exc:
                if exc.refused or self._over.is_set():
                    return None
            except Failed:
                return None
            await trio.sleep(_PAUSE_SECONDS)

    def _show(self, listing: dict[str, Any]) -> None:
        left = len(listing["sessions"]) + listing["waiting"]
        if left != self._left:
            self._left = left
            _say(f"{_sessions(left)} left")


def _sessions(count: int) -> str:
    return "1 session" if count == 1 else f"{count} sessions"


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
