"""An environment that writes down its episodes' moments, and a server of it as a process of its own."""

import argparse
import json
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import trio

from churning.records import EpisodeRecord
from gymserve.gridsim.environment import Environment
from gymserve.gridsim.faults import Fault
from gymserve.gridsim.server import EnvironmentServer
from gymserve.wire import Observation

NOBODYS = -1
"""The number of a rollout whose episode is not written down."""

Now = Callable[[], float]
Log = Callable[[EpisodeRecord], None]


class TimedEnvironment(Environment):
    """Rewards every step with 1.0 and is never done; ``log`` gets an episode when its environment is closed."""

    action_schema: Mapping[str, Any] = {"title": "Action", "type": "object", "properties": {}}
    observation_schema: Mapping[str, Any] = {"title": "Observation", "type": "object", "properties": {}}

    def __init__(self, now: Now, log: Log) -> None:
        self._now = now
        self._log = log
        self._record: EpisodeRecord | None = None

    def reset(self, rollout: int) -> Observation:
        self._record = EpisodeRecord(rollout, reset_at=self._now(), last_at=self._now())
        return Observation({"text": "ready"})

    def step(self, action: Mapping[str, Any]) -> Observation:
        assert self._record is not None, "it was reset"
        self._record.last_at = self._now()
        return Observation({"text": "done as told"}, reward=1.0)

    def close(self) -> None:
        if self._record is not None and self._record.rollout != NOBODYS:
            self._record.closed_at = self._now()
            self._log(self._record)


def server_of(
    now: Now, log: Log, *, slots: int, step_seconds: float, reset_seconds: float, **more: float
) -> EnvironmentServer:
    """:param more: for `EnvironmentServer`."""
    faults = [Fault("slow-step", step_seconds), Fault("slow-reset", reset_seconds)]
    return EnvironmentServer(partial(TimedEnvironment, now, log), capacity=slots, faults=faults, **more)


def write(file: TextIO, record: EpisodeRecord) -> None:
    file.write(json.dumps(asdict(record)) + "\n")


def read(path: Path) -> list[EpisodeRecord]:
    """What a server of this module has written there."""
    return [EpisodeRecord(**json.loads(line)) for line in path.read_text().splitlines()]


async def serve(server: EnvironmentServer) -> None:
    """Until SIGTERM; its port is told on stderr."""
    with trio.open_signal_receiver(signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            port = await nursery.start(server.listen, "127.0.0.1", 0)
            sys.stderr.write(f"listening on http://127.0.0.1:{port}\n")
            sys.stderr.flush()
            await anext(aiter(signals))
            server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--step-seconds", type=float, required=True)
    parser.add_argument("--reset-seconds", type=float, required=True)
    parser.add_argument("--records", type=Path, required=True)
    options = parser.parse_args()
    with options.records.open("w") as file:
        server = server_of(
            time.monotonic,
            partial(write, file),
            slots=options.slots,
            step_seconds=options.step_seconds,
            reset_seconds=options.reset_seconds,
        )
        trio.run(serve, server)


if __name__ == "__main__":
    main()
