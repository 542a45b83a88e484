"""``/mcp``: the way in for clients that speak the Model Context Protocol over HTTP."""

import importlib
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import structlog
import trio

from gymserve.call import Reply
from gymserve.errors import GymserveFailed
from gymserve.gateway import Gateway
from gymserve.http.connection import REFUSAL_EXTENSION
from gymserve.http.mcp_tools import McpTools
from gymserve.http.prefix import AsgiApp
from gymserve.http.refusal import Refusal
from gymserve.identity import TOKEN_HEADER, SessionToken

_log = structlog.get_logger()

URL_PATH = "/mcp"
_SERVER_MODULE = "gymserve.http.mcp_server"


@asynccontextmanager
async def open_mcp(
    gateway: Gateway, token: SessionToken, *, observation_tool: str | None, server_name: str
) -> AsyncIterator["McpEndpoint"]:
    """An endpoint that answers until the context is left. To be opened around the HTTP server, inside the gateway.

    :param observation_tool: as `call_tool` has it. :param server_name: what clients see it by.
    """
    endpoint = McpEndpoint(McpTools(gateway, token, observation_tool), token, server_name)
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(endpoint.run)
        try:
            yield endpoint
        except Exception as exc:  # raised outside, so that the nursery does not wrap it
            failure = exc
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


def beside_mcp(app: AsgiApp, endpoint: "McpEndpoint") -> AsgiApp:
    """``app``, except that requests to `URL_PATH` and below it are the endpoint's."""

    async def dispatch(scope: Any, receive: Any, send: Any) -> None:
        is_mcp = scope["type"] == "http" and (scope["path"] == URL_PATH or scope["path"].startswith(f"{URL_PATH}/"))
        await (endpoint if is_mcp else app)(scope, receive, send)

    return dispatch


class McpEndpoint:
    """An ASGI app that answers MCP's requests while `run` runs.

    The official SDK does it. It is loaded when the first request comes, in a thread: it takes a second or more, and
    most servers are never asked. Each request is answered by itself, in JSON; the protocol's own sessions and streams
    are not offered.
    """

    def __init__(self, tools: McpTools, token: SessionToken, server_name: str, load: "Load | None" = None) -> None:
        """:param load: instead of loading the SDK."""
        self._tools = tools
        self._token = token
        self._server_name = server_name
        self._load = load or _load
        self._wanted = trio.Event()
        self._server: Reply[AsgiApp] = Reply()

    def offer(self, session_id: str) -> Mapping[str, Any]:
        """Where a client finds the session's tools, as NeMo Gym tells it in a seed's answer (``MCPServerMetadata``)."""
        return {
            "server_name": self._server_name,
            "url_path": URL_PATH,
            "transport": "http",
            "headers": {TOKEN_HEADER: self._token.value(session_id)},
        }

    async def run(self) -> None:
        """Serve until cancelled. If the SDK fails, the next request has it started anew."""
        while True:
            await self._wanted.wait()
            try:
                await self._serve()
            except* Exception as group:  # the firewall around the SDK
                _log.error("MCP failed", exc_info=group)
            self._wanted = trio.Event()
            self._server.fail(GymserveFailed())
            self._server = Reply()

    async def _serve(self) -> None:
        make_manager = await self._load()
        manager = make_manager(self._tools, self._server_name)
        async with manager.run():
            self._server.answer(manager.handle_request)
            await trio.sleep_forever()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        refusal = scope["extensions"].get(REFUSAL_EXTENSION)
        if refusal is not None:
            await _refuse(Refusal(**refusal), send)
        elif scope["method"] != "POST":
            await _answer(405, _POST_ONLY, send, (b"allow", b"POST"))
        else:
            await self._converse(scope, receive, send)

    async def _converse(self, scope: Any, receive: Any, send: Any) -> None:
        """Have the SDK answer, for as long as the client waits for it; the SDK itself does not look."""
        unread = [await receive()]  # the whole body: the connection has read it
        answering = False

        async def replayed() -> Any:
            return unread.pop() if unread else await receive()

        async def sending(message: Any) -> None:
            nonlocal answering
            answering = True
            await send(message)

        async def cancel_at_hang_up() -> None:
            await receive()
            if not answering:  # else it is over, and the SDK clears up
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel_at_hang_up)
            await self._have_answered(scope, replayed, sending)
            nursery.cancel_scope.cancel()

    async def _have_answered(self, scope: Any, receive: Any, send: Any) -> None:
        self._wanted.set()
        try:
            server = await self._server.outcome()
        except GymserveFailed as failed:
            await _refuse(Refusal(failed.status, failed.kind, str(failed)), send)
        else:
            await server(scope, receive, send)


MakeManager = Callable[[McpTools, str], Any]  # mcp_server.make_manager's type cannot be named without the SDK
Load = Callable[[], Awaitable[MakeManager]]


async def _load() -> MakeManager:
    if _SERVER_MODULE not in sys.modules:
        await trio.to_thread.run_sync(importlib.import_module, _SERVER_MODULE, abandon_on_cancel=True)
    make_manager: MakeManager = importlib.import_module(_SERVER_MODULE).make_manager
    return make_manager


_POST_ONLY = json.dumps(
    {
        "jsonrpc": "2.0",
        "id": None,
        "error": {
            "code": -32600,
            "message": "Method Not Allowed: this server has no streams and no sessions; use POST",
        },
    }
).encode()


async def _refuse(refusal: Refusal, send: Any) -> None:
    await _answer(refusal.status, refusal.body(), send)


async def _answer(status: int, body: bytes, send: Any, *headers: tuple[bytes, bytes]) -> None:
    start = {"type": "http.response.start", "status": status}
    await send({**start, "headers": [(b"content-type", b"application/json"), *headers]})
    await send({"type": "http.response.body", "body": body})
