"""How a client reaches gymserve: by HTTP/1.1 over any stream, one request at a time, with JSON both ways."""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import trio

_RECEIVE_BYTES = 65536
_REUSED_SECONDS = 30.0  # gymserve closes connections that are idle for 75 s

Dial = Callable[[], Awaitable[trio.abc.Stream]]


class Unanswered(Exception):
    """The connection ended before a whole answer came."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: Any
    cookie: str | None


class Link(Protocol):
    """One rollout's way to gymserve. It remembers the session; gymserve is told nothing when it ends."""

    async def ask(self, path: str, body: Mapping[str, Any]) -> Answer:
        """Cancelled, the client hangs up on that request. :raises Unanswered"""

    async def hang_up(self) -> None:
        """Leave without a word; another `ask` would begin anew."""


class HttpLink:
    """A connection that is kept from request to request, and the session's cookie."""

    def __init__(self, dial: Dial) -> None:
        self._dial = dial
        self._stream: trio.abc.Stream | None = None
        self._cookie: str | None = None
        self._answered_at = 0.0

    async def ask(self, path: str, body: Mapping[str, Any]) -> Answer:
        if trio.current_time() - self._answered_at > _REUSED_SECONDS:
            await self.hang_up()
        if self._stream is None:
            self._stream = await self._dial()
        answer = await ask(self._stream, path, body, self._cookie)
        self._answered_at = trio.current_time()
        self._cookie = answer.cookie or self._cookie
        return answer

    async def hang_up(self) -> None:
        if self._stream is not None:
            await trio.aclose_forcefully(self._stream)
            self._stream = None


async def ask(stream: trio.abc.Stream, path: str, body: Mapping[str, Any] | None, cookie: str | None) -> Answer:
    """A POST of ``body``, or a GET where there is none; interim answers are skipped. :raises Unanswered"""
    try:
        await stream.send_all(packet(path, body, cookie))
        return await _answer(stream)
    except (trio.BrokenResourceError, trio.ClosedResourceError) as exc:
        raise Unanswered(f"/{path}: the connection broke") from exc


def packet(path: str, body: Mapping[str, Any] | None, cookie: str | None) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    method = "GET" if body is None else "POST"
    lines = [f"{method} /{path} HTTP/1.1", "Host: 127.0.0.1"]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
    if cookie is not None:
        lines.append(f"Cookie: {cookie}")
    return "\r\n".join([*lines, "", ""]).encode() + data


async def _answer(stream: trio.abc.Stream) -> Answer:
    received = b""
    while True:
        while b"\r\n\r\n" not in received:
            received += await _more(stream)
        head, _, received = received.partition(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        status = int(first.split()[1])
        if status >= 200:
            break
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    while len(received) < int(headers["content-length"]):
        received += await _more(stream)
    cookie = headers.get("set-cookie")
    return Answer(status, json.loads(received), None if cookie is None else cookie.partition(";")[0])


async def _more(stream: trio.abc.Stream) -> bytes:
    data = await stream.receive_some(_RECEIVE_BYTES)
    if not data:
        raise Unanswered("the connection ended before a whole answer")
    return bytes(data)
