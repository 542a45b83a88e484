"""An OpenEnv server that costs next to nothing and remembers when each episode was answered, and when it was let go.

``python bench/scaling/environment.py`` prints its port and serves until it is killed. An episode is named by its
reset's ``episode``; ``GET /moments`` tells of all of them, ``GET /open`` names those not closed yet. Times are
CLOCK_MONOTONIC's, which the processes of a machine share.
"""

import gc
import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import trio
from wsproto.connection import Connection, ConnectionType
from wsproto.events import CloseConnection, TextMessage
from wsproto.utilities import generate_accept_token

BACKLOG = 4096
_RECEIVE_BYTES = 64 * 1024
_SCHEMA = {"action": {"type": "object", "properties": {"by": {"type": "integer"}}, "required": []}}
_SCHEMAS: dict[str, Any] = {**_SCHEMA, "observation": {"type": "object"}, "state": {"type": "object"}}
_OBSERVATION = '{"type":"observation","data":{"observation":{"total":1},"reward":0.5,"done":false}}'
_NOT_FOUND = {"code": -32601, "message": "Method not found", "data": None}


@dataclass(slots=True)
class Moments:
    """Of the reset, of the last answer (before it was sent), of the ``close`` message and of the CLOSE frame."""

    reset: float
    answered: float
    goodbye: float | None = None
    closed: float | None = None


class EnvironmentServer:
    """``moments`` are by the names of the episodes."""

    def __init__(self) -> None:
        self.moments: dict[str, Moments] = {}

    async def serve(self, stream: trio.SocketStream) -> None:
        try:
            async with stream:
                await self._serve(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the peer is gone

    async def _serve(self, stream: trio.SocketStream) -> None:
        head = await _head(stream)
        if (key := head.get("sec-websocket-key")) is not None:
            accept = generate_accept_token(key.encode()).decode()
            await stream.send_all(
                b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                b"Sec-WebSocket-Accept: " + accept.encode() + b"\r\n\r\n"
            )
            await self._host(stream)
        elif head:
            await stream.send_all(_http(self._document(head["path"])))

    def _document(self, path: str) -> Any:
        if path == "/moments":
            return {name: asdict(moments) for name, moments in self.moments.items()}
        if path == "/open":  # half a millisecond for 5,000, where all their moments take a hundred
            return [name for name, moments in self.moments.items() if moments.closed is None]
        return _SCHEMAS if path == "/schema" else {"status": "healthy"}

    async def _host(self, stream: trio.SocketStream) -> None:
        connection = Connection(ConnectionType.SERVER)
        episode: Moments | None = None
        while data := await stream.receive_some(_RECEIVE_BYTES):
            connection.receive_data(data)
            now = time.monotonic()
            for event in connection.events():
                if isinstance(event, CloseConnection):
                    if episode is not None:
                        episode.closed = now
                    if connection.state.name == "REMOTE_CLOSING":
                        await stream.send_all(connection.send(event.response()))
                    return
                assert isinstance(event, TextMessage)
                question = json.loads(event.data)
                if question["type"] == "reset":
                    episode = self.moments.setdefault(question["data"].get("episode", ""), Moments(now, now))
                if question["type"] == "close":
                    if episode is not None:
                        episode.goodbye = now
                    await stream.send_all(connection.send(CloseConnection(1000)))
                else:
                    if episode is not None and question["type"] != "mcp":  # a keepalive keeps no session alive
                        episode.answered = time.monotonic()
                    await stream.send_all(connection.send(TextMessage(_answer(question))))


def _answer(question: dict[str, Any]) -> str:
    if question["type"] == "mcp":
        answer = {"jsonrpc": "2.0", "id": question["data"]["id"], "error": _NOT_FOUND}
        return json.dumps({"type": "mcp", "data": answer})
    return _OBSERVATION


async def _head(stream: trio.SocketStream) -> dict[str, str]:
    """A request's headers, and its ``path``; none where the peer says nothing."""
    received = b""
    while b"\r\n\r\n" not in received:
        data = await stream.receive_some(_RECEIVE_BYTES)
        if not data:
            return {}
        received += data
    first, *lines = received.decode("latin-1").split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines if line)
    return {name.lower(): value for name, value in headers.items()} | {"path": first.split()[1]}


def _http(document: Any) -> bytes:
    body = json.dumps(document).encode()
    head = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"Connection: close\r\n\r\n" + body


async def main() -> None:
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1", backlog=BACKLOG)
    sys.stdout.write(f"{listener.socket.getsockname()[1]}\n")
    sys.stdout.flush()
    await trio.serve_listeners(EnvironmentServer().serve, [listener])


if __name__ == "__main__":
    gc.disable()  # a pause of its own would look like one of gymserve's
    trio.run(main)
