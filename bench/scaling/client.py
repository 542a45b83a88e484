"""A client of gymserve's, on a bare socket: as cheap as can be, since it shares the machine with what it measures."""

import json
import re
from dataclasses import dataclass
from typing import Any

import trio

IDLE_TIMEOUT_HEADER = "X-Gymserve-Idle-Timeout"
_RECEIVE_BYTES = 64 * 1024
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_COOKIE = re.compile(rb"\r\nset-cookie: *([^;\r]*)", re.IGNORECASE)


class Unexpected(Exception):
    """gymserve did not answer with 200."""


@dataclass(slots=True)
class Session:
    """A seeded session, by its cookie."""

    cookie: bytes


class Client:
    """One connection, which is kept."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream

    @classmethod
    async def connect(cls, port: int) -> "Client":
        return cls(await trio.open_tcp_stream("127.0.0.1", port))

    async def seed(self, episode: str, *, idle_timeout_seconds: float | None = None) -> Session:
        """:raises Unexpected: it was refused."""
        row: dict[str, Any] = {"responses_create_params": {"input": []}, "reset_kwargs": {"episode": episode}}
        if idle_timeout_seconds is not None:
            row["gymserve_idle_timeout"] = idle_timeout_seconds
        head = await self._ask("seed_session", json.dumps(row).encode(), b"")
        cookies = _COOKIE.findall(head)
        return Session(cookies[-1])

    async def call(self, session: Session) -> None:
        """:raises Unexpected: it was refused."""
        await self._ask("step", b'{"by": 1}', session.cookie)

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stream.aclose()

    async def _ask(self, path: str, body: bytes, cookie: bytes) -> bytes:
        """The head of the answer."""
        head = f"POST /{path} HTTP/1.1\r\nHost: gymserve\r\nContent-Type: application/json\r\n".encode()
        jar = b"Cookie: " + cookie + b"\r\n" if cookie else b""
        await self._stream.send_all(head + jar + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        received = b""
        while True:
            data = await self._stream.receive_some(_RECEIVE_BYTES)
            received += data
            head, end, rest = received.partition(b"\r\n\r\n")
            while end and head.startswith(b"HTTP/1.1 1"):
                received = rest
                head, end, rest = received.partition(b"\r\n\r\n")
            if end and (length := _LENGTH.search(head)) and len(rest) >= int(length[1]):
                if not head.startswith(b"HTTP/1.1 200"):
                    raise Unexpected((head.split(b"\r\n")[0] + b": " + rest).decode("utf-8", "replace"))
                return head
            if not data:
                raise Unexpected("the connection was closed")
