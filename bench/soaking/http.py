"""A client's HTTP as the soak needs it: whole requests, and requests that are sent in parts or left in the middle."""

import json
import socket
import struct
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import h11
import trio

ANSWER_SECONDS = 60.0
"""Within which every request must be answered: above the patience, the step timeout and a machine that is busy."""

_RECEIVE_BYTES = 65536


class Unanswered(Exception):
    """The connection ended, or the time, before a whole answer came."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: Any
    cookie: str | None

    @property
    def error(self) -> str:
        """The word for programs in a refusal."""
        return str(self.body["error"]) if self.status >= 400 and isinstance(self.body, dict) else ""


class Wire:
    """One HTTP/1.1 connection, seen from the client."""

    def __init__(self, stream: trio.SocketStream, host: str) -> None:
        """:param host: what requests have for a Host."""
        self.stream = stream
        self._host = host
        self._protocol = h11.Connection(h11.CLIENT)

    @property
    def may_be_used_again(self) -> bool:
        return self._protocol.our_state is self._protocol.their_state is h11.DONE

    async def ask(self, path: str, body: bytes | None, headers: Sequence[tuple[str, str]] = ()) -> Answer:
        """A POST of ``body``, or a GET where there is none, and its answer. :raises Unanswered"""
        try:
            await self.stream.send_all(self.packet(path, body, headers))
        except trio.BrokenResourceError:
            pass  # answered before all of it was out, or not at all
        return await self.answer()

    def packet(self, path: str, body: bytes | None, headers: Sequence[tuple[str, str]] = ()) -> bytes:
        """The bytes of a request, for who sends them in his own way before he waits for the `answer`."""
        if self.may_be_used_again:
            self._protocol.start_next_cycle()
        length = [] if body is None else [("Content-Length", str(len(body)))]
        method = "GET" if body is None else "POST"
        request = h11.Request(method=method, target=f"/{path}", headers=[("Host", self._host), *length, *headers])
        events = (request, h11.Data(data=body or b""), h11.EndOfMessage())
        return b"".join(self._protocol.send(event) or b"" for event in events)

    async def answer(self) -> Answer:
        """The answer to the request that was sent; interim ones are skipped. :raises Unanswered"""
        try:
            with trio.fail_after(ANSWER_SECONDS):
                return await self._answer()
        except trio.TooSlowError:
            raise Unanswered(f"nothing within {ANSWER_SECONDS:g} s") from None
        except (trio.BrokenResourceError, h11.RemoteProtocolError) as exc:
            raise Unanswered(f"the connection ended: {exc}") from exc

    async def ended(self) -> bytes:
        """What still comes until the server closes; a reset is an end too."""
        received = b""
        try:
            while more := await self.stream.receive_some(_RECEIVE_BYTES):
                received += more
        except trio.BrokenResourceError:
            pass
        return received

    def reset_on_close(self) -> None:
        """Leave with RST instead of FIN."""
        self.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async def _answer(self) -> Answer:
        head, data = None, b""
        while not isinstance(event := self._protocol.next_event(), h11.EndOfMessage):
            if event is h11.NEED_DATA:
                self._protocol.receive_data(await self.stream.receive_some(_RECEIVE_BYTES))
            elif isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                data += event.data
        assert head is not None
        try:
            return Answer(head.status_code, json.loads(data), _cookie(head))
        except ValueError:
            raise Unanswered(f"{head.status_code} with what is not JSON: {data!r}") from None


def _cookie(head: h11.Response) -> str | None:
    lines = [value for name, value in head.headers if name == b"set-cookie"]
    return lines[-1].partition(b";")[0].decode("ascii") if lines else None


async def dial(url: str) -> Wire:
    """:raises OSError: nobody listens."""
    address = urlsplit(url)
    return Wire(await trio.open_tcp_stream(address.hostname or "", address.port or 0), address.netloc)


@asynccontextmanager
async def dialled(url: str) -> AsyncIterator[Wire]:
    """A connection for the length of a block. :raises OSError: nobody listens."""
    wire = await dial(url)
    async with wire.stream:
        yield wire


async def get(url: str, path: str) -> Any:
    """The JSON at ``path``. :raises Unanswered: there is none. :raises OSError: nobody listens."""
    async with dialled(url) as wire:
        answer = await wire.ask(path, None)
    if answer.status != 200:
        raise Unanswered(f"GET /{path}: {answer.status} {answer.body}")
    return answer.body


def encoded(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body).encode()
