"""An OpenEnv server of GridSim that is slow under load, and writes down what becomes of each of its slots.

``python -m training.environment --port N --slots N --scale X --events FILE``: a handshake is answered after 12 s
while three eighths of the slots or more are being reset or closed, and after 0.5 s else; a reset takes 3 s, a close
10 s; all divided by the scale. A handshake whose client has left takes a slot all the same, but for a moment only.
Each line of the events is an `Event`.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import trio
from trio_websocket import WebSocketConnection

from gymserve.gridsim.episode import HostedEpisode
from gymserve.gridsim.faults import Fault
from gymserve.gridsim.grid import GridSim
from gymserve.gridsim.server import EnvironmentServer
from gymserve.gridsim.tools import ToolResult
from gymserve.gridsim.upgrade import UpgradeStream
from gymserve.wire import Observation, Reset
from training.incident import (
    CLOSE_SECONDS,
    HANDSHAKE_SECONDS,
    LOADED_HANDSHAKE_SECONDS,
    LOADED_SHARE,
    RESET_SECONDS,
    Pace,
)

SCHEDULE: Mapping[str, Any] = {
    "name": "schedule",
    "description": "Dispatch as many hours: battery_mw and generator_mw of each. Tells what the last one does.",
    "input_schema": {
        "type": "object",
        "properties": {"dispatches": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}},
        "required": ["dispatches"],
    },
}

BEGAN, OPENED, RESET, GOODBYE, CLOSED, DOWN = "began", "opened", "reset", "goodbye", "closed", "down"


@dataclass(frozen=True, slots=True)
class Event:
    """``at``: seconds of CLOCK_MONOTONIC, which all processes of a machine share. ``episode`` counts; ``rollout`` is
    the name that the client gave it with its reset, and comes with `RESET` only.
    """

    at: float
    what: str
    episode: int = 0
    rollout: str = ""


class Work:
    """What an environment server has to do besides its episodes, and what it writes down. ``slots``: as it has."""

    def __init__(self, slots: int, pace: Pace, events: TextIO) -> None:
        self._limit = LOADED_SHARE * slots
        self._pace = pace
        self._events = events
        self._under_way = 0
        self._episodes = 0

    @property
    def handshake_seconds(self) -> float:
        is_loaded = self._under_way >= self._limit
        return self._pace.seconds(LOADED_HANDSHAKE_SECONDS if is_loaded else HANDSHAKE_SECONDS)

    @contextmanager
    def under_way(self) -> Iterator[None]:
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1

    def next_episode(self) -> int:
        self._episodes += 1
        return self._episodes

    def note(self, what: str, episode: int = 0, rollout: str = "") -> None:
        write(self._events, Event(time.monotonic(), what, episode, rollout))


def write(events: TextIO, event: Event) -> None:
    """A line, out at once: the process may be killed."""
    events.write(json.dumps(asdict(event)) + "\n")
    events.flush()


class PlannedGridSim(GridSim):
    """GridSim for an agent that decides many hours in one turn: `SCHEDULE` dispatches them with one call. Its reset
    knows a rollout's name.
    """

    tools = (*GridSim.tools, SCHEDULE)

    def reset(self, day: Any = None, seed: Any = None, rollout: str = "") -> Observation:
        return super().reset(day, seed)

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        if name != SCHEDULE["name"]:
            return super().call(name, arguments)
        result = ToolResult({})
        for battery_mw, generator_mw in arguments["dispatches"]:
            result = super().call("dispatch", {"battery_mw": battery_mw, "generator_mw": generator_mw})
        return result


class LoadingEpisode(HostedEpisode):
    """An episode whose reset and close are work, and whose moments are noted."""

    def __init__(self, work: Work, *hosted: Any, **more: Any) -> None:
        super().__init__(*hosted, **more)
        self._work = work
        self._number = work.next_episode()
        self._was_reset = False
        work.note(OPENED, self._number)

    async def _reset(self, reset: Reset) -> Observation:
        self._was_reset = True
        with self._work.under_way():
            observation = await super()._reset(reset)
        self._work.note(RESET, self._number, str(reset.kwargs.get("rollout", "")))
        return observation

    async def _close(self) -> None:
        self._work.note(GOODBYE, self._number)
        if self._was_reset:
            with self._work.under_way():
                await super()._close()
        self._work.note(CLOSED, self._number)


class LoadedServer(EnvironmentServer):
    """An environment server whose handshakes wait for its work."""

    def __init__(self, slots: int, pace: Pace, events: TextIO) -> None:
        faults = (
            Fault("slow-reset", pace.seconds(RESET_SECONDS)),
            Fault("slow-close", pace.seconds(CLOSE_SECONDS)),
        )
        super().__init__(PlannedGridSim, capacity=slots, faults=faults)
        self._work = Work(slots, pace, events)
        self._work.note(BEGAN)

    async def _serve_websocket(self, stream: UpgradeStream) -> None:
        await trio.sleep(self._work.handshake_seconds)
        await super()._serve_websocket(stream)

    async def _host(self, ws: WebSocketConnection, stream: trio.abc.Stream) -> None:
        await LoadingEpisode(self._work, ws, PlannedGridSim(), self._faults, drop=stream.aclose).run()


async def serve(server: EnvironmentServer, port: int, listen_at: float) -> None:
    await trio.sleep(max(0.0, listen_at - time.monotonic()))
    async with trio.open_nursery() as nursery:
        bound_port = await nursery.start(server.listen, "127.0.0.1", port)
        sys.stderr.write(f"listening on http://127.0.0.1:{bound_port}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--scale", type=float, required=True)
    parser.add_argument("--events", type=Path, required=True)
    parser.add_argument("--listen-at", type=float, default=0.0, help="not before, by CLOCK_MONOTONIC")
    options = parser.parse_args()
    with options.events.open("a") as events:
        server = LoadedServer(options.slots, Pace(options.scale), events)
        trio.run(serve, server, options.port, options.listen_at)


if __name__ == "__main__":
    main()
