"""A whole gymserve over memory streams, for tests in virtual time: every part but the sockets is real."""

import json
import math
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import trio
from http_peer import Peer, connect
from trio.testing import memory_stream_pair

from gymserve.address import EnvironmentAddress, parse_address
from gymserve.door import DoorTerms
from gymserve.gate import Gate
from gymserve.gateway import Gateway, open_gateway
from gymserve.gridsim.server import EnvironmentServer
from gymserve.http.access import Guard
from gymserve.http.app import create_app
from gymserve.http.rollouts import Dialect, Rollouts
from gymserve.identity import SessionCookie
from gymserve.instruments import Instruments, fit_instruments
from gymserve.journal import Journal
from gymserve.network import read_schema
from gymserve.opening import Opener
from gymserve.pool import open_pool
from gymserve.resets import ResetRules
from gymserve.seeds import Seeding
from gymserve.session import Terms
from gymserve.shares import Share, Shares
from gymserve.toolbox import taken_names, with_reward
from gymserve.websocket import MAX_MESSAGE_BYTES

ADDRESS = parse_address("environment:8000")
INSTANCE = "0a1b2c3d"
COOKIE = SessionCookie("test", ["a secret of the tests"])
LONGEST_SECONDS = 100_000.0  # of a scenario


def typed_seed(name: str, task_data: Mapping[str, Any] | None = None, **changed: Any) -> dict[str, Any]:
    """The seed of a session that its client calls ``name``."""
    task_id = {"taskset": "tasks", "task_id": "7"}
    return {**typed_close(name), "task_id": task_id, "task_data": dict(task_data or {}), **changed}


def typed_close(name: str, **changed: Any) -> dict[str, Any]:
    return {"resources_session_id": name, "episode_id": {"rollout_id": "r-1", "attempt": 0}, **changed}


def slow_pair(seconds: float) -> tuple[Any, Any]:
    """Streams of a client and a server whose bytes are that long on their way to the client."""
    client, server = memory_stream_pair()
    arrive = server.send_stream.send_all_hook
    assert arrive is not None

    async def arrive_later() -> None:
        await trio.sleep(seconds)
        await arrive()

    server.send_stream.send_all_hook = arrive_later
    return client, server


class MemoryNetwork:
    """Every connection is a pair of memory streams to one of `servers`, at first to `server` alone; ``refuses`` closes
    all ports, ``fails_with`` is raised instead. An address without a server refuses too.
    """

    def __init__(self, nursery: trio.Nursery, server: EnvironmentServer, *, connect_timeout_seconds: float) -> None:
        self.server = server
        self.servers = {ADDRESS: server}
        self.refuses = False
        self.fails_with: Exception | None = None
        self.connecting_seconds = 0.0
        self.connected_at: list[float] = []
        self.refused_at: list[float] = []
        self._nursery = nursery
        self._lives: dict[EnvironmentAddress, list[trio.CancelScope]] = {}
        self._connect_timeout_seconds = connect_timeout_seconds

    def kill(self, address: EnvironmentAddress) -> None:
        """As SIGKILL does: every connection ends, and the port is closed."""
        del self.servers[address]
        for life in self._lives.pop(address, []):
            life.cancel()

    async def _serve(self, address: EnvironmentAddress, server: EnvironmentServer, stream: trio.abc.Stream) -> None:
        with trio.CancelScope() as life:
            self._lives.setdefault(address, []).append(life)
            await server.serve_stream(stream)
        if life.cancelled_caught:
            await trio.aclose_forcefully(stream)

    @property
    def connections(self) -> int:
        return len(self.connected_at)

    async def open_stream(self, address: EnvironmentAddress) -> trio.abc.Stream:
        with trio.fail_after(self._connect_timeout_seconds):
            await trio.sleep(self.connecting_seconds)
        if self.refuses or address not in self.servers:
            self.refused_at.append(round(trio.current_time(), 6))
            raise ConnectionRefusedError(111, "Connection refused")
        if self.fails_with is not None:
            raise self.fails_with
        self.connected_at.append(trio.current_time())
        ours, theirs = memory_stream_pair()
        self._nursery.start_soon(self._serve, address, self.servers[address], theirs)
        return ours

    async def fetch_schema(self, address: EnvironmentAddress, headers: Sequence[tuple[str, str]]) -> Mapping[str, Any]:
        head, _, body = (await self._get(address, "/schema")).partition(b"\r\n\r\n")
        return read_schema(int(head.split()[1]), body)

    async def is_alive(self, address: EnvironmentAddress, headers: Sequence[tuple[str, str]]) -> bool:
        try:
            return (await self._get(address, "/health")).startswith(b"HTTP/1.1 ")
        except (httpx.TransportError, OSError, trio.TooSlowError):
            return False

    async def _get(self, address: EnvironmentAddress, path: str) -> bytes:
        """:raises httpx.TransportError: as httpx does."""
        stream = await self.open_stream(address)
        head = f"GET {path} HTTP/1.1\r\nHost: environment\r\nConnection: close\r\n\r\n"
        with trio.move_on_after(self._connect_timeout_seconds):
            try:
                await stream.send_all(head.encode())
                received = b"".join([part async for part in stream])
            except trio.BrokenResourceError:
                raise httpx.ReadError("") from None
            if not received:
                raise httpx.RemoteProtocolError("Server disconnected without sending a response.")
            return received
        await trio.aclose_forcefully(stream)
        raise httpx.ReadTimeout("")


