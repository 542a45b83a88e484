"""The HTTP server: hypercorn's accepting, lifespan and stop around our connections."""

import errno
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import FunctionType, SimpleNamespace
from typing import Any

import hypercorn.trio.run
import trio
from hypercorn.config import Config, Sockets
from hypercorn.typing import Framework
from hypercorn.utils import wrap_app

from gymserve.http.accepting import serve_listeners
from gymserve.http.connection import Connection
from gymserve.http.crowd import Crowd
from gymserve.http.limits import DEFAULT_LIMITS, Limits
from gymserve.partition import PARTITION_SECONDS, notice_partition

BACKLOG = 2048

_FIRST_INHERITED = 3  # sd_listen_fds(3): SD_LISTEN_FDS_START


async def serve(
    app: Framework,
    *,
    host: str,
    port: int,
    stop: Callable[[], Awaitable[float]],
    tls: ssl.SSLContext | None = None,
    limits: Limits = DEFAULT_LIMITS,
    crowd: Crowd | None = None,
    partition_seconds: float = PARTITION_SECONDS,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve an ASGI app on `host` (name, IPv4 or IPv6 address) and `port` (0: any free one) until `stop` returns.

    `stop` returns when the listeners should close, with the number of seconds that answers under way may still take.
    `tls` makes it HTTPS. `task_status.started` gets the URLs, as `["http://127.0.0.1:8100"]`.

    Raises OSError if the address cannot be bound, and hypercorn's LifespanFailureError if the app cannot start.
    """
    config = _Config(tls)
    config.loglevel = "WARNING"

    async def shutdown_trigger() -> None:
        config.graceful_timeout = await stop()

    try:
        with _bind(host, port) as listener:
            notice_partition(listener, partition_seconds)
            await _worker(limits, crowd or Crowd())(
                wrap_app(app, config.wsgi_max_body_size, "asgi"),
                config,
                sockets=Sockets([], [listener], []) if tls is None else Sockets([listener], [], []),
                shutdown_trigger=shutdown_trigger,
                task_status=task_status,
            )
    except BaseExceptionGroup as group:
        error = _sole_error(group)
        if error is None:
            raise
        try:
            raise error from None
        finally:
            del error  # the traceback holds this frame


class _Config(Config):
    """hypercorn's, with a TLS context that is made already, where it would make one of files."""

    def __init__(self, tls: ssl.SSLContext | None) -> None:
        super().__init__()
        self._tls = tls

    def create_ssl_context(self) -> ssl.SSLContext | None:
        return self._tls


def _bind(host: str, port: int) -> socket.socket:
    """Our own, as hypercorn leaves the socket open when binding fails, and binds only after the app has started."""
    if is_socket_inherited():
        return _inherited_socket()
    host = host.removeprefix("[").removesuffix("]")
    is_ipv6 = ":" in host
    return socket.create_server(
        (host, port),
        family=socket.AF_INET6 if is_ipv6 else socket.AF_INET,
        backlog=BACKLOG,
        dualstack_ipv6=is_ipv6 and socket.has_dualstack_ipv6(),
    )


def is_socket_inherited(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether whoever started us has opened the listening socket for us (sd_listen_fds(3)): connections that come while
    no gymserve runs wait in it, so that one can follow another without refusing any.
    """
    return environ.get("LISTEN_PID") == str(os.getpid()) and environ.get("LISTEN_FDS", "0") != "0"


def _inherited_socket() -> socket.socket:
    """:raises OSError: it is none that listens."""
    try:
        listener = socket.socket(fileno=_FIRST_INHERITED)
        listens = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as exc:
        raise OSError(exc.errno, f"the inherited socket (LISTEN_FDS) cannot be used: {exc.strerror}") from exc
    if not listens:
        listener.close()
        raise OSError(errno.EINVAL, "the inherited socket (LISTEN_FDS) does not listen")
    listener.set_inheritable(False)
    return listener


def _worker(limits: Limits, crowd: Crowd) -> Callable[..., Awaitable[None]]:
    """hypercorn's worker with our Connection where it looks up its TCPServer, and our accepting for trio's.

    The function is rebuilt over globals of its own: hypercorn's module stays as it is for whoever else serves with it.
    """

    def seat(*args: Any) -> Connection:
        return Connection(*args, limits=limits, crowd=crowd)

    accepting = SimpleNamespace(**{**vars(trio), "serve_listeners": partial(serve_listeners, crowd=crowd)})
    stock = hypercorn.trio.run.worker_serve
    worker = FunctionType(stock.__code__, {**vars(hypercorn.trio.run), "TCPServer": seat, "trio": accepting})
    worker.__kwdefaults__ = stock.__kwdefaults__
    return worker


def _sole_error(group: BaseExceptionGroup[BaseException]) -> Exception | None:
    """The one error inside nested groups; None if there are several or it is no Exception."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error if isinstance(error, Exception) and not isinstance(error, BaseExceptionGroup) else None
