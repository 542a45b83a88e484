"""MCP as a client sees it, byte by byte, through a whole gymserve in virtual time. The SDK's own clients are in
test_mcp_sockets.py and tests/interop.
"""

import json
import math
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
from counting import Counting
from http_peer import POST, Peer, Reply, connect
from scripted import ScriptedServer, agreeable, observed, refused
from stage import COOKIE, Client, Stage, raise_the_curtain
from structlog.testing import capture_logs
from test_interim import told_at
from trio.testing import wait_all_tasks_blocked

from gymserve import __version__
from gymserve.gridsim.faults import Fault
from gymserve.gridsim.server import EnvironmentServer
from gymserve.gridsim.tools import InvalidArguments, ToolEnvironment, ToolResult
from gymserve.http.limits import Limits
from gymserve.http.mcp import McpEndpoint, beside_mcp, open_mcp
from gymserve.http.mcp_tools import McpTools
from gymserve.http.prefix import strip_rollout_prefix
from gymserve.http.rollouts import Dialect
from gymserve.identity import SessionToken
from gymserve.wire import Observation

TOKEN = SessionToken(["a secret of the tests"])
HEADER = "X-NeMo-Gym-Session-Token"
OVER = "The episode is over; no further call can succeed."
LEGACY, MODERN = "2025-06-18", "2026-07-28"

