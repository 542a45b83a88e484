"""Tools: their names over HTTP, the step that calls each, the answer made of an observation."""

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymserve import wire
from gymserve.errors import UnknownTool
from gymserve.toolbox import (
    ROUTE_NAMES,
    Function,
    McpToolbox,
    StepToolbox,
    is_mcp,
    listed_tools,
    make_toolbox,
    observation_function,
    step_function,
    taken_names,
    with_reward,
    without_reward,
)

TO_THE_LETTER = [
    '{"n":123456789012345678901234567890,"x":1.0e2,"y":1E400,"z":-0}',
    '{"a":1,"a":2}',
    '{"s":"\\u0041\\ud83d\\ude00\\/","t":"\\ud800"}',
    '{ "z" : 1 ,\n"a":[ ] }',
]


ACTION = {"title": "MoveAction", "type": "object"}
STEP = StepToolbox(ACTION, with_reward)


def listed(*names: str) -> list[dict[str, str]]:
    return [{"name": name} for name in names]


def mcp(*names: str, taken: frozenset[str] = ROUTE_NAMES) -> McpToolbox:
    return McpToolbox(listed(*names), taken, with_reward)


def told(**fields: object) -> wire.Observation:
    return wire.Observation({"metadata": {}, "tool_name": "add", **fields}, reward=0.5, done=False)


def called_tool(toolbox: McpToolbox, name: str) -> str:
    return json.loads(toolbox.tool(name)("{}").encode())["data"]["tool_name"]


@pytest.mark.parametrize("text", TO_THE_LETTER)
def test_arguments_reach_the_wire_to_the_letter(text):
    assert STEP.tool("step")(text).encode() == '{"type":"step","data":' + text + "}"
    assert mcp("add").tool("add")(text).encode() == (
        '{"type":"step","data":{"type":"call_tool","tool_name":"add","arguments":' + text + "}}"
    )


def test_an_environment_with_one_action_has_one_tool():
    assert (STEP.names, STEP.renamed, STEP.functions) == (("step",), {}, (step_function(ACTION),))
    with pytest.raises(UnknownTool, match=r"there is no tool 'move'; the tools are step$"):
        STEP.tool("move")


def test_an_mcp_environments_tools_keep_their_names():
    toolbox = mcp("sub", "add", "step", "observation")
    assert (toolbox.names, toolbox.renamed) == (("sub", "add", "step", "observation"), {})
    assert called_tool(toolbox, "add") == "add"
    with pytest.raises(UnknownTool, match=r"the tools are add, observation, step, sub$"):
        toolbox.tool("verify")


def test_an_unknown_tools_name_is_told_in_part():
    with pytest.raises(UnknownTool) as caught:
        mcp("add").tool("x" * 1000)
    assert str(caught.value) == f"there is no tool '{'x' * 100}'; the tools are add"


@pytest.mark.parametrize("name", sorted(ROUTE_NAMES))
def test_a_tool_that_a_route_hides_is_served_under_another_name(name):
    toolbox = mcp("add", name)
    assert set(toolbox.names) == {"add", f"env_{name}"}
    assert toolbox.renamed == {name: f"env_{name}"}
    assert called_tool(toolbox, f"env_{name}") == name
    with pytest.raises(UnknownTool):
        toolbox.tool(name)


@pytest.mark.parametrize("tools", [("verify", "env_verify"), ("env_verify", "verify")])
def test_a_renamed_tool_takes_no_other_tools_name(tools):
    toolbox = mcp(*tools)
    assert toolbox.renamed == {"verify": "env_env_verify"}
    assert called_tool(toolbox, "env_verify") == "env_verify"
    assert called_tool(toolbox, "env_env_verify") == "verify"


def test_the_observation_tools_name_is_taken_too():
    toolbox = mcp("look", taken=ROUTE_NAMES | {"look"})
    assert toolbox.renamed == {"look": "env_look"}
    assert taken_names("look") == ROUTE_NAMES | {"look"}
    assert taken_names(None) == ROUTE_NAMES


