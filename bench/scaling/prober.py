"""Calls at a fixed rate, of sessions that nothing else happens to: what all others must not disturb.

``python -m scaling.prober PORT CALLS_PER_SECOND SESSIONS`` says ``ready`` once its sessions are open, calls until
its standard input ends, and then prints each call as JSON: when it was due (CLOCK_MONOTONIC), and the seconds until
its answer.
"""

import gc
import json
import sys
import time
from collections import deque

import trio

from scaling.client import Client, Session


class Prober:
    """An open loop: a call is late if the one before it is, and counts from when it was due."""

    def __init__(self) -> None:
        self.calls: list[tuple[float, float]] = []
        self._free: deque[tuple[Client, Session]] = deque()
        self._freed = trio.Event()

    async def open(self, port: int, sessions: int) -> None:
        for number in range(sessions):
            client = await Client.connect(port)
            self._free.append((client, await client.seed(f"probe-{number}")))

    async def run(self, rate: float) -> None:
        async with trio.open_nursery() as nursery:
            due = time.monotonic()
            while rate > 0:
                await trio.sleep(max(0.0, due - time.monotonic()))
                while not self._free:
                    self._freed = trio.Event()
                    await self._freed.wait()
                nursery.start_soon(self._call, *self._free.popleft(), due)
                due += 1 / rate

    async def _call(self, client: Client, session: Session, due: float) -> None:
        await client.call(session)
        self.calls.append((due, time.monotonic() - due))
        self._free.append((client, session))
        self._freed.set()


async def main(port: int, rate: float, sessions: int) -> None:
    prober = Prober()
    await prober.open(port, sessions)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(prober.run, rate)
        await trio.lowlevel.FdStream(sys.stdin.fileno()).receive_some()
        nursery.cancel_scope.cancel()
    sys.stdout.write(json.dumps(prober.calls))


if __name__ == "__main__":
    gc.disable()
    trio.run(main, int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
