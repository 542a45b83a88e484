"""A peer that is cut off says nothing: when TCP gives it up."""

import socket
from typing import Protocol

PARTITION_SECONDS = 60.0
"""The default of what is waited for."""

_PROBES = 3

# Linux's name, then macOS's, for the seconds of silence before the first probe.
_SILENCE = next((getattr(socket, name) for name in ("TCP_KEEPIDLE", "TCP_KEEPALIVE") if hasattr(socket, name)), None)


class HasOptions(Protocol):
    """A socket of the standard library or of Trio."""

    def setsockopt(self, level: int, optname: int, value: int, /) -> None: ...


def notice_partition(sock: HasOptions, seconds: float) -> None:
    """Break the connection of ``sock`` when its peer's machine has acknowledged nothing for that long; 0: never.

    What was sent and is not acknowledged counts (RFC 5482, on Linux only), and a connection that is silent is probed
    (RFC 9293 section 3.8.4). A peer that is only slow acknowledges; but on Linux one that takes nothing off its socket
    for as long, while we want to send more than fits in there, counts as cut off too. Connections that a listening
    ``sock`` accepts have its options.
    """
    if not seconds:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if _SILENCE is not None:
        sock.setsockopt(socket.IPPROTO_TCP, _SILENCE, max(1, round(seconds / 2)))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, round(seconds / 2 / _PROBES)))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, max(1, round(seconds * 1000)))
