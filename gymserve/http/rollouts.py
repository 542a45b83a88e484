"""The routes of a rollout: seed, tools, verify, close, in each of the protocol's dialects."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import trio
from quart import Response, g, request
from quart_trio import QuartTrio
from werkzeug.exceptions import NotFound

from gymserve.aggregate import aggregate_metrics
from gymserve.errors import BadArguments, SeedConflict, SessionGone, TooManyConnections
from gymserve.gateway import Gateway
from gymserve.http.bodies import JsonObject, answer, read_object
from gymserve.http.crowd import is_late
from gymserve.http.delivery import note_effect, note_seeded
from gymserve.http.gymnasium import Gymnasium
from gymserve.http.masks import MASKED_HEADER, MaskedAsError, masked_status
from gymserve.http.models import read_model
from gymserve.http.tasks import IDLE_TIMEOUT_HEADER, Task, read_task
from gymserve.http.tools import call_tool
from gymserve.http.typed import TypedClose, TypedSeed, is_typed
from gymserve.seeds import Seeding
from gymserve.session import Session

_LABEL_HEADER = "X-Gymserve-Label"
_ROW_MARK = b'"responses_create_params"'

McpMode = Literal["auto", "always", "never"]


class McpOffer(Protocol):
    """What a seed's answer says of the session's tools over MCP."""

    def offer(self, session_id: str) -> Mapping[str, Any]: ...


@dataclass(frozen=True, slots=True)
class Dialect:
    """The choices that a client sees.

    ``masked_as_error``: as `masked_status` has it. ``mcp``: whether a seed's answer offers MCP; ``auto`` does where the
    row lists no tools, since a client that is offered it makes every call so, and to typed seeds.
    ``text_action``: as `Gymnasium` has it.
    """

    observation_tool: str | None = "observation"
    masked_as_error: MaskedAsError = "auto"
    mcp: McpMode = "auto"
    text_action: str | None = None


class Rollouts:
    """What the routes do."""

    def __init__(
        self,
        gateway: Gateway,
        dialect: Dialect,
        seeding: Seeding,
        mcp: McpOffer | None,
        *,
        kept_seconds: float,
    ) -> None:
        """:param mcp: None offers none. :param kept_seconds: as `Gymnasium` has it."""
        self._gateway = gateway
        self._dialect = dialect
        self._seeding = seeding
        self._mcp = mcp
        self._gymnasium = Gymnasium(
            gateway,
            observation_tool=dialect.observation_tool,
            text_action=dialect.text_action,
            kept_seconds=kept_seconds,
        )

    async def seed_session(self) -> Response:
        body = await self._body_of_a_seed()
        if is_typed(body):
            return await self._seed_by_name(read_model(TypedSeed, body))
        note_effect(request.scope)
        task = self._task(body)
        session = await self._seed(task)
        offers = self._dialect.mcp == "always" or not task.lists_tools
        return answer({"mcp": self._mcp.offer(session.id)} if self._mcp is not None and offers else {})

    async def _body_of_a_seed(self) -> Mapping[str, Any]:
        # A body that is refused costs no session that there is.
        g.session_id = g.session_id or self._gateway.new_session_id()
        if is_late(request.scope):
            raise TooManyConnections
        return (await _object()).value

    def _task(self, row: Mapping[str, Any], **told: str) -> Task:
        return read_task(
            row,
            self._seeding,
            label_header=_utf8(request.headers.get(_LABEL_HEADER)),
            idle_timeout_header=request.headers.get(IDLE_TIMEOUT_HEADER),
            **told,
        )

    async def _seed(self, task: Task) -> Session:
        """A session that is its cookie's alone: one that the client had before is over."""
        self._gateway.close(g.session_id, "the client seeded again")
        g.session_id = self._gateway.new_session_id()
        session = await self._gateway.seed(g.session_id, task.seed)
        note_seeded(request.scope, session.id)
        return session

    async def _seed_by_name(self, seed: TypedSeed) -> Response:
        name = seed.resources_session_id
        task = self._task(seed.task_data, name=name, taskset=seed.task_id.taskset)
        session = await self._gateway.begin_by_name(name, seed.model_dump(), task.seed)
        note_effect(request.scope)
        g.session_id = session.id
        try:
            await session.opened()
        except SessionGone:
            raise SeedConflict("this resources_session_id was closed while its seed waited") from None
        return answer(
            {
                "resources_session_id": name,
                "resources_tools": None if self._mcp is None else self._mcp.offer(g.session_id),
                "sandbox_access": None,
            }
        )

    async def verify(self) -> Response:
        status_if_masked = self._masked_status(request.headers.get("User-Agent"))
        result = await self._gateway.verify(g.session_id, (await _object()).value)
        return answer(result.body, status_if_masked if result.masked else 200)

    def _masked_status(self, user_agent: str | None) -> int:
        return masked_status(
            self._dialect.masked_as_error,
            user_agent=user_agent,
            wish=request.headers.get(MASKED_HEADER),
        )

    async def close_session(self) -> Response:
        try:
            body = (await _object()).value
        except BadArguments:
            body = {}  # whatever it says, the slot of the cookie's session is given back
        if is_typed(body):
            name = read_model(TypedClose, body).resources_session_id
            self._gateway.close_by_name(name)
            return answer({"resources_session_id": name})
        self._gateway.close(g.session_id, "the client closed it")
        return answer({})

    async def call_tool(self, tool: str) -> Response:
        body = await _data()
        session = self._gateway.find(g.session_id)
        return answer(await call_tool(session, tool, read_object(body).text, self._dialect.observation_tool))

    # -- the gymnasium protocol ------------------------------------------------------------------------------------

    async def reset(self) -> Response:
        return answer(self._gymnasium.began(await self._seed(self._task(await self._body_of_a_seed()))))

    async def step(self) -> Response:
        """The protocol's step is told from the tool ``step`` by the row that comes with it."""
        row = _row_of_a_step(await _data())
        if row is None:
            return await self.call_tool("step")
        status_if_masked = self._masked_status(None)  # verifiers does not speak this protocol
        stepped = await self._gymnasium.step(g.session_id, row)
        return answer(stepped, status_if_masked if stepped["info"].get("mask_sample") else 200)

    async def close(self) -> Response:
        already = not self._gateway.close(g.session_id, "the client closed it")
        return answer({"ok": True, "already_closed": already})


