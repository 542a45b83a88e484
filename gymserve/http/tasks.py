"""What a row asks of gymserve."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gymserve.errors import BadArguments
from gymserve.seeds import Seeding
from gymserve.session import Seed

IDLE_TIMEOUT_HEADER = "X-Gymserve-Idle-Timeout"

LABEL_CHARACTERS = 200


@dataclass(frozen=True, slots=True)
class Task:
    """``lists_tools``: the row itself tells the model's tools."""

    seed: Seed
    lists_tools: bool


def read_task(
    row: Mapping[str, Any],
    seeding: Seeding,
    *,
    label_header: str | None,
    idle_timeout_header: str | None,
    traceparent: str | None = None,
    name: str | None = None,
    taskset: str | None = None,
    sent: Mapping[str, Any] | None = None,
    sent_bytes: int = 0,
) -> Task:
    """What ``row`` asks, with what a typed seed says beside it: its session's ``name``, and its ``taskset`` as the last
    resort for a label.

    :param traceparent: of the request, normalised.
    :param sent: what is recorded as the row, where it is not ``row`` alone; ``sent_bytes`` of JSON.
    :raises BadArguments: the row's ``reset_kwargs``, its label or its idle timeout cannot be used, or it is nested too
        deep.
    """
    kwargs = seeding.kwargs(row, _reset_kwargs(row), name)
    seed = Seed(
        label=_label(row, label_header, taskset),
        reset_kwargs=kwargs,
        idle_timeout_seconds=_idle_timeout_seconds(row, idle_timeout_header),
        traceparent=traceparent,
        row=row if sent is None else sent,
        row_bytes=sent_bytes,
    )
    return Task(seed, _lists_tools(row))


def _idle_timeout_seconds(row: Mapping[str, Any], header: str | None) -> float | None:
    """The client's own: a request header, else the row's ``gymserve_idle_timeout``."""
    where, given = ("header", header) if header is not None else ("body", row.get("gymserve_idle_timeout"))
    if given is None:
        return None
    try:
        seconds = math.nan if isinstance(given, bool) else float(given)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not 0 < seconds < math.inf:
        place = [where, IDLE_TIMEOUT_HEADER if where == "header" else "gymserve_idle_timeout"]
        raise BadArguments([{"type": "greater_than", "loc": place, "msg": "must be a number of seconds above 0"}])
    return seconds


def _reset_kwargs(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """The row's own arguments for reset: ``reset_kwargs`` at its top, else under ``verifier_metadata``."""
    metadata = row.get("verifier_metadata")
    nested = metadata.get("reset_kwargs") if isinstance(metadata, dict) else None
    kwargs = row.get("reset_kwargs", nested)
    if kwargs is None:
        return {}
    if not isinstance(kwargs, dict):
        raise BadArguments.because("dict_type", "reset_kwargs must be a JSON object", "reset_kwargs")
    return kwargs


def _label(row: Mapping[str, Any], header: str | None, taskset: str | None) -> str | None:
    """The run's name: a request header, else the row's ``gymserve_label``, else the name in its ``agent_ref``, else its
    taskset's.

    A name that nobody chose as a label is cut; one that was is refused, as runs with the same beginning would be one.
    """
    agent = row.get("agent_ref")
    chosen = header or row.get("gymserve_label")
    if isinstance(chosen, str) and len(chosen) > LABEL_CHARACTERS:
        sentence = f"a label (the header X-Gymserve-Label, or gymserve_label) has at most {LABEL_CHARACTERS} characters"
        raise BadArguments.because("string_too_long", sentence, "gymserve_label")
    label = chosen or (agent.get("name") if isinstance(agent, dict) else None) or taskset
    return label[:LABEL_CHARACTERS] if isinstance(label, str) and label else None


def _lists_tools(row: Mapping[str, Any]) -> bool:
    """Whether it has function tools, which verifiers takes from it (``verifiers/v1/tasksets/nemo_gym/taskset.py``)."""
    params = row.get("responses_create_params")
    tools = params.get("tools") if isinstance(params, dict) else None
    return isinstance(tools, list) and any(isinstance(tool, dict) and tool.get("type") == "function" for tool in tools)
