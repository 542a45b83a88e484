"""The tools of one kind of environment: their names over HTTP, the step that calls each, the answer made of an
observation.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from gymserve import wire
from gymserve.errors import UnknownTool

#: Names that a tool cannot have, because a route of the protocol or of ours has it.
ROUTE_NAMES = frozenset(
    {
        "verify",
        "seed_session",
        "close_session",
        "aggregate_metrics",
        "reverify_mode",
        "mcp",
        "sandbox_access",
        "reset",
        "close",
        "gymserve",
        "ng-rollout",
    }
)

_MCP_ACTION = "CallToolAction"


def is_mcp(schema: Mapping[str, Any]) -> bool:
    """Whether the server's ``/schema`` is that of an MCP environment (OpenEnv's ``CallToolAction``)."""
    action = schema.get("action")
    return isinstance(action, dict) and action.get("title") == _MCP_ACTION


class StepToolbox:
    """An environment with one action: the tool ``step``, whose arguments are the action."""

    names = ("step",)

    def __init__(self, show: "Show") -> None:
        self._show = show
        self.renamed: Mapping[str, str] = {}

    def tool(self, name: str) -> "MakeStep":
        """What makes a call's arguments (JSON text) into its step. :raises UnknownTool: with the names there are."""
        if name not in self.names:
            raise UnknownTool(name, self.names)
        return wire.Step

    def render(self, observation: wire.Observation) -> dict[str, Any]:
        """The observation's fields with ``done`` and, unless it is hidden, ``reward`` beside them."""
        return self._show(observation)


class McpToolbox:
    """An MCP environment. ``names`` is None where the server could not list its tools: then any name is tried."""

    def __init__(self, tools: Iterable[str] | None, taken: frozenset[str], show: "Show") -> None:
        self._show = show
        self._tools = None if tools is None else _free_names(tools, taken)
        self.renamed = {} if self._tools is None else {tool: name for name, tool in self._tools.items() if name != tool}

    @property
    def names(self) -> tuple[str, ...] | None:
        return None if self._tools is None else tuple(self._tools)

    def tool(self, name: str) -> "MakeStep":
        """What makes a call's arguments (JSON text) into its step. :raises UnknownTool: with the names there are."""
        if self._tools is None:
            return partial(wire.call_tool, name)
        if name not in self._tools:
            raise UnknownTool(name, self._tools)
        return partial(wire.call_tool, self._tools[name])

    def render(self, observation: wire.Observation) -> dict[str, Any]:
        """``{"result", "error"}``, as NeMo Gym's own adapter answers.

        ``result`` is the tool's ``data``, else its ``structured_content``, else its texts joined; an observation
        that is no tool's answer (reset's) is its fields.
        """
        fields = observation.fields
        if "result" not in fields and "error" not in fields:
            return {"result": self._show(observation), "error": None}
        error, result = fields.get("error"), fields.get("result")
        if error is not None:
            return {"result": None, "error": error}
        if isinstance(result, dict) and result.get("is_error"):
            return {"result": None, "error": {"error_type": "execution_error", "message": _joined_text(result)}}
        return {"result": _value(result), "error": None}


Toolbox = StepToolbox | McpToolbox
Show = Callable[[wire.Observation], dict[str, Any]]
MakeStep = Callable[[str], wire.Step]


def with_reward(observation: wire.Observation) -> dict[str, Any]:
    """What a policy sees of an observation."""
    return {**observation.fields, "reward": observation.reward, "done": observation.done}


def without_reward(observation: wire.Observation) -> dict[str, Any]:
    """The same for a policy that must not see its reward."""
    return {**observation.fields, "done": observation.done}


def listed_tools(answer: wire.McpAnswer | wire.Refusal) -> list[Mapping[str, Any]] | None:
    """The tools in the answer to ``tools/list``, each with a ``name``; None where there is no list (openenv 0.2.0 knows
    no ``mcp``).
    """
    result = answer.result if isinstance(answer, wire.McpAnswer) else None
    tools = result.get("tools") if isinstance(result, dict) else None
    if not isinstance(tools, list):
        return None
    return [tool for tool in tools if isinstance(tool, dict) and isinstance(tool.get("name"), str)]


def listed_names(answer: wire.McpAnswer | wire.Refusal) -> list[str] | None:
    """The names of `listed_tools`."""
    tools = listed_tools(answer)
    return None if tools is None else [tool["name"] for tool in tools]


def _free_names(tools: Iterable[str], taken: frozenset[str]) -> dict[str, str]:
    """Environment's names by ours: a name that a route has is served with ``env_`` before it."""
    tools = list(tools)
    free: dict[str, str] = {tool: tool for tool in tools if tool not in taken}
    for tool in tools:
        name = tool
        while name in taken or (name in free and free[name] != tool):
            name = f"env_{name}"
        free[name] = tool
    return free


def _value(result: Any) -> Any:
    if not isinstance(result, dict):
        return result
    for key in ("data", "structured_content"):
        if result.get(key) is not None:
            return result[key]
    return _joined_text(result) if "content" in result else result


def _joined_text(result: Mapping[str, Any]) -> str:
    content = result.get("content")
    parts = content if isinstance(content, list) else []
    return "\n".join(_text(part) for part in parts)


def _text(part: Any) -> str:
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return str(part["text"])
    return json.dumps(part)