@dataclass
class Answer:
    status: int
    body: Any
    headers: dict[bytes, bytes]


@dataclass
class Client:
    """One rollout's client: a connection for each request, as verifiers has, and the last answer's cookie."""

    connect: Callable[[], Peer]
    cookies: dict[str, str] = field(default_factory=dict)
    peer: Peer | None = None

    async def ask(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> Answer:
        await self.send(method, path, body, headers)
        return await self.answer()

    async def send(self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None) -> None:
        data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", "Host: gymserve", f"Content-Length: {len(data)}"]
        if body is not None and not isinstance(body, bytes):
            lines.append("Content-Type: application/json")
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        if self.cookies:
            lines.append("Cookie: " + "; ".join(f"{name}={value}" for name, value in self.cookies.items()))
        self.peer = self.connect()
        await self.peer.send("\r\n".join([*lines, "", ""]).encode() + data)

    async def answer(self) -> Answer:
        assert self.peer is not None
        reply = await self.peer.reply()
        set_cookie = reply.headers.get(b"set-cookie")
        if set_cookie is not None:
            name, _, value = set_cookie.decode().partition(";")[0].partition("=")
            self.cookies = {name: value}
        return Answer(reply.status, json.loads(reply.body), reply.headers)

    async def seed(self, row: Mapping[str, Any] | None = None, **headers: str) -> Answer:
        return await self.ask("POST", "/seed_session", row or {}, headers)

    async def call(self, tool: str, arguments: Any = None) -> Answer:
        return await self.ask("POST", f"/{tool}", arguments)

    async def step(self, by: int = 1) -> Answer:
        return await self.call("step", {"by": by})

    async def verify(self, **row: Any) -> Answer:
        return await self.ask("POST", "/verify", {"responses_create_params": {}, "response": {}, **row})

    async def close_by_name(self, name: str) -> Answer:
        return await self.ask("POST", "/close_session", typed_close(name))

    async def hang_up(self) -> None:
        assert self.peer is not None
        await self.peer.stream.aclose()


@dataclass
class Stage:
    """gymserve and the environment server behind it."""

    nursery: trio.Nursery
    gateway: Gateway
    opener: Opener
    network: MemoryNetwork
    app: Any
    instruments: Instruments

    def client(self, address: str = "127.0.0.1", *, pair: Any = None) -> Client:
        """:param pair: streams for its one connection, where memory streams will not do."""
        return Client(lambda: connect(self.nursery, seen_from(self.app, address), pair=pair))

    @property
    def gate(self) -> Gate:
        """Of the one server that the stage begins with."""
        return self.opener.pool.doors[0].gate

    @property
    def episodes(self) -> dict[str, int]:
        return self.network.server.episodes

    async def listing(self) -> Any:
        return (await self.client().ask("GET", "/gymserve/sessions")).body


def seen_from(app: Any, address: str) -> Any:
    """``app``, whose clients come from ``address``: memory streams have none."""

    async def addressed(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "client": (address, 50_000)}, receive, send)

    return addressed


