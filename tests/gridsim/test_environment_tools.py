"""An MCP environment on the wire: its two actions, and the MCP messages beside them."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import trio
from counting import Counting
from environment_peer import Peer, connect, error_of

from gymserve.gridsim.server import EnvironmentServer
from gymserve.gridsim.tools import InvalidArguments, ToolEnvironment, ToolResult
from gymserve.wire import Observation

ADD_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


class Adder(ToolEnvironment):
    tools: Sequence[Mapping[str, Any]] = (
        {"name": "add", "description": "Add to the sum.", "input_schema": ADD_SCHEMA},
        {"name": "sum", "description": "The sum.", "input_schema": {"type": "object"}},
        {"name": "finish", "description": "End.", "input_schema": {"type": "object"}},
    )

    def __init__(self) -> None:
        self._sum = 0

    def reset(self, start: int = 0) -> Observation:
        self._sum = start
        return Observation({"metadata": {}}, 0.0)

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        match name:
            case "add":
                if not isinstance(arguments.get("a"), int):
                    raise InvalidArguments("a must be an integer")
                if arguments["a"] < 0:
                    raise ValueError("only up")
                self._sum += arguments["a"]
                return ToolResult(self._sum)
            case "sum":
                return ToolResult({"sum": self._sum}, reward=0.25)
            case _:
                return ToolResult("finished", reward=1.0, done=True)


@pytest.fixture
async def peer(nursery: trio.Nursery, autojump_clock: Any) -> Peer:
    return await connect(nursery, EnvironmentServer(Adder, capacity=1))


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "call_tool", "tool_name": name, "arguments": arguments}


def result(data: Any, text: str, structured: Any) -> dict[str, Any]:
    content = [{"type": "text", "text": text}]
    return {"content": content, "structured_content": structured, "data": data, "is_error": False}


async def rpc(peer: Peer, method: str, **params: Any) -> dict[str, Any]:
    request = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
    answer = await peer.ask({"type": "mcp", "data": request})
    assert answer["type"] == "mcp"
    assert (answer["data"].pop("jsonrpc"), answer["data"].pop("id")) == ("2.0", 7)
    return dict(answer["data"])


# -- as steps --------------------------------------------------------------------------------------------------------


async def test_tools_are_listed_before_the_first_reset(peer: Peer) -> None:
    assert (await peer.step({"type": "list_tools"}))["data"] == {
        "observation": {"metadata": {}, "tools": [dict(tool) for tool in Adder.tools]},
        "reward": None,
        "done": False,
    }


@pytest.mark.parametrize(
    ("action", "expected", "reward", "done"),
    [
        (call("add", a=2), result(7, "7", {"result": 7}), None, False),
        ({"tool_name": "add", "arguments": {"a": 2}}, result(7, "7", {"result": 7}), None, False),
        ({"tool_name": "sum"}, result({"sum": 5}, '{"sum":5}', {"sum": 5}), 0.25, False),
        (call("finish"), result("finished", "finished", {"result": "finished"}), 1.0, True),
    ],
)
async def test_a_call_returns_its_result(
    peer: Peer, action: dict[str, Any], expected: dict[str, Any], reward: Any, done: bool
) -> None:
    await peer.reset(start=5)
    assert (await peer.step(action))["data"] == {
        "observation": {
            "metadata": {},
            "tool_name": action["tool_name"],
            "result": expected,
            "error": None,
        },
        "reward": reward,
        "done": done,
    }


@pytest.mark.parametrize(
    ("action", "kind", "sentence"),
    [
        (call("nope"), "tool_not_found", "Unknown tool: 'nope'"),
        (call("add", a="x"), "invalid_args", "a must be an integer"),
        (call("add", a=-1), "execution_error", "Error calling tool 'add': only up"),
    ],
)
async def test_a_failed_call_is_an_observation(peer: Peer, action: dict[str, Any], kind: str, sentence: str) -> None:
    await peer.reset()
    assert (await peer.step(action))["data"] == {
        "observation": {
            "metadata": {},
            "tool_name": action["tool_name"],
            "result": None,
            "error": {"error_type": kind, "message": sentence},
        },
        "reward": None,
        "done": False,
    }


@pytest.mark.parametrize(
    ("action", "faults"),
    [
        ({}, [("missing", "tool_name", "Field required", {})]),
        (
            {"tool_name": 5, "arguments": []},
            [
                ("string_type", "tool_name", "Input should be a valid string", 5),
                ("dict_type", "arguments", "Input should be a valid dictionary", []),
            ],
        ),
        ({"type": "bogus", "tool_name": "add"}, [("literal_error", "type", "Input should be 'call_tool'", "bogus")]),
        ({"type": "list_tools", "x": 1}, [("extra_forbidden", "x", "Extra inputs are not permitted", 1)]),
        ({"tool_name": "add", "x": 1}, [("extra_forbidden", "x", "Extra inputs are not permitted", 1)]),
    ],
)
async def test_what_is_no_call_is_a_validation_error(
    peer: Peer, action: dict[str, Any], faults: list[tuple[Any, ...]]
) -> None:
    answer = await peer.step(action)
    assert error_of(answer) == ("VALIDATION_ERROR", "Invalid message")
    assert answer["data"]["errors"] == [
        {"type": kind, "loc": [key], "msg": sentence, "input": value} for kind, key, sentence, value in faults
    ]


# -- as MCP messages -------------------------------------------------------------------------------------------------


async def test_mcp_lists_tools_before_the_first_reset(peer: Peer) -> None:
    listed = (await rpc(peer, "tools/list"))["result"]["tools"]
    assert listed[0] == {"name": "add", "description": "Add to the sum.", "inputSchema": ADD_SCHEMA}
    assert [tool["name"] for tool in listed] == ["add", "sum", "finish"]


async def test_mcp_calls_reach_the_same_episode(peer: Peer) -> None:
    await peer.reset(start=1)
    assert await rpc(peer, "tools/call", name="add", arguments={"a": 2}) == {"result": result(3, "3", {"result": 3})}
    assert (await peer.step(call("sum")))["data"]["observation"]["result"]["data"] == {"sum": 3}


@pytest.mark.parametrize(
    ("params", "code", "sentence"),
    [
        ({}, -32602, "Missing 'name' in params"),
        ({"name": "add", "arguments": []}, -32602, "'arguments' in params must be an object"),
        ({"name": "nope"}, -32603, "Unknown tool: 'nope'"),
        ({"name": "add"}, -32603, "a must be an integer"),
        ({"name": "add", "arguments": {"a": -1}}, -32603, "Error calling tool 'add': only up"),
    ],
)
async def test_a_failed_mcp_call_is_a_json_rpc_error(
    peer: Peer, params: dict[str, Any], code: int, sentence: str
) -> None:
    assert await rpc(peer, "tools/call", **params) == {"error": {"code": code, "message": sentence, "data": None}}


async def test_any_other_method_is_a_harmless_keepalive(peer: Peer) -> None:
    error = {"code": -32601, "message": "Method not found: ping", "data": None}
    assert await rpc(peer, "ping") == {"error": error}


async def test_what_is_no_request_is_answered_without_an_id(peer: Peer) -> None:
    error = {"code": -32600, "message": "Invalid request: method should be a string", "data": None}
    assert await peer.ask({"type": "mcp", "data": {"jsonrpc": "2.0", "id": 1}}) == {
        "type": "mcp",
        "data": {"jsonrpc": "2.0", "id": None, "error": error},
    }


@pytest.mark.parametrize("method", ["tools/list", "tools/call"])
async def test_a_step_environment_has_no_tools(autojump_clock: Any, nursery: trio.Nursery, method: str) -> None:
    peer = await connect(nursery, EnvironmentServer(Counting, capacity=1))
    error = {"code": -32603, "message": "Environment does not support MCP", "data": None}
    assert await rpc(peer, method, name="add") == {"error": error}
