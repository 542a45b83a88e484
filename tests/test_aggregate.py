"""A run's figures: exact ones for a small run, and what cannot be aggregated."""

import json
from typing import Any

import pytest

from gymserve.aggregate import aggregate_metrics
from gymserve.errors import BadArguments

USAGES = (
    {"input_tokens": 10, "output_tokens": 4, "total_tokens": 14, "input_tokens_details": {"cached_tokens": 0}},
    {"input_tokens": 12, "output_tokens": 6, "total_tokens": 18},
)
RUN: list[dict[str, Any]] = [
    {**row, "agent_ref": {"name": "counter"}}
    for row in (
        {"_ng_task_index": 0, "_ng_rollout_index": 0, "reward": 1.0, "steps": 3, "done": True},
        {"_ng_task_index": 0, "_ng_rollout_index": 1, "reward": 0.0, "steps": 5, "done": False},
        {"_ng_task_index": 1, "_ng_rollout_index": 0, "reward": 0.5, "steps": 2, "done": True, "mask_sample": False},
    )
]
RUN[0]["response"] = {"usage": USAGES[0]}
RUN[1]["response"] = {"usage": USAGES[1]}

TOKENS = ("input_tokens", "output_tokens", "total_tokens")
ALL_THERE: dict[str, Any] = {
    "sample": {"agent_ref": {"name": "agent"}},
    "missing_num_rollouts": 0,
    "reward_profile_completion_pct": 100.0,
}


def row(task: int, rollout: int, **fields: Any) -> dict[str, Any]:
    return {"_ng_task_index": task, "_ng_rollout_index": rollout, **fields}


def table(names: tuple[str, ...], **columns: tuple[float, ...]) -> dict[str, float]:
    """``mean=(...)`` and so on, a value for each of ``names``."""
    return {
        f"{statistic}/{name}": value
        for statistic, values in columns.items()
        for name, value in zip(names, values, strict=True)
    }


def agent_metrics(*rows: dict[str, Any]) -> dict[str, Any]:
    metrics: dict[str, Any] = aggregate_metrics(rows)["agent_metrics"]
    return metrics


def refusal(given: Any) -> tuple[list[Any], str]:
    """Where it is, without what is common to all, and the sentence."""
    with pytest.raises(BadArguments) as caught:
        aggregate_metrics(given)
    [error] = caught.value.detail
    assert error["loc"][:2] == ["body", "verify_responses"]
    return error["loc"][2:], error["msg"]


# -- figures ---------------------------------------------------------------------------------------------------------


def test_a_run_s_figures_are_those_of_nemo_gym() -> None:
    names = ("reward", "steps", "done", *TOKENS)
    root_half, root_two, root_eight = 0.7071067811865476, 1.4142135623730951, 2.8284271247461903
    infos = [
        {**row(0, 0), "rollout_id": "0:0", "reward": 1.0, "steps": 3, "done": 1},
        {**row(0, 1), "rollout_id": "0:1", "reward": 0.0, "steps": 5, "done": 0},
        {**row(1, 0), "rollout_id": "1:0", "reward": 0.5, "steps": 2, "done": 1},
    ]
    infos[0].update({name: USAGES[0][name] for name in TOKENS})
    infos[1].update({name: USAGES[1][name] for name in TOKENS})
    means = table(names, mean=(0.5, 3.3333333333333335, 0.6666666666666666, 11, 5, 16))
    assert aggregate_metrics(RUN) == {
        "group_level_metrics": [
            {
                "_ng_task_index": 0,
                **table(
                    names,
                    mean=(0.5, 4, 0.5, 11, 5, 16),
                    max=(1, 5, 1, 12, 6, 18),
                    min=(0, 3, 0, 10, 4, 14),
                    median=(0.5, 4, 0.5, 11, 5, 16),
                    std=(root_half, root_two, root_half, root_two, root_two, root_eight),
                ),
                **ALL_THERE,
                "num_rollouts": 2,
                "expected_num_rollouts": 2,
                "rollout_infos": infos[:2],
            },
            {
                "_ng_task_index": 1,
                **table(names[:3], mean=(0.5, 2, 1), max=(0.5, 2, 1), min=(0.5, 2, 1), median=(0.5, 2, 1)),
                **table(names[:3], std=(0, 0, 0)),
                **ALL_THERE,
                "num_rollouts": 1,
                "expected_num_rollouts": 1,
                "rollout_infos": infos[2:],
            },
        ],
        "agent_metrics": {
            **means,
            **table(
                names,
                max=(1, 5, 1, 12, 6, 18),
                min=(0, 2, 0, 10, 4, 14),
                median=(0.5, 3, 1, 11, 5, 16),
                std=(0.5, 1.5275252316519465, 0.5773502691896258, root_two, root_two, root_eight),
            ),
            "num_repeats": 2,
        },
        "key_metrics": means,
    }


def test_without_rollouts_there_are_no_figures() -> None:
    assert aggregate_metrics([]) == {"group_level_metrics": [], "agent_metrics": {}, "key_metrics": {}}