STEP = {
    "name": "step",
    "description": "Act in the environment, and see what comes of it.",
    "inputSchema": Counting.action_schema,
}
OBSERVATION = {
    "name": "observation",
    "description": "Look at the environment's latest observation again; before the first action it is the one that the "
    "episode begins with. Takes no arguments and changes nothing.",
    "inputSchema": {"type": "object", "properties": {}},
}
NUMBERS = {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number", "default": None}}}


class Calculator(ToolEnvironment):
    tools: Sequence[Mapping[str, Any]] = (
        {"name": "add", "description": "Add.", "input_schema": NUMBERS},
        {"name": "verify", "description": "", "input_schema": {"type": "object"}},
    )

    def reset(self) -> Observation:
        return Observation({"metadata": {}}, 0.0)

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        if name == "verify":
            return ToolResult("verified")
        if "b" not in arguments:
            raise InvalidArguments("b is missing")
        return ToolResult(arguments["a"] + arguments["b"], reward=0.25)


def counting(*faults: Fault, capacity: int = 2) -> EnvironmentServer:
    return EnvironmentServer(Counting, capacity=capacity, faults=faults)


def calculator(*faults: Fault, capacity: int = 1) -> EnvironmentServer:
    return EnvironmentServer(Calculator, capacity=capacity, faults=faults)


def is_json(reply: Reply) -> Any:
    assert reply.headers[b"content-type"] == b"application/json"
    return json.loads(reply.body)


def text_of(result: Mapping[str, Any]) -> str:
    """The text of a call's result, which has nothing else to read."""
    [content] = result["content"]
    assert content["type"] == "text"
    return str(content["text"])


def failure_of(result: Mapping[str, Any]) -> str:
    assert result["isError"] is True and "structuredContent" not in result
    return text_of(result)


@dataclass
class McpClient:
    """A client of MCP: one connection for each request, as all have; `headers` are those that a seed's offer names."""

    connect: Callable[[], Peer]
    headers: Mapping[str, str] = field(default_factory=dict)
    version: str = LEGACY
    peer: Peer | None = None

    async def send(self, body: Any, headers: Mapping[str, str | None] | None = None) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {
            "Host": "gymserve",
            "Content-Length": str(len(data)),
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            **self.headers,
            **(headers or {}),
        }
        lines = [f"{name}: {value}" for name, value in sent.items() if value is not None]
        self.peer = self.connect()
        await self.peer.send("\r\n".join(["POST /mcp HTTP/1.1", *lines, "", ""]).encode() + data)

    async def post(self, body: Any, headers: Mapping[str, str | None] | None = None) -> Reply:
        await self.send(body, headers)
        assert self.peer is not None
        return await self.peer.reply()

    def request(self, method: str, params: Mapping[str, Any]) -> tuple[bytes, dict[str, str | None]]:
        """Body and headers, as this version of the protocol has them."""
        message = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
        headers: dict[str, str | None] = {"Mcp-Protocol-Version": self.version}
        if self.version == MODERN:
            meta = {"protocolVersion": MODERN, "clientCapabilities": {}}
            named = {f"io.modelcontextprotocol/{key}": value for key, value in meta.items()}
            message["params"] = {**params, "_meta": named}
            headers |= {"Mcp-Method": method, "Mcp-Name": params.get("name")}
        return json.dumps(message).encode(), headers

    async def send_request(self, method: str, **params: Any) -> None:
        await self.send(*self.request(method, params))

    async def answer(self) -> Any:
        """What a request was answered with: its ``result`` or its ``error``."""
        assert self.peer is not None
        reply = await self.peer.reply()
        body = json.loads(reply.body)
        assert (reply.status, body.pop("jsonrpc"), body.pop("id")) == (200, "2.0", 7)
        assert reply.headers[b"content-type"] == b"application/json"
        assert b"mcp-session-id" not in reply.headers and b"set-cookie" not in reply.headers
        [outcome] = body.values()
        if self.version == MODERN and "result" in body:
            assert (outcome.pop("resultType"), set(outcome.pop("_meta"))) == (
                "complete",
                {"io.modelcontextprotocol/serverInfo"},
            )
        return outcome

    async def ask(self, method: str, **params: Any) -> Any:
        await self.send_request(method, **params)
        return await self.answer()

    async def call(self, tool: str, **arguments: Any) -> Any:
        return await self.ask("tools/call", name=tool, arguments=arguments)

    async def names(self) -> list[str]:
        return [tool["name"] for tool in (await self.ask("tools/list"))["tools"]]

    async def hang_up(self) -> None:
        assert self.peer is not None
        await self.peer.stream.aclose()


@dataclass
class Scene:
    """A stage with MCP. ``version`` is that of its clients."""

    stage: Stage
    endpoint: McpEndpoint
    version: str
    limits: Limits

    def mcp(self, headers: Mapping[str, str] | None = None) -> McpClient:
        connect_again = lambda: connect(self.stage.nursery, self.stage.app, limits=self.limits)  # noqa: E731
        return McpClient(connect_again, headers or {}, self.version)

    async def seeded(self, row: Mapping[str, Any] | None = None) -> tuple[Client, McpClient]:
        """A rollout's client, and the same that has read the offer in its seed's answer."""
        client = self.stage.client()
        assert (await client.seed(row)).status == 200
        session_id = COOKIE.session_id(client.cookies[COOKIE.name])
        assert session_id is not None
        return client, self.mcp(self.endpoint.offer(session_id)["headers"])


@asynccontextmanager
async def scene(
    server: Any, version: str = LEGACY, limits: Limits | None = None, **arguments: Any
) -> AsyncIterator[Scene]:
    """The arguments are `raise_the_curtain`'s."""
    dialect = arguments.get("dialect") or Dialect()
    async with (
        raise_the_curtain(server, **arguments) as stage,
        open_mcp(
            stage.gateway, TOKEN, observation_tool=dialect.observation_tool, server_name="counting_resources_server"
        ) as endpoint,
    ):
        stage.app = strip_rollout_prefix(beside_mcp(stage.app, endpoint))
        yield Scene(stage, endpoint, version, limits or Limits())


@pytest.fixture(params=[LEGACY, MODERN])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


# -- hello -----------------------------------------------------------------------------------------------------------


async def test_a_seed_can_say_where_the_tools_are(autojump_clock: Any) -> None:
    async with scene(counting()) as play:
        offer = play.endpoint.offer("0" * 32)
        token = offer["headers"][HEADER]
        assert offer == {
            "server_name": "counting_resources_server",
            "url_path": "/mcp",
            "transport": "http",
            "headers": {HEADER: token},
        }
        assert TOKEN.session_id(token) == "0" * 32


@pytest.mark.parametrize(
    ("asked", "agreed"),
    [
        ("2024-11-05", "2024-11-05"),
        ("2025-03-26", "2025-03-26"),
        ("2025-06-18", "2025-06-18"),
        ("2025-11-25", "2025-11-25"),
        ("1999-12-31", "2025-11-25"),
        (MODERN, "2025-11-25"),  # which knows no initialize
    ],
)
async def test_clients_of_all_ages_are_met(autojump_clock: Any, asked: str, agreed: str) -> None:
    async with scene(counting()) as play:
        client = play.mcp()
        hello = {"protocolVersion": asked, "capabilities": {}, "clientInfo": {"name": "test", "version": "0"}}
        assert await client.ask("initialize", **hello) == {
            "protocolVersion": agreed,
            "capabilities": {"tools": {"listChanged": False}},
            "serverInfo": {"name": "counting_resources_server", "version": __version__},
        }
        reply = await client.post(
            {"jsonrpc": "2.0", "method": "notifications/initialized"}, {"Mcp-Protocol-Version": agreed}
        )
        assert (reply.status, reply.body) == (202, b"")
        assert await client.ask("ping") == {}


async def test_the_newest_clients_discover(autojump_clock: Any) -> None:
    async with scene(counting(), MODERN) as play:
        assert await play.mcp().ask("server/discover") == {
            "supportedVersions": [MODERN],
            "capabilities": {"tools": {"listChanged": False}},
            "ttlMs": 0,
            "cacheScope": "private",
        }


# -- tools/list ------------------------------------------------------------------------------------------------------


def listing(version: str, *tools: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"tools": list(tools), **({"ttlMs": 0, "cacheScope": "private"} if version == MODERN else {})}


async def test_a_session_lists_its_tools(autojump_clock: Any, version: str) -> None:
    async with scene(counting(), version) as play:
        _, mcp = await play.seeded()
        assert await mcp.ask("tools/list") == listing(version, STEP, OBSERVATION)
    async with scene(counting(), version, dialect=Dialect(observation_tool=None)) as play:
        _, mcp = await play.seeded()
        assert await mcp.ask("tools/list") == listing(version, STEP)


async def test_an_mcp_environments_tools_are_listed_as_they_are_served(autojump_clock: Any, version: str) -> None:
    async with scene(calculator(), version) as play:
        _, mcp = await play.seeded()
        add = {"name": "add", "description": "Add.", "inputSchema": NUMBERS}
        verify = {"name": "env_verify", "inputSchema": {"type": "object", "properties": {}}}
        assert await mcp.ask("tools/list") == listing(version, add, verify, OBSERVATION)


async def test_listing_starts_the_idle_clock_again(autojump_clock: Any) -> None:
    async with scene(counting(), idle_timeout_seconds=10) as play:
        client, mcp = await play.seeded()
        for _ in range(3):
            await trio.sleep(9)
            await mcp.names()
        assert (await client.step()).status == 200
        await trio.sleep(10)
        assert (await client.step()).status == 410


@pytest.mark.parametrize("token", [None, "", "garbage", COOKIE.value("0" * 32), TOKEN.value("0" * 32)])
async def test_who_names_no_session_sees_what_a_session_would_have(autojump_clock: Any, token: str | None) -> None:
    async with scene(calculator()) as play:
        await play.seeded()
        headers = {} if token is None else {HEADER: token}
        assert await play.mcp(headers).names() == ["add", "env_verify", "observation"]
        assert play.stage.episodes["opened"] == 1


async def test_the_tools_of_an_ended_session_are_still_listed(autojump_clock: Any) -> None:
    async with scene(counting()) as play:
        client, mcp = await play.seeded()
        await client.verify()
        assert await mcp.names() == ["step", "observation"]


async def test_before_any_session_a_step_environment_is_asked_for_its_schema(autojump_clock: Any) -> None:
    async with scene(counting(Fault("full"))) as play:
        assert await play.mcp().names() == ["step", "observation"]
        assert (trio.current_time(), play.stage.network.connections, play.stage.opener.line.held) == (0, 1, 0)


async def test_before_any_session_an_mcp_environment_is_asked_in_its_turn(autojump_clock: Any, version: str) -> None:
    server = calculator(Fault("slow-step", 5))
    async with raise_the_curtain(server) as other, scene(server, version) as play:
        holder = other.client()
        await holder.seed()
        listed: list[list[str]] = []

        async def ask() -> None:
            listed.append(await play.mcp().names())

        async with trio.open_nursery() as asking:
            for _ in range(3):
                asking.start_soon(ask)
            await trio.sleep(20)
            assert play.stage.opener.line.waiting == 1
            await holder.verify()
        assert listed == [["add", "env_verify", "observation"]] * 3
        assert trio.current_time() == pytest.approx(20, abs=2)
        assert play.stage.episodes == {"active": 0, "max": 1, "opened": 2, "closed": 2}
        assert play.stage.opener.line.held == 0


async def test_tools_that_cannot_be_learned_are_an_error_when_the_patience_ends(autojump_clock: Any) -> None:
    async with scene(calculator(Fault("full")), patience_seconds=30) as play:
        error = await play.mcp().ask("tools/list")
        assert (error["code"], trio.current_time()) == (-32603, 30)
        assert error["message"].startswith("the environment server at http://environment:8000 had no room within 30 s")


async def test_who_hangs_up_while_listing_leaves_the_line(autojump_clock: Any, version: str) -> None:
    async with scene(calculator(Fault("full")), version) as play:
        mcp = play.mcp()
        await mcp.send_request("tools/list")
        await trio.sleep(5)
        assert play.stage.opener.line.waiting == 1
        await mcp.hang_up()
        await wait_all_tasks_blocked()
        assert play.stage.opener.line.waiting == 0


# -- tools/call ------------------------------------------------------------------------------------------------------


async def test_a_call_answers_what_its_route_answers(autojump_clock: Any, version: str) -> None:
    async with scene(counting(), version) as play:
        client, mcp = await play.seeded()
        for tool in ("step", "observation"):
            result = await mcp.call(tool, **({"by": 2} if tool == "step" else {}))
            seen = (await client.call("observation")).body
            assert result == {
                "content": [{"type": "text", "text": json.dumps(seen, separators=(",", ":"))}],
                "structuredContent": seen,
                "isError": False,
            }
            assert seen == {"count": 2, "target": 10, "metadata": {}, "reward": 0.2, "done": False}
        assert json.loads(text_of(await mcp.ask("tools/call", name="observation"))) == seen


async def test_a_rollout_over_mcp_is_scored(autojump_clock: Any, version: str) -> None:
    async with scene(counting(), version) as play:
        client, mcp = await play.seeded({"reset_kwargs": {"target": 3}})
        assert json.loads(text_of(await mcp.call("step", by=3)))["done"] is True
        assert failure_of(await mcp.call("step", by=1)) == f"HTTP 409 from POST /step: {OVER}"
        verified = (await client.verify()).body
        assert (verified["reward"], verified.get("mask_sample", False)) == (1.0, False)
        assert failure_of(await mcp.call("step", by=1)) == f"HTTP 410 from POST /step: {OVER}"


async def test_an_mcp_environments_tool_and_its_failure(autojump_clock: Any, version: str) -> None:
    async with scene(calculator(), version) as play:
        _, mcp = await play.seeded()
        assert await mcp.call("add", a=1, b=2.5) == {
            "content": [{"type": "text", "text": '{"result":3.5,"error":null}'}],
            "structuredContent": {"result": 3.5, "error": None},
            "isError": False,
        }
        assert text_of(await mcp.call("env_verify")) == '{"result":"verified","error":null}'
        failure = '{"result":null,"error":{"error_type":"invalid_args","message":"b is missing"}}'
        assert failure_of(await mcp.call("add", a=1)) == failure


async def test_what_a_model_is_told_when_a_call_cannot_be(autojump_clock: Any, version: str) -> None:
    async with scene(counting(), version) as play:
        _, mcp = await play.seeded()
        strangers = [
            play.mcp(),
            play.mcp({HEADER: ""}),
            play.mcp({HEADER: "garbage"}),
            play.mcp({HEADER: f"{0:032}.x"}),
        ]
        unknown = "Unknown tool: 'nope'. Available tools: ['observation', 'step']"
        for client in (mcp, *strangers):
            assert failure_of(await client.call("nope")) == unknown
        missing, invalid = f"Missing {HEADER} for Gym MCP tool call.", "Invalid Gym MCP session token."
        assert [failure_of(await client.call("step", by=1)) for client in strangers] == [missing] * 2 + [invalid] * 2
        forgotten = failure_of(await play.mcp({HEADER: TOKEN.value("0" * 32)}).call("step", by=1))
        assert forgotten.startswith("HTTP 404 from POST /step: another gymserve opened this session")
        refused = failure_of(await mcp.call("step", by="x"))
        assert refused.startswith("HTTP 422 from POST /step: [{")
        assert json.loads(refused.partition(": ")[2])[0]["msg"] == "Input should be a valid integer"
        long = failure_of(await mcp.call("x" * 1000))
        assert long == f"Unknown tool: '{'x' * 100}'. Available tools: ['observation', 'step']"


async def test_before_any_session_no_tool_is_unknown(autojump_clock: Any) -> None:
    async with scene(counting()) as play:
        assert failure_of(await play.mcp().call("nope")) == f"Missing {HEADER} for Gym MCP tool call."
        assert play.stage.network.connections == 0


async def test_where_tools_cannot_be_listed_any_name_is_tried(autojump_clock: Any, version: str) -> None:
    async with scene(ScriptedServer(action="CallToolAction"), version) as play:
        _, mcp = await play.seeded()
        assert await mcp.names() == ["observation"]
        shown = {"result": {"text": "ok", "reward": 1.0, "done": False}, "error": None}
        assert json.loads(text_of(await mcp.call("whatever"))) == shown


async def test_a_sentence_that_no_client_could_read_is_still_told(autojump_clock: Any, version: str) -> None:
    async def script(message: dict[str, Any]) -> Any:
        return refused("EXECUTION_ERROR", "half of \ud83d") if message["type"] == "step" else await agreeable(message)

    async with scene(ScriptedServer(script), version) as play:
        _, mcp = await play.seeded()
        told = failure_of(await mcp.call("step"))
        assert told == "HTTP 502 from POST /step: the environment raised an error: half of ?"


async def test_an_environment_that_fails_is_told(autojump_clock: Any) -> None:
    async with scene(counting(Fault("drop-mid-step", 2))) as play:
        _, mcp = await play.seeded()
        await mcp.call("step", by=1)
        assert failure_of(await mcp.call("step", by=1)) == f"HTTP 502 from POST /step: {OVER}"


async def test_a_session_that_is_reclaimed_is_told(autojump_clock: Any) -> None:
    async with scene(counting(), idle_timeout_seconds=30) as play:
        client, mcp = await play.seeded()
        await trio.sleep(30)
        assert failure_of(await mcp.call("step", by=1)) == f"HTTP 410 from POST /step: {OVER}"
        assert (await client.verify()).body["failure_kind"] == "session_expired"


class Broken:
    """A gateway that fails by a fault of ours."""

    class pool:
        toolbox = None

    def find(self, session_id: str) -> Any:
        raise RuntimeError(f"no way to find {session_id}")


async def test_a_fault_of_ours_is_an_answer_that_keeps_it_to_itself() -> None:
    tools = McpTools(Broken(), TOKEN, None)  # type: ignore[arg-type]
    result = await tools.call(TOKEN.value("0" * 32), "step", {})
    assert (result.is_error, result.text) == (True, "HTTP 500 from POST /step: gymserve failed; its log says why")


def broken(observation: Observation) -> dict[str, Any]:
    raise RuntimeError("no way to show it")


async def test_the_log_line_of_a_fault_has_the_requests_trace(autojump_clock: Any, version: str) -> None:
    trace = f"00-{'a' * 32}-{'b' * 16}-01"
    async with scene(counting(), version, show=broken) as play:
        _, mcp = await play.seeded()
        mcp.headers = {**mcp.headers, "Traceparent": trace}
        with capture_logs() as logs:
            assert failure_of(await mcp.call("step", by=1)).startswith("HTTP 500 ")
    [line] = [line for line in logs if line["event"] == "a tool call failed by a fault of ours"]
    assert (line["tool"], line["traceparent"]) == ("step", trace)
    assert len(line["session"]) == 12


# -- JSON there and back ---------------------------------------------------------------------------------------------


class Echo(ScriptedServer):
    """Writes down the actions of steps as they came, and answers each with the next of `answers`."""

    def __init__(self, *answers: Mapping[str, Any]) -> None:
        super().__init__(self._answer_in_turn)
        self.actions: list[Any] = []
        self.answers = list(answers)

    async def _answer_in_turn(self, message: dict[str, Any]) -> Any:
        if message["type"] != "step":
            return await agreeable(message)
        self.actions.append(message["data"])
        return observed(1.0, **self.answers.pop(0)) if self.answers else observed(1.0)


ARGUMENTS = [
    {"n": 123456789012345678901234567890, "z": -(2**64)},
    {"x": 0.1 + 0.2, "y": 1.0, "tiny": 5e-324, "large": 1.7976931348623157e308, "zero": -0.0},
    {"s": 'é😀\u2028\x00"\\', "": None, "deep": [[{"a": [True, False, []]}]]},
    {"long": "x" * 1_000_000},
]


@pytest.mark.parametrize("arguments", ARGUMENTS, ids=range(len(ARGUMENTS)))
async def test_arguments_reach_the_environment_as_they_are(
    autojump_clock: Any, version: str, arguments: dict[str, Any]
) -> None:
    echo = Echo()
    async with scene(echo, version) as play:
        _, mcp = await play.seeded()
        assert text_of(await mcp.call("step", **arguments)) == '{"reward":1.0,"done":false}'
        assert echo.actions == [arguments]
        assert repr(echo.actions[0]) == repr(arguments)  # 1.0 is not 1, -0.0 not 0.0


HALF = "\ud800"
WRONG_SCHEMAS = [{"properties": []}, {"properties": {"a": 1}}, {"required": "a"}, {"required": [1]}, {"$schema": 1}]
ODD_TOOLS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"name": f"a{HALF}"}, {"name": "a?"}),
    ({"name": "a", "description": HALF}, {"name": "a", "description": "?"}),
    ({"name": "a", "input_schema": {"title": HALF, HALF: 1}}, {"name": "a"}),
    *(({"name": "a", "input_schema": wrong}, {"name": "a"}) for wrong in WRONG_SCHEMAS),
]