def add_rollout_routes(app: QuartTrio, rollouts: Rollouts) -> None:
    @app.get("/")
    async def alive() -> Response:
        return answer({"status": "ok"})

    @app.get("/reverify_mode")
    async def reverify_mode() -> Response:
        return answer("unsupported")  # a score cannot be had again without the rollout's session

    @app.post("/aggregate_metrics")
    async def aggregate() -> Response:
        rows = (await _object()).value.get("verify_responses")
        if not isinstance(rows, list):
            raise BadArguments.because("list_type", "verify_responses must be a list", "verify_responses")
        return answer(await trio.to_thread.run_sync(aggregate_metrics, rows))  # a run's rows take a second

    @app.post("/sandbox_access")
    @app.post("/mcp")
    async def not_served() -> Response:
        raise NotFound

    for name in ("seed_session", "verify", "close_session", "reset", "step", "close"):
        app.post(f"/{name}", endpoint=name)(getattr(rollouts, name))
    app.post("/<path:tool>", endpoint="tool")(rollouts.call_tool)


async def _data() -> bytes:
    # The connection has read it to its end already; positional arguments, as only so are they typed.
    return await request.get_data(True, False, False)


async def _object() -> JsonObject:
    return read_object(await _data())


def _row_of_a_step(data: bytes) -> Mapping[str, Any] | None:
    """The row that a gymnasium agent sends with its step; None where the body is an action."""
    if _ROW_MARK not in data:  # most are; they are read once, where they are used
        return None
    row = read_object(data).value
    return row if "responses_create_params" in row else None


def _utf8(header: str | None) -> str | None:
    """A header's text, which ASGI servers hand over as Latin-1."""
    return None if header is None else header.encode("latin-1").decode("utf-8", "replace")
