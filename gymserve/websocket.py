"""A WebSocket opening that cannot hang, over trio-websocket's public API.

trio-websocket 0.12.2 waits for ever where a server accepts and stays silent, resets before it is asked, or refuses in
a body without end; waits its whole timeout where a server closes or resets during the handshake; and lets h11's own
errors out. Here a stream between it and the socket turns all but silence into an error at once, and every failure of
an opening is a `HandshakeFailed`.
"""

import re
from collections.abc import Sequence

import trio
import trio_websocket

from gymserve.address import EnvironmentAddress
from gymserve.sending import send_at_once

MAX_MESSAGE_BYTES = 100 * 2**20  # what OpenEnv's own client takes; the server limits nothing on its way out
_RECEIVE_BYTES = 64 * 1024
_KEPT_BYTES = 256
_SHOWN_BYTES = 20
_HTTP = b"HTTP/1."
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] (\d{3})")


class HandshakeFailed(Exception):
    """The server did not open a WebSocket. ``status`` is the HTTP status it answered instead, None where it answered
    none.
    """

    def __init__(self, sentence: str, status: int | None = None) -> None:
        super().__init__(sentence)
        self.status = status


class HandshakeDropped(HandshakeFailed):
    """The connection ended before the upgrade was answered."""


async def open_websocket(
    nursery: trio.Nursery,
    stream: trio.abc.Stream,
    address: EnvironmentAddress,
    headers: Sequence[tuple[str, str]],
    *,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
) -> trio_websocket.WebSocketConnection:
    """The connection whose ``/ws`` is at ``address``, over ``stream``; its reader runs in ``nursery``.

    :param max_message_bytes: beyond it the connection is closed with 1009; of text trio-websocket counts characters.

    Waits as long as the server takes. An error of the handshake, `HandshakeFailed` among them, comes out of
    ``nursery``.
    """
    guard = _HandshakeGuard(stream)
    connection = await trio_websocket.wrap_client_stream(
        nursery,
        guard,  # type: ignore[arg-type]  # any trio Stream will do; the annotation knows two of them
        address.netloc,
        address.websocket_path,
        extra_headers=[(name.encode("ascii"), value.encode("latin-1")) for name, value in headers],
        max_message_size=max_message_bytes,
        receive_buffer_size=_RECEIVE_BYTES,
    )
    guard.opened()
    return connection


def handshake_failure(exc: Exception) -> Exception:
    """``exc``, or what it means: h11 and wsproto say "garbage" in errors of their own."""
    failure: Exception
    match exc:
        case trio_websocket.ConnectionRejected():
            return HandshakeFailed(
                f"the server answered HTTP {exc.status_code} to the WebSocket upgrade", exc.status_code
            )
        case HandshakeFailed() | OSError() | trio.TooSlowError():
            return exc
        case _:
            failure = HandshakeFailed(f"the server's answer to the WebSocket upgrade is none: {exc}")
    failure.__cause__ = exc
    return failure


def _answered(status: int) -> str:
    return f"the server answered HTTP {status} to the WebSocket upgrade"


class _HandshakeGuard(trio.abc.Stream):
    """Until the handshake is over, an answer that is no WebSocket's and the end of the stream are errors, at once.

    trio-websocket would read a refusal to the end of its body, which may never come, and takes the end of the stream
    for no answer yet.
    """

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._head: bytes | None = b""  # what came before the handshake was over; None afterwards

    def opened(self) -> None:
        self._head = None

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        try:
            data = await self._stream.receive_some(max_bytes)
        except trio.BrokenResourceError as exc:
            if self._head is None:
                raise
            raise _reset() from exc
        if self._head is not None:
            if not data:
                raise HandshakeDropped("the server closed the connection before it answered the WebSocket upgrade")
            self._head = (self._head + data)[:_KEPT_BYTES]
            _judge(self._head)
        return data

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        sent = send_at_once(self._stream, data)
        if sent == len(data):
            return
        try:
            await self._stream.send_all(memoryview(data)[sent:])
        except trio.BrokenResourceError as exc:
            if self._head is None:
                raise
            raise _reset() from exc

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await self._stream.aclose()


def _judge(head: bytes) -> None:
    """:raises HandshakeFailed: an answer that begins so opens no WebSocket."""
    answered = _STATUS_LINE.match(head)
    if answered is not None:
        status = int(answered.group(1))
        if status >= 200:  # RFC 9110 section 15: below it a final answer, or the WebSocket, is yet to come
            raise HandshakeFailed(_answered(status), status)
    elif head[: len(_HTTP)] != _HTTP[: len(head)]:
        raise HandshakeFailed(f"the server does not speak HTTP: it begins with {head[:_SHOWN_BYTES]!r}")


def _reset() -> HandshakeDropped:
    return HandshakeDropped("the server reset the connection before it answered the WebSocket upgrade")