@asynccontextmanager
async def raise_the_curtain(
    server: EnvironmentServer,
    *,
    patience_seconds: float = 600.0,
    connect_timeout_seconds: float = 10.0,
    restart_patience_seconds: float = 60.0,
    max_handshakes: int = 16,
    resets: ResetRules | None = None,
    shares: Sequence[Share] = (),
    tombstone_seconds: float = 900.0,
    reset_kwargs: Mapping[str, Any] | None = None,
    dialect: Dialect | None = None,
    derive_seed: bool = False,
    failure_class: str | None = None,
    show: Any = with_reward,
    guard: Guard | None = None,
    headers: Sequence[tuple[str, str]] = (),
    max_sessions: int | None = None,
    max_waiting: int | None = None,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    max_connections: float = math.inf,
    instance: str = INSTANCE,
    journal: Journal | None = None,
    is_followed: bool = False,
    longest_seconds: float = LONGEST_SECONDS,
    **terms: Any,
) -> AsyncIterator[Stage]:
    """A stage before ``server``; ``terms`` are `Terms`' fields.

    :param longest_seconds: infinite where threads work beside: virtual time does not wait for them.
    """
    dialect = dialect or Dialect()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(drop_the_curtain, longest_seconds)
        network = MemoryNetwork(nursery, server, connect_timeout_seconds=connect_timeout_seconds)
        kept = Terms(**terms)
        door_terms = DoorTerms(
            headers=headers,
            connect_timeout_seconds=connect_timeout_seconds,
            close_timeout_seconds=kept.close_timeout_seconds,
            answer_timeout_seconds=patience_seconds or connect_timeout_seconds,
            restart_patience_seconds=restart_patience_seconds,
            max_handshakes=max_handshakes,
            max_message_bytes=max_message_bytes,
            taken_names=taken_names(dialect.observation_tool),
            show=show,
            jitter=lambda: 1.0,
        )
        async with open_pool(network, door_terms, Shares(shares), max_held=max_connections) as pool:
            pool.add(ADDRESS)
            opener = Opener(
                pool,
                patience_seconds=patience_seconds,
                connect_timeout_seconds=connect_timeout_seconds,
                reset_kwargs=reset_kwargs or {},
                resets=resets or ResetRules(),
            )
            async with open_gateway(
                opener,
                kept,
                tombstone_seconds=tombstone_seconds,
                failure_class=failure_class,
                max_sessions=max_sessions,
                max_waiting=max_waiting,
                instance=instance,
                journal=journal,
            ) as gateway:
                seeding = Seeding(reset_kwargs or {}, derives=derive_seed, warns=True)
                rollouts = Rollouts(gateway, dialect, seeding, None, kept_seconds=tombstone_seconds)
                guard = guard or Guard(hosts=["gymserve"])
                instruments = fit_instruments(gateway, kept_seconds=tombstone_seconds)
                app = create_app(gateway, COOKIE, rollouts, instruments, guard, is_followed=is_followed)
                yield Stage(nursery, gateway, opener, network, app, instruments)
        nursery.cancel_scope.cancel()


async def drop_the_curtain(longest_seconds: float) -> None:
    """A scenario that waits for what never comes fails, though keepalives go on for ever."""
    await trio.sleep(longest_seconds)
    raise TimeoutError(f"the scenario has not ended within {longest_seconds:g} s")
