"""Our figures of a run beside those of nemo-gym itself, for whatever rows there are."""

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

pytest.importorskip("nemo_gym")

from hypothesis import example, given, settings
from hypothesis import strategies as st
from nemo_gym import reward_profile

from gymserve.aggregate import aggregate_metrics
from gymserve.errors import BadArguments

Rows = Sequence[Mapping[str, Any]]

_STATISTICS = ("mean/", "max/", "min/", "median/", "std/")
_EXACT = ("max/", "min/")
_TOLERANCE = 1e-9  # of a field's greatest magnitude: pandas adds in another order


def theirs(rows: Rows) -> dict[str, Any]:
    """nemo-gym's answer, without what `aggregate_metrics` says that it leaves out."""
    metrics = compute(rows)
    del metrics["repeat_level_metrics"], metrics["perf_summary"]
    agent = metrics["agent_metrics"].items()
    return {**metrics, "agent_metrics": {name: value for name, value in agent if "_across_repeats/" not in name}}


def compute(rows: Rows) -> dict[str, Any]:
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")  # of the spread over repeats, and of sums that overflow
        try:
            metrics: dict[str, Any] = reward_profile.compute_aggregate_metrics(rows).model_dump()
        except ValueError as error:
            # It fails at histograms of numbers that are great, or near to each other, to throw them away afterwards.
            if "Too many bins" not in str(error):
                raise
            patch.setattr(reward_profile.RewardProfiler, "histogram", lambda *_: None)
            metrics = reward_profile.compute_aggregate_metrics(rows).model_dump()
    return metrics


def check_figures(ours: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """The same names in the same order, and their values."""
    assert list(ours) == list(expected)
    for name, value in expected.items():
        if not name.startswith(_STATISTICS):
            assert repr(ours[name]) == repr(value), name  # NaN is no number, and the same
        elif name.startswith(_EXACT):
            assert ours[name] == float(value), name
        else:
            assert math.isclose(ours[name], value, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE * scale(expected, name)), name


def scale(figures: Mapping[str, Any], name: str) -> float:
    field = name.partition("/")[2]
    extremes = [figures[f"{statistic}{field}"] for statistic in _EXACT if f"{statistic}{field}" in figures]
    return max((abs(float(extreme)) for extreme in extremes), default=0.0)


def check(rows: Rows) -> None:
    ours, expected = aggregate_metrics(rows), theirs(rows)
    assert list(ours) == list(expected)
    check_figures(ours["agent_metrics"], expected["agent_metrics"])
    check_figures(ours["key_metrics"], expected["key_metrics"])
    assert len(ours["group_level_metrics"]) == len(expected["group_level_metrics"])
    for our_group, group in zip(ours["group_level_metrics"], expected["group_level_metrics"], strict=True):
        check_figures(our_group, group)


floats = st.floats(-1e307, 1e307)
numbers = st.one_of(
    st.integers(-1000, 1000), st.sampled_from([2**53 + 1, -(2**62) - 1]), floats, st.just(math.nan), st.booleans()
)
others = st.one_of(st.none(), st.text(max_size=3), st.lists(st.integers(), max_size=2), st.just({"nested": 1}))
values = st.one_of(numbers, numbers, others)
names = st.sampled_from(
    ["reward", "steps", "a/b", "", "input_tokens", "histogram", "sample", "_ng_attempt_index", "_x"]
)
fields = st.dictionaries(names, values, max_size=5)
usages = st.one_of(st.none(), fields)
responses: st.SearchStrategy[dict[str, Any] | None] = st.one_of(
    st.none(), st.just({}), st.fixed_dictionaries({"usage": usages})
)
masks = st.sampled_from([False, None, 0, "", True, 1, "session_lost", {"by": "us"}])
indices = st.integers(-1, 3)


@st.composite
def rows(draw: st.DrawFn) -> dict[str, Any]:
    """A row of a rollout, in whatever order its fields are."""
    extras = {"_ng_task_index": indices, "_ng_rollout_index": indices, "mask_sample": masks, "response": responses}
    row = draw(st.fixed_dictionaries({}, optional=extras)) | draw(fields)
    return {name: row[name] for name in draw(st.permutations(list(row)))}


def rollout(row: Mapping[str, Any]) -> tuple[int, int]:
    return row.get("_ng_task_index", 0), row.get("_ng_rollout_index", 0)


@settings(deadline=None, max_examples=100, database=None)
@given(st.lists(rows(), max_size=8, unique_by=rollout))
@example([{"reward": 1e300}, {"_ng_rollout_index": 1, "reward": -1e300}])
@example([{"reward": 1.5e308}, {"_ng_rollout_index": 1, "reward": 1e308}])
@example([{"_ng_rollout_index": index, "reward": 0.1} for index in range(3)])
def test_figures_are_those_of_nemo_gym(run: list[dict[str, Any]]) -> None:
    check(run)


@settings(deadline=None, max_examples=50, database=None)
@given(st.lists(rows(), min_size=2, max_size=4), st.data())
def test_a_second_row_of_a_rollout_is_refused_where_nemo_gym_fails(
    run: list[dict[str, Any]], data: st.DataObject
) -> None:
    run[1] = {**run[1], **dict(zip(("_ng_task_index", "_ng_rollout_index"), rollout(run[0]), strict=True))}
    try:
        theirs(run)
    except ValueError:
        with pytest.raises(BadArguments, match="rows of rollout"):
            aggregate_metrics(run)
    else:
        check(run)


@pytest.mark.parametrize(
    "row",
    [
        pytest.param({"reward": math.inf}, id="infinity"),
        pytest.param({"reward": 10**400}, id="an integer beyond a float's range"),
        pytest.param({"response": {"usage": {"tokens": -math.inf}}}, id="infinity in usage"),
        pytest.param({"response": "done"}, id="a response that is no object"),
        pytest.param({"response": {"usage": [1]}}, id="usage that is no object"),
    ],
)
def test_what_nemo_gym_fails_at_is_refused(row: dict[str, Any]) -> None:
    with pytest.raises((ValueError, OverflowError, AttributeError)):
        theirs([row])
    with pytest.raises(BadArguments):
        aggregate_metrics([row])
    check([{**row, "mask_sample": True}])  # of a masked row neither looks at anything
