"""What goes over the wire: a TCP relay before a gymserve that notes the requests that pass it."""

import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from urllib.parse import urlsplit

_REQUEST = re.compile(rb'(?P<method>[A-Z]+) (?P<path>\S+) HTTP/1\.1\r\n|"method": ?"(?P<rpc>[a-z/]+)"')
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) [^\r\n]*\r\n")
_CONTINUE = 100
_LONGEST_LINE_BYTES = 1000


@dataclass
class Exchange:
    """A request and its answer. Times are in seconds since the epoch.

    ``rpc`` is what an MCP request asks for; ``interim`` counts the 100 Continue; ``hung_up_at`` is when the client
    closed its side before it was answered.
    """

    method: str
    path: str
    asked_at: float
    rpc: str | None = None
    interim: int = 0
    status: int | None = None
    answered_at: float | None = None
    hung_up_at: float | None = None

    @property
    def what(self) -> str:
        """What is asked for: a path, or an MCP method."""
        return self.rpc or self.path


class Relay:
    """``url`` leads to the gymserve at ``target_url``. All that is sent, and each end of sending, is passed on as
    it is.
    """

    def __init__(self, target_url: str) -> None:
        target = urlsplit(target_url)
        self._target = (target.hostname or "", target.port or 0)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.exchanges: list[Exchange] = []

    def asked(self) -> list[str]:
        """What was asked for, in order."""
        return [exchange.what for exchange in self.exchanges]

    def latest(self, what: str) -> Exchange:
        """:raises StopIteration: it was never asked for."""
        return next(exchange for exchange in reversed(self.exchanges) if exchange.what == what)

    def answered_at(self) -> float:
        """When the latest answer came."""
        return max(exchange.answered_at for exchange in self.exchanges if exchange.answered_at is not None)

    @contextmanager
    def relaying(self) -> Iterator["Relay"]:
        thread = threading.Thread(target=self._accept, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # shut down: the end of the relay
            connection = _Connection(client, socket.create_connection(self._target), self.exchanges)
            threading.Thread(target=connection.pass_requests, daemon=True).start()
            threading.Thread(target=connection.pass_answers, daemon=True).start()


class _Connection:
    """What is asked and answered on it comes in lines that no JSON can contain, which has no bare CR."""

    def __init__(self, client: socket.socket, server: socket.socket, exchanges: list[Exchange]) -> None:
        self._client = client
        self._server = server
        self._exchanges = exchanges
        self._unanswered: list[Exchange] = []

    def pass_requests(self) -> None:
        tail = b""
        for packet in _packets(self._client):
            tail = self._note_requests(tail + packet)
            with suppress(OSError):
                self._server.sendall(packet)
        for exchange in self._unanswered:
            exchange.hung_up_at = time.time()
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_WR)

    def pass_answers(self) -> None:
        tail = b""
        for packet in _packets(self._server):
            tail = self._note_answers(tail + packet)
            with suppress(OSError):
                self._client.sendall(packet)
        self._server.close()
        with suppress(OSError):
            self._client.shutdown(socket.SHUT_RDWR)
        self._client.close()

    def _note_requests(self, text: bytes) -> bytes:
        """What of ``text`` may be the beginning of another line."""
        end = 0
        for found in _REQUEST.finditer(text):
            if found["rpc"] is None:
                self._begin(found["method"].decode(), found["path"].decode())
            elif self._unanswered:
                self._unanswered[-1].rpc = found["rpc"].decode()
            end = found.end()
        return text[end:][-_LONGEST_LINE_BYTES:]

    def _begin(self, method: str, path: str) -> None:
        exchange = Exchange(method, path, time.time())
        self._unanswered.append(exchange)
        self._exchanges.append(exchange)

    def _note_answers(self, text: bytes) -> bytes:
        end = 0
        for line in _STATUS.finditer(text):
            status = int(line[1])
            if status == _CONTINUE:
                self._unanswered[0].interim += 1
            else:
                exchange = self._unanswered.pop(0)
                exchange.status, exchange.answered_at = status, time.time()
            end = line.end()
        return text[end:][-_LONGEST_LINE_BYTES:]


def _packets(end: socket.socket) -> Iterator[bytes]:
    with suppress(OSError):
        while packet := end.recv(65536):
            yield packet
