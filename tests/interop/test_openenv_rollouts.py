"""Rollouts through gymserve on a real OpenEnv server whose environment has one action.

Needs the package ``openenv`` and no package of gymserve's tests; without it everything here is skipped. In an
environment that has openenv, uvicorn, fastmcp, httpx and pytest, and with gymserve in another one::

    GYMSERVE_PYTHON=.venv/bin/python python -m pytest -c /dev/null --rootdir . --confcutdir tests/interop tests/interop

``-c /dev/null`` leaves out the project's own pytest settings, which are for an environment with pytest-trio.
"""

from collections.abc import Callable
from typing import Any

import pytest
from openenv_processes import Client, Gymserve, OpenEnvServer, eventually

OVER = "The episode is over; no further call can succeed."
NewClient = Callable[[Gymserve], Client]


def test_a_whole_rollout(step_server: OpenEnvServer, step_gymserve: Gymserve, new_client: NewClient) -> None:
    mark = step_server.mark()
    client = new_client(step_gymserve)

    seeded = client.seed(seed=7, level=2)
    assert (seeded.status_code, [*seeded.json()]) == (200, ["mcp"])
    assert mark.entries_since()[0]["kwargs"] == {"seed": 7, "level": 2}

    first = client.call("observation")
    assert first.json() == {"text": "ready", "steps": 0, "metadata": {}, "reward": None, "done": False}
    second = client.step(text="north", reward=0.5)
    assert second.json() == {"text": "north", "steps": 1, "metadata": {}, "reward": 0.5, "done": False}
    assert client.call("observation").json() == second.json()

    row = {"task": "π", "responses_create_params": {"input": []}, "response": {"output": [1, None]}}
    verified = client.verify(**row)
    assert row.items() <= verified.items()
    assert (verified["reward"], verified["steps"], verified["done"]) == (0.5, 1, False)
    assert "mask_sample" not in verified
    assert client.verify(**row) == verified

    eventually(lambda: mark.events() == ["reset", "step", "close"], within_seconds=1)
    assert "Traceback" not in mark.log()


def test_rewards_are_summed_whatever_json_makes_of_them(step_gymserve: Gymserve, new_client: NewClient) -> None:
    client = new_client(step_gymserve)
    client.seed()
    rewards: list[Any] = [0.25, True, None, "nan", False, -3]
    assert [client.step(reward=reward).json()["reward"] for reward in rewards] == [0.25, True, None, None, False, -3]
    assert client.verify()["reward"] == -1.75


def test_done_frees_the_slot_at_once_and_keeps_the_score(
    step_server: OpenEnvServer, step_gymserve: Gymserve, new_client: NewClient
) -> None:
    mark = step_server.mark()
    finished, following = new_client(step_gymserve), new_client(step_gymserve)
    finished.seed()
    assert finished.step(reward=2, done=True).json()["done"] is True
    eventually(lambda: mark.events() == ["reset", "step", "close"], within_seconds=1)

    assert following.seed().status_code == 200  # the only slot
    late = finished.step()
    assert (late.status_code, late.json()) == (409, {"error": "episode_over", "detail": OVER, "done": True})
    verified = finished.verify()
    assert (verified["reward"], verified["steps"], verified["done"]) == (2, 1, True)
    assert "mask_sample" not in verified
    assert "Traceback" not in mark.log()


def test_an_action_that_the_validator_refuses_is_a_422_with_its_list(
    step_gymserve: Gymserve, new_client: NewClient
) -> None:
    client = new_client(step_gymserve)
    client.seed()
    refused = client.step(sleep_seconds=-1, reward="much")
    assert refused.status_code == 422
    assert (refused.json()["error"], refused.json()["done"]) == ("bad_arguments", False)
    by_place = {error["loc"][0]: error for error in refused.json()["detail"]}
    assert set(by_place) == {"sleep_seconds", "reward"}
    assert by_place["sleep_seconds"]["type"] == "greater_than_equal"
    assert by_place["sleep_seconds"]["msg"] == "Input should be greater than or equal to 0"
    assert client.step(reward=1).json()["steps"] == 1
    assert client.verify()["reward"] == 1


def test_an_environment_that_raises_goes_on(step_gymserve: Gymserve, new_client: NewClient) -> None:
    client = new_client(step_gymserve)
    client.seed()
    failed = client.step(failure="no fuel")
    detail = "the environment raised an error: no fuel"
    assert (failed.status_code, failed.json()) == (502, {"error": "environment_error", "detail": detail, "done": False})
    assert client.step(reward=1).json()["steps"] == 2  # the environment counts the failed one, too
    verified = client.verify()
    assert (verified["reward"], verified["steps"]) == (1, 1)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("forbidden", "SESSION_ERROR", id="validator raising ValueError"),
        pytest.param("x" * (17 * 2**20), "1009", id="more than the server's 16 MiB"),
    ],
)
def test_an_action_that_ends_the_episode_is_scored(
    text: str, reason: str, step_server: OpenEnvServer, step_gymserve: Gymserve, new_client: NewClient
) -> None:
    mark = step_server.mark()
    client = new_client(step_gymserve)
    client.seed()
    client.step(reward=0.5)
    ended = client.step(text=text)
    assert (ended.status_code, ended.json()) == (502, {"error": "environment_error", "detail": OVER, "done": True})
    after = client.step()
    assert (after.status_code, after.json()) == (410, {"error": "session_lost", "detail": OVER, "done": True})
    verified = client.verify()
    assert (verified["reward"], verified["steps"], verified["done"]) == (0.5, 1, False)
    assert verified["failure_kind"] == "gymserve:action_ended_episode"
    assert reason in verified["failure_reason"]
    assert "mask_sample" not in verified
    eventually(lambda: mark.events() == ["reset", "step", "close"], within_seconds=1)


def test_an_environment_server_that_dies_in_a_step_masks_the_rollout(
    mortal_server: OpenEnvServer, start_gymserve: Callable[..., Gymserve], new_client: NewClient
) -> None:
    client = new_client(start_gymserve(mortal_server))
    client.seed()
    client.step(reward=0.5)
    died = client.step(exit=True)
    assert (died.status_code, died.json()) == (502, {"error": "environment_error", "detail": OVER, "done": True})
    verified = client.verify()
    assert (verified["reward"], verified["steps"]) == (0, 1)
    assert verified["mask_sample"] is True
    assert verified["failure_kind"] == "session_lost"
    assert "the server dropped the connection" in verified["failure_reason"]


def test_an_observation_of_20_megabytes_passes(step_gymserve: Gymserve, new_client: NewClient) -> None:
    client = new_client(step_gymserve)
    client.seed()
    assert len(client.step(text_bytes=20_000_000).json()["text"]) == 20_000_000
