"""A client's WebSocket over any stream: the protocol is wsproto's, the waiting ours.

Not trio-websocket's: its connection is a task that reads, a channel to whoever wants the message, and two locks, so
that a message is three switches of task and an open connection some kilobytes. Here whoever reads is woken by the
socket itself. Its opening would also wait for ever where a server accepts and stays silent or refuses in a body
without end; here all but silence is an error at once, and every failure of an opening is a `HandshakeFailed`.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

import h11
import trio
from wsproto.connection import Connection, ConnectionState, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, TextMessage
from wsproto.utilities import generate_nonce

from gymserve.address import EnvironmentAddress
from gymserve.sending import receive_later, send_at_once
from gymserve.upgrade import Upgrade, check_switch, rest_of_switch, upgrade

MAX_MESSAGE_BYTES = 100 * 2**20  # what OpenEnv's own client takes; the server limits nothing on its way out
_RECEIVE_BYTES = 64 * 1024
_KEPT_BYTES = 256
_SHOWN_BYTES = 20
_HTTP = b"HTTP/1."
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] (\d{3})")

# RFC 6455 section 7.4.1
_NORMAL = 1000
_DROPPED = 1006
_TOO_BIG = 1009


class HandshakeFailed(Exception):
    """The server did not open a WebSocket. ``status`` is the HTTP status it answered instead, None where it answered
    none.
    """

    def __init__(self, sentence: str, status: int | None = None) -> None:
        super().__init__(sentence)
        self.status = status


class HandshakeDropped(HandshakeFailed):
    """The connection ended before the upgrade was answered."""


class WebSocketEnded(Exception):
    """There are no more messages. ``code`` and ``reason`` are of the server's CLOSE (RFC 6455 section 7.1.5); 1006
    where the connection ended without one.
    """

    def __init__(self, code: int, reason: str | None = None) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason


class MessageTooLarge(WebSocketEnded):
    """The server's message was larger than is taken; it was told so."""


class WebSocket:
    """A connection that is open. One task receives; that one and another may send."""

    __slots__ = ("_connection", "_events", "_max_message_bytes", "_parts", "_sent", "_size", "_stream")

    def __init__(
        self, stream: trio.abc.Stream, connection: Connection, events: Sequence[Event], max_message_bytes: int
    ) -> None:
        """:param events: those that came with the end of the handshake."""
        self._stream = stream
        self._connection = connection
        self._events = list(events)
        self._max_message_bytes = max_message_bytes
        self._parts: list[Any] = []  # text or bytes
        self._size = 0  # of the parts
        self._sent: trio.Event | None = None  # while a send waits for the stream

    async def receive(self) -> str | bytes:
        """The next message; pings are answered meanwhile. :raises WebSocketEnded: there will be none."""
        while True:
            while self._events:
                message = await self._take(self._events.pop(0))
                if message is not None:
                    return message
            self._connection.receive_data(bytes(await self._received()))
            self._events += self._connection.events()

    async def _received(self) -> bytes | bytearray:
        try:
            data = await receive_later(self._stream, _RECEIVE_BYTES)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            data = b""
        if not data:
            raise WebSocketEnded(_DROPPED)
        return data

    async def _take(self, event: Event) -> str | bytes | None:
        match event:
            case TextMessage() | BytesMessage():
                return await self._whole(event)
            case Ping() if self._connection.state is ConnectionState.OPEN:  # after our CLOSE nothing can be sent
                await self._send(event.response())
            case CloseConnection():
                if self._connection.state is ConnectionState.REMOTE_CLOSING:
                    await self._send(event.response())
                raise WebSocketEnded(int(event.code), event.reason or None)
        return None

    async def _whole(self, event: TextMessage | BytesMessage) -> str | bytes | None:
        """The message whose last part this is; None where others are to come. Of text, characters are counted."""
        self._parts.append(event.data)
        self._size += len(event.data)
        if self._size > self._max_message_bytes:
            reason = f"Exceeded maximum message size: {self._max_message_bytes} bytes"
            await self.close(_TOO_BIG, reason)
            raise MessageTooLarge(_TOO_BIG, reason)
        if not event.message_finished:
            return None
        parts, self._parts, self._size = self._parts, [], 0
        whole: str | bytes = parts[0] if len(parts) == 1 else type(parts[0])().join(parts)
        return whole

    async def send(self, text: str, *, until: float = math.inf) -> None:
        """Send a message, or begin to: a server that takes nothing is waited for until then, in Trio's time. Where the
        connection has ended or is ending nothing is sent: `receive` tells.
        """
        if self._connection.state is ConnectionState.OPEN:
            await self._send(TextMessage(data=text), until=until)

    async def close(self, code: int = _NORMAL, reason: str | None = None) -> None:
        """Send a CLOSE, if none was sent yet; the server's own ends `receive`."""
        if self._connection.state is ConnectionState.OPEN:
            await self._send(CloseConnection(code=code, reason=reason))

    async def _send(self, event: Event, *, until: float = math.inf) -> None:
        await trio.lowlevel.checkpoint_if_cancelled()
        data = self._connection.send(event)
        sent = send_at_once(self._stream, data) if self._sent is None else 0
        if sent < len(data):
            with trio.CancelScope(deadline=until):
                await self._send_rest(memoryview(data)[sent:])

    async def _send_rest(self, rest: memoryview) -> None:
        while self._sent is not None:
            await self._sent.wait()
        self._sent = trio.Event()
        try:
            await self._stream.send_all(rest)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # what the server said before may still be unread: whoever receives learns it
        finally:
            self._sent.set()
            self._sent = None


