"""gymserve's own routes, under a prefix that no tool can shadow."""

from dataclasses import asdict
from typing import Any

from quart import Response, request
from quart_trio import QuartTrio
from werkzeug.exceptions import NotFound

from gymserve.gateway import Gateway
from gymserve.http.bodies import answer
from gymserve.http.crowd import is_late
from gymserve.identity import short
from gymserve.session import Session


def add_own_routes(app: QuartTrio, gateway: Gateway) -> None:
    @app.get("/gymserve/health")
    async def health() -> Response:
        return answer({"status": "ok"})

    @app.get("/gymserve/ready")
    async def ready() -> Response:
        readiness = gateway.readiness()
        ready = readiness.ready and not is_late(request.scope)
        return answer({**asdict(readiness), "ready": ready}, 200 if ready else 503)

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
