"""How long and how large a client's doings may be."""

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB

SLICE_BYTES = 64 * KIB
"""The smallest progress that counts: with 64 KiB in 60 s a client of 1.1 KB/s is still served."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one HTTP connection puts up with; see each field for what happens beyond it.

    The idle time must be longer than the clients' own keep-alive (aiohttp: 15 s), or reuse races our close.
    """

    handshake_seconds: float = 10.0
    """For a TLS handshake; then the connection is closed silently."""

    idle_seconds: float = 75.0
    """From connecting, or from the last answer, to the next request; then the connection is closed silently."""

    arrival_seconds: float = 0.5
    """From connecting to the first request while the server stops; then as for other idle connections: at once."""

    head_bytes: int = 64 * KIB
    """Request line and headers together; then 431."""

    body_bytes: int = 64 * MIB
    """Request body, declared or counted as it arrives; then 413."""

    stall_seconds: float = 60.0
    """For a head that has begun, and for each 64 KiB of a body, or the rest of it; then 408. For the client to take
    each 64 KiB of an answer; then the connection is dropped.
    """

    interim_seconds: float = 15.0
    """Between interim answers (100 Continue) to a request whose answer has not begun; math.inf for none."""

    linger_seconds: float = 5.0
    """Reading and discarding after a last answer, so that unread input does not turn the close into a reset."""

    linger_bytes: int = 256 * MIB
    """The most that is read and discarded so."""


DEFAULT_LIMITS = Limits()
