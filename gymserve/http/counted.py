"""Requests by what they are for."""

from typing import Any

from gymserve.http.connection import EXCHANGE_EXTENSION
from gymserve.http.posts import is_post
from gymserve.http.prefix import AsgiApp
from gymserve.http.tally import Tally

_POSTS = {
    "/seed_session": "seed",
    "/reset": "seed",
    "/verify": "verify",
    "/close_session": "close",
    "/close": "close",
    "/mcp": "mcp",
    "/aggregate_metrics": "other",
    "/sandbox_access": "other",
}


def counted(app: AsgiApp, tally: Tally) -> AsgiApp:
    """``app``, of whose requests `tally` is told."""

    async def counting(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            scope["extensions"][EXCHANGE_EXTENSION].count(tally, route(scope))
        await app(scope, receive, send)

    return counting


def route(scope: Any) -> str:
    """``seed``, ``tool``, ``verify``, ``close``, ``mcp``, ``gymserve`` (its own routes) or ``other``."""
    path: str = scope["path"]
    if is_post(scope):
        return "mcp" if path.startswith("/mcp/") else _POSTS.get(path, "tool")
    if path == "/mcp" or path.startswith("/mcp/"):
        return "mcp"
    return "gymserve" if path.startswith("/gymserve/") else "other"
