"""The web app of one gymserve: its routes, its cookie, its refusals."""

from collections.abc import Mapping
from typing import Any

import structlog
from quart import Response, g, request
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException

from gymserve.errors import GymserveError, GymserveFailed, ShuttingDown
from gymserve.gateway import Gateway
from gymserve.http.access import Guard, guarded
from gymserve.http.bodies import answer
from gymserve.http.connection import REFUSAL_EXTENSION, STOPPED_EXTENSION
from gymserve.http.delivery import see_through
from gymserve.http.hangups import quiet_hang_ups
from gymserve.http.mcp import McpEndpoint, beside_mcp
from gymserve.http.own import add_own_routes
from gymserve.http.prefix import ASKED_PATH, AsgiApp, strip_rollout_prefix
from gymserve.http.rollouts import Rollouts, add_rollout_routes
from gymserve.http.steering import add_acting_routes
from gymserve.identity import SessionCookie
from gymserve.metrics import Metrics

_log = structlog.get_logger()


def create_app(
    gateway: Gateway,
    cookie: SessionCookie,
    rollouts: Rollouts,
    metrics: Metrics,
    guard: Guard,
    mcp: McpEndpoint | None = None,
    *,
    is_followed: bool = False,
) -> AsgiApp:
    """The ASGI app of one gymserve, behind ``guard``.

    :param mcp: None answers 404 to MCP.
    :param is_followed: the port outlives this process: what it refuses as it stops, the next one there serves.
    """
    app = QuartTrio("gymserve", static_folder=None)
    # Bodies and answers are bounded by the HTTP connection, which knows how they progress.
    app.config.update(MAX_CONTENT_LENGTH=None, BODY_TIMEOUT=None, RESPONSE_TIMEOUT=None)
    _add_cookie(app, cookie)
    _add_errors(app)
    if is_followed:
        _send_on_what_a_stop_refuses(app)
    add_rollout_routes(app, rollouts)
    add_acting_routes(app, gateway)
    add_own_routes(app, gateway, metrics)
    served = quiet_hang_ups(see_through(app, gateway))
    return strip_rollout_prefix(guarded(served if mcp is None else beside_mcp(served, mcp), guard))


def _add_cookie(app: QuartTrio, cookie: SessionCookie) -> None:
    @app.before_request
    async def name_the_session() -> Response | None:
        named = map(cookie.session_id, request.cookies.getlist(cookie.name))  # a jar may hold a stale one too
        g.session_id = next((session_id for session_id in named if session_id is not None), None)
        refusal = (request.scope.get("extensions") or {}).get(REFUSAL_EXTENSION)
        if refusal is None:
            return None
        return answer({"error": refusal["error"], "detail": refusal["detail"], "done": False}, refusal["status"])

    @app.after_request
    async def hand_out_the_cookie(response: Response) -> Response:
        # On every answer, errors too: NeMo Gym's simple_agent replaces its cookies by each answer's.
        session_id = g.get("session_id")
        if session_id is not None:
            response.headers.add("Set-Cookie", cookie.header(session_id))
        return response


def _add_errors(app: QuartTrio) -> None:
    @app.errorhandler(GymserveError)
    async def refuse(error: GymserveError) -> Response:
        response = answer(error.body(), error.status)
        if error.retry_after_seconds is not None:
            response.headers["Retry-After"] = str(error.retry_after_seconds)
        return response

    @app.errorhandler(HTTPException)
    async def refuse_the_route(error: HTTPException) -> Response:
        status = error.code or 500
        kind = (error.name or "error").lower().replace(" ", "_")
        response = answer(
            {"error": kind, "detail": f"{request.method} {request.path}: {error.name}", "done": False}, status
        )
        for name, value in error.get_headers():
            if name.lower() == "allow":
                response.headers[name] = value
        return response

    @app.errorhandler(Exception)
    async def fail(error: Exception) -> Response:
        _log.error("a request failed by a fault of ours", path=request.path, exc_info=error)
        return answer(GymserveFailed().body(), GymserveFailed.status)


def _send_on_what_a_stop_refuses(app: QuartTrio) -> None:
    @app.errorhandler(ShuttingDown)
    async def send_on(error: ShuttingDown) -> Response:
        """To the same place, once it is not we who would hear it again: RFC 9110 section 15.4.8 has the client repeat
        its request as it was. aiohttp does, and so NeMo Gym; for httpx, and so verifiers, it is a failure like another.
        """
        extensions: Mapping[str, Any] = request.scope["extensions"]
        await extensions[STOPPED_EXTENSION]()
        response = answer(error.body(), 307)
        response.headers["Location"] = request.scope.get(ASKED_PATH, request.path)
        return response
