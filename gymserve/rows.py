"""Rows of a dataset, as NeMo Gym and verifiers read them: a prompt, the tools as gymserve serves them, and what the
episode's reset is given.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from gymserve.toolbox import ROUTE_NAMES, McpToolbox, with_reward

ACCEPTED_SEEDS = "whole numbers and ranges such as 5 or 0..9,20..29 (both ends included)"

LARGEST_SEED = 2**32 - 1
"""Environments seed NumPy, whose ``RandomState`` takes 32 bits; OpenEnv's ``reset`` takes nothing below 0."""

_SEEDS = re.compile(r"([0-9]{1,10})(?:\.\.([0-9]{1,10}))?")
_NO_ARGUMENTS: Mapping[str, Any] = {"type": "object", "properties": {}}
_STEP_DESCRIPTION = "Act in the environment, and see what comes of it."
_OBSERVATION_DESCRIPTION = (
    "Look at the environment's latest observation again; before the first action it is the one that the episode "
    "begins with. Takes no arguments and changes nothing."
)

# str.splitlines breaks at these, and JSON does not make writers escape them (RFC 8259 section 7).
_LINE_BREAKS = {ord(character): f"\\u{ord(character):04x}" for character in "\x85\u2028\u2029"}

Tool = Mapping[str, Any]
"""A function as the Responses API has it: ``type``, ``name``, ``description``, ``parameters`` and ``strict``."""


# -- rows ------------------------------------------------------------------------------------------------------------


def make_row(
    prompt: str,
    tools: Sequence[Tool],
    reset_kwargs: Mapping[str, Any],
    *,
    agent: str | None = None,
    label: str | None = None,
) -> dict[str, Any]:
    """One task. ``agent`` names NeMo Gym's agent for it; ``label`` is what gymserve lists its sessions under."""
    row: dict[str, Any] = {
        "responses_create_params": {"input": [{"role": "user", "content": prompt}], "tools": list(tools)},
        "reset_kwargs": dict(reset_kwargs),
    }
    if agent is not None:
        row["agent_ref"] = {"type": "responses_api_agents", "name": agent}
    if label is not None:
        row["gymserve_label"] = label
    return row


def encode_row(row: Mapping[str, Any]) -> bytes:
    """One line of JSONL: compact, UTF-8, with its newline and no other line break.

    What UTF-8 cannot say, half of a surrogate pair, becomes a question mark.

    :raises ValueError: a number in it is NaN or infinite.
    """
    text = json.dumps(row, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return f"{text.translate(_LINE_BREAKS)}\n".encode(errors="replace")


def parse_seeds(text: str) -> tuple[range, ...]:
    """The seeds in ``text``, such as ``0..9,20..29``, in its order.

    :raises ValueError: it is not of that form; the message is a sentence that says what is wrong.
    """
    seeds = tuple(_seed_range(part.strip()) for part in text.split(","))
    ascending = sorted(seeds, key=lambda each: each.start)
    for earlier, later in pairwise(ascending):
        if later.start in earlier:
            raise ValueError(f"{later.start} is given twice")
    return seeds


def _seed_range(text: str) -> range:
    matched = _SEEDS.fullmatch(text)
    if matched is None:
        raise ValueError(ACCEPTED_SEEDS)
    first, last = int(matched[1]), int(matched[2] or matched[1])
    if last < first:
        raise ValueError(f"{text} ends before it begins; accepted: {ACCEPTED_SEEDS}")
    if last > LARGEST_SEED:
        raise ValueError(f"{last} is above {LARGEST_SEED}, the largest seed")
    return range(first, last + 1)


# -- tools -----------------------------------------------------------------------------------------------------------


def mcp_tools(listed: Iterable[Mapping[str, Any]], observation_tool: str | None) -> list[Tool]:
    """An MCP environment's tools, as its ``tools/list`` or its ``list_tools`` has them, under the names that gymserve
    serves them by.

    :param observation_tool: the name that gymserve serves the latest observation by, which no tool can have.
    """
    tools: dict[str, Mapping[str, Any]] = {}
    for tool in listed:
        tools.setdefault(tool["name"], tool)
    taken = ROUTE_NAMES | ({observation_tool} if observation_tool else set())
    renamed = McpToolbox(tools, taken, with_reward).renamed
    return [
        _function(renamed.get(name, name), tool.get("description"), tool.get("inputSchema", tool.get("input_schema")))
        for name, tool in tools.items()
    ]


def step_tool(action_schema: Mapping[str, Any]) -> Tool:
    """The tool ``step`` of an environment with one action; its arguments are the action without OpenEnv's ``metadata``.

    :param action_schema: the ``action`` of the server's ``/schema``.
    """
    parameters = {key: value for key, value in action_schema.items() if key != "description"}
    if isinstance(parameters.get("properties"), dict) and "metadata" not in _required(parameters):
        fields = parameters["properties"].items()
        parameters["properties"] = {name: field for name, field in fields if name != "metadata"}
    return _function("step", action_schema.get("description") or _STEP_DESCRIPTION, parameters)


def observation_tool(name: str) -> Tool:
    """The tool that answers the latest observation, as no client hands on the one that the seed's answer would hold."""
    return _function(name, _OBSERVATION_DESCRIPTION, _NO_ARGUMENTS)


def _required(schema: Mapping[str, Any]) -> Sequence[Any]:
    required = schema.get("required")
    return required if isinstance(required, list) else ()


def _function(name: str, description: Any, parameters: Any) -> Tool:
    # The Responses API refuses parameters that are not an object's schema with properties, be it with none.
    given = parameters if isinstance(parameters, dict) else {}
    return {
        "type": "function",
        "name": name,
        "description": description.strip() if isinstance(description, str) else "",
        "parameters": {**_NO_ARGUMENTS, **given, "type": "object"},
        "strict": False,
    }