@pytest.mark.parametrize(("tool", "told"), ODD_TOOLS, ids=range(len(ODD_TOOLS)))
async def test_a_tool_that_cannot_be_told_as_it_is_hides_no_other(
    autojump_clock: Any, version: str, tool: dict[str, Any], told: dict[str, Any]
) -> None:
    async def script(message: dict[str, Any]) -> Any:
        if message["type"] == "mcp" and message["data"]["method"] == "tools/list":
            listed = {"tools": [tool, {"name": "b"}]}
            return {"type": "mcp", "data": {"jsonrpc": "2.0", "id": message["data"]["id"], "result": listed}}
        return await agreeable(message)

    async with scene(ScriptedServer(script, action="CallToolAction"), version) as play:
        _, mcp = await play.seeded()
        first, second, _ = (await mcp.ask("tools/list"))["tools"]
        schema = first.pop("inputSchema")
        assert (first, second["name"]) == (told, "b")
        odd = {"title": "?", "?": 1} if "title" in tool.get("input_schema", {}) else {}
        assert schema == {"type": "object", "properties": {}, **odd}


async def test_what_cannot_be_written_again_is_refused(autojump_clock: Any) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    async with scene(counting()) as play:
        _, mcp = await play.seeded()
        tools = McpTools(play.stage.gateway, TOKEN, None)
        result = await tools.call(mcp.headers[HEADER], "step", {"by": deep})
        assert result.is_error and result.text.startswith("HTTP 422 from POST /step: ")
        assert "nested too deep" in result.text


