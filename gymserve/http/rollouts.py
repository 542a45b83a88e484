"""The routes of a rollout: seed, tools, verify, close, in each of the protocol's dialects."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import trio

from gymserve.aggregate import aggregate_metrics
from gymserve.errors import BadArguments, SeedConflict, SessionGone, TooManyConnections
from gymserve.gateway import Gateway
from gymserve.http.asked import Asked
from gymserve.http.bodies import read_object
from gymserve.http.gymnasium import Gymnasium
from gymserve.http.masks import MASKED_HEADER, MaskedAsError, masked_status
from gymserve.http.models import read_model
from gymserve.http.posts import Handler
from gymserve.http.reply import Reply, replied
from gymserve.http.tasks import IDLE_TIMEOUT_HEADER, Task, read_task
from gymserve.http.tools import call_tool
from gymserve.http.typed import TypedClose, TypedSeed, is_typed
from gymserve.seeds import Seeding
from gymserve.session import Session

_LABEL_HEADER = b"x-gymserve-label"
_IDLE_TIMEOUT_HEADER = IDLE_TIMEOUT_HEADER.lower().encode("ascii")
_MASKED_HEADER = MASKED_HEADER.lower().encode("ascii")
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

    def handlers(self) -> Mapping[str, Handler]:
        """By path; any other is `call_tool`'s."""
        return {
            "/seed_session": self.seed_session,
            "/verify": self.verify,
            "/close_session": self.close_session,
            "/aggregate_metrics": aggregate,
            "/reset": self.reset,
            "/step": self.step,
            "/close": self.close,
            "/sandbox_access": not_served,
            "/mcp": not_served,
        }

    async def seed_session(self, asked: Asked) -> Reply:
        body = self._body_of_a_seed(asked)
        if is_typed(body):
            return await self._seed_by_name(asked, read_model(TypedSeed, body))
        asked.take_effect()
        task = self._task(asked, body)
        session = await self._seed(asked, task)
        offers = self._dialect.mcp == "always" or not task.lists_tools
        return replied({"mcp": self._mcp.offer(session.id)} if self._mcp is not None and offers else {})

    def _body_of_a_seed(self, asked: Asked) -> Mapping[str, Any]:
        # A body that is refused costs no session that there is.
        asked.session_id = asked.session_id or self._gateway.new_session_id()
        if asked.is_late:
            raise TooManyConnections
        return read_object(asked.body).value

    def _task(self, asked: Asked, row: Mapping[str, Any], **told: Any) -> Task:
        return read_task(
            row,
            self._seeding,
            label_header=_utf8(asked.header(_LABEL_HEADER)),
            idle_timeout_header=asked.header(_IDLE_TIMEOUT_HEADER),
            traceparent=asked.traceparent,
            sent_bytes=len(asked.body),
            **told,
        )

    async def _seed(self, asked: Asked, task: Task) -> Session:
        """A session that is its cookie's alone: one that the client had before is over."""
        self._gateway.close(asked.session_id, "the client seeded again")
        asked.session_id = self._gateway.new_session_id()
        session = await self._gateway.seed(asked.session_id, task.seed)
        asked.seeded = session.id
        return session

    async def _seed_by_name(self, asked: Asked, seed: TypedSeed) -> Reply:
        name = seed.resources_session_id
        payload = seed.model_dump()
        # The name is left out of what is recorded: who knows it can close the session.
        sent = {key: value for key, value in payload.items() if key != "resources_session_id"}
        task = self._task(asked, seed.task_data, name=name, taskset=seed.task_id.taskset, sent=sent)
        session = await self._gateway.begin_by_name(name, payload, task.seed)
        asked.take_effect()
        asked.session_id = session.id
        try:
            await session.opened()
        except SessionGone:
            raise SeedConflict("this resources_session_id was closed while its seed waited") from None
        return replied(
            {
                "resources_session_id": name,
                "resources_tools": None if self._mcp is None else self._mcp.offer(session.id),
                "sandbox_access": None,
            }
        )

    async def verify(self, asked: Asked) -> Reply:
        status_if_masked = self._masked_status(asked, asked.header(b"user-agent"))
        result = await self._gateway.verify(asked.session_id, read_object(asked.body).value)
        return replied(result.body, status_if_masked if result.masked else 200)

    def _masked_status(self, asked: Asked, user_agent: str | None) -> int:
        return masked_status(self._dialect.masked_as_error, user_agent=user_agent, wish=asked.header(_MASKED_HEADER))

    async def close_session(self, asked: Asked) -> Reply:
        try:
            body = read_object(asked.body).value
        except BadArguments:
            body = {}  # whatever it says, the slot of the cookie's session is given back
        if is_typed(body):
            name = read_model(TypedClose, body).resources_session_id
            self._gateway.close_by_name(name)
            return replied({"resources_session_id": name})
        self._gateway.close(asked.session_id, "the client closed it")
        return replied({})

    async def call_tool(self, asked: Asked) -> Reply:
        session = self._gateway.find(asked.session_id)
        arguments = read_object(asked.body).text
        return replied(await call_tool(session, asked.path[1:], arguments, self._dialect.observation_tool))

    # -- the gymnasium protocol ------------------------------------------------------------------------------------

    async def reset(self, asked: Asked) -> Reply:
        task = self._task(asked, self._body_of_a_seed(asked))
        return replied(self._gymnasium.began(await self._seed(asked, task)))

    async def step(self, asked: Asked) -> Reply:
        """The protocol's step is told from the tool ``step`` by the row that comes with it."""
        row = _row_of_a_step(asked.body)
        if row is None:
            return await self.call_tool(asked)
        status_if_masked = self._masked_status(asked, None)  # verifiers does not speak this protocol
        stepped = await self._gymnasium.step(asked.session_id, row)
        return replied(stepped, status_if_masked if stepped["info"].get("mask_sample") else 200)

    async def close(self, asked: Asked) -> Reply:
        already = not self._gateway.close(asked.session_id, "the client closed it")
        return replied({"ok": True, "already_closed": already})


async def aggregate(asked: Asked) -> Reply:
    """NeMo Gym's summary of a run's results."""
    rows = read_object(asked.body).value.get("verify_responses")
    if not isinstance(rows, list):
        raise BadArguments.because("list_type", "verify_responses must be a list", "verify_responses")
    return replied(await trio.to_thread.run_sync(aggregate_metrics, rows))  # a run's rows take a second


async def not_served(asked: Asked) -> Reply:
    """What NeMo Gym's protocol has and we have not: no tool is to be taken for it."""
    return replied({"error": "not_found", "detail": f"POST {asked.path}: Not Found", "done": False}, 404)


def _row_of_a_step(data: bytes) -> Mapping[str, Any] | None:
    """The row that a gymnasium agent sends with its step; None where the body is an action."""
    if _ROW_MARK not in data:  # most are; they are read once, where they are used
        return None
    row = read_object(data).value
    return row if "responses_create_params" in row else None


def _utf8(header: str | None) -> str | None:
    """A header's text, which ASGI servers hand over as Latin-1."""
    return None if header is None else header.encode("latin-1").decode("utf-8", "replace")