async def open_websocket(
    stream: trio.abc.Stream,
    address: EnvironmentAddress,
    headers: Sequence[tuple[str, str]],
    *,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
) -> WebSocket:
    """The connection whose ``/ws`` is at ``address``, over ``stream``. Waits as long as the server takes.

    :param max_message_bytes: beyond it the connection is closed with 1009; of text characters are counted.
    :raises HandshakeFailed: there is none.
    """
    try:
        asked = upgrade(address.netloc, address.websocket_path, tuple(headers))
        return await _shake_hands(stream, asked, max_message_bytes)
    except HandshakeFailed:
        raise
    except (trio.BrokenResourceError, trio.ClosedResourceError) as exc:
        raise HandshakeDropped("the server reset the connection before it answered the WebSocket upgrade") from exc
    except Exception as exc:  # h11 says "garbage" in errors of its own
        raise HandshakeFailed(f"the server's answer to the WebSocket upgrade is none: {exc}") from exc


async def _shake_hands(stream: trio.abc.Stream, asked: Upgrade, max_message_bytes: int) -> WebSocket:
    key = generate_nonce()
    request = asked.request(key)
    sent = send_at_once(stream, request)
    if sent < len(request):
        await stream.send_all(memoryview(request)[sent:])
    head = b""
    protocol: h11.Connection | None = None
    rest: bytes | None = None
    while rest is None:
        data = bytes(await receive_later(stream, _RECEIVE_BYTES))
        if not data:
            raise HandshakeDropped("the server closed the connection before it answered the WebSocket upgrade")
        rest = rest_of_switch(data, key) if not head else None
        if rest is None:
            head = (head + data)[:_KEPT_BYTES]
            _judge(head)
            protocol = protocol or asked.asked_by_h11(key)
            rest = _switched_by_h11(protocol, data, key)
    connection = Connection(ConnectionType.CLIENT, [], rest)
    return WebSocket(stream, connection, list(connection.events()), max_message_bytes)


def _switched_by_h11(protocol: h11.Connection, data: bytes, key: bytes) -> bytes | None:
    """As `rest_of_switch`, once the answer is whole. :raises HandshakeFailed: it is another one."""
    protocol.receive_data(data)
    event = protocol.next_event()
    if event is h11.NEED_DATA:
        return None
    if not isinstance(event, h11.InformationalResponse):
        raise HandshakeFailed("the server answered something else to the WebSocket upgrade")
    if event.status_code != 101:
        raise HandshakeFailed(_answered(event.status_code), event.status_code)
    check_switch(list(event.headers), key)
    return protocol.trailing_data[0]


def _judge(head: bytes) -> None:
    """A refusal is one as soon as its status is read: its body may never end.

    :raises HandshakeFailed: an answer that begins so opens no WebSocket.
    """
    answered = _STATUS_LINE.match(head)
    if answered is not None:
        status = int(answered.group(1))
        if status >= 200:  # RFC 9110 section 15: below it a final answer, or the WebSocket, is yet to come
            raise HandshakeFailed(_answered(status), status)
    elif head[: len(_HTTP)] != _HTTP[: len(head)]:
        raise HandshakeFailed(f"the server does not speak HTTP: it begins with {head[:_SHOWN_BYTES]!r}")


def _answered(status: int) -> str:
    return f"the server answered HTTP {status} to the WebSocket upgrade"