DEEP = json.loads("[" * 120 + "]" * 120)


@pytest.mark.parametrize(
    ("answer", "shown", "is_structured"),
    [
        ({"x": None, "y": [None, {"z": None}]}, '{"x":null,"y":[null,{"z":null}],"reward":1.0,"done":false}', True),
        ({"x": math.inf, "y": math.nan}, '{"x":null,"y":null,"reward":1.0,"done":false}', True),
        ({"x": 2**70, "y": 1.0}, '{"x":1180591620717411303424,"y":1.0,"reward":1.0,"done":false}', True),
        ({"x": "\ud800"}, '{"x":"\\ud800","reward":1.0,"done":false}', False),
        ({"\ud800": 1}, '{"\\ud800":1,"reward":1.0,"done":false}', False),
        ({"x": DEEP}, f'{{"x":{"[" * 120}{"]" * 120},"reward":1.0,"done":false}}', True),
    ],
    ids=["nulls", "infinities", "a large number", "half a pair", "half a pair as a key", "deep"],
)
async def test_any_answer_is_told_in_text_and_as_an_object_if_the_sdk_can(
    autojump_clock: Any, version: str, answer: dict[str, Any], shown: str, is_structured: bool
) -> None:
    async with scene(Echo(answer), version) as play:
        _, mcp = await play.seeded()
        result = await mcp.call("step")
        assert (text_of(result), result["isError"]) == (shown, False)
        assert result.get("structuredContent") == (json.loads(shown) if is_structured else None)


