"""The little HTTP/1.1 of an environment server: the head of a request, a JSON answer, a connection that then ends."""

import json
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import h11
import trio

from gymserve.gridsim.upgrade import UpgradeStream

_MAX_HEAD_BYTES = 64 * 1024
_RECEIVE_BYTES = 16 * 1024
_HEAD_SECONDS = 10
_LINGER_SECONDS = 2


@dataclass(frozen=True, slots=True)
class Head:
    """A request without its body. ``path`` is without the query."""

    method: str
    path: str
    upgrades_to_websocket: bool


class HttpConnection:
    """One request on one stream, answered with ``Connection: close``."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=_MAX_HEAD_BYTES)
        self._read = bytearray()
        self._method: str | None = None

    async def read_head(self) -> Head | None:
        """The request's head, or None if it does not come: the stream ended, or 10 s passed.

        :raises h11.RemoteProtocolError: it is not HTTP/1.1, or its head is larger than 64 KiB; ``error_status_hint`` is
            the status to answer with.
        """
        with trio.move_on_after(_HEAD_SECONDS):
            while (event := self._protocol.next_event()) is h11.NEED_DATA:
                received = bytes(await self._stream.receive_some(_RECEIVE_BYTES))
                self._read += received
                self._protocol.receive_data(received)
            return self._begin(event) if isinstance(event, h11.Request) else None
        return None

    def rewound(self) -> UpgradeStream:
        """The stream as it was before the head was read, for another protocol to begin with."""
        rest, _ = self._protocol.trailing_data
        return UpgradeStream(self._stream, bytes(self._read[: len(self._read) - len(rest)]), rest)

    async def answer(self, status: int, body: Any) -> None:
        """Send ``body`` as JSON and end the connection."""
        payload = json.dumps(body, separators=(",", ":")).encode()
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(payload))), ("Connection", "close")]
        if status == 405:
            headers.append(("Allow", "GET"))  # RFC 9110 section 15.5.6
        await self._send(h11.Response(status_code=status, reason=HTTPStatus(status).phrase, headers=headers))
        await self._send(h11.Data(data=b"" if self._method == "HEAD" else payload))  # RFC 9110 section 9.3.2
        await self._send(h11.EndOfMessage())
        await end_gently(self._stream)

    def _begin(self, request: h11.Request) -> Head:
        self._method = request.method.decode("ascii")
        upgrades = b"websocket" in [value.lower() for name, value in request.headers if name == b"upgrade"]
        if upgrades and not all(value.isascii() for name, value in request.headers if _is_of_upgrade(name)):
            raise h11.RemoteProtocolError("a header of the upgrade is not ASCII", error_status_hint=400)
        path = request.target.partition(b"?")[0].decode("ascii", "replace")
        return Head(self._method, path, upgrades)

    async def _send(self, event: h11.Response | h11.Data | h11.EndOfMessage) -> None:
        data = self._protocol.send(event)
        if data:
            await self._stream.send_all(data)


def _is_of_upgrade(header: bytes) -> bool:
    """Whether wsproto reads it, which has no answer to what is not ASCII there."""
    return header in (b"host", b"connection", b"upgrade") or header.startswith(b"sec-websocket-")


async def end_gently(stream: trio.abc.Stream) -> None:
    """Say that we are done and read on until the peer is, at most 2 s.

    A socket closed with unread data in it resets the connection, and the peer may lose our last words with it (RFC 9112
    section 9.6).
    """
    with trio.move_on_after(_LINGER_SECONDS):
        try:
            if isinstance(stream, trio.abc.HalfCloseableStream):
                await stream.send_eof()
            while await stream.receive_some(_RECEIVE_BYTES):
                pass
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return  # the peer is gone: nothing left to be gentle with
