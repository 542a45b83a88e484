"""What a run's rollouts come to: the statistics that NeMo Gym asks a resources server for after a run."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import groupby
from operator import add, attrgetter
from statistics import median
from typing import Any

from gymserve.errors import BadArguments

_TASK = "_ng_task_index"
_ROLLOUT = "_ng_rollout_index"
_MASK = "mask_sample"

Number = int | float


def aggregate_metrics(verify_responses: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The answer to ``POST /aggregate_metrics``: ``group_level_metrics`` (a task each), ``agent_metrics`` (all
    rollouts) and ``key_metrics`` (the means of all rollouts).

    It is that of nemo-gym 0.7.0 (``nemo_gym/reward_profile.py``, ``compute_aggregate_metrics`` without a
    benchmark's own functions). Every top-level number of a row and of its ``response.usage`` is a metric, but for
    names that begin with ``_`` and ``mask_sample``; NaN counts as missing. Rows whose ``mask_sample`` is true in
    Python's sense count for ``coverage/*`` alone.

    Left out are its ``repeat_level_metrics``, its ``perf_summary``, and of its ``agent_metrics`` all names with
    ``_across_repeats/`` in them, which are the spread and the confidence over the repeats.

    :raises BadArguments: no list of objects; an index of a task or a rollout that is no whole number; a ``response`` or
        its ``usage`` that is no object; an infinite number; a scored row whose task and rollout another row has too.
    """
    keys = [_key(row, at) for at, row in enumerate(_rows(verify_responses))]
    scored = _scored(verify_responses, keys)
    coverage = _coverage(keys, scored)
    if not scored:
        return _answer([], coverage, coverage)
    names = list(dict.fromkeys(name for rollout in scored for name in rollout.numbers))
    tasks = groupby(scored, attrgetter("task"))
    statistics = _statistics(scored, names)
    means = {name: value for name, value in statistics.items() if name.startswith("mean/")}
    return _answer(
        [_group(task, list(rollouts), names) for task, rollouts in tasks],
        {**statistics, **coverage, "num_repeats": len({rollout for _, rollout in keys})},
        {**means, **coverage},
    )


def _answer(groups: list[dict[str, Any]], agent: Mapping[str, Number], key: Mapping[str, Number]) -> dict[str, Any]:
    return {"group_level_metrics": groups, "agent_metrics": dict(agent), "key_metrics": dict(key)}


# -- rows ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Rollout:
    """A row that counts. ``numbers`` are its metrics, those of ``usage`` over those of ``row``."""

    task: int
    index: int
    row: Mapping[str, Any]
    usage: Mapping[str, Any]
    numbers: Mapping[str, Number]


def _rows(given: Any) -> Sequence[Mapping[str, Any]]:
    if not isinstance(given, Sequence) or isinstance(given, str):
        raise BadArguments.because("list_type", "verify_responses must be a list of objects", "verify_responses")
    for at, row in enumerate(given):
        if not isinstance(row, Mapping):
            raise _refusal("dict_type", "each of verify_responses must be an object", at)
    return given


def _key(row: Mapping[str, Any], at: int) -> tuple[int, int]:
    return _index(row, _TASK, at), _index(row, _ROLLOUT, at)


def _index(row: Mapping[str, Any], name: str, at: int) -> int:
    index = row.get(name, 0)
    if not isinstance(index, int) or isinstance(index, bool):
        raise _refusal("int_type", f"{name} must be a whole number", at, name)
    return index


def _scored(rows: Sequence[Mapping[str, Any]], keys: Sequence[tuple[int, int]]) -> list[_Rollout]:
    times = Counter(keys)
    scored = []
    for at, (row, key) in enumerate(zip(rows, keys, strict=True)):
        if row.get(_MASK):
            continue
        if times[key] > 1:
            raise _refusal("value_error", f"there are {times[key]} rows of rollout {key[1]} of task {key[0]}", at)
        scored.append(_rollout(row, key, at))
    return sorted(scored, key=attrgetter("task", "index"))


