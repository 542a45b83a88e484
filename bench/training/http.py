"""What a rollout needs of HTTP/1.1: one connection, a POST at a time, JSON both ways, interim answers skipped."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import trio

_RECEIVE_BYTES = 65536
_HEAD_END = b"\r\n\r\n"
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_COOKIE = re.compile(rb"\r\nset-cookie: *([^;\r]+)", re.IGNORECASE)
_CLOSES = re.compile(rb"\r\nconnection: *close", re.IGNORECASE)
_CLIENT = b"User-Agent: python-httpx/0.28.1\r\n"  # by which gymserve knows verifiers


class Unanswered(Exception):
    """The connection ended, or there was none."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: Any


class Browser:
    """A connection that is opened again where the server has closed it, and the latest cookie."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._host, self._port = address.hostname or "", address.port or 80
        self._stream: trio.SocketStream | None = None
        self._received = b""
        self._cookie = b""

    async def post(self, path: str, body: Mapping[str, Any]) -> Answer:
        """:raises Unanswered"""
        payload = json.dumps(body).encode()
        head = f"POST /{path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
        cookie = b"Cookie: " + self._cookie + b"\r\n" if self._cookie else b""
        length = f"Content-Length: {len(payload)}\r\n\r\n".encode()
        try:
            if self._stream is None:
                self._stream = await trio.open_tcp_stream(self._host, self._port)
            await self._stream.send_all(head.encode() + _CLIENT + cookie + length + payload)
            return await self._answer()
        except OSError as exc:
            raise Unanswered(str(exc)) from exc
        except trio.BrokenResourceError as exc:
            raise Unanswered(str(exc)) from exc

    async def aclose(self) -> None:
        if self._stream is not None:
            await trio.aclose_forcefully(self._stream)
            self._stream = None

    async def _answer(self) -> Answer:
        status = 100
        while status < 200:
            while _HEAD_END not in self._received:
                await self._receive()
            head, _, self._received = self._received.partition(_HEAD_END)
            status = int(head[9:12])
        length = _LENGTH.search(head)
        if length is None:
            raise Unanswered(f"an answer without a length: {head!r}")
        size = int(length[1])
        while len(self._received) < size:
            await self._receive()
        body, self._received = self._received[:size], self._received[size:]
        if cookie := _COOKIE.search(head):
            self._cookie = cookie[1]
        if _CLOSES.search(head):
            await self.aclose()
        return Answer(status, json.loads(body))

    async def _receive(self) -> None:
        assert self._stream is not None
        data = await self._stream.receive_some(_RECEIVE_BYTES)
        if not data:
            raise Unanswered("the connection was closed")
        self._received += data
