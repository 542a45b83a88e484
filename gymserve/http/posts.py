"""The routes that rollouts post to, each a handler that is called with nothing in between: they are what a run consists
of.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog

from gymserve.errors import GymserveError, GymserveFailed, ShuttingDown
from gymserve.gateway import Gateway
from gymserve.http.asked import Asked
from gymserve.http.connection import EXCHANGE_EXTENSION, REFUSAL_EXTENSION, STOPPED_EXTENSION
from gymserve.http.exchange import Exchange
from gymserve.http.fields import request_fields
from gymserve.http.prefix import ASKED_PATH, AsgiApp
from gymserve.http.reply import Reply, refused, replied
from gymserve.identity import SessionCookie

Handler = Callable[[Asked], Awaitable[Reply]]

_LASTING = frozenset({"/seed_session", "/close_session"})

_log = structlog.get_logger()


def beside_posts(app: AsgiApp, posts: "Posts") -> AsgiApp:
    """``app``, except for what is posted to any path but our own prefix."""

    async def dispatch(scope: Any, receive: Any, send: Any) -> None:
        await (posts if scope["type"] == "http" and is_post(scope) else app)(scope, receive, send)

    return dispatch


def is_post(scope: Any) -> bool:
    """Whether it is one of `Posts`' requests."""
    path: str = scope["path"]
    return (
        scope["method"] == "POST"
        and path[:1] == "/"
        and path[1:2] not in ("", "/")
        and path != "/gymserve"
        and not path.startswith("/gymserve/")
    )


class Posts:
    """An ASGI app for one HTTP connection of ours, whose extensions it needs.

    A request costs no task here: its handler runs in its connection's.
    """

    def __init__(
        self,
        gateway: Gateway,
        cookie: SessionCookie,
        handlers: Mapping[str, Handler],
        other: Handler,
        *,
        is_followed: bool,
    ) -> None:
        """:param handlers: by path. :param other: for every other path: a tool's name is one.
        :param is_followed: as `create_app` has it.
        """
        self._gateway = gateway
        self._cookie = cookie
        self._handlers = handlers
        self._other = other
        self._is_followed = is_followed

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body: bytes = (await receive())["body"]  # the whole: the connection has read it
        path: str = scope["path"]
        exchange: Exchange = scope["extensions"][EXCHANGE_EXTENSION]
        named = self._cookie.named_in(scope["headers"])
        asked = Asked(scope, body, named, exchange.cancel, lasts=path in _LASTING)
        is_delivered = False
        try:
            exchange.when_hung_up(asked.hang_up)
            reply = await self._reply(scope, asked)
            asked.take_effect()
            await send({"type": "http.response.start", "status": reply.status, "headers": self._head(reply, asked)})
            await send({"type": "http.response.body", "body": reply.body})
            is_delivered = True
        finally:
            if asked.seeded is not None and not is_delivered:
                self._gateway.close(asked.seeded, "the answer to its seed could not be delivered")

    def _head(self, reply: Reply, asked: Asked) -> list[tuple[bytes, bytes]]:
        # On every answer, errors too: NeMo Gym's simple_agent replaces its cookies by each answer's.
        if asked.session_id is None:
            return reply.head()
        return reply.head((b"set-cookie", self._cookie.header(asked.session_id).encode("ascii")))

    async def _reply(self, scope: Any, asked: Asked) -> Reply:
        refusal = scope["extensions"].get(REFUSAL_EXTENSION)
        if refusal is not None:
            return replied({"error": refusal["error"], "detail": refusal["detail"], "done": False}, refusal["status"])
        try:
            return await self._handlers.get(asked.path, self._other)(asked)
        except ShuttingDown as error:
            return refused(error) if not self._is_followed else await _sent_on(scope, error)
        except GymserveError as error:
            return refused(error)
        except Exception as error:  # the client waits for an answer
            fields = request_fields(scope, asked.session_id)
            _log.error("a request failed by a fault of ours", **fields, exc_info=error)
            return refused(GymserveFailed())


async def _sent_on(scope: Any, error: ShuttingDown) -> Reply:
    """To the same place, once it is not we who would hear it again: RFC 9110 section 15.4.8 has the client repeat its
    request as it was. aiohttp does, and so NeMo Gym; for httpx, and so verifiers, it is a failure like another.
    """
    await scope["extensions"][STOPPED_EXTENSION]()
    asked_path: str | None = scope.get(ASKED_PATH)
    location = scope["raw_path"] if asked_path is None else asked_path.encode("latin-1")
    return replied(error.body(), 307, (b"location", location))