@given(st.lists(st.sampled_from(["verify", "env_verify", "env_env_verify", "mcp", "env_mcp", "add"])))
def test_every_tool_is_served_once_and_under_a_free_name(tools):
    toolbox = mcp(*tools)
    assert ROUTE_NAMES.isdisjoint(toolbox.names)
    assert sorted(called_tool(toolbox, name) for name in toolbox.names) == sorted(set(tools))


def test_unlisted_tools_are_all_tried():
    toolbox = McpToolbox(None, ROUTE_NAMES, with_reward)
    assert (toolbox.names, toolbox.renamed, toolbox.functions) == (None, {}, ())
    assert called_tool(toolbox, 'any"thing') == 'any"thing'


@pytest.mark.parametrize(
    ("result", "value"),
    [
        ({"data": 5, "structured_content": {"result": 6}, "content": [{"type": "text", "text": "7"}]}, 5),
        ({"data": 0, "structured_content": {"result": 6}}, 0),
        ({"data": None, "structured_content": {"result": 6}, "content": []}, {"result": 6}),
        ({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "a\nb"),
        ({"content": [{"type": "image", "data": "AAAA"}]}, '{"type": "image", "data": "AAAA"}'),
        ({"data": None, "content": []}, ""),
        ({"data": None, "content": "text"}, ""),
        ({"of": "another shape"}, {"of": "another shape"}),
        ("text", "text"),
        ([1, 2], [1, 2]),
        (None, None),
    ],
)
def test_a_tools_result_is_the_most_telling_part_of_its_answer(result, value):
    answer = mcp("add").render(told(result=result, error=None))
    assert answer == {"result": value, "error": None}
    assert not mcp("add").is_failure(answer)


def test_a_tools_error_is_an_error():
    error = {"error_type": "tool_not_found", "message": "Unknown tool: 'nope'"}
    answer = mcp("add").render(told(result=None, error=error))
    assert answer == {"result": None, "error": error}
    assert mcp("add").is_failure(answer)
    failed = {"is_error": True, "data": 5, "content": [{"type": "text", "text": "boom"}]}
    assert mcp("add").render(told(result=failed, error=None)) == {
        "result": None,
        "error": {"error_type": "execution_error", "message": "boom"},
    }


def test_an_observation_shows_its_reward_unless_it_is_hidden():
    observation = wire.Observation({"count": 1}, reward=0.5, done=True)
    assert STEP.render(observation) == {"count": 1, "reward": 0.5, "done": True}
    assert StepToolbox(ACTION, without_reward).render(observation) == {"count": 1, "done": True}


def test_a_field_named_error_is_no_failure_of_an_environment_with_one_action():
    answer = STEP.render(wire.Observation({"error": "a red herring"}, reward=0.5, done=False))
    assert answer["error"] == "a red herring" and not STEP.is_failure(answer)


def test_an_mcp_environments_reset_is_shown_as_a_result():
    observation = wire.Observation({"metadata": {}, "task": "sum"}, reward=None, done=False)
    shown = {"metadata": {}, "task": "sum", "done": False}
    assert McpToolbox(listed("add"), ROUTE_NAMES, without_reward).render(observation) == {
        "result": shown,
        "error": None,
    }
    shown["reward"] = None
    assert mcp("add").render(observation) == {"result": shown, "error": None}


@pytest.mark.parametrize(
    ("schema", "known"),
    [
        ({"action": {"title": "CallToolAction"}}, True),
        ({"action": {"title": "CountingAction"}}, False),
        ({"action": None}, False),
        ({}, False),
    ],
)
def test_an_mcp_environment_is_known_by_its_schema(schema, known):
    assert is_mcp(schema) is known


@pytest.mark.parametrize(
    ("answer", "names"),
    [
        (wire.McpAnswer(1, {"tools": [{"name": "add"}, {"name": 5}, "sub", {}]}), ["add"]),
        (wire.McpAnswer(1, {"tools": []}), []),
        (wire.McpAnswer(1, {"tools": {}}), None),
        (wire.McpAnswer(1, "tools"), None),
        (wire.McpAnswer(1, error={"code": wire.INTERNAL_ERROR, "message": "no"}), None),
        (wire.Refusal(wire.UNKNOWN_TYPE, "Unknown message type: mcp"), None),
    ],
)
def test_the_tools_are_those_that_the_server_lists(answer, names):
    tools = listed_tools(answer)
    assert (tools and [tool["name"] for tool in tools]) == names


def test_a_schema_tells_the_kind_of_toolbox():
    assert isinstance(make_toolbox({"action": ACTION}, None, ROUTE_NAMES, with_reward), StepToolbox)
    calls = {"action": {"title": "CallToolAction"}}
    assert make_toolbox(calls, listed("mcp"), ROUTE_NAMES, with_reward).names == ("env_mcp",)
    assert make_toolbox(calls, None, ROUTE_NAMES, with_reward).names is None


# -- what a model is told --------------------------------------------------------------------------------------------

CLAIM = {"type": "object", "properties": {"claim": {"type": "string"}}, "required": ["claim"]}
NOTHING = {"type": "object", "properties": {}}
METADATA = {"type": "object", "additionalProperties": True, "title": "Metadata"}


def functions(*tools: Mapping[str, object]) -> list[Function]:
    return list(McpToolbox(tools, ROUTE_NAMES, with_reward).functions)


def test_a_listed_tool_becomes_a_function():
    wordy = {"name": "add", "description": " Add.\n", "inputSchema": CLAIM, "outputSchema": {}, "annotations": None}
    bare = {"name": "sum", "description": None}
    assert functions(wordy, bare) == [Function("add", "Add.", CLAIM), Function("sum", "", NOTHING)]


def test_functions_have_the_order_of_the_list_and_the_names_that_are_served():
    names = [function.name for function in mcp("verify", "look", "env_verify", taken=taken_names("look")).functions]
    assert names == ["env_env_verify", "env_look", "env_verify"]


def test_of_two_tools_with_one_name_the_first_counts():
    twice = [{"name": "a", "description": "1"}, {"name": "b", "description": "2"}, {"name": "a", "description": "3"}]
    assert [(function.name, function.description) for function in functions(*twice)] == [("a", "1"), ("b", "2")]


@pytest.mark.parametrize(
    ("action", "description", "parameters"),
    [
        (
            {"title": "Move", "description": "Go there.",
             "properties": {"metadata": METADATA, "x": {"$ref": "#/$defs/X"}}, "required": ["x"],
             "$defs": {"X": {"type": "integer"}}, "type": "object"},
            "Go there.",
            {"title": "Move", "properties": {"x": {"$ref": "#/$defs/X"}}, "required": ["x"],
             "$defs": {"X": {"type": "integer"}}, "type": "object"},
        ),
        (
            {"properties": {"metadata": METADATA}, "required": ["metadata"]},  # not OpenEnv's own, which has a default
            "Act in the environment, and see what comes of it.",
            {"properties": {"metadata": METADATA}, "required": ["metadata"], "type": "object"},
        ),
        (
            {"anyOf": [{"type": "object"}]},
            "Act in the environment, and see what comes of it.",
            {"anyOf": [{"type": "object"}], "properties": {}, "type": "object"},
        ),
    ],
)  # fmt: skip
def test_an_action_becomes_the_function_step(action, description, parameters):
    before = json.dumps(action)
    assert step_function(action) == Function("step", description, parameters)
    assert json.dumps(action) == before


def test_looking_takes_no_arguments():
    assert (observation_function("look").name, observation_function("look").parameters) == ("look", NOTHING)
