"""One request as it arrives: its head, then its body."""

from collections.abc import Awaitable, Callable

import h11
import trio

from gymserve.http.head import bad_request, head_too_large, objection
from gymserve.http.inbox import Inbox
from gymserve.http.limits import Limits
from gymserve.http.refusal import Refusal, Refused

# h11 quotes the offending line in its message, and a line can be as long as a head.
DETAIL_CHARACTERS = 200


class Incoming:
    """Reads one request from the inbox through an h11 connection of its own, `protocol`, which its answer uses too."""

    def __init__(self, inbox: Inbox, limits: Limits) -> None:
        self._inbox = inbox
        self._limits = limits
        self.protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.head_bytes)

    @property
    def leftover(self) -> bytes:
        """What was read beyond this request."""
        return self.protocol.trailing_data[0]

    async def head(self, leftover: bytes) -> h11.Request:
        """The next head, beginning with what was read beyond the request before.

        Raises Refused for what is not HTTP/1.1 or too large, HungUp if the client leaves.
        """
        data = leftover.lstrip(b"\r\n")  # RFC 9112 section 2.2: empty lines before a request are ignored
        while not data:
            data = (await self._inbox.take()).lstrip(b"\r\n")
        self.protocol.receive_data(data)
        request = await self._next_event(self._inbox.take)
        assert isinstance(request, h11.Request), request
        if refusal := objection(request, head_bytes=self._limits.head_bytes):
            raise Refused(refusal)
        return request

    def check_declared(self, request: h11.Request) -> None:
        """Raises Refused if the body is already known to be too large."""
        declared = next((int(value) for name, value in request.headers if name == b"content-length"), 0)
        self._check_size(declared)

    async def body(self) -> bytes:
        """The whole body. Nothing answers before: keep-alive clients lose the request after an answer that came early.

        Raises Refused if it is too large, stalls or is malformed; HungUp if the client leaves.
        """
        parts, size = [], 0
        while isinstance(event := await self._next_event(self._take_promptly), h11.Data):
            size += len(event.data)
            self._check_size(size)
            parts.append(event.data)
        return b"".join(parts)

    def _check_size(self, size_bytes: int) -> None:
        limit = self._limits.body_bytes
        if size_bytes > limit:
            raise Refused(Refusal(413, "body_too_large", f"the request body is larger than {limit} bytes"))

    async def _take_promptly(self) -> bytes:
        seconds = self._limits.body_stall_seconds
        with trio.move_on_after(seconds):
            return await self._inbox.take()
        raise Refused(
            Refusal(
                408,
                "body_stalled",
                f"nothing more of the request body arrived for {seconds:g} s; send it without pauses",
            )
        )

    async def _next_event(self, take: Callable[[], Awaitable[bytes]]) -> object:
        while (event := self._parse()) is h11.NEED_DATA:
            self.protocol.receive_data(await take())
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
            detail = f"not HTTP/1.1: {exc}"[:DETAIL_CHARACTERS]
            raise Refused(bad_request(detail, 400 if too_long else exc.error_status_hint)) from exc
