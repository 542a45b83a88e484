"""An HTTP connection's switch to a WebSocket, a client's side (RFC 6455 section 4.1).

A server's answers are all alike but for the key, and so are the requests: they are rendered once by h11, which judges
what stands in them, and read in one step. Whatever else is answered is h11's to read. (wsproto's handshake does
both by h11 each time: 150 us of a seed.)
"""

import re
from collections.abc import Sequence
from functools import lru_cache

import h11
from wsproto.utilities import generate_accept_token

_NAME = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # RFC 9110 section 5.6.2
_SWITCHED = re.compile(rb"HTTP/1\.1 101 [ !-~]*\r\n((?:%s: [!-~]+(?: [!-~]+)*\r\n)*)\r\n" % _NAME)
_FIELDS = re.compile(rb"(%s): ([ !-~]+)\r\n" % _NAME)

Headers = Sequence[tuple[bytes, bytes]]


class NotSwitched(Exception):
    """The server answered, but as no server of WebSockets does."""


class Upgrade:
    """The request for a WebSocket of one server."""

    def __init__(self, netloc: str, path: str, headers: Sequence[tuple[str, str]]) -> None:
        """:raises h11.LocalProtocolError: they cannot be sent."""
        self._target = path.encode("ascii")
        self._headers = [
            (b"Host", netloc.encode("idna")),
            (b"Upgrade", b"websocket"),
            (b"Connection", b"Upgrade"),
            (b"Sec-WebSocket-Version", b"13"),
            *((name.encode("ascii"), value.encode("latin-1")) for name, value in headers),
        ]
        rendered = h11.Connection(h11.CLIENT).send(self._event())
        assert rendered is not None
        self._head = rendered.removesuffix(b"\r\n")

    def _event(self, *more: tuple[bytes, bytes]) -> h11.Request:
        return h11.Request(method=b"GET", target=self._target, headers=[*self._headers, *more])

    def request(self, key: bytes) -> bytes:
        return b"%sSec-WebSocket-Key: %s\r\n\r\n" % (self._head, key)

    def asked_by_h11(self, key: bytes) -> h11.Connection:
        """h11's connection, which has sent it."""
        protocol = h11.Connection(h11.CLIENT)
        protocol.send(self._event((b"Sec-WebSocket-Key", key)))
        return protocol


@lru_cache
def upgrade(netloc: str, path: str, headers: tuple[tuple[str, str], ...]) -> Upgrade:
    """One for all connections to a server."""
    return Upgrade(netloc, path, headers)


def rest_of_switch(data: bytes, key: bytes) -> bytes | None:
    """What follows the answer that ``data`` begins with; None where it is not as plain and whole as answers are.

    :raises NotSwitched: it opens no WebSocket.
    """
    found = _SWITCHED.match(data)
    if found is None:
        return None
    check_switch([(name.lower(), value) for name, value in _FIELDS.findall(found[1])], key)
    return data[found.end() :]


def check_switch(headers: Headers, key: bytes) -> None:
    """:param headers: their names in lower case. :raises NotSwitched: they open no WebSocket."""
    values: dict[bytes, bytes] = {}
    for name, value in headers:
        values[name] = value
        if name in (b"sec-websocket-extensions", b"sec-websocket-protocol"):
            raise NotSwitched(f"it has a {name.decode()} that nobody asked for")
    if b"upgrade" not in [token.strip().lower() for token in values.get(b"connection", b"").split(b",")]:
        raise NotSwitched("Missing header, 'Connection: Upgrade'")
    if values.get(b"upgrade", b"").lower() != b"websocket":
        raise NotSwitched("Missing header, 'Upgrade: websocket'")
    if values.get(b"sec-websocket-accept") != generate_accept_token(key):
        raise NotSwitched("Bad accept token")
