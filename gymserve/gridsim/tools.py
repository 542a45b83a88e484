"""Tools over OpenEnv: the two actions of an MCP environment, and the MCP side of its WebSocket."""

import json
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gymserve.gridsim.environment import Environment, InvalidAction
from gymserve.wire import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, Mcp, McpAnswer, Observation


class UnknownTool(Exception):
    """The environment has no tool of that name."""


class InvalidArguments(Exception):
    """The arguments do not fit the tool's ``input_schema``; the text says which and why."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool returned. ``data`` is a JSON value; ``reward`` and ``done`` go onto the observation."""

    data: Any
    reward: Any = None
    done: bool = False

    def as_mcp(self) -> Mapping[str, Any]:
        """The result as MCP has it: text for a reader, ``structured_content`` (always an object) for a program."""
        text = self.data if isinstance(self.data, str) else json.dumps(self.data, separators=(",", ":"))
        structured = self.data if isinstance(self.data, dict) else {"result": self.data}
        return {
            "content": [{"type": "text", "text": text}],
            "structured_content": structured,
            "data": self.data,
            "is_error": False,
        }


class ToolEnvironment(Environment):
    """An MCP environment: it names its `tools` and implements `call`.

    Its steps are ``{"type": "call_tool", "tool_name", "arguments"}`` and ``{"type": "list_tools"}``. A call that fails
    is an observation with an ``error``, not an error message.
    """

    action_schema: Mapping[str, Any] = {
        "title": "CallToolAction",
        "type": "object",
        "properties": {
            "metadata": {"type": "object", "title": "Metadata"},
            "type": {"const": "call_tool", "default": "call_tool", "type": "string", "title": "Type"},
            "tool_name": {"type": "string", "title": "Tool Name"},
            "arguments": {"type": "object", "title": "Arguments"},
        },
        "required": ["tool_name"],
        "additionalProperties": False,
    }
    observation_schema: Mapping[str, Any] = {
        "title": "CallToolObservation",
        "type": "object",
        "properties": {
            "metadata": {"type": "object", "title": "Metadata"},
            "tool_name": {"type": "string", "title": "Tool Name"},
            "result": {"default": None, "title": "Result"},
            "error": {"anyOf": [{"type": "object"}, {"type": "null"}], "default": None, "title": "Error"},
        },
        "required": ["tool_name"],
    }

    @abstractmethod
    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Run tool ``name``, one of `tools`.

        :raises InvalidArguments: ``arguments`` do not fit. Any other exception is a failure of the tool's own.
        """

    def step(self, action: Mapping[str, Any]) -> Observation:
        _check(action)
        if action.get("type") == "list_tools":
            return Observation({"metadata": {}, "tools": list(self.tools)})
        return self._observe(action["tool_name"], action.get("arguments", {}))

    def call_known(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """Run tool ``name``. :raises UnknownTool: there is none; otherwise like `call`."""
        if name not in [tool["name"] for tool in self.tools]:
            raise UnknownTool(f"Unknown tool: {name!r}")
        return self.call(name, arguments)

    def _observe(self, name: str, arguments: Mapping[str, Any]) -> Observation:
        try:
            result = self.call_known(name, arguments)
        except UnknownTool as exc:
            return _failure(name, "tool_not_found", str(exc))
        except InvalidArguments as exc:
            return _failure(name, "invalid_args", str(exc))
        except Exception as exc:  # the tool's failure is for the client to see
            return _failure(name, "execution_error", f"Error calling tool {name!r}: {exc}")
        fields = {"metadata": {}, "tool_name": name, "result": result.as_mcp(), "error": None}
        return Observation(fields, result.reward, result.done)


def _failure(name: str, kind: str, sentence: str) -> Observation:
    error = {"error_type": kind, "message": sentence}
    return Observation({"metadata": {}, "tool_name": name, "result": None, "error": error})


def _check(action: Mapping[str, Any]) -> None:
    """:raises InvalidAction: it is neither of the two actions; every fault is told, in pydantic's words."""
    listing = action.get("type") == "list_tools"
    errors = []
    if action.get("type", "call_tool") not in ("call_tool", "list_tools"):
        errors.append(_error("literal_error", "type", "Input should be 'call_tool'", action["type"]))
    if not listing and "tool_name" not in action:
        errors.append(_error("missing", "tool_name", "Field required", dict(action)))
    elif not listing and not isinstance(action["tool_name"], str):
        errors.append(_error("string_type", "tool_name", "Input should be a valid string", action["tool_name"]))
    if not listing and not isinstance(action.get("arguments", {}), dict):
        errors.append(_error("dict_type", "arguments", "Input should be a valid dictionary", action["arguments"]))
    known = ("type", "metadata") if listing else ("type", "metadata", "tool_name", "arguments")
    extras = [key for key in action if key not in known]
    errors += [_error("extra_forbidden", key, "Extra inputs are not permitted", action[key]) for key in extras]
    if errors:
        raise InvalidAction(errors)


def _error(kind: str, key: str, sentence: str, value: Any) -> Mapping[str, Any]:
    return {"type": kind, "loc": [key], "msg": sentence, "input": value}


# -- the MCP side ----------------------------------------------------------------------------------------------------


def answer_mcp(environment: Environment, request: Mcp) -> McpAnswer:
    """The answer to a JSON-RPC request. It is no step: a reward that a tool gives here is not reported."""
    match request.method:
        case "tools/list" | "tools/call" if not isinstance(environment, ToolEnvironment):
            return _rpc_error(request, INTERNAL_ERROR, "Environment does not support MCP")
        case "tools/list":
            return McpAnswer(request.id, {"tools": [_listed(tool) for tool in environment.tools]})
        case "tools/call":
            assert isinstance(environment, ToolEnvironment)
            return _call(environment, request)
        case method:
            return _rpc_error(request, METHOD_NOT_FOUND, f"Method not found: {method}")


def _call(environment: ToolEnvironment, request: Mcp) -> McpAnswer:
    name, arguments = request.params.get("name"), request.params.get("arguments", {})
    if not isinstance(name, str) or not name:
        return _rpc_error(request, INVALID_PARAMS, "Missing 'name' in params")
    if not isinstance(arguments, dict):
        return _rpc_error(request, INVALID_PARAMS, "'arguments' in params must be an object")
    try:
        return McpAnswer(request.id, environment.call_known(name, arguments).as_mcp())
    except (UnknownTool, InvalidArguments) as exc:
        return _rpc_error(request, INTERNAL_ERROR, str(exc))
    except Exception as exc:  # the tool's failure is for the client to see
        return _rpc_error(request, INTERNAL_ERROR, f"Error calling tool {name!r}: {exc}")


def _listed(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    return {"name": tool["name"], "description": tool["description"], "inputSchema": tool["input_schema"]}


def _rpc_error(request: Mcp, code: int, sentence: str) -> McpAnswer:
    return McpAnswer(request.id, error={"code": code, "message": sentence})
