"""Requests as the clients of rollouts send them, read in one step. Everything else is h11's to read, and to judge.

A plain request is a POST whose head came whole, with a length and no coding, and nothing in it that HTTP/1.1 lets mean
more than it says. What is taken for one h11 would read the same way; the tests hold them side by side.
"""

import re
from dataclasses import dataclass
from functools import lru_cache

from gymserve.http.head import Head

_NAME = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]++"  # RFC 9110 section 5.6.2
_FIELD = rb"(%s):[ \t]*+((?:[!-~]++(?:[ \t]++(?=[!-~]))?+)*+)[ \t]*+\r\n" % _NAME
_HEAD = re.compile(rb"POST (/[!-~]*+) HTTP/1\.1\r\n((?:%s)*+)\r\n" % _FIELD.replace(b"(%s)" % _NAME, _NAME))
_FIELDS = re.compile(_FIELD)
_LENGTH = re.compile(rb"[0-9]{1,15}")
_MEANS_MORE = frozenset({b"transfer-encoding", b"expect", b"upgrade"})
_END = b"\r\n\r\n"
_MOST_BYTES = 8 * 1024  # of a head
_REMEMBERED = 1024  # heads: those of a rollout's calls are all the same but for the length


@dataclass(frozen=True, slots=True)
class PlainRequest:
    """``head_bytes``: the size of the head on the wire; ``body_bytes``: that of the body which follows it. ``closes``:
    its client wants no other answer over this connection.
    """

    head: Head
    head_bytes: int
    body_bytes: int
    closes: bool


def read_plain(data: bytes, *, head_bytes: int, body_bytes: int) -> PlainRequest | None:
    """The request that ``data`` begins with, if it is a plain one within these limits."""
    end = data.find(_END, 0, min(head_bytes, _MOST_BYTES))
    request = _read(data[: end + len(_END)]) if end >= 0 else None
    return request if request is not None and request.body_bytes <= body_bytes else None


@lru_cache(_REMEMBERED)
def _read(text: bytes) -> PlainRequest | None:
    found = _HEAD.fullmatch(text)
    if found is None:
        return None
    headers = [(name.lower(), value) for name, value in _FIELDS.findall(found[2])]
    by_name = dict(headers)
    length = by_name.get(b"content-length", b"0")
    connection = by_name.get(b"connection", b"keep-alive").lower()
    if (
        b"host" not in by_name
        or not _MEANS_MORE.isdisjoint(by_name)
        or connection not in (b"keep-alive", b"close")
        or (len(by_name) < len(headers) and _says_twice(headers))
        or not _LENGTH.fullmatch(length)
    ):
        return None
    return PlainRequest(Head(b"POST", found[1], b"1.1", headers), len(text), int(length), connection == b"close")


def _says_twice(headers: list[tuple[bytes, bytes]]) -> bool:
    names = [name for name, _ in headers]
    return any(names.count(name) > 1 for name in (b"host", b"content-length", b"connection"))
