"""What a rollout earned: rewards under each rule, and what a trainer is told of every ending."""

import math
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymserve.score import (
    Ending,
    RewardRule,
    Rewards,
    Score,
    Spent,
    Tombstone,
    counts,
    masked,
    reward_components,
    verification,
)

LARGEST = sys.float_info.max
NEMO_GYM_KINDS = {  # nemo_gym/failure_kinds.py of nemo-gym 0.7.0
    "session_lost",
    "session_expired",
    "session_release_failed",
    "provider_unavailable",
    "provider_quota_exhausted",
    "provider_oom_killed",
    "transport_unreachable",
    "transport_peer_drop",
    "transport_timeout",
    "transport_local_resource",
    "agent_run_error",
    "agent_request_failed",
    "agent_timeout",
    "environment_server_failed",
    "protocol_violation",
    "judge_failed",
    "judge_unparseable",
    "verifier_error",
    "cancelled",
    "kill_shaped",
    "shutdown",
    "persistence_failed",
    "cohort_incomplete",
}
ROW = {"responses_create_params": {"input": "hi"}, "response": {"output": []}, "task_id": 7, "verifier_metadata": {}}


def total(rule: RewardRule, *rewards: Any) -> float:
    earned = Rewards(rule)
    for reward in rewards:
        earned.add(reward)
    return earned.value


def stone(ending: Ending, *, scored: bool, **score: Any) -> Tombstone:
    return Tombstone(ending, "for a reason", 1e9, Score(**score), scored)


@pytest.mark.parametrize(
    ("rewards", "by_sum", "by_last", "by_max"),
    [
        ((0.25, 0.5, -1), -0.25, -1.0, 0.5),
        ((-3, -2.5, -4), -9.5, -4.0, -2.5),
        ((True, False, True), 2.0, 1.0, 1.0),
        ((None, 0.5, None), 0.5, 0.5, 0.5),
        ((1, math.nan), 1.0, 1.0, 1.0),
        ((math.inf, 2, -math.inf), 2.0, 2.0, 2.0),
        ((1, "2", [3], {"four": 4}), 1.0, 1.0, 1.0),
        ((1, 10**400, -(10**400)), 1.0, 1.0, 1.0),
        ((10**300, 1), 1e300, 1.0, 1e300),
        ((LARGEST, LARGEST), LARGEST, LARGEST, LARGEST),
        ((-LARGEST, -LARGEST), -LARGEST, -LARGEST, -LARGEST),
    ],
)
def test_a_reward_comes_from_the_observations_by_its_rule(rewards, by_sum, by_last, by_max):
    assert total(RewardRule.SUM, *rewards) == by_sum
    assert total(RewardRule.LAST, *rewards) == by_last
    assert total(RewardRule.MAX, *rewards) == by_max


@pytest.mark.parametrize("rule", RewardRule)
@pytest.mark.parametrize("rewards", [(), (None, None), (math.nan, math.inf), ("1",)])
def test_no_reward_at_all_is_zero_and_said(rule, rewards):
    earned = Rewards(rule)
    for reward in rewards:
        earned.add(reward)
    assert (earned.value, earned.none_counted) == (0.0, True)
    earned.add(0)
    assert (earned.value, earned.none_counted) == (0.0, False)


@given(st.sampled_from(RewardRule), st.lists(st.one_of(st.integers(), st.floats(), st.booleans(), st.none())))
def test_a_reward_is_always_a_finite_float(rule, rewards):
    value = total(rule, *rewards)
    assert type(value) is float and math.isfinite(value)
    assert counts(value)


def test_a_finished_episode_is_echoed_with_its_score():
    score = {"reward": 0.75, "no_reward": False, "steps": 3, "done": True, "spent": Spent(1.5, 0.25, 2.0000004, 30)}
    result = verification(ROW, stone(Ending.VERIFIED, scored=True, **score))
    assert not result.masked
    assert result.body == {
        **ROW,
        "reward": 0.75,
        "steps": 3,
        "done": True,
        "seconds_waiting": 1.5,
        "seconds_resetting": 0.25,
        "seconds_stepping": 2.0,
        "seconds_thinking": 30,
    }


def test_an_episode_without_a_reward_says_so():
    assert verification(ROW, stone(Ending.VERIFIED, scored=True, steps=2)).body["no_reward"] is True
    assert "no_reward" not in verification(ROW, stone(Ending.VERIFIED, scored=True, no_reward=False)).body


