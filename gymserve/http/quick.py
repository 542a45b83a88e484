"""Answers to plain requests: those that are whole at once rendered in one step, all others by h11."""

import re
from collections.abc import Callable
from time import time

from gymserve.http.answer import BODILESS_STATUSES, REASONS, Answer, date
from gymserve.http.refusal import Headers, Refusal

_NAME = rb"[!#$%&'*+.^_`|~0-9a-z-]++"  # of which all we know are in lower case
_LINES = re.compile(rb"(?:%s: [!-~]++(?: ++[!-~]++)*+\r\n)*+" % _NAME)
_MEANS_MORE = frozenset({b"connection", b"transfer-encoding", b"upgrade"})
_STATUS_LINES = {status: b"HTTP/1.1 %d %s\r\n" % (status, reason) for status, reason in REASONS.items()}
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class QuickAnswer:
    """As `Answer`, for a plain request."""

    def __init__(self, by_h11: Callable[[], Answer], *, closes: bool) -> None:
        """:param by_h11: the answer to this request, for where it is not whole at once, or not what HTTP allows.
        :param closes: the request was the client's last over this connection.
        """
        self._by_h11 = by_h11
        self._slow: Answer | None = None
        self._start: tuple[int, Headers] | None = None
        self._is_sent = False
        self._closes = closes

    @property
    def begun(self) -> bool:
        return self._is_sent or (self._slow is not None and self._slow.begun)

    @property
    def is_complete(self) -> bool:
        return self._is_sent or (self._slow is not None and self._slow.is_complete)

    @property
    def is_whole(self) -> bool:
        return self._is_sent or (self._slow is not None and self._slow.is_whole)

    @property
    def closes(self) -> bool:
        return self._closes if self._slow is None else self._slow.closes

    @property
    def may_be_followed(self) -> bool:
        return self._is_sent and not self._closes if self._slow is None else self._slow.may_be_followed

    def start(self, status: int, headers: Headers) -> None:
        if self._slow is None:
            self._start = (status, headers)
        else:
            self._slow.start(status, headers)

    def part(self, data: bytes, *, is_last: bool, is_closing: bool) -> bytes:
        if self._slow is None:
            closes = self._closes or is_closing
            head = (
                _head(*self._start, len(data), closes=closes) if self._start and is_last and not self._is_sent else None
            )
            if head is not None:
                self._is_sent, self._closes = True, closes
                return head + data
            self._slow = self._by_h11()
            if self._start is not None:
                self._slow.start(*self._start)
        return self._slow.part(data, is_last=is_last, is_closing=is_closing)

    def interim(self) -> bytes:
        return b"" if self.begun else _CONTINUE

    def refuse(self, refusal: Refusal) -> bytes:
        self.start(refusal.status, refusal.headers())
        return self.part(refusal.body(), is_last=True, is_closing=True)


def _head(status: int, headers: Headers, size_bytes: int, *, closes: bool) -> bytes | None:
    """The head of an answer of that size; None where h11 would change or refuse any of it."""
    line = _STATUS_LINES.get(status)
    names = [name for name, _ in headers]
    if line is None or status < 200 or status in BODILESS_STATUSES or not _MEANS_MORE.isdisjoint(names):
        return None
    if names.count(b"content-length") != 1 or (b"content-length", b"%d" % size_bytes) not in headers:
        return None
    lines = b"".join([b"%s: %s\r\n" % header for header in headers])
    if not _LINES.fullmatch(lines) or lines.count(b"\r\n") != len(headers):  # a value may look like further headers
        return None
    dated = b"" if b"date" in names else b"date: %s\r\n" % date(int(time()))
    return b"".join((line, lines, dated, b"connection: close\r\n\r\n" if closes else b"\r\n"))
