"""A client for the tests that sends what it is told, byte for byte, and knows an answer when it sees one."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import h11
import trio
from hypercorn.config import Config
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.utils import wrap_app
from trio.testing import memory_stream_pair

from gymserve.http.connection import Connection
from gymserve.http.crowd import Crowd
from gymserve.http.limits import DEFAULT_LIMITS, Limits

App = Callable[[Any, Any, Any], Awaitable[None]]


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[bytes, bytes]
    body: bytes


class Peer:
    """The client's end of a connection."""

    def __init__(self, stream: Any, context: Any = None) -> None:
        self.stream = stream
        self.context = context
        self._unread = b""

    async def send(self, data: bytes) -> None:
        await self.stream.send_all(data)

    async def reply(self, method: bytes = b"GET") -> Reply:
        """The next final answer; interim ones before it are skipped."""
        parser = h11.Connection(h11.CLIENT)
        parser.send(h11.Request(method=method, target=b"/", headers=[(b"host", b"x")]))
        parser.send(h11.EndOfMessage())
        if self._unread:
            parser.receive_data(self._unread)
        head, body = None, b""
        while not isinstance(event := parser.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                parser.receive_data(await self.stream.receive_some(65536))
            elif isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
        self._unread = parser.trailing_data[0]
        return Reply(head.status_code, dict(head.headers), body)

    async def ask(self, data: bytes, method: bytes = b"GET") -> Reply:
        await self.send(data)
        return await self.reply(method)

    async def rest(self) -> bytes:
        """Everything until the server closes."""
        data, self._unread = self._unread, b""
        while more := await self.stream.receive_some(65536):
            data += more
        return data


def GET(path: str = "/", *headers: str) -> bytes:
    return "\r\n".join([f"GET {path} HTTP/1.1", "Host: x", *headers, "", ""]).encode("latin1")


def POST(path: str, body: bytes, *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def connect(
    nursery: trio.Nursery, app: App, *, limits: Limits = DEFAULT_LIMITS, crowd: Crowd | None = None, pair: Any = None
) -> Peer:
    """A connection to `app` over memory streams (or another pair); `peer.context.terminated` stops its server."""
    client, server = pair or memory_stream_pair()
    context = WorkerContext(None)
    connection = Connection(
        wrap_app(app, 0, "asgi"), Config(), context, {"from": "lifespan"}, server, limits=limits, crowd=crowd
    )
    nursery.start_soon(connection.run)
    return Peer(client, context)


async def answer(send: Any, body: bytes = b"ok", status: int = 200, headers: Any = None, *, more: bool = False) -> None:
    if headers is None:
        headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": more})


class Recorder:
    """An app that keeps the scopes and bodies it got, sleeps for `X-Seconds`, refuses what it must and else echoes."""

    def __init__(self) -> None:
        self.scopes: list[dict[str, Any]] = []
        self.bodies: list[bytes] = []
        self.disconnected_at: list[float] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.scopes.append(scope)
        self.bodies.append((await receive())["body"])
        if refusal := scope["extensions"].get("gymserve.refusal"):
            body = f"{refusal['error']}: {refusal['detail']}".encode()
            return await answer(send, body, refusal["status"])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch, receive, nursery.cancel_scope)
            await trio.sleep(float(dict(scope["headers"]).get(b"x-seconds", 0)))
            await answer(send, b"%s %s" % (scope["path"].encode(), self.bodies[-1]))
            nursery.cancel_scope.cancel()

    async def _watch(self, receive: Any, scope: trio.CancelScope) -> None:
        assert (await receive()) == {"type": "http.disconnect"}
        self.disconnected_at.append(trio.current_time())
        scope.cancel()
