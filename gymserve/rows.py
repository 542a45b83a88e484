"""Rows of a dataset, as NeMo Gym and verifiers read them: a prompt, the tools as gymserve serves them, and what the
episode's reset is given.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from gymserve.toolbox import Function, McpToolbox, taken_names, with_reward

ACCEPTED_SEEDS = "whole numbers and ranges such as 5 or 0..9,20..29 (both ends included)"

LARGEST_SEED = 2**32 - 1
"""Environments seed NumPy, whose ``RandomState`` takes 32 bits; OpenEnv's ``reset`` takes nothing below 0."""

_SEEDS = re.compile(r"([0-9]{1,10})(?:\.\.([0-9]{1,10}))?")

# What str.splitlines breaks at, and what steers a terminal: DEL, the second set of controls, marks of direction. JSON
# does not make writers escape them (RFC 8259 section 7).
_STEERING = (*range(0x7F, 0xA0), 0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
_ESCAPES = {point: f"\\u{point:04x}" for point in _STEERING}

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
    """One line of JSONL: compact, UTF-8, with its newline, no other line break, and nothing that steers a terminal.

    What UTF-8 cannot say, half of a surrogate pair, becomes a question mark.

    :raises ValueError: a number in it is NaN or infinite.
    """
    text = json.dumps(row, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return f"{text.translate(_ESCAPES)}\n".encode(errors="replace")


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
    return [as_tool(function) for function in McpToolbox(listed, taken_names(observation_tool), with_reward).functions]


def as_tool(function: Function) -> Tool:
    """``function`` as the Responses API has it."""
    return {
        "type": "function",
        "name": function.name,
        "description": function.description,
        "parameters": function.parameters,
        "strict": False,
    }