# -- time ------------------------------------------------------------------------------------------------------------


async def test_a_long_call_is_told_to_wait(autojump_clock: Any, version: str) -> None:
    async with scene(counting(Fault("slow-step", 40)), version) as play:
        _, mcp = await play.seeded()
        await mcp.send_request("tools/call", name="step", arguments={"by": 1})
        assert mcp.peer is not None
        assert await told_at(mcp.peer) == ([15, 30], 200)
        assert trio.current_time() == 40


async def test_who_hangs_up_ends_only_the_waiting(autojump_clock: Any, version: str) -> None:
    async with scene(counting(Fault("slow-step", 10)), version) as play:
        client, mcp = await play.seeded()
        first, second, third = (play.mcp(mcp.headers) for _ in range(3))
        for each in (first, second, third):
            await each.send_request("tools/call", name="step", arguments={"by": 1})
            await wait_all_tasks_blocked()
        await trio.sleep(1)
        await first.hang_up()  # under way: it goes on, and its reward counts
        await second.hang_up()  # before its turn: it is not sent
        assert json.loads(text_of(await third.answer()))["count"] == 2
        assert trio.current_time() == 20
        assert (await client.verify()).body["reward"] == 0.2


async def test_a_call_in_flight_keeps_its_session_and_its_clock(autojump_clock: Any, version: str) -> None:
    async with scene(counting(Fault("slow-step", 100)), version, idle_timeout_seconds=10) as play:
        client, mcp = await play.seeded()
        assert json.loads(text_of(await mcp.call("step", by=1)))["count"] == 1
        await trio.sleep(9)
        assert (await client.call("observation")).status == 200


