"""The verdict on a failed opening: does the server only need time? A pure function of the exception."""

import enum
import errno
import os
import socket
import ssl
from collections.abc import Iterator

import httpx
import trio

from gymserve import wire
from gymserve.episode import AnswerTimedOut, EpisodeLost, Refused
from gymserve.network import NotAnEnvironmentServer, tls_fault
from gymserve.websocket import HandshakeDropped, HandshakeFailed


class Verdict(enum.Enum):
    FULL = "no room: waited out until somebody leaves"
    BUSY = "no answer yet: waited out with a backoff"
    HOPELESS = "waiting will not help"


_FULL_STATUSES = frozenset({429, 503})
_BUSY_STATUSES = frozenset({502, 504})
# RFC 6455 section 7.4.1 and IANA's registry: dropped, error, restart, try again later
_BUSY_CLOSE_CODES = frozenset({1006, 1011, 1012, 1013})
_BUSY_ERRNOS = frozenset(
    {errno.ETIMEDOUT, errno.ECONNRESET, errno.ECONNABORTED, errno.EPIPE, errno.EMFILE, errno.ENFILE}
)


def verdict(exc: BaseException) -> Verdict:
    """The verdict on ``exc``: that of the first of its causes, as a traceback reads them, that says something."""
    for cause in causes(exc):
        said = _says(cause)
        if said is not None:
            return said
    return Verdict.HOPELESS


def causes(exc: BaseException) -> Iterator[BaseException]:
    """``exc``, then its cause, else its context unless suppressed, and so on; a group's members stand in its place."""
    seen: set[int] = set()
    left = [exc]
    while left:
        cause = left.pop()
        if id(cause) in seen:
            continue
        seen.add(id(cause))
        yield cause
        following = _following(cause)
        if following is not None:
            left.append(following)
        if isinstance(cause, BaseExceptionGroup):
            left.extend(reversed(cause.exceptions))


def sentence(exc: BaseException) -> str:
    """What happened, in the words of the innermost cause that has some: trio and httpx only wrap it."""
    match exc:
        case trio.TooSlowError() | httpx.ConnectTimeout():
            return "no TCP connection in time"
        case httpx.TimeoutException():
            return "GET /schema was not answered in time"
    tls = next((cause for cause in causes(exc) if isinstance(cause, ssl.SSLError)), None)
    if tls is not None:
        return tls_fault(tls)
    said = [_words(cause) for cause in causes(exc) if not isinstance(cause, BaseExceptionGroup)]
    return said[-1] if isinstance(exc, OSError | httpx.TransportError) else said[0]


def _words(exc: BaseException) -> str:
    """Of an error of the system what it means: its number, and Python's tuple of an address, tell nobody more."""
    if isinstance(exc, OSError) and exc.errno is not None:
        return os.strerror(exc.errno) if exc.errno > 0 else exc.strerror or str(exc)
    return str(exc) or type(exc).__name__


def is_refused(exc: BaseException) -> bool:
    """Whether nobody listens at the port."""
    return any(isinstance(cause, ConnectionRefusedError) for cause in causes(exc))


def _following(exc: BaseException) -> BaseException | None:
    if exc.__cause__ is not None:
        return exc.__cause__
    if not exc.__suppress_context__:
        return exc.__context__
    # httpcore cuts its chain with "from None" and keeps the error beneath as an argument.
    return next((argument for argument in exc.args if isinstance(argument, BaseException)), None)


def _says(exc: BaseException) -> Verdict | None:
    match exc:
        case Refused():
            return Verdict.FULL if exc.refusal.code == wire.CAPACITY_REACHED else Verdict.HOPELESS
        case HandshakeDropped():
            return Verdict.BUSY
        case HandshakeFailed() | NotAnEnvironmentServer():
            return _of_status(exc.status)
        case EpisodeLost():
            return Verdict.BUSY if exc.close_code in _BUSY_CLOSE_CODES else Verdict.HOPELESS
        case (
            AnswerTimedOut()
            | trio.TooSlowError()
            | httpx.TimeoutException()
            | httpx.ReadError()
            | httpx.RemoteProtocolError()
        ):
            return Verdict.BUSY
        case ssl.SSLError():
            return Verdict.BUSY if isinstance(exc, ssl.SSLEOFError) else Verdict.HOPELESS
        case socket.gaierror():
            return Verdict.BUSY if exc.errno == socket.EAI_AGAIN else Verdict.HOPELESS
        case OSError() if exc.errno is not None:
            return Verdict.BUSY if exc.errno in _BUSY_ERRNOS else Verdict.HOPELESS
        case _:
            return None


def _of_status(status: int | None) -> Verdict:
    if status in _FULL_STATUSES:
        return Verdict.FULL
    return Verdict.BUSY if status in _BUSY_STATUSES else Verdict.HOPELESS
