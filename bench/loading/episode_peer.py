"""An OpenEnv server driven directly: one episode's WebSocket on a plain socket, in the place of an HTTP connection."""

import base64
import json
import os
import socket
import struct
from collections.abc import Mapping
from urllib.parse import urlsplit

from loading.peer import Reply, Unanswered

_RECEIVE_BYTES = 256 * 1024
_UPGRADED = b"HTTP/1.1 101 "
_TEXT, _CLOSE, _PING, _PONG = 0x1, 0x8, 0x9, 0xA  # RFC 6455 section 5.2


class EpisodePeer:
    """As `Peer`, with each request as what it comes to on the wire.

    A seed is a new connection and a reset, a call is a step (of an MCP environment the call of its tool), a verify
    is the goodbye, whose answer is the server's CLOSE.
    """

    def __init__(self, url: str) -> None:
        """:param url: ``ws://HOST:PORT``"""
        address = urlsplit(url)
        self._address = (address.hostname or "", address.port or 80)
        self._host = address.netloc
        self._socket: socket.socket | None = None
        self._received = b""
        self._reset: bytes | None = None  # to be sent once the server has upgraded

    def fileno(self) -> int:
        """:raises Unanswered: there is no connection."""
        if self._socket is None:
            raise Unanswered("not connected")
        return self._socket.fileno()

    def ask(self, path: str, body: bytes, cookies: Mapping[bytes, bytes]) -> bool:
        """Send it; True if it goes over a new connection. :raises Unanswered: it cannot be sent."""
        try:
            if path == "seed_session":
                self._open(body)
            else:
                self._send(_TEXT, _question(path, body))
        except OSError as exc:
            raise Unanswered(str(exc)) from exc
        return path == "seed_session"

    def receive(self) -> Reply | None:
        """The answer, if all of it has come. :raises Unanswered: none will."""
        assert self._socket is not None
        try:
            data = self._socket.recv(_RECEIVE_BYTES)
        except OSError as exc:
            raise Unanswered(str(exc)) from exc
        if not data:
            raise Unanswered("the connection was closed")
        self._received += data
        if self._reset is not None:
            self._upgrade(self._reset)
            return None
        while (frame := self._next_frame()) is not None:
            opcode, payload = frame
            if opcode == _TEXT:
                return Reply(200 if payload.startswith(b'{"type":"observation"') else 500, payload, {})
            if opcode == _CLOSE:
                self.close()
                return Reply(200, payload, {})
            if opcode == _PING:
                self._send(_PONG, payload)
        return None

    def close(self) -> None:
        self._received = b""
        self._reset = None
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _open(self, row: bytes) -> None:
        self.close()
        self._socket = socket.create_connection(self._address)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        key = base64.b64encode(os.urandom(16)).decode("ascii")
        self._socket.sendall(
            f"GET /ws HTTP/1.1\r\nHost: {self._host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode("ascii")
        )
        self._reset = json.dumps({"type": "reset", "data": json.loads(row).get("reset_kwargs", {})}).encode()

    def _upgrade(self, reset: bytes) -> None:
        head, end, rest = self._received.partition(b"\r\n\r\n")
        if not end:
            return
        if not head.startswith(_UPGRADED):
            raise Unanswered(head.partition(b"\r\n")[0].decode("latin-1"))
        self._received, self._reset = rest, None
        self._send(_TEXT, reset)

    def _send(self, opcode: int, payload: bytes) -> None:
        if self._socket is None:
            raise Unanswered("not connected")
        size = len(payload)
        length = bytes([0x80 | size]) if size < 126 else struct.pack("!BH", 0xFE, size)
        # A mask of zeros is a mask: the bytes go out as they are.
        self._socket.sendall(bytes([0x80 | opcode]) + length + bytes(4) + payload)

    def _next_frame(self) -> tuple[int, bytes] | None:
        """OpenEnv's servers send no fragments."""
        data = self._received
        if len(data) < 2:
            return None
        opcode, size, begin = data[0] & 0x0F, data[1], 2
        if size >= 126:
            begin = 4 if size == 126 else 10
            size = int.from_bytes(data[2:begin], "big")
        if len(data) < begin + size:
            return None
        self._received = data[begin + size :]
        return opcode, data[begin : begin + size]


def _question(path: str, body: bytes) -> bytes:
    if path == "verify":
        return b'{"type":"close"}'
    if path != "step":
        body = b'{"type":"call_tool","tool_name":"%s","arguments":%s}' % (path.encode("ascii"), body)
    return b'{"type":"step","data":%s}' % body