@pytest.mark.parametrize(
    ("ending", "kind"),
    [
        (Ending.EXPIRED, "session_expired"),
        (Ending.OUTLIVED, "session_expired"),
        (Ending.CLOSED, "cancelled"),
        (Ending.LOST, "session_lost"),
        (Ending.TIMED_OUT, "session_lost"),
        (Ending.SHUTDOWN, "shutdown"),
        (Ending.NEVER_OPENED, "provider_unavailable"),
        (Ending.UNSCORED, "verifier_error"),
    ],
)
def test_an_episode_cut_short_is_masked_in_nemo_gyms_words(ending, kind):
    result = verification(ROW, stone(ending, scored=False, reward=0.5, no_reward=False, steps=2))
    assert result.masked
    assert {key: value for key, value in result.body.items() if not key.startswith("seconds_")} == {
        **ROW,
        "reward": 0.0,
        "steps": 2,
        "done": False,
        "mask_sample": True,
        "instance_config": {"mask_sample": True},
        "failure_kind": kind,
        "failure_reason": "for a reason",
    }
    assert kind in NEMO_GYM_KINDS


@pytest.mark.parametrize("ending", Ending)
def test_a_done_episode_is_never_masked_whatever_ended_its_session(ending):
    result = verification(ROW, stone(ending, scored=True, reward=1.0, no_reward=False, done=True))
    assert (result.masked, result.body["reward"]) == (False, 1.0)
    assert {"mask_sample", "failure_kind", "failure_reason"}.isdisjoint(result.body)


@pytest.mark.parametrize(
    ("ending", "kind"),
    [(Ending.ACTION_ENDED, "gymserve:action_ended_episode"), (Ending.TIMED_OUT, "gymserve:step_timed_out")],
)
def test_an_episode_that_the_policy_ended_is_scored_and_says_why(ending, kind):
    result = verification(ROW, stone(ending, scored=True, reward=0.5, no_reward=False))
    assert (result.masked, result.body["reward"]) == (False, 0.5)
    assert (result.body["failure_kind"], result.body["failure_reason"]) == (kind, "for a reason")


def test_a_masked_row_keeps_its_instance_config_and_loses_its_own_claims():
    row = {"instance_config": {"image": "a", "mask_sample": False}, "reward": 9.0, "mask_sample": False, "steps": 77}
    body = masked(row, "session_lost", "gone").body
    assert body["instance_config"] == {"image": "a", "mask_sample": True}
    assert (body["reward"], body["mask_sample"], body["steps"]) == (0.0, True, 0)
    assert row["instance_config"] == {"image": "a", "mask_sample": False}  # the caller's stays as it was
    assert masked({"instance_config": "none"}, "session_lost", "gone").body["instance_config"] == {"mask_sample": True}


def test_a_scored_row_loses_its_own_claims():
    row = {"reward": 9.0, "steps": 77, "done": False}
    body = verification(row, stone(Ending.VERIFIED, scored=True, reward=0.5, no_reward=False, done=True)).body
    assert (body["reward"], body["steps"], body["done"]) == (0.5, 0, True)


def test_a_row_that_was_a_result_before_loses_what_was_said_of_it_then():
    row = {"mask_sample": True, "failure_kind": "shutdown", "failure_reason": "?", "no_reward": True, "task": 1}
    row["instance_config"] = {"mask_sample": True, "level": 3}
    done = Score(reward=1.0, no_reward=False, steps=2, done=True)
    stone = Tombstone(Ending.VERIFIED, "verified", 0.0, done, scored=True)
    assert verification(row, stone).body == {"task": 1, "instance_config": {"level": 3}, **done.fields()}
    again = masked(row, "session_lost", "gone").body
    assert again["instance_config"] == {"mask_sample": True, "level": 3}
    assert (again["failure_kind"], again["failure_reason"]) == ("session_lost", "gone") and "no_reward" not in again


# -- a failure class -------------------------------------------------------------------------------------------------


def test_a_failure_class_is_a_masked_results_alone():
    row = {"_ng_failure_class": "of the try before", "task": 1}
    lost = stone(Ending.LOST, scored=False)
    assert verification(row, lost, failure_class="again").body["_ng_failure_class"] == "again"
    assert masked(row, "session_lost", "gone", failure_class="again").body["_ng_failure_class"] == "again"
    done = stone(Ending.VERIFIED, scored=True, done=True)
    for result in (
        verification(row, done, failure_class="again"),
        verification(row, lost),
        masked(row, "session_lost", "gone"),
    ):
        assert "_ng_failure_class" not in result.body and result.body["task"] == 1


# -- the parts of a reward -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "parts"),
    [
        ({}, {}),
        ({"reward_components": {"a": 1}}, {}),
        ({"metadata": None}, {}),
        ({"metadata": {"reward_components": [1]}}, {}),
        ({"metadata": {"reward_components": {"a": 1, "b": -0.5, "c": True}}}, {"a": 1.0, "b": -0.5, "c": 1.0}),
        ({"metadata": {"reward_components": {"a": None, "b": "1", "c": math.nan, "d": 10**400, "e": 0}}}, {"e": 0.0}),
    ],
)
def test_an_observations_metadata_names_the_parts_of_its_reward(fields, parts):
    assert reward_components(fields) == parts
    assert all(type(part) is float for part in reward_components(fields).values())


