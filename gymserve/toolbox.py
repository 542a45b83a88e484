"""The tools of one kind of environment: their names over HTTP, what a model is told of them, the step that calls each,
the answer made of an observation.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
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

_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}}
_STEP_DESCRIPTION = "Act in the environment, and see what comes of it."
_OBSERVATION_DESCRIPTION = (
    "Look at the environment's latest observation again; before the first action it is the one that the episode "
    "begins with. Takes no arguments and changes nothing."
)


def taken_names(observation_tool: str | None) -> frozenset[str]:
    """Names that no tool of an environment can have. ``observation_tool``: the name of that tool, if there is one."""
    return ROUTE_NAMES | ({observation_tool} if observation_tool else set())


def is_mcp(schema: Mapping[str, Any]) -> bool:
    """Whether the server's ``/schema`` is that of an MCP environment (OpenEnv's ``CallToolAction``)."""
    action = schema.get("action")
    return isinstance(action, dict) and action.get("title") == _MCP_ACTION


@dataclass(frozen=True, slots=True)
class Function:
    """What a model is told of a tool. ``parameters`` is the JSON schema of its arguments, which are an object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


class StepToolbox:
    """An environment with one action: the tool ``step``, whose arguments are the action."""

    names = ("step",)

    def __init__(self, action_schema: Mapping[str, Any], show: "Show") -> None:
        """:param action_schema: the ``action`` of the server's ``/schema``."""
        self._show = show
        self.functions: Sequence[Function] = (step_function(action_schema),)
        self.renamed: Mapping[str, str] = {}

    def tool(self, name: str) -> "MakeStep":
        """What makes a call's arguments (JSON text) into its step. :raises UnknownTool: with the names there are."""
        if name not in self.names:
            raise UnknownTool(name, self.names)
        return wire.Step

    def render(self, observation: wire.Observation) -> dict[str, Any]:
        """The observation's fields with ``done`` and, unless it is hidden, ``reward`` beside them."""
        return self._show(observation)

    def error(self, observation: wire.Observation) -> Any:
        """None: what an environment with one action answers is no failure."""

    def is_failure(self, answer: Mapping[str, Any]) -> bool:
        """Whether ``answer``, which `render` made, tells that a tool failed: never here."""
        return False


class McpToolbox:
    """An MCP environment. ``names`` is None where the server could not list its tools: then any name is tried, and
    ``functions`` is empty.
    """

    def __init__(self, listed: Iterable[Mapping[str, Any]] | None, taken: frozenset[str], show: "Show") -> None:
        """:param listed: the tools as ``tools/list`` has them; of two with one name the first counts."""
        self._show = show
        tools: dict[str, Mapping[str, Any]] = {}
        for tool in listed or ():
            tools.setdefault(tool["name"], tool)
        self._tools = None if listed is None else _free_names(tools, taken)
        self.renamed = {tool: name for name, tool in (self._tools or {}).items() if name != tool}
        self.functions: Sequence[Function] = tuple(
            _listed_function(self.renamed.get(name, name), tool) for name, tool in tools.items()
        )

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

    def error(self, observation: wire.Observation) -> Any:
        """What the tool that was called failed with; None where it did not."""
        return self.render(observation)["error"]

    def is_failure(self, answer: Mapping[str, Any]) -> bool:
        """Whether ``answer``, which `render` made, tells that a tool failed."""
        return answer["error"] is not None


def make_toolbox(
    schema: Mapping[str, Any], listed: Iterable[Mapping[str, Any]] | None, taken: frozenset[str], show: "Show"
) -> "Toolbox":
    """The toolbox of a server whose ``/schema`` is ``schema``; ``listed`` counts only where that is an MCP
    environment's.
    """
    return McpToolbox(listed, taken, show) if is_mcp(schema) else StepToolbox(schema["action"], show)


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


# -- what a model is told --------------------------------------------------------------------------------------------


def step_function(action_schema: Mapping[str, Any]) -> Function:
    """The tool ``step`` of an environment with one action; its arguments are the action without OpenEnv's ``metadata``.

    :param action_schema: the ``action`` of the server's ``/schema``.
    """
    parameters = {key: value for key, value in action_schema.items() if key != "description"}
    if isinstance(parameters.get("properties"), dict) and "metadata" not in _required(parameters):
        fields = parameters["properties"].items()
        parameters["properties"] = {name: field for name, field in fields if name != "metadata"}
    return _function("step", action_schema.get("description") or _STEP_DESCRIPTION, parameters)


def observation_function(name: str) -> Function:
    """The tool that answers the latest observation, as no client hands on the one that the seed's answer would hold."""
    return Function(name, _OBSERVATION_DESCRIPTION, _NO_ARGUMENTS)


def _listed_function(name: str, tool: Mapping[str, Any]) -> Function:
    return _function(name, tool.get("description"), tool.get("inputSchema", tool.get("input_schema")))


def _required(schema: Mapping[str, Any]) -> Sequence[Any]:
    required = schema.get("required")
    return required if isinstance(required, list) else ()


def _function(name: str, description: Any, parameters: Any) -> Function:
    # Clients and the Responses API refuse parameters that are not an object's schema with properties, be it with none.
    given = parameters if isinstance(parameters, dict) and _describes_an_object(parameters) else {}
    told = description.strip() if isinstance(description, str) else ""
    return Function(name, told, {**_NO_ARGUMENTS, **given, "type": "object"})


def _describes_an_object(schema: Mapping[str, Any]) -> bool:
    """Whether the words that clients look into are JSON Schema's (2020-12, Core section 8.1.1, 10.3.2.1; Validation
    section 6.5.3): of one tool that is told otherwise a client may refuse the whole list.
    """
    properties, required = schema.get("properties"), schema.get("required")
    return (
        (properties is None or (isinstance(properties, dict) and all(map(_is_schema, properties.values()))))
        and (required is None or (isinstance(required, list) and all(isinstance(name, str) for name in required)))
        and isinstance(schema.get("$schema", ""), str)
    )


def _is_schema(value: Any) -> bool:
    return isinstance(value, dict | bool)
