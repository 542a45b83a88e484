"""One request as it arrives: its head, then its body."""

import re

import h11
import trio

from gymserve.http.head import Head, bad_request, head_too_large, objection
from gymserve.http.inbox import Inbox
from gymserve.http.limits import SLICE_BYTES, Limits
from gymserve.http.plain import PlainRequest, read_plain
from gymserve.http.refusal import Refusal, Refused

# In its messages h11 quotes what it cannot read, which can be a line with a token in it, and as long as a head.
QUOTE = re.compile(r""":? (bytearray\()?b['"].*""", re.DOTALL)


_HEAD_STALLED = ("head_stalled", "the request line and headers")
_BODY_STALLED = ("body_stalled", "the request body")


class Incoming:
    """Reads one request from the inbox: a plain one by itself, any other through an h11 connection of its own.

    Either way `protocol` is that connection, for who answers by h11.
    """

    def __init__(self, inbox: Inbox, limits: Limits) -> None:
        self._inbox = inbox
        self._limits = limits
        self._protocol: h11.Connection | None = None
        self._plain: PlainRequest | None = None
        self._received = b""  # of the plain request: its head, and what came with it
        self._leftover = b""
        self.method = b""  # until a head was read

    @property
    def plain(self) -> PlainRequest | None:
        """The request, if it is a plain one; known once it has begun."""
        return self._plain

    @property
    def protocol(self) -> h11.Connection:
        """h11's, which has read as much of the request as we have."""
        if self._protocol is None:
            self._protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=self._limits.head_bytes)
            if self._plain is not None:
                self._retell(self._protocol, self._plain)
        return self._protocol

    def _retell(self, protocol: h11.Connection, plain: PlainRequest) -> None:
        """As to h11 a request without a body is what its body is not there for any more."""
        protocol.receive_data(self._received[: plain.head_bytes])
        protocol.next_event()
        if plain.body_bytes:
            protocol.receive_data(bytes(plain.body_bytes))
        while not isinstance(protocol.next_event(), h11.EndOfMessage):
            pass

    @property
    def leftover(self) -> bytes:
        """What was read beyond this request."""
        return self._leftover if self._plain is not None else self.protocol.trailing_data[0]

    async def begin(self, leftover: bytes) -> None:
        """Wait for the first bytes of the next head, unless they were read beyond the request before.

        Raises HungUp if the client leaves.
        """
        data = leftover.lstrip(b"\r\n")  # RFC 9112 section 2.2: empty lines before a request are ignored
        while not data:
            data = (await self._inbox.take()).lstrip(b"\r\n")
        self._plain = read_plain(data, head_bytes=self._limits.head_bytes, body_bytes=self._limits.body_bytes)
        if self._plain is None:
            self.protocol.receive_data(data)
        else:
            self._received = data

    async def head(self) -> Head:
        """The head that has begun.

        Raises Refused for what is not HTTP/1.1, too large or too slow; HungUp if the client leaves.
        """
        if self._plain is not None:
            self.method = self._plain.head.method
            return self._plain.head
        request = await self._next_event(_Pace(self._inbox, self._limits.stall_seconds, *_HEAD_STALLED))
        assert isinstance(request, h11.Request), request
        self.method = request.method
        head = Head(request.method, request.target, request.http_version, list(request.headers))
        if refusal := objection(head, head_bytes=self._limits.head_bytes):
            raise Refused(refusal)
        return head

    @property
    def awaits_continue(self) -> bool:
        """Whether the client wants to be asked for its body (RFC 9110 section 10.1.1)."""
        return self._plain is None and self.protocol.they_are_waiting_for_100_continue

    def check_declared(self, head: Head) -> None:
        """Raises Refused if the body is already known to be too large."""
        declared = next((int(value) for name, value in head.headers if name == b"content-length"), 0)
        self._check_size(declared)

    async def body(self) -> bytes:
        """The whole body. Nothing answers before: keep-alive clients lose the request after an answer that came early.

        Raises Refused if it is too large, too slow or malformed; HungUp if the client leaves.
        """
        if self._plain is not None:
            return await self._plain_body(self._plain)
        body = bytearray()  # not a list of its parts: of chunks of one byte each that takes a hundredfold
        pace = _Pace(self._inbox, self._limits.stall_seconds, *_BODY_STALLED)
        while isinstance(event := await self._next_event(pace), h11.Data):
            self._check_size(len(body) + len(event.data))
            body += event.data
        return bytes(body)

    async def _plain_body(self, plain: PlainRequest) -> bytes:
        end = plain.head_bytes + plain.body_bytes
        if len(self._received) >= end:
            self._leftover = self._received[end:]
            return self._received[plain.head_bytes : end]
        body = bytearray(self._received[plain.head_bytes :])
        pace = _Pace(self._inbox, self._limits.stall_seconds, *_BODY_STALLED)
        while len(body) < plain.body_bytes:
            body += await pace.take()
        self._leftover = bytes(body[plain.body_bytes :])
        return bytes(memoryview(body)[: plain.body_bytes])

    def _check_size(self, size_bytes: int) -> None:
        limit = self._limits.body_bytes
        if size_bytes > limit:
            raise Refused(Refusal(413, "body_too_large", f"the request body is larger than {limit} bytes"))

    async def _next_event(self, pace: "_Pace") -> object:
        while (event := self._parse()) is h11.NEED_DATA:
            self.protocol.receive_data(await pace.take())
        return event

    def _parse(self) -> object:
        in_head = self.protocol.their_state is h11.IDLE
        try:
            return self.protocol.next_event()
        except h11.RemoteProtocolError as exc:
            # h11's hint for a buffer that is too long is 431, also where it was a chunk's line.
            too_long = exc.error_status_hint == 431
            if too_long and in_head:
                raise Refused(head_too_large(self._limits.head_bytes)) from exc
            detail = f"not HTTP/1.1: {QUOTE.sub('', str(exc))}"
            raise Refused(bad_request(detail, 400 if too_long else exc.error_status_hint)) from exc


class _Pace:
    """What a client sends, as long as it sends slice after slice in time: a byte now and then is no progress."""

    def __init__(self, inbox: Inbox, seconds: float, error: str, what: str) -> None:
        self._inbox = inbox
        self._seconds = seconds
        self._error = error
        self._what = what
        self._begin_slice()

    def _begin_slice(self) -> None:
        self._due_at = trio.current_time() + self._seconds
        self._missing_bytes = SLICE_BYTES

    async def take(self) -> bytes:
        """As `Inbox.take`. Raises Refused if it is too slow."""
        with trio.CancelScope(deadline=self._due_at):
            data = await self._inbox.take()
            self._missing_bytes -= len(data)
            if self._missing_bytes <= 0:
                self._begin_slice()
            return data
        detail = f"{self._what} came too slowly: not the next {SLICE_BYTES} bytes, or the rest, in {self._seconds:g} s"
        raise Refused(Refusal(408, self._error, detail))
