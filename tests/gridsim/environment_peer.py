"""A raw OpenEnv client for tests: what it says and hears is JSON, and every answer can be timed."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import trio
from trio.testing import memory_stream_pair
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_client_stream

from gymserve.gridsim.server import EnvironmentServer


@dataclass
class Peer:
    """One WebSocket to an environment server over a memory stream."""

    ws: WebSocketConnection
    stream: trio.abc.Stream

    async def say(self, message: Any) -> None:
        await self.ws.send_message(message if isinstance(message, str | bytes) else json.dumps(message))

    async def hear(self) -> dict[str, Any]:
        answer = json.loads(await self.ws.get_message())
        assert isinstance(answer, dict)
        return answer

    async def ask(self, message: Any) -> dict[str, Any]:
        await self.say(message)
        return await self.hear()

    async def reset(self, **kwargs: Any) -> dict[str, Any]:
        return await self.ask({"type": "reset", "data": kwargs})

    async def step(self, action: Mapping[str, Any]) -> dict[str, Any]:
        return await self.ask({"type": "step", "data": action})

    async def ending(self) -> tuple[int, str | None]:
        """Code and reason of the CLOSE that comes next; nothing else may come."""
        try:
            message = await self.ws.get_message()
        except ConnectionClosed as exc:
            assert exc.reason is not None
            return exc.reason.code, exc.reason.reason
        raise AssertionError(f"not a CLOSE but {message!r}")


def attach(nursery: trio.Nursery, server: EnvironmentServer) -> trio.abc.Stream:
    """A bare connection to ``server``."""
    ours, theirs = memory_stream_pair()
    nursery.start_soon(server.serve_stream, theirs)
    return ours


async def connect(nursery: trio.Nursery, server: EnvironmentServer) -> Peer:
    """A WebSocket to ``server``, open."""
    stream = attach(nursery, server)
    return Peer(await wrap_client_stream(nursery, stream, "environment", "/ws"), stream)  # type: ignore[arg-type]


async def exchange(stream: trio.abc.Stream, request: bytes) -> bytes:
    """Send raw bytes; everything that comes back until the end of the stream."""
    await stream.send_all(request)
    received = b""
    while data := await stream.receive_some():
        received += data
    return received


def error_of(answer: Mapping[str, Any]) -> tuple[str, str]:
    """Code and message of an error answer."""
    assert answer["type"] == "error", answer
    return answer["data"]["code"], answer["data"]["message"]


UPGRADE = (
    b"GET /ws HTTP/1.1\r\nHost: environment\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
