"""gymserve's own routes, under a prefix that no tool can shadow."""

from dataclasses import asdict

from quart import Response, request
from quart_trio import QuartTrio
from werkzeug.exceptions import NotFound

from gymserve.gateway import Gateway
from gymserve.http.bodies import answer
from gymserve.http.crowd import is_late
from gymserve.http.events import EVENT_STREAM, EventClients, EventsWanted
from gymserve.http.listing import Wanted, listing, story
from gymserve.http.models import read_query
from gymserve.instruments import Instruments


def add_own_routes(app: QuartTrio, gateway: Gateway, instruments: Instruments) -> None:
    clients = EventClients(gateway, instruments.events)

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
        wanted = read_query(Wanted, request.args)
        return answer(listing(gateway, wanted, instruments))

    @app.get("/gymserve/sessions/<session_id>")
    async def session(session_id: str) -> Response:
        return answer(story(gateway, instruments, session_id))

    @app.get("/gymserve/events")
    async def events() -> Response:
        after = request.headers.get("Last-Event-ID") or read_query(EventsWanted, request.args).after
        return Response(
            clients.stream(after),
            content_type=EVENT_STREAM,
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    @app.get("/gymserve/metrics")
    async def exposed_metrics() -> Response:
        return Response(instruments.metrics.exposed(), content_type=instruments.metrics.content_type)

    @app.route("/gymserve/<path:name>", methods=["DELETE", "GET", "PATCH", "POST", "PUT"])
    async def no_such_route(name: str) -> Response:
        raise NotFound  # and no tool of that name either
