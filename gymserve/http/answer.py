"""One answer: an app's messages in, HTTP/1.1 bytes out."""

import math
from functools import lru_cache
from http import HTTPStatus
from time import time
from wsgiref.handlers import format_date_time

import h11

from gymserve.http.refusal import Headers, Refusal

# RFC 9110 sections 9.3.2, 15.3.5 and 15.4.5.
BODILESS_STATUSES = frozenset({204, 304})
CONTINUE = h11.InformationalResponse(status_code=100, headers=[], reason=b"Continue")
REASONS = {status.value: status.phrase.encode("ascii") for status in HTTPStatus}


class Answer:
    """Renders the answer to the request that `protocol` read.

    The head waits for the first part of the body, as ASGI wants it; so an app that fails before has sent nothing yet,
    and a short answer is one packet. h11 chooses the framing and refuses what does not add up with LocalProtocolError.
    """

    def __init__(self, protocol: h11.Connection, *, method: bytes = b"") -> None:
        self._protocol = protocol
        self._is_head = method == b"HEAD"
        self._bodiless = self._is_head
        self._start: tuple[int, Headers] | None = None
        self._bytes_to_come = math.inf

    @property
    def begun(self) -> bool:
        """Whether bytes were rendered; from then on another answer is impossible."""
        return self._protocol.our_state not in (h11.IDLE, h11.SEND_RESPONSE)

    @property
    def is_complete(self) -> bool:
        """Whether its end was rendered."""
        return self._protocol.our_state in (h11.DONE, h11.MUST_CLOSE)

    @property
    def is_whole(self) -> bool:
        """Whether all of it was rendered, also if the app has not said so yet: frameworks often add an empty part."""
        return self.is_complete or (self.begun and self._bytes_to_come <= 0)

    @property
    def closes(self) -> bool:
        """Whether no other answer can follow this one, which is complete."""
        return self._protocol.our_state is not h11.DONE

    @property
    def may_be_followed(self) -> bool:
        """Whether another request can be read and answered after this one."""
        return self._protocol.our_state is self._protocol.their_state is h11.DONE

    def start(self, status: int, headers: Headers) -> None:
        """Take status and headers; they are rendered with the first part."""
        self._start = (status, headers)
        self._bodiless = self._is_head or status in BODILESS_STATUSES
        self._bytes_to_come = next(
            (int(value) for name, value in headers if name.lower() == b"content-length"), math.inf
        )

    def part(self, data: bytes, *, is_last: bool, is_closing: bool) -> bytes:
        """The next bytes to send. `is_closing` adds `Connection: close`, if the head is among them.

        An answer without a body is complete with its head: a stream asked for by HEAD might never end.

        Raises h11.LocalProtocolError for an answer that is not HTTP: no start, bad headers, a body unlike its
        Content-Length.
        """
        rendered = [self._head(is_closing=is_closing)]
        if data and not self._bodiless:
            rendered.append(self._protocol.send(h11.Data(data=data)))
            self._bytes_to_come -= len(data)
        if is_last or self._bodiless:
            rendered.append(self._protocol.send(h11.EndOfMessage()))
        return b"".join(rendered)

    def interim(self) -> bytes:
        """`100 Continue`: what the client asked for with `Expect`, or a sign of life for a client that waits.

        It may come any number of times, but nothing comes once the answer has begun, nor to HTTP/1.0 clients (RFC 9110
        section 15.2). No other 1xx will do: http.client, and so requests, takes 102 and 103 for the answer.
        """
        if self.begun or self._protocol.their_http_version == b"1.0":
            return b""
        return self._protocol.send(CONTINUE)

    def refuse(self, refusal: Refusal) -> bytes:
        """The whole of an answer that says no and closes."""
        self.start(refusal.status, refusal.headers())
        return self.part(refusal.body(), is_last=True, is_closing=True)

    def _head(self, *, is_closing: bool) -> bytes:
        if self._start is None:
            return b""
        (status, headers), self._start = self._start, None
        completed = _completed(status, headers, is_closing)
        reason = REASONS.get(status, b"")
        return self._protocol.send(h11.Response(status_code=status, reason=reason, headers=completed))


def _completed(status: int, headers: Headers, is_closing: bool) -> Headers:
    dropped = {b"connection"} if is_closing else set()
    if status == 204:
        dropped.add(b"content-length")  # RFC 9110 section 8.6
    kept = [(name, value) for name, value in headers if name.lower() not in dropped]
    if not any(name.lower() == b"date" for name, _ in kept):
        kept.append((b"date", date(int(time()))))
    if is_closing:
        kept.append((b"connection", b"close"))
    return kept


@lru_cache(maxsize=1)
def date(second: int) -> bytes:
    """RFC 9110 section 6.6.1."""
    return format_date_time(second).encode("ascii")
