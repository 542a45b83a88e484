"""One HTTP/1.1 connection at a time, on a plain socket: what it takes to ask and to know an answer, and no more."""

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

_RECEIVE_BYTES = 256 * 1024
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)
_CLOSES = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)
_COOKIE = re.compile(rb"\r\nset-cookie: *([^=;\s]+)=([^;\r]*)", re.IGNORECASE)
_INTERIM = b"HTTP/1.1 1"
_LAST_CHUNK = b"0\r\n\r\n"


class Unanswered(Exception):
    """The connection ended before a whole answer came, or there is none."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer; ``cookies`` are those that it sets."""

    status: int
    body: bytes
    cookies: Mapping[bytes, bytes]


class Peer:
    """A client's end. Its socket blocks: `receive` is to be called when there is something to read."""

    def __init__(self, url: str, *, closes: bool) -> None:
        """:param closes: each request has a connection of its own."""
        address = urlsplit(url)
        self._address = (address.hostname or "", address.port or 80)
        self._host = address.netloc
        self._closes = closes
        self._socket: socket.socket | None = None
        self._received = b""

    def fileno(self) -> int:
        """:raises Unanswered: there is no connection."""
        if self._socket is None:
            raise Unanswered("not connected")
        return self._socket.fileno()

    def ask(self, path: str, body: bytes, cookies: Mapping[bytes, bytes]) -> bool:
        """Send a POST; True if it goes over a new connection. :raises Unanswered: it cannot be sent."""
        is_new = self._socket is None
        try:
            if self._socket is None:
                self._socket = socket.create_connection(self._address)
                self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.sendall(self._packet(path, body, cookies))
        except OSError as exc:
            raise Unanswered(str(exc)) from exc
        return is_new

    def _packet(self, path: str, body: bytes, cookies: Mapping[bytes, bytes]) -> bytes:
        jar = b"; ".join(b"%s=%s" % pair for pair in cookies.items())
        return b"".join(
            (
                f"POST /{path} HTTP/1.1\r\nHost: {self._host}\r\n".encode("ascii"),
                b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body),
                b"Cookie: %s\r\n" % jar if jar else b"",
                b"Connection: close\r\n" if self._closes else b"",
                b"\r\n",
                body,
            )
        )

    def receive(self) -> Reply | None:
        """The answer, if all of it has come. :raises Unanswered: none will."""
        assert self._socket is not None
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except OSError as exc:
            raise Unanswered(str(exc)) from exc
        self._received += data
        while self._received.startswith(_INTERIM) and b"\r\n\r\n" in self._received:
            self._received = self._received.partition(b"\r\n\r\n")[2]
        head, end, body = self._received.partition(b"\r\n\r\n")
        if not end or not _is_whole(head, body, ended=not data):
            if not data:
                raise Unanswered("the connection was closed")
            return None
        self._received = b""
        if self._closes or not data or _CLOSES.search(head):
            self.close()
        return Reply(int(head[9:12]), body, dict(_COOKIE.findall(head)))

    def close(self) -> None:
        self._received = b""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def _is_whole(head: bytes, body: bytes, *, ended: bool) -> bool:
    if length := _LENGTH.search(head):
        return len(body) >= int(length[1])
    return body.endswith(_LAST_CHUNK) if _CHUNKED.search(head) else ended