def test_masked_rollouts_are_counted_and_nothing_else() -> None:
    metrics = aggregate_metrics(
        [
            row(0, 0, reward=1, mask_sample=False),
            row(0, 1, reward=0, mask_sample=True, response="not looked at"),
            row(1, 0, reward=0, mask_sample="session_expired"),
            row(1, 1, reward=0, mask_sample=1),
        ]
    )
    coverage = table(
        ("measured_rollouts", "masked_rollouts", "measured_tasks", "fully_masked_tasks"), coverage=(1, 3, 1, 1)
    )
    assert [group["rollout_infos"] for group in metrics["group_level_metrics"]] == [
        [{"rollout_id": "0:0", "_ng_task_index": 0, "_ng_rollout_index": 0, "reward": 1}]
    ]
    statistics = table(("reward",), mean=(1,), max=(1,), min=(1,), median=(1,), std=(0,))
    assert metrics["agent_metrics"] == {**statistics, **coverage, "num_repeats": 2}
    assert metrics["key_metrics"] == {"mean/reward": 1, **coverage}


def test_where_all_is_masked_there_is_no_zero() -> None:
    coverage = table(
        ("measured_rollouts", "masked_rollouts", "measured_tasks", "fully_masked_tasks"), coverage=(0, 2, 0, 1)
    )
    # Nothing but the count is made of a masked row, so that two of one rollout are no reason to refuse them.
    metrics = aggregate_metrics([row(0, 0, reward=0, mask_sample=True)] * 2)
    assert metrics == {"group_level_metrics": [], "agent_metrics": coverage, "key_metrics": coverage}


def test_what_is_missing_counts_for_nothing() -> None:
    metrics = agent_metrics(
        row(0, 0, reward=None, wrong=float("nan"), steps="3"), row(0, 1, reward=2, wrong=4), row(1, 0, reward=4)
    )
    assert metrics == {
        **table(("reward", "wrong"), mean=(3, 4), max=(4, 4), min=(2, 4), median=(3, 4)),
        "std/reward": 1.4142135623730951,  # and none of "wrong": of one value among several rollouts there is none
        "num_repeats": 2,
    }


def test_usage_is_stronger_and_private_names_are_no_metrics() -> None:
    given = row(0, 0, tokens=3, _ng_attempt_index=1, response={"usage": {"tokens": 5, "_private": 7}})
    metrics = aggregate_metrics([given])
    assert metrics["key_metrics"] == {"mean/tokens": 5}
    # As in NeMo Gym: here it is the row that is stronger.
    [info] = metrics["group_level_metrics"][0]["rollout_infos"]
    assert info == {"rollout_id": "0:0", "_ng_task_index": 0, "_ng_rollout_index": 0, "tokens": 3, "_private": 7}


def test_tasks_and_their_rollouts_are_in_order_and_an_index_that_is_missing_is_0() -> None:
    metrics = aggregate_metrics([row(7, 1), row(-1, 2), row(7, 0), {}])
    ids = [[info["rollout_id"] for info in group["rollout_infos"]] for group in metrics["group_level_metrics"]]
    assert ids == [["-1:2"], ["0:0"], ["7:0", "7:1"]]


def test_a_figure_beyond_a_float_s_range_is_infinite() -> None:
    metrics = agent_metrics(row(0, 0, reward=1e308), row(0, 1, reward=1.5e308))
    assert metrics["mean/reward"] == metrics["median/reward"] == metrics["std/reward"] == float("inf")
    assert metrics["max/reward"] == 1.5e308


# -- what cannot be aggregated ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [None, {"reward": 1}, "rows", 3])
def test_only_a_list_can_be_aggregated(given: Any) -> None:
    assert refusal(given) == ([], "verify_responses must be a list of objects")


@pytest.mark.parametrize("given", [None, [], "row", 1])
def test_only_objects_can_be_aggregated(given: Any) -> None:
    assert refusal([row(0, 0), given]) == ([1], "each of verify_responses must be an object")


@pytest.mark.parametrize("name", ["_ng_task_index", "_ng_rollout_index"])
@pytest.mark.parametrize("index", [None, True, 1.0, "1", [1]])
def test_an_index_is_a_whole_number(name: str, index: Any) -> None:
    assert refusal([{name: index}]) == ([0, name], f"{name} must be a whole number")


def test_a_rollout_has_one_row() -> None:
    assert refusal([row(0, 2), row(3, 1), row(3, 1)]) == ([1], "there are 2 rows of rollout 1 of task 3")
    assert refusal([row(3, 1, mask_sample=True), row(3, 1)]) == ([1], "there are 2 rows of rollout 1 of task 3")
    assert refusal([{}, {}]) == ([0], "there are 2 rows of rollout 0 of task 0")


def test_a_response_and_its_usage_are_objects() -> None:
    assert refusal([{"response": "done"}]) == ([0, "response"], "response must be an object")
    assert refusal([{"response": {"usage": [14]}}]) == ([0, "response", "usage"], "usage must be an object")
    assert agent_metrics({"response": None}) == agent_metrics({"response": {"usage": None}}) == {"num_repeats": 1}


@pytest.mark.parametrize("text", ["1e400", "-1e400", "1" + "0" * 400])
def test_an_infinite_number_is_refused(text: str) -> None:
    number = json.loads(text)
    assert refusal([row(0, 0, reward=1), row(0, 1, reward=number)]) == (
        [1, "reward"],
        "an infinite number has no statistics",
    )
    assert refusal([{"response": {"usage": {"tokens": number}}}])[0] == [0, "response", "usage", "tokens"]
