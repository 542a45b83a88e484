"""The stages of a soak: rollouts without faults, the load, silence, rollouts without faults again, the end."""

import random
import signal
from dataclasses import dataclass
from pathlib import Path

import trio
from server import Server, ServerFailed, python

from soaking.clients import Clients, finishes
from soaking.environment import Environment
from soaking.http import Unanswered, get
from soaking.ledger import Ledger
from soaking.watch import Holding, connections, holding

TOMBSTONE_SECONDS = 10.0
_SERVING = (
    "-m",
    "gymserve",
    "serve",
    "--port=0",
    "--log-format=json",
    f"--tombstone={TOMBSTONE_SECONDS}",
    "--idle-timeout=2",
    "--max-lifetime=30",
    "--patience=20",
    "--connect-timeout=1",
    "--step-timeout=2",
    "--close-timeout=3",
    "--keepalive=0.7",
    "--interim=0.5",
)
_SAMPLE_SECONDS = 1.0
_SETTLE_SECONDS = 40.0
_POLL_SECONDS = 0.2
_STOP_SECONDS = 10.0
_ROLLOUTS_WITHOUT_FAULTS = 16


@dataclass(frozen=True, slots=True)
class Sample:
    """What gymserve held, so many seconds into the load and after so many rollouts."""

    at_seconds: float
    rollouts: int
    holding: Holding


class Soak:
    """One run; what it finds is in ``ledger``, ``samples``, ``before`` and ``after`` the load, and what was ``left``
    of it.
    """

    def __init__(self, *, port: int, slots: int, clients: int, seconds: float, seed: int, folder: Path) -> None:
        """:param port: the environment server's. :param folder: for the logs, ``serve.log`` and ``env.log``."""
        chance = random.Random(seed)
        self.ledger = Ledger()
        self.environment = Environment(port, slots=slots, log=folder / "env.log", seed=chance.getrandbits(32))
        self.samples: list[Sample] = []
        self.load_seconds = 0.0
        self.was_interrupted = False
        self._log = folder / "serve.log"
        self._clients = clients
        self._clients_seed = chance.getrandbits(32)
        self._load = trio.CancelScope()
        self._seconds = seconds

    async def run(self) -> bool:
        """False if it was interrupted twice, and says nothing. :raises ExceptionGroup: of ServerFailed, where there is
        nothing to soak: a process did not start, or gymserve ended by itself.
        """
        finished = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._heed_signals, nursery.cancel_scope)
            try:
                await self._run_stages()
                finished = True
            finally:
                self.environment.kill()
            nursery.cancel_scope.cancel()
        return finished

    async def _heed_signals(self, everything: trio.CancelScope) -> None:
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for _ in signals:
                if self.was_interrupted:
                    everything.cancel()
                self.was_interrupted = True
                self._load.cancel()

    async def _run_stages(self) -> None:
        await self.environment.start()
        gymserve = Server(python(*_SERVING, f"--env={self.environment.url}"), self._log)
        try:
            await self._soak(gymserve, await gymserve.listening())
        finally:
            gymserve.kill()

    async def _soak(self, gymserve: Server, url: str) -> None:
        clients = Clients(url, self.ledger, self._clients_seed)
        await self._play_without_faults(clients)
        await self._silence(gymserve, url)
        self.before = holding(gymserve.pid)
        await self._load_it(clients, gymserve)
        await self.environment.revive()
        self.left = await self._silence(gymserve, url)
        self.after = holding(gymserve.pid)
        await self.environment.restart()
        await self._play_without_faults(clients)
        await self._stop(gymserve)

    # -- the stages ------------------------------------------------------------------------------------------------

    async def _play_without_faults(self, clients: Clients) -> None:
        before = self.ledger.outcomes["finished"]
        async with trio.open_nursery() as nursery:
            for number in range(_ROLLOUTS_WITHOUT_FAULTS):
                nursery.start_soon(clients.play_one, finishes, random.Random(number))
        finished = self.ledger.outcomes["finished"] - before
        if finished != _ROLLOUTS_WITHOUT_FAULTS:
            self.ledger.fault(f"without faults {finished} of {_ROLLOUTS_WITHOUT_FAULTS} rollouts finished")

    async def _load_it(self, clients: Clients, gymserve: Server) -> None:
        began = trio.current_time()
        with self._load:
            self._load.deadline = began + self._seconds
            async with trio.open_nursery() as nursery:
                nursery.start_soon(clients.play, self._clients)
                nursery.start_soon(self.environment.live)
                await self._sample(gymserve)
        self.load_seconds = trio.current_time() - began

    async def _sample(self, gymserve: Server) -> None:
        began = trio.current_time()
        while gymserve.status is None:
            at_seconds = trio.current_time() - began
            self.samples.append(Sample(at_seconds, self.ledger.rollouts, holding(gymserve.pid)))
            await trio.sleep(_SAMPLE_SECONDS)
        raise ServerFailed(f"gymserve ended by itself, with status {gymserve.status}")

    async def _silence(self, gymserve: Server, url: str) -> dict[str, int]:
        """What is still there though nobody does anything any more; it has some time to go away."""
        left = {}
        with trio.move_on_after(_SETTLE_SECONDS):
            while left := await self._left(gymserve, url):  # noqa: ASYNC110 - it happens in another process
                await trio.sleep(_POLL_SECONDS)
        for what, number in left.items():
            self.ledger.fault(f"{what}: {number} left {_SETTLE_SECONDS:g} s after the last request")
        return left

    async def _left(self, gymserve: Server, url: str) -> dict[str, int]:
        try:
            listing = await get(url, "gymserve/sessions")
        except (Unanswered, OSError) as exc:
            return {f"a listing that is not answered ({exc})": 1}
        left = {
            "sessions": len(listing["sessions"]),
            "waiting requests": listing["waiting"],
            "slots": sum(server["held"] for server in listing["servers"]),
            "episodes": await self.environment.episodes(),
            "connections": connections(gymserve.pid),
        }
        return {what: number for what, number in left.items() if number}

    async def _stop(self, gymserve: Server) -> None:
        gymserve.send(signal.SIGTERM)
        status = None
        with trio.move_on_after(_STOP_SECONDS):
            status = await gymserve.ended()
        if status != 0:
            self.ledger.fault(f"{_STOP_SECONDS:g} s after SIGTERM gymserve's exit status is {status}, not 0")
