"""The routes: NeMo Gym's resources-server protocol, and gymserve's own under ``/gymserve/``."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import structlog
from quart import Response, g, request
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException, NotFound

from gymserve.errors import BadArguments, GymserveError, GymserveFailed, UnknownTool
from gymserve.gateway import Gateway
from gymserve.http.bodies import answer, read_object
from gymserve.http.connection import REFUSAL_EXTENSION
from gymserve.http.hangups import quiet_hang_ups
from gymserve.http.prefix import AsgiApp, strip_rollout_prefix
from gymserve.identity import SessionCookie, new_session_id, short
from gymserve.session import Session
from gymserve.toolbox import MakeStep

_log = structlog.get_logger()

_LABEL_HEADER = "X-Gymserve-Label"
_LABEL_CHARACTERS = 200
_MASKED_STATUS = 503
_VERIFIERS_AGENT = "python-httpx/"

MaskedAsError = Literal["never", "always", "auto"]


@dataclass(frozen=True, slots=True)
class Dialect:
    """The choices that a client sees.

    ``masked_as_error``: a masked verify is answered with 503, which keeps a rollout out of prime-rl's training;
    ``auto`` does so for verifiers only (they are told by their User-Agent).
    """

    observation_tool: str | None = "observation"
    masked_as_error: MaskedAsError = "never"


def create_app(gateway: Gateway, cookie: SessionCookie, dialect: Dialect) -> AsgiApp:
    """The ASGI app of one gymserve."""
    app = QuartTrio("gymserve", static_folder=None)
    # Bodies and answers are bounded by the HTTP connection, which knows how they progress.
    app.config.update(MAX_CONTENT_LENGTH=None, BODY_TIMEOUT=None, RESPONSE_TIMEOUT=None)
    _add_cookie(app, cookie)
    _add_errors(app)
    _add_rollouts(app, gateway, dialect)
    _add_own(app, gateway)
    return strip_rollout_prefix(quiet_hang_ups(app))


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


def _add_rollouts(app: QuartTrio, gateway: Gateway, dialect: Dialect) -> None:
    @app.get("/")
    async def alive() -> Response:
        return answer({"status": "ok"})

    @app.get("/reverify_mode")
    async def reverify_mode() -> Response:
        return answer("unsupported")  # a score cannot be had again without the rollout's session

    @app.post("/seed_session")
    async def seed_session() -> Response:
        known = g.session_id
        g.session_id = known or new_session_id()  # a body that is refused costs no session that there is
        row = read_object(await _body()).value
        kwargs = _reset_kwargs(row)
        gateway.close(known, "the client seeded again")
        g.session_id = new_session_id()
        await gateway.seed(g.session_id, _label(row), kwargs)
        return answer({})

    @app.post("/verify")
    async def verify() -> Response:
        row = read_object(await _body()).value
        result = await gateway.verify(g.session_id, row)
        return answer(result.body, _MASKED_STATUS if result.masked and _wants_errors(dialect) else 200)

    @app.post("/close_session")
    async def close_session() -> Response:
        gateway.close(g.session_id, "the client closed it")
        return answer({})

    @app.post("/<path:tool>")
    async def call_tool(tool: str) -> Response:
        body = await _body()
        session = gateway.find(g.session_id)
        if tool == dialect.observation_tool:
            return answer(_latest(session))
        make_step = _tool(session, tool, dialect)
        observation = await session.call(make_step(read_object(body).text))
        return answer(session.toolbox.render(observation))


def _add_own(app: QuartTrio, gateway: Gateway) -> None:
    @app.get("/gymserve/health")
    async def health() -> Response:
        return answer({"status": "ok"})

    @app.get("/gymserve/ready")
    async def ready() -> Response:
        readiness = gateway.readiness()
        return answer(asdict(readiness), 200 if readiness.ready else 503)

    @app.get("/gymserve/sessions")
    async def sessions() -> Response:
        return answer(
            {
                "sessions": [_shown(session) for session in gateway.sessions()],
                "waiting": gateway.waiting,
                "servers": [
                    {"url": str(opener.address), "held": opener.line.held, "capacity": opener.line.capacity}
                    for opener in gateway.openers
                ],
            }
        )

    @app.route("/gymserve/<path:name>", methods=["DELETE", "GET", "PATCH", "POST", "PUT"])
    async def no_such_route(name: str) -> Response:
        raise NotFound  # and no tool of that name either


async def _body() -> bytes:
    # The connection has read it to its end already; positional arguments, as only so are they typed.
    return await request.get_data(True, False, False)


def _shown(session: Session) -> dict[str, Any]:
    left = session.idle_seconds_left
    return {
        "id": short(session.id),
        "label": session.label,
        "state": session.state,
        "env": str(session.opener.address),
        "steps": session.steps,
        "reward": session.reward,
        "idle_deadline_in_seconds": None if left is None else round(left, 3),
    }


def _tool(session: Session, name: str, dialect: Dialect) -> MakeStep:
    try:
        return session.toolbox.tool(name)
    except UnknownTool as unknown:
        if dialect.observation_tool is None:
            raise
        raise UnknownTool(name, [*unknown.names, dialect.observation_tool]) from None


def _latest(session: Session) -> dict[str, Any]:
    assert session.latest is not None, "an open session has been reset"
    return session.toolbox.render(session.latest)


def _reset_kwargs(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The row's own arguments for reset: ``reset_kwargs`` at its top, else under ``verifier_metadata``."""
    metadata = row.get("verifier_metadata")
    nested = metadata.get("reset_kwargs") if isinstance(metadata, dict) else None
    kwargs = row.get("reset_kwargs", nested)
    if kwargs is None:
        return {}
    if not isinstance(kwargs, dict):
        raise BadArguments.because("dict_type", "reset_kwargs must be a JSON object", "reset_kwargs")
    return kwargs


def _label(row: Mapping[str, Any]) -> str | None:
    """The run's name: a request header, else the row's ``gymserve_label``, else the name in its ``agent_ref``."""
    agent = row.get("agent_ref")
    label = (
        _utf8(request.headers.get(_LABEL_HEADER))
        or row.get("gymserve_label")
        or (agent.get("name") if isinstance(agent, dict) else None)
    )
    return label[:_LABEL_CHARACTERS] if isinstance(label, str) and label else None


def _utf8(header: str | None) -> str | None:
    """A header's text, which ASGI servers hand over as Latin-1."""
    return None if header is None else header.encode("latin-1").decode("utf-8", "replace")


def _wants_errors(dialect: Dialect) -> bool:
    if dialect.masked_as_error == "auto":
        return request.headers.get("User-Agent", "").startswith(_VERIFIERS_AGENT)
    return dialect.masked_as_error == "always"
