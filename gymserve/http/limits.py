"""How long and how large a client's doings may be."""

from dataclasses import dataclass

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class Limits:
    """What one HTTP connection puts up with; see each field for what happens beyond it.

    The idle time must be longer than the clients' own keep-alive (aiohttp: 15 s), or reuse races our close.
    """

    idle_seconds: float = 75.0
    """From connecting, or from the last answer, to a complete request head; then the connection is closed silently."""

    head_bytes: int = 64 * KIB
    """Request line and headers together; then 431."""

    body_bytes: int = 64 * MIB
    """Request body, declared or counted as it arrives; then 413."""

    body_stall_seconds: float = 60.0
    """Without a byte of a body that was announced; then 408."""

    send_stall_seconds: float = 30.0
    """Without the client taking the next slice of an answer; then the connection is dropped."""

    interim_seconds: float = 15.0
    """Between interim answers (100 Continue) to a request whose answer has not begun; math.inf for none."""

    linger_seconds: float = 5.0
    """Reading and discarding after a last answer, so that unread input does not turn the close into a reset."""

    linger_bytes: int = 256 * MIB
    """The most that is read and discarded so."""


DEFAULT_LIMITS = Limits()
