"""gymserve's acting routes: what people and their scripts do to a running gymserve. Each takes a JSON object, and tells
in one what it did.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractContextManager
from typing import Annotated, Any

import structlog
import trio
from pydantic import AfterValidator, Field
from quart import Response, g, request
from quart.wrappers.response import ResponseBody
from quart_trio import QuartTrio

from gymserve.address import parse_address
from gymserve.errors import ShuttingDown
from gymserve.gateway import Gateway
from gymserve.http.bodies import answer, read_object
from gymserve.http.models import Body, Model, read_model
from gymserve.strict_json import written

_log = structlog.get_logger()

_LONGEST_SECONDS = 7 * 24 * 3600.0
_BEAT_SECONDS = 15.0

Seconds = Annotated[float, Field(ge=0, le=_LONGEST_SECONDS, allow_inf_nan=False)]
Label = Annotated[str, Field(min_length=1, max_length=200)]


def _address(text: str) -> str:
    parse_address(text)
    return text


class CloseBody(Model):
    """A run to end: its label, and for how long the seeds of its stragglers are refused."""

    label: Label
    for_seconds: Seconds = 60.0


class DrainBody(Model):
    """How long the running sessions may take, before they are ended."""

    wait_seconds: Seconds = 1800.0


class ServerBody(Model):
    """An environment server: its address, and the most that may be held there."""

    env: Annotated[str, AfterValidator(_address)]
    slots: Annotated[int, Field(ge=1)] | None = None


class LeavingBody(Model):
    """An environment server that is to leave."""

    env: Annotated[str, AfterValidator(_address)]


def add_acting_routes(app: QuartTrio, gateway: Gateway) -> None:
    @app.post("/gymserve/touch")
    async def touch_session() -> Response:
        """For a client that will think long; the idle clock of its session starts again."""
        return answer({"idle_deadline_in_seconds": gateway.touch(g.session_id)})

    @app.post("/gymserve/close")
    async def close_run() -> Response:
        body = await _read(CloseBody)
        return answer({"closed": gateway.close_label(body.label, refused_seconds=body.for_seconds)})

    @app.post("/gymserve/hold")
    async def hold_run() -> Response:
        """Answered at once, and to the end only when gymserve stops: the run is closed when its client hangs up,
        however that came about.
        """
        body = await _read(CloseBody)
        gateway.check_label(body.label)
        return Response(_Held(gateway, body), content_type="application/jsonl")

    @app.post("/gymserve/drain")
    async def drain_gymserve() -> Response:
        """Answered when it is over, and gymserve stops; a client that hangs up before changes nothing."""
        gateway.hold_seeds((await _read(DrainBody)).wait_seconds)
        return answer({"cut_short": await gateway.seeds_refused()})

    @app.post("/gymserve/pool/add")
    async def add_server() -> Response:
        body = await _read(ServerBody)
        door = gateway.pool.add(parse_address(body.env), slots=body.slots)
        slots = {} if body.slots is None else {"slots": body.slots}
        _log.info("environment server added", env=str(door.address), **slots)
        return answer({"url": str(door.address), "state": door.state})

    @app.post("/gymserve/pool/drain")
    async def drain_server() -> Response:
        address = parse_address((await _read(LeavingBody)).env)
        return answer({"url": str(address), "held": gateway.pool.drain(address)})


class _Held(ResponseBody):
    """The answer of a hold: a line that tells of it, empty ones while it lasts (for whoever in between, or the client
    itself, gives up a silent connection), and a last one where gymserve ends it.
    """

    def __init__(self, gateway: Gateway, run: CloseBody) -> None:
        self._gateway = gateway
        self._label = run.label
        self._lines = self._tell()
        self._holding: AbstractContextManager[None] = gateway.holding(run.label, refused_seconds=run.for_seconds)

    async def __aenter__(self) -> AsyncIterator[str]:
        self._holding.__enter__()
        return self._lines

    async def __aexit__(self, *raised: Any) -> None:
        self._holding.__exit__(*raised)
        await self._lines.aclose()  # where its client left in the middle

    async def _tell(self) -> AsyncGenerator[str]:
        yield written({"held": self._label}) + "\n"
        while True:
            with trio.move_on_after(_BEAT_SECONDS):
                await self._gateway.seeds_refused()
                break
            yield "\n"
        yield written(ShuttingDown().body()) + "\n"


async def _read(model: type[Body]) -> Body:
    return read_model(model, read_object(await request.get_data(True, False, False)).value)
