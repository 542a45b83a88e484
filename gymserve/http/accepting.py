"""Accepting connections, also when there are more than file descriptors."""

import errno
from collections.abc import Awaitable, Callable, Sequence
from typing import NoReturn

import trio

from gymserve.descriptors import OUT_OF_DESCRIPTORS
from gymserve.http.crowd import Crowd

_OUT_OF_MEMORY = frozenset({errno.ENOBUFS, errno.ENOMEM})
_PAUSE_SECONDS = 0.1
_AT_A_TIME = 32  # connections to make room; each costs a millisecond

Listener = trio.SocketListener | trio.SSLListener[trio.SocketStream]


async def serve_listeners(
    handler: Callable[[trio.abc.Stream], Awaitable[object]],
    listeners: Sequence[Listener],
    *,
    handler_nursery: trio.Nursery,
    crowd: Crowd,
) -> NoReturn:
    """In the seat of trio's function of this name, which logs a traceback ten times a second while descriptors are out
    and leaves none for anybody else. While `crowd` is shut, clients wait in the listener's backlog.

    `handler` closes its stream, and no error leaves it.
    """
    async with trio.open_nursery() as nursery:
        for listener in listeners:
            nursery.start_soon(_accept_all, listener, handler, handler_nursery, crowd)
    raise AssertionError("accepting never ends by itself")


async def _accept_all(
    listener: Listener,
    handler: Callable[[trio.abc.Stream], Awaitable[object]],
    handler_nursery: trio.Nursery,
    crowd: Crowd,
) -> None:
    async with listener:
        while True:
            while crowd.is_shut:
                crowd.make_room(_AT_A_TIME)
                await trio.sleep(_PAUSE_SECONDS)
            try:
                stream = await listener.accept()
            except OSError as exc:
                if exc.errno not in OUT_OF_DESCRIPTORS | _OUT_OF_MEMORY:
                    raise
                crowd.make_room(_AT_A_TIME)
                await trio.sleep(_PAUSE_SECONDS)
            else:
                handler_nursery.start_soon(_handle, handler, stream)


async def _handle(handler: Callable[[trio.abc.Stream], Awaitable[object]], stream: trio.abc.Stream) -> None:
    await handler(stream)