def parts_of(rule: RewardRule, *rewards: tuple[Any, dict[str, float]]) -> Any:
    earned = Rewards(rule)
    for reward, parts in rewards:
        earned.add(reward, parts)
    return earned.components


@pytest.mark.parametrize(
    ("rewards", "by_sum", "by_last", "by_max"),
    [
        ((), {}, {}, {}),
        (((1, {"a": 1.0}),), {"a": 1.0}, {"a": 1.0}, {"a": 1.0}),
        (
            ((1, {"a": 1.0}), (3, {"a": 1.0, "b": 2.0})),
            {"a": 2.0, "b": 2.0},
            {"a": 1.0, "b": 2.0},
            {"a": 1.0, "b": 2.0},
        ),
        (((3, {"a": 3.0}), (-1, {"b": -1.0})), {"a": 3.0, "b": -1.0}, {"b": -1.0}, {"a": 3.0}),
        (((3, {"a": 3.0}), (3, {"b": 3.0})), {"a": 3.0, "b": 3.0}, {"b": 3.0}, {"a": 3.0}),
        (((3, {"a": 3.0}), (None, {"b": 9.0}), (math.nan, {"c": 9.0})), {"a": 3.0}, {"a": 3.0}, {"a": 3.0}),
        (((3, {"a": 3.0}), (4, {})), {"a": 3.0}, {}, {}),
        (((1, {"a": LARGEST}), (1, {"a": LARGEST})), {"a": LARGEST}, {"a": LARGEST}, {"a": LARGEST}),
    ],
)
def test_the_parts_go_with_their_rewards_by_the_rule(rewards, by_sum, by_last, by_max):
    assert parts_of(RewardRule.SUM, *rewards) == by_sum
    assert parts_of(RewardRule.LAST, *rewards) == by_last
    assert parts_of(RewardRule.MAX, *rewards) == by_max


@pytest.mark.parametrize(
    ("reward", "parts", "add_up"),
    [
        (5.0, {}, True),
        (0.3, {"a": 0.1, "b": 0.2}, True),
        (1.0, {"a": 1.000009}, True),  # NeMo RL's own tolerance
        (1.0, {"a": 1.000011}, False),
        (0.0, {"a": 0.9e-6}, True),
        (0.0, {"a": 1.1e-6}, False),
        (0.5, {"a": 0.5, "b": 0.5}, False),
        (1e16, {"a": 1e16, "b": 1.0, "c": -1e16}, False),
    ],
)
def test_parts_are_told_where_they_add_up_to_the_reward(reward, parts, add_up):
    score = Score(reward=reward, no_reward=False, components=parts)
    assert score.components_add_up is add_up
    body = verification({}, Tombstone(Ending.VERIFIED, "", 0.0, score, scored=True)).body
    if add_up and parts:
        assert body["reward_components"] == parts and {name: body[name] for name in parts} == parts
    else:
        assert {"reward_components", *parts}.isdisjoint(body)


def test_parts_stand_beside_the_result_under_no_name_that_is_taken():
    parts = {"reward": 0.5, "seconds_thinking": 0.25, "task_id": 0.125, "a": 0.125}
    earned = {"reward": 1.0, "no_reward": False, "components": parts}
    body = verification(ROW, stone(Ending.ACTION_ENDED, scored=True, **earned)).body
    assert (body["reward"], body["seconds_thinking"], body["task_id"], body["a"]) == (1.0, 0.0, 7, 0.125)
    assert (body["reward_components"], body["failure_kind"]) == (parts, "gymserve:action_ended_episode")


def test_a_masked_result_names_the_parts_and_gives_each_nothing():
    row = {"reward_components": {"old": 1.0}, "task": 1}
    earned = {"reward": 1.0, "no_reward": False, "components": {"a": 0.75, "b": 0.25}}
    body = verification(row, stone(Ending.LOST, scored=False, **earned)).body
    assert (body["reward"], body["reward_components"]) == (0.0, {"a": 0.0, "b": 0.0})
    assert {"a", "b"}.isdisjoint(body)
    assert "reward_components" not in verification(row, stone(Ending.LOST, scored=False)).body


def test_parts_beyond_every_number_do_not_add_up() -> None:
    assert not Score(reward=0.0, components={"a": 1.7e308, "b": 1.7e308}).components_add_up


def test_the_parts_of_an_earlier_result_are_none_of_the_rows() -> None:
    row = {"speed": 1.0, "task": 7, "reward_components": {"speed": 1.0}}
    stone = Tombstone(Ending.VERIFIED, "verified", 0.0, Score(reward=0.5, components={"speed": 0.5}), scored=True)
    body = verification(row, stone).body
    assert (body["speed"], body["task"], body["reward_components"]) == (0.5, 7, {"speed": 0.5})
