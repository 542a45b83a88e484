"""gymserve's own routes, under a prefix that no tool can shadow."""

from dataclasses import asdict
from typing import Any

from quart import Response, request
from quart_trio import QuartTrio
from werkzeug.exceptions import NotFound

from gymserve.door import Door
from gymserve.gateway import Gateway
from gymserve.http.bodies import answer
from gymserve.http.crowd import is_late
from gymserve.identity import short
from gymserve.metrics import Metrics
from gymserve.session import Session


def add_own_routes(app: QuartTrio, gateway: Gateway, metrics: Metrics) -> None:
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
                "instance": gateway.instance,
                "sessions": [_shown(session) for session in gateway.sessions()],
                "waiting": gateway.waiting,
                "holds_seeds": gateway.is_holding_seeds,
                "held_labels": gateway.held_labels,
                "reclaimed_alive": gateway.reclaimed_alive,
                "servers": [_server(door) for door in gateway.pool.doors],
            }
        )

    @app.get("/gymserve/metrics")
    async def exposed_metrics() -> Response:
        return Response(metrics.exposed(), content_type=metrics.content_type)

    @app.route("/gymserve/<path:name>", methods=["DELETE", "GET", "PATCH", "POST", "PUT"])
    async def no_such_route(name: str) -> Response:
        raise NotFound  # and no tool of that name either


def _shown(session: Session) -> dict[str, Any]:
    left = session.idle_seconds_left
    return {
        "id": short(session.id),
        "label": session.label,
        "state": session.state,
        "env": None if session.env is None else str(session.env),
        "steps": session.steps,
        "reward": session.reward,
        "idle_deadline_in_seconds": None if left is None else round(left, 3),
    }


def _server(door: Door) -> dict[str, Any]:
    return {
        "url": str(door.address),
        "held": door.gate.held,
        "capacity": door.gate.capacity,
        "state": door.state,
    }