async def test_many_clients_at_once(autojump_clock: Any, version: str) -> None:
    async with scene(counting(Fault("slow-step", 3), capacity=20), version) as play:
        counts = []

        async def roll_out(by: int) -> None:
            _, mcp = await play.seeded({"reset_kwargs": {"target": 100}})
            for _ in range(3):
                result = await mcp.call("step", by=by)
            counts.append((by, result["structuredContent"]["count"]))

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(roll_out, 1 + number % 3)
        assert sorted(counts) == sorted((1 + number % 3, 3 * (1 + number % 3)) for number in range(20))
        assert trio.current_time() == 9


async def test_a_gateway_that_stops_answers_who_waits(autojump_clock: Any, version: str) -> None:
    async with scene(counting(Fault("slow-step", 100)), version) as play:
        _, mcp = await play.seeded()
        await mcp.send_request("tools/call", name="step", arguments={"by": 1})
        await wait_all_tasks_blocked()
        await play.stage.gateway.drain(5)
        assert failure_of(await mcp.answer()) == f"HTTP 410 from POST /step: {OVER}"
        assert trio.current_time() == 5


# -- the SDK's own answers -------------------------------------------------------------------------------------------


def asking(method: str, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "method": method, **({"params": params} if params else {})}


PING = asking("ping")