def _rollout(row: Mapping[str, Any], key: tuple[int, int], at: int) -> _Rollout:
    kept = {name: value for name, value in row.items() if name != _MASK}
    response = _object(row.get("response"), at, "response")
    usage = _object(response.get("usage"), at, "response", "usage")
    measured = {name: value for name, value in {**kept, **usage}.items() if not name.startswith("_")}
    numbers = _numbers(measured)
    for name, number in numbers.items():
        if _is_infinite(number):
            loc = ("response", "usage", name) if name in usage else (name,)
            raise _refusal("finite_number", "an infinite number has no statistics", at, *loc)
    return _Rollout(*key, kept, usage, numbers)


def _object(value: Any, at: int, *loc: str) -> Mapping[str, Any]:
    if not value:
        return {}
    if not isinstance(value, Mapping):
        raise _refusal("dict_type", f"{loc[-1]} must be an object", at, *loc)
    return value


def _numbers(fields: Mapping[str, Any]) -> dict[str, Number]:
    return {
        name: int(value) if isinstance(value, bool) else value
        for name, value in fields.items()
        if isinstance(value, int | float)
    }


def _is_infinite(number: Number) -> bool:
    try:
        return math.isinf(number)
    except OverflowError:  # an integer beyond a float's range
        return True


def _refusal(kind: str, sentence: str, at: int, *loc: str) -> BadArguments:
    return BadArguments.because(kind, sentence, "verify_responses", at, *loc)


# -- figures ---------------------------------------------------------------------------------------------------------


def _coverage(keys: Sequence[tuple[int, int]], scored: Sequence[_Rollout]) -> dict[str, Number]:
    masked = len(keys) - len(scored)
    if not masked:
        return {}
    measured_tasks = {rollout.task for rollout in scored}
    return {
        "coverage/measured_rollouts": len(scored),
        "coverage/masked_rollouts": masked,
        "coverage/measured_tasks": len(measured_tasks),
        "coverage/fully_masked_tasks": len({task for task, _ in keys} - measured_tasks),
    }


def _group(task: int, rollouts: Sequence[_Rollout], names: Iterable[str]) -> dict[str, Any]:
    return {
        _TASK: task,
        **_statistics(rollouts, names),
        # As in NeMo Gym, where whoever asks for metrics is one agent, and rows that are not here are not missed.
        "sample": {"agent_ref": {"name": "agent"}},
        "num_rollouts": len(rollouts),
        "expected_num_rollouts": len(rollouts),
        "missing_num_rollouts": 0,
        "reward_profile_completion_pct": 100.0,
        "rollout_infos": [_rollout_info(rollout) for rollout in rollouts],
    }


def _rollout_info(rollout: _Rollout) -> dict[str, Any]:
    fields = {name: value for name, value in rollout.row.items() if not name.startswith("_")}
    reward = {"reward": fields.pop("reward")} if "reward" in fields else {}  # whatever it is
    fields.pop("response", None)
    return {
        "rollout_id": f"{rollout.task}:{rollout.index}",
        _TASK: rollout.task,
        _ROLLOUT: rollout.index,
        **reward,
        **_numbers(rollout.usage),
        **_numbers(fields),
    }


def _statistics(rollouts: Sequence[_Rollout], names: Iterable[str]) -> dict[str, Number]:
    columns = {name: values for name in names if (values := _values(rollouts, name))}
    statistics = {
        f"{statistic}/{name}": compute(values)
        for statistic, compute in _OF_ANY.items()
        for name, values in columns.items()
    }
    if len(rollouts) == 1:
        return {**statistics, **{f"std/{name}": 0.0 for name in columns}}
    return {**statistics, **{f"std/{name}": _std(values) for name, values in columns.items() if len(values) > 1}}


def _values(rollouts: Iterable[_Rollout], name: str) -> list[float]:
    values = (float(rollout.numbers[name]) for rollout in rollouts if name in rollout.numbers)
    return [value for value in values if not math.isnan(value)]


def _sum(values: Sequence[float]) -> float:
    """One after another, as pandas adds few; ``sum`` does so up to Python 3.11 only."""
    return reduce(add, values)


def _mean(values: Sequence[float]) -> float:
    return _sum(values) / len(values)


def _std(values: Sequence[float]) -> float:
    """That of a sample (n - 1). What is beyond a float's range becomes infinity, as in pandas."""
    mean = _mean(values)
    squares = [(value - mean) * (value - mean) for value in values]
    return math.sqrt(_sum(squares) / (len(values) - 1))


_OF_ANY: Mapping[str, Callable[[Sequence[float]], float]] = {"mean": _mean, "max": max, "min": min, "median": median}
