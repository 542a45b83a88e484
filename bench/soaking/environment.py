"""An environment server that lives many lives at one port, each with faults of its own, and none to its end."""

import random
import signal
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import trio
from server import Server, python

from soaking.http import Unanswered, get

LIFE_SECONDS = (4.0, 9.0)
_STOPPED_SECONDS = (0.5, 4.0)
_STOPPED_SHARE = 0.3
_TWO_FAULTS_SHARE = 0.3
_DOWN_SECONDS = 0.5
_EPISODES_SECONDS = 5.0


def _deck(chance: random.Random) -> list[str]:
    """Every fault there is, once, and as many lives without one as keep rollouts finishing; shuffled."""
    faults = [
        "full",
        f"slow-handshake:{chance.uniform(0.1, 1):.2f}",
        f"silent-handshake:{chance.uniform(0.1, 1):.2f}",
        f"slow-reset:{chance.uniform(0.1, 1):.2f}",
        f"slow-step:{chance.uniform(0.01, 0.2):.3f}",
        f"slow-close:{chance.uniform(0.1, 2):.2f}",
        f"slow-close:{chance.uniform(4, 8):.2f}",  # hangs: beyond the close timeout
        f"failed-reset:{chance.randrange(1, 30)}",
        f"drop-mid-step:{chance.randrange(1, 25)}",
        f"garbage:{chance.randrange(1, 28)}",
        *[""] * 5,
    ]
    chance.shuffle(faults)
    return faults


class Environment:
    """``gymserve env`` at ``url``. ``lives`` counts what each life was like and how it ended."""

    def __init__(self, port: int, *, slots: int, log: Path, seed: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.lives: Counter[str] = Counter()
        self._arguments = ("-m", "gymserve", "env", "--port", str(port), "--capacity", str(slots))
        self._log = log
        self._chance = random.Random(seed)
        self._server: Server | None = None

    async def start(self, faults: Sequence[str] = ()) -> None:
        """Begin a life. :raises ServerFailed: it cannot."""
        self._server = Server(python(*self._arguments, *(f"--fault={fault}" for fault in faults)), self._log)
        await self._server.listening()

    def kill(self) -> None:
        if self._server is not None:
            self._server.kill()
            self._server = None

    async def live(self) -> None:
        """Life after life, until cancelled; the one that is under way then goes on, and is not stopped."""
        deck: list[str] = []
        while True:
            await self._live_one()
            await trio.sleep(self._chance.uniform(0, _DOWN_SECONDS))
            deck = deck or _deck(self._chance)
            two = self._chance.random() < _TWO_FAULTS_SHARE
            faults = {fault.partition(":")[0]: fault for fault in (deck.pop(), deck[-1] if two and deck else "")}
            faults.pop("", None)
            await self.start(list(faults.values()))
            self.lives.update(faults.keys() or ["without a fault"])

    async def restart(self) -> None:
        """A life without faults. :raises ServerFailed: it cannot begin."""
        self.kill()
        await self.start()

    async def revive(self) -> None:
        """See that it lives, in whichever way. :raises ServerFailed: it cannot."""
        if self._server is None or self._server.status is not None:
            await self.start()

    async def episodes(self) -> int | None:
        """How many are open; None where it does not say."""
        try:
            with trio.fail_after(_EPISODES_SECONDS):
                return int((await get(self.url, "gymserve/episodes"))["active"])
        except (Unanswered, OSError, trio.TooSlowError):
            return None

    async def _live_one(self) -> None:
        server = self._server
        assert server is not None
        await trio.sleep(self._chance.uniform(*LIFE_SECONDS))
        ends = self._chance.choice((signal.SIGKILL, signal.SIGTERM))
        if self._chance.random() < _STOPPED_SHARE:
            await self._stop_for_a_while(server, and_wake=ends is signal.SIGTERM or self._chance.random() < 0.5)
        server.send(ends)
        await server.ended()
        self.lives[f"ended with {ends.name}"] += 1

    async def _stop_for_a_while(self, server: Server, *, and_wake: bool) -> None:
        self.lives["stopped for a while"] += 1
        server.send(signal.SIGSTOP)
        try:
            await trio.sleep(self._chance.uniform(*_STOPPED_SECONDS))
        except trio.Cancelled:
            server.send(signal.SIGCONT)
            raise
        if and_wake:
            server.send(signal.SIGCONT)
            await trio.sleep(self._chance.uniform(*LIFE_SECONDS) / 2)


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port of this host that stays one server's own, also while it is down: no connection is given it as its end."""
    with socket.socket() as placeholder:
        placeholder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        placeholder.bind(("127.0.0.1", 0))
        yield placeholder.getsockname()[1]