@pytest.mark.parametrize(
    ("body", "headers", "status", "code", "message"),
    [
        (asking("nope/nope"), {}, 200, -32601, "Method not found"),
        (asking("resources/list"), {}, 200, -32601, "Method not found"),
        (asking("tools/call", arguments={}), {}, 200, -32602, "Invalid request parameters"),
        (asking("tools/call", name="step", arguments=[]), {}, 200, -32602, "Invalid request parameters"),
        (b"{", {}, 400, -32700, "Parse error: "),
        (b"", {}, 400, -32700, "Parse error: "),
        (b"\xff", {}, 400, -32700, "Parse error: "),
        ([PING], {}, 400, -32602, "Validation error: "),
        ({}, {}, 400, -32602, "Validation error: "),
        (PING, {"Accept": None}, 406, -32600, "Not Acceptable: Client must accept application/json"),
        (PING, {"Accept": "text/html"}, 406, -32600, "Not Acceptable: Client must accept application/json"),
        (PING, {"Mcp-Protocol-Version": "1999-12-31"}, 400, -32602, "params._meta must be an object"),
        (PING, {"Mcp-Protocol-Version": MODERN}, 400, -32602, "params._meta must be an object"),
        (b"{", {"Mcp-Protocol-Version": MODERN}, 400, -32700, "Parse error"),
    ],
)
async def test_what_breaks_the_protocol_is_an_error_of_it(
    autojump_clock: Any, body: Any, headers: dict[str, str | None], status: int, code: int, message: str
) -> None:
    async with scene(counting()) as play:
        reply = await play.mcp().post(body, headers)
        answer = json.loads(reply.body)
        is_read = isinstance(body, dict) and "id" in body and status != 406
        assert (reply.status, answer["id"], answer["error"]["code"]) == (status, 1 if is_read else None, code)
        assert answer["error"]["message"].startswith(message)


@pytest.mark.parametrize("accept", ["*/*", "application/json", "application/*"])
async def test_what_a_client_may_accept(autojump_clock: Any, accept: str) -> None:
    async with scene(counting()) as play:
        reply = await play.mcp().post(PING, {"Accept": accept})
        assert (reply.status, json.loads(reply.body)["result"]) == (200, {})


