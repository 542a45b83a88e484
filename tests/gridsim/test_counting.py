"""The counting environment, played over the wire."""

from typing import Any

import pytest
import trio
from counting import Counting
from environment_peer import connect, error_of

from gymserve.gridsim.server import EnvironmentServer


async def test_a_perfect_episode_sums_to_one(autojump_clock: Any, nursery: trio.Nursery) -> None:
    peer = await connect(nursery, EnvironmentServer(Counting, capacity=1))
    assert await peer.reset() == {
        "type": "observation",
        "data": {"observation": {"count": 0, "target": 10, "metadata": {}}, "reward": None, "done": False},
    }
    answers = [(await peer.step({"by": by}))["data"] for by in (3, 3, 3, 1)]
    assert [answer["observation"]["count"] for answer in answers] == [3, 6, 9, 10]
    assert [answer["reward"] for answer in answers] == [0.3, 0.3, 0.3, 0.1]
    assert [answer["done"] for answer in answers] == [False, False, False, True]


async def test_overshooting_ends_the_episode_without_reward(autojump_clock: Any, nursery: trio.Nursery) -> None:
    peer = await connect(nursery, EnvironmentServer(Counting, capacity=1))
    await peer.reset(target=4)
    assert (await peer.step({"by": 3}))["data"]["reward"] == 0.75
    last = (await peer.step({"by": 2}))["data"]
    assert last == {"observation": {"count": 5, "target": 4, "metadata": {}}, "reward": 0.0, "done": True}


async def test_a_reset_begins_anew_and_drops_what_it_does_not_know(autojump_clock: Any, nursery: trio.Nursery) -> None:
    peer = await connect(nursery, EnvironmentServer(Counting, capacity=1))
    await peer.reset(target=4)
    await peer.step({"by": 3})
    assert (await peer.reset(seed=7, unknown=[1]))["data"]["observation"] == {
        "count": 0,
        "target": 10,
        "metadata": {},
    }


@pytest.mark.parametrize("target", [0, -1, True, 1.5, "ten", None])
async def test_a_bad_target_is_told_and_the_episode_goes_on(
    autojump_clock: Any, nursery: trio.Nursery, target: Any
) -> None:
    peer = await connect(nursery, EnvironmentServer(Counting, capacity=1))
    assert error_of(await peer.reset(target=target)) == (
        "EXECUTION_ERROR",
        f"target must be an integer of at least 1, not {target!r}",
    )
    assert (await peer.reset(target=3))["data"]["observation"]["target"] == 3


@pytest.mark.parametrize(
    ("action", "faults"),
    [
        ({}, [("missing", "by", "Field required", {})]),
        ({"by": 0}, [("greater_than_equal", "by", "Input should be greater than or equal to 1", 0)]),
        ({"by": 4}, [("less_than_equal", "by", "Input should be less than or equal to 3", 4)]),
        ({"by": True}, [("int_type", "by", "Input should be a valid integer", True)]),
        ({"by": None}, [("int_type", "by", "Input should be a valid integer", None)]),
        ({"by": 1, "x": 2}, [("extra_forbidden", "x", "Extra inputs are not permitted", 2)]),
        (
            {"x": 2},
            [
                ("missing", "by", "Field required", {"x": 2}),
                ("extra_forbidden", "x", "Extra inputs are not permitted", 2),
            ],
        ),
    ],
)
async def test_a_bad_action_is_a_validation_error(
    autojump_clock: Any, nursery: trio.Nursery, action: dict[str, Any], faults: list[tuple[Any, ...]]
) -> None:
    peer = await connect(nursery, EnvironmentServer(Counting, capacity=1))
    await peer.reset()
    answer = await peer.step(action)
    assert error_of(answer) == ("VALIDATION_ERROR", "Invalid message")
    assert answer["data"]["errors"] == [
        {"type": kind, "loc": [key], "msg": sentence, "input": value} for kind, key, sentence, value in faults
    ]
    assert (await peer.step({"by": 2, "metadata": {}}))["data"]["observation"]["count"] == 2
