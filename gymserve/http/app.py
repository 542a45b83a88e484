"""The web app of one gymserve: where each request goes; and its routes that are seldom asked, which are Quart's."""

import structlog
from quart import Response, g, request
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException, NotFound

from gymserve.errors import GymserveError, GymserveFailed
from gymserve.gateway import Gateway
from gymserve.http.access import Guard, guarded
from gymserve.http.bodies import answer
from gymserve.http.connection import REFUSAL_EXTENSION
from gymserve.http.counted import counted
from gymserve.http.dashboard.page import add_dashboard
from gymserve.http.fields import request_fields
from gymserve.http.hangups import quiet_hang_ups
from gymserve.http.mcp import McpEndpoint, beside_mcp
from gymserve.http.own import add_own_routes
from gymserve.http.posts import Posts, beside_posts
from gymserve.http.prefix import AsgiApp, strip_rollout_prefix
from gymserve.http.reply import refused
from gymserve.http.rollouts import Rollouts
from gymserve.http.steering import add_acting_routes
from gymserve.identity import SessionCookie
from gymserve.instruments import Instruments

_log = structlog.get_logger()


def create_app(
    gateway: Gateway,
    cookie: SessionCookie,
    rollouts: Rollouts,
    instruments: Instruments,
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
    add_dashboard(app)
    _add_open_routes(app)
    add_acting_routes(app, gateway)
    add_own_routes(app, gateway, instruments)
    posts = Posts(gateway, cookie, rollouts.handlers(), rollouts.call_tool, is_followed=is_followed)
    served = beside_posts(quiet_hang_ups(app), posts)
    guard_passed = served if mcp is None else beside_mcp(served, mcp)
    return strip_rollout_prefix(counted(guarded(guard_passed, guard), instruments.metrics))


def _add_cookie(app: QuartTrio, cookie: SessionCookie) -> None:
    @app.before_request
    async def name_the_session() -> Response | None:
        g.session_id = cookie.named_in(request.scope["headers"])
        refusal = (request.scope.get("extensions") or {}).get(REFUSAL_EXTENSION)
        if refusal is None:
            return None
        return answer({"error": refusal["error"], "detail": refusal["detail"], "done": False}, refusal["status"])

    @app.after_request
    async def hand_out_the_cookie(response: Response) -> Response:
        session_id = g.get("session_id")
        if session_id is not None:
            response.headers.add("Set-Cookie", cookie.header(session_id))
        return response


def _add_open_routes(app: QuartTrio) -> None:
    @app.get("/reverify_mode")
    async def reverify_mode() -> Response:
        return answer("unsupported")  # a score cannot be had again without the rollout's session

    @app.post("/<path:anything>")
    async def posted(anything: str) -> Response:
        raise NotFound  # `Posts` has served it; the rule is here for what it tells of other methods


def _add_errors(app: QuartTrio) -> None:
    @app.errorhandler(GymserveError)
    async def refuse(error: GymserveError) -> Response:
        reply = refused(error)
        response = Response(reply.body, status=reply.status)
        for name, value in reply.head():
            response.headers[name.decode("ascii")] = value.decode("ascii")
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
        fields = request_fields(request.scope, g.get("session_id"))
        _log.error("a request failed by a fault of ours", **fields, exc_info=error)
        return answer(GymserveFailed().body(), GymserveFailed.status)
