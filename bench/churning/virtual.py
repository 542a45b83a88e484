"""gymserve in virtual time: its gateway, line and sessions before a real environment server, so that a day takes
seconds.

Trio's mock clock jumps to the next deadline as soon as nobody has anything to do. Connections to the environment server
are pairs of memory streams; clients stand where gymserve's routes do.
"""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import structlog
import trio
from trio.testing import MockClock, memory_stream_pair

from churning.crowd import Crowd, Shape
from churning.environment import server_of
from churning.habits import Habits
from churning.links import Answer, ask
from churning.records import Churn
from gymserve import wire
from gymserve.address import EnvironmentAddress, Server
from gymserve.cli.serving import compose_gateway
from gymserve.errors import GymserveError
from gymserve.gateway import Gateway
from gymserve.gridsim.server import EnvironmentServer
from gymserve.session import Seed
from gymserve.settings import ServeSettings

_ADDRESS = EnvironmentAddress("environment", 8000)
_PATIENCE_SECONDS = 7 * 86_400.0  # nobody is turned away for the length of the line
_TOMBSTONE_SECONDS = 86_400.0  # who comes late hears why
_MOST_LEFT_SECONDS = 1.0  # after the last idle timeout, for the goodbyes


class MemoryNetwork:
    """A `gymserve.network.Network` with one environment server in it."""

    def __init__(self, nursery: trio.Nursery, server: EnvironmentServer) -> None:
        self._nursery = nursery
        self._server = server

    async def open_stream(self, address: EnvironmentAddress) -> trio.abc.Stream:
        ours, theirs = memory_stream_pair()
        self._nursery.start_soon(self._server.serve_stream, theirs)
        return ours

    async def fetch_schema(self, address: EnvironmentAddress, headers: Sequence[tuple[str, str]]) -> Mapping[str, Any]:
        async with await self.open_stream(address) as stream:
            schema: Mapping[str, Any] = (await ask(stream, "schema", None, None)).body
            return schema

    async def is_alive(self, address: EnvironmentAddress, headers: Sequence[tuple[str, str]]) -> bool:
        return True


class DirectLink:
    """The same without HTTP: what the routes do, and what a hang-up does there."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._session_id = gateway.new_session_id()

    async def ask(self, path: str, body: Mapping[str, Any]) -> Answer:
        try:
            return Answer(200, await self._asked(path, body), None)
        except GymserveError as exc:
            return Answer(exc.status, exc.body(), None)

    async def _asked(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        if path == "seed_session":
            await self._gateway.seed(self._session_id, Seed(reset_kwargs=body["reset_kwargs"]))
            return {}
        if path == "verify":
            return (await self._gateway.verify(self._session_id, body)).body
        return (await self._gateway.find(self._session_id).call(wire.action(body))).fields

    async def hang_up(self) -> None:
        """A client that is silent is one that does not ask."""


def churn_in_virtual_time(
    habits: Habits,
    shape: Shape,
    *,
    slots: int,
    idle_timeout_seconds: float,
    reset_seconds: float,
    seed: int,
) -> Churn:
    """:param seed: of all choices; the same one gives the same churn."""
    churn = Churn(slots=slots, idle_timeout_seconds=idle_timeout_seconds)
    with _errors_only():
        trio.run(_churn, churn, habits, shape, reset_seconds, seed, clock=MockClock(autojump_threshold=0))
    return churn


@contextmanager
def _errors_only() -> Iterator[None]:
    """What is lost is told by who lost it; a line for every session would take longer than the session."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    try:
        yield
    finally:
        structlog.configure(**before)


async def _churn(churn: Churn, habits: Habits, shape: Shape, reset_seconds: float, seed: int) -> None:
    server = server_of(
        trio.current_time,
        churn.episodes.append,
        slots=churn.slots,
        step_seconds=habits.step_seconds,
        reset_seconds=reset_seconds,
        ping_interval_seconds=math.inf,
    )
    settings = _settings(churn.idle_timeout_seconds)
    async with trio.open_nursery() as nursery:
        network = MemoryNetwork(nursery, server)
        async with compose_gateway(settings, [Server(_ADDRESS)], network) as gateway:
            links = partial(DirectLink, gateway)
            await Crowd(churn, habits, shape, links, trio.current_time, seed=seed, opening_seconds=reset_seconds).run()
            await trio.sleep(churn.idle_timeout_seconds + _MOST_LEFT_SECONDS)
            churn.left = {
                "sessions": len(gateway.all_sessions()),
                "waiting": gateway.waiting,
                "slots": server.episodes["active"],
            }
        nursery.cancel_scope.cancel()


def _settings(idle_timeout_seconds: float) -> ServeSettings:
    """Without keepalives, which are for peers that a network may lose."""
    return ServeSettings(
        idle_timeout=idle_timeout_seconds,
        idle_timeout_max=max(3600.0, idle_timeout_seconds),
        patience=_PATIENCE_SECONDS,
        tombstone=_TOMBSTONE_SECONDS,
        keepalive=0,
    )