@pytest.mark.parametrize("content_type", [None, "text/plain"])
async def test_a_body_must_say_that_it_is_json(autojump_clock: Any, content_type: str | None) -> None:
    async with scene(counting()) as play:
        reply = await play.mcp().post(PING, {"Content-Type": content_type})
        assert (reply.status, reply.body) == (400, b"Invalid Content-Type header")


# -- the endpoint ----------------------------------------------------------------------------------------------------


async def at(play: Scene, method: str, path: str, body: bytes = b"") -> Reply:
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nAccept: */*\r\nContent-Type: application/json\r\n"
    peer = connect(play.stage.nursery, play.stage.app, limits=play.limits)
    return await peer.ask(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body, method.encode())


@pytest.mark.parametrize("prefix", ["", "/ng-rollout/7-0"])
@pytest.mark.parametrize("path", ["/mcp", "/mcp/", "/mcp/anything"])
async def test_the_endpoint_is_a_whole_branch(autojump_clock: Any, prefix: str, path: str) -> None:
    async with scene(counting()) as play:
        reply = await at(play, "POST", prefix + path, json.dumps(PING).encode())
        assert (reply.status, is_json(reply)) == (200, {"jsonrpc": "2.0", "id": 1, "result": {}})


async def test_nothing_else_is_the_endpoints(autojump_clock: Any) -> None:
    async with scene(counting()) as play:
        for path, status in (("/mcpx", 404), ("/env/mcp", 404), ("/gymserve/mcp", 403)):
            assert (await at(play, "POST", path, json.dumps(PING).encode())).status == status
        assert (await at(play, "GET", "/gymserve/health")).status == 200


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT", "HEAD", "OPTIONS"])
async def test_there_are_no_streams_and_no_sessions_of_the_protocols_own(autojump_clock: Any, method: str) -> None:
    async with scene(counting()) as play:
        reply = await at(play, method, "/mcp")
        assert (reply.status, reply.headers[b"allow"]) == (405, b"POST")
        if method != "HEAD":
            assert is_json(reply)["error"]["code"] == -32600


async def test_a_body_that_is_too_large_is_refused_as_everywhere(autojump_clock: Any) -> None:
    async with scene(counting(), limits=Limits(body_bytes=1000)) as play:
        reply = await at(play, "POST", "/mcp", b" " * 1001)
        assert (reply.status, is_json(reply)["error"]) == (413, "body_too_large")


class Sdk:
    """One that cannot be loaded, and then breaks whenever it is told to; what it answers is the number of its start."""

    def __init__(self, *, missing: int = 0) -> None:
        self.missing = missing
        self.starts = 0
        self.breaks = trio.Event()

    async def load(self) -> Any:
        if self.missing:
            self.missing -= 1
            raise ImportError("no such package")
        return lambda tools, server_name: self

    @asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        self.starts += 1
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._break)
            yield

    async def _break(self) -> None:
        await self.breaks.wait()
        self.breaks = trio.Event()
        raise RuntimeError("broken")

    async def handle_request(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": str(self.starts).encode()})


async def test_an_sdk_that_fails_takes_nothing_with_it_and_is_started_again(autojump_clock: Any) -> None:
    sdk = Sdk(missing=1)
    async with trio.open_nursery() as nursery:
        endpoint = McpEndpoint(None, TOKEN, "test", sdk.load)  # type: ignore[arg-type]  # of no use to it

        async def post() -> tuple[int, bytes]:
            reply = await connect(nursery, endpoint).ask(POST("/mcp", b"{}"))
            return reply.status, reply.body

        nursery.start_soon(endpoint.run)
        status, body = await post()
        assert (status, json.loads(body)["error"]) == (500, "internal_error")
        assert [await post(), await post()] == [(200, b"1")] * 2
        sdk.breaks.set()
        await wait_all_tasks_blocked()
        assert await post() == (200, b"2")
        nursery.cancel_scope.cancel()


async def test_what_fails_beside_it_is_raised_as_it_is() -> None:
    with pytest.raises(OSError, match="address in use"):
        async with open_mcp(None, TOKEN, observation_tool=None, server_name="test"):  # type: ignore[arg-type]
            raise OSError("address in use")


def test_the_sdk_is_not_loaded_before_it_is_needed() -> None:
    code = "import sys, gymserve.cli.serving, gymserve.http.mcp; sys.stdout.write(' '.join(sys.modules))"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = {module.partition(".")[0] for module in process.stdout.split()}
    assert "gymserve" in loaded and loaded.isdisjoint({"mcp", "mcp_types", "starlette"})
