"""Whole rollouts of GridSim by NeMo Gym's own agents and environment servers, through a gymserve that nothing is told
of them.

Needs nemo-gym 0.7.0 and none of the packages of gymserve's tests; without it everything here is skipped.
"""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest

pytest.importorskip("nemo_gym")

from nemo_gym.base_resources_server import ResourcesSeedSessionRequest
from nemo_gym.reward_profile import compute_aggregate_metrics
from nemo_gym.testing.session_conformance import check_resources_session_contract
from nemo_gym_configuration import MAX_STEPS
from nemo_gym_fleet import Fleet, started_fleet
from nemo_gym_forwarding import forwarding_app
from nemo_gym_gridsim import HOURS, IDLE, SLOTS, STEADY, optimal, played, rows
from nemo_gym_model import ToolCall, Turn, call, turns
from openenv_processes import eventually

OVER = "The episode is over; no further call can succeed."
EXPIRED = json.dumps({"error": "session_expired", "detail": OVER, "done": True}, separators=(",", ":"))
REASON = "no request for 2 s, the idle timeout"
NO_USAGE_DETAILS = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
A_CALL = ["function_call", "function_call_output"]


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with started_fleet(tmp_path_factory.mktemp("nemo_gym")) as fleet:
        yield fleet


def row(number: int, script: str, **more: Any) -> dict[str, Any]:
    """Evaluation row ``number``, to be played by a script of the model."""
    plain = rows()[number]
    params = plain["responses_create_params"] | {"metadata": {"script": script}}
    return {**plain, "responses_create_params": params, "_ng_task_index": number, "_ng_rollout_index": 0, **more}


def episode(number: int, script: str, **params: Any) -> dict[str, Any]:
    """The same for an environment server."""
    flat = row(number, script)
    day = flat["reset_kwargs"]["day"]
    return {
        "episode_id": {"rollout_id": f"{script}-{day}", "attempt": 1},
        "task": {
            "task_id": {"taskset": "days", "task_id": str(day)},
            "task_input": {
                "responses_create_params": flat["responses_create_params"] | params,
                "task_data": {"reset_kwargs": {"day": day}, "source": "π"},
            },
        },
    }


def outputs(result: Mapping[str, Any]) -> list[str]:
    """What the tools told the model, in order."""
    return [item["output"] for item in result["response"]["output"] if item["type"] == "function_call_output"]


def kinds(result: Mapping[str, Any]) -> list[str]:
    return [item["type"] for item in result["response"]["output"]]


@contextmanager
def opened_at_last(gate: Event) -> Iterator[None]:
    """After the block the model may go on, also when it has failed."""
    try:
        yield
    finally:
        gate.set()


def usage(turns: int) -> dict[str, Any]:
    return {"input_tokens": 10 * turns, "output_tokens": 2 * turns, "total_tokens": 12 * turns, **NO_USAGE_DETAILS}


def failure(result: Mapping[str, Any]) -> tuple[Any, Any]:
    return result["failure_kind"], result["failure_reason"]


# -- simple_agent ----------------------------------------------------------------------------------------------------


def test_simple_agent_plays_twelve_days_at_once_on_eight_slots(fleet: Fleet) -> None:
    gate = Event()
    days = {"twelve-optimal": optimal(1000), "twelve-idle": IDLE, "twelve-steady": STEADY}
    for name, calls in days.items():
        first, *later = turns(calls)
        fleet.model.scripts[name] = [Turn(first.calls, gate=gate), *later]
    names = list(days) * 4
    extras = [{"task_id": f"task-{index}", "verifier_metadata": {"tags": [index, None]}} for index in range(12)]
    given = [row(0, name, **extra) for name, extra in zip(names, extras, strict=True)]

    with fleet.running("grid_agent", given) as results, opened_at_last(gate):
        eventually(lambda: fleet.grid.occupancy() == (SLOTS, 4), within_seconds=30)
        time.sleep(1)  # five interim answers for each that waits

    expected = {name: played(fleet.grid, 1000, calls) for name, calls in days.items()}
    assert expected["twelve-optimal"].verified["reward"] == 1.0
    assert expected["twelve-idle"].verified["reward"] == 0.0
    for name, extra, result in zip(names, extras, results, strict=True):
        assert outputs(result) == expected[name].answers
        assert result["reward"] == expected[name].verified["reward"]
        assert (result["steps"], result["done"]) == (HOURS, True)
        assert (extra | {"reset_kwargs": {"day": 1000}, "_ng_rollout_index": 0}).items() <= result.items()
        assert (result["mask_sample"], failure(result)) == (False, (None, None))
        assert kinds(result) == A_CALL * HOURS + ["message"]
        assert result["response"]["usage"] == usage(HOURS + 1)
    assert sorted(result["seconds_waiting"] for result in results)[-4] >= 1
    fleet.grid.assert_free()


def test_simple_agent_tells_the_model_what_is_wrong_with_its_calls(fleet: Fleet) -> None:
    wrong = (
        call("fly"),
        call("dispatch", battery_mw=99, generator_mw=0),
        call("dispatch", battery_mw="all"),
        ToolCall("dispatch", "[1, 2]"),
        ToolCall("dispatch", "{battery_mw: 0}"),
    )
    fleet.model.scripts["wrong"] = [Turn(wrong), *turns(IDLE)]
    result = fleet.run("grid_agent", row(0, "wrong"))

    told = outputs(result)
    assert told[:4] == played(fleet.grid, 1000, wrong[:4]).answers
    assert json.loads(told[0])["error"] == "unknown_tool"
    assert json.loads(told[1])["error"]["error_type"] == "invalid_args"
    assert json.loads(told[3])["error"] == "bad_arguments"
    assert "JSONDecodeError" in told[4]  # the agent itself refuses it
    assert told[5:] == played(fleet.grid, 1000, IDLE).answers
    assert (result["reward"], result["done"], result["mask_sample"]) == (0.0, True, False)


def test_simple_agent_that_stops_early_frees_its_slot(fleet: Fleet) -> None:
    fleet.model.scripts["early"] = turns(IDLE[:3])
    result = fleet.run("grid_agent", row(0, "early"))
    assert (result["reward"], result["steps"], result["done"]) == (0.0, 3, False)
    assert (result["mask_sample"], result["no_reward"]) == (False, True)
    fleet.grid.assert_free()


def test_a_model_that_thinks_longer_than_the_idle_timeout_gets_a_masked_row_from_simple_agent(fleet: Fleet) -> None:
    gate = Event()
    thoughtful = Turn((IDLE[1],), gate=gate)
    fleet.model.scripts["slow"] = [Turn((IDLE[0],)), thoughtful]
    with (
        fleet.running("hasty_agent", [row(0, "slow", verifier_metadata={"kept": "π"})]) as results,
        opened_at_last(gate),
    ):
        assert thoughtful.reached.wait(20), fleet.logs()
        assert fleet.hasty.occupancy() == (1, 0)
        fleet.hasty.assert_free(within_seconds=3)  # while the model still thinks
    (result,) = results
    assert outputs(result)[1:] == [EXPIRED]
    assert (result["reward"], result["steps"], result["done"]) == (0.0, 1, False)
    assert (result["mask_sample"], result["instance_config"]) == (True, {"mask_sample": True})  # NeMo RL reads either
    assert failure(result) == ("session_expired", REASON)
    assert result["verifier_metadata"] == {"kept": "π"}


# -- gymnasium_agent -------------------------------------------------------------------------------------------------


def test_gymnasium_agent_plays_whole_days(fleet: Fleet) -> None:
    eight_at_a_time = [Turn(tuple(optimal(1001)[hour : hour + 8])) for hour in range(0, HOURS, 8)]
    fleet.model.scripts |= {
        "gymnasium-optimal": turns(optimal(1001)),
        "gymnasium-eight": eight_at_a_time,
        "gymnasium-steady": turns(STEADY),
    }
    names = ["gymnasium-optimal", "gymnasium-eight", "gymnasium-steady"]
    with fleet.running("hasty_gymnasium", [row(1, name) for name in names]) as results:
        pass

    best, steady = played(fleet.hasty, 1001, optimal(1001)), played(fleet.hasty, 1001, STEADY)
    for name, result, expected, told in zip(names, results, (best, best, steady), (23, 16, 23), strict=True):
        assert result["reward"] == expected.verified["reward"]
        assert (result["terminated"], result["truncated"], result["mask_sample"]) == (True, False, False)
        assert (result["info"]["steps"], result["info"]["done"]) == (HOURS, True)
        assert "cleanup_warning" not in result["info"]
        # The agent drops what the last step told.
        assert outputs(result) == expected.answers[:told]
        asked, shown = result["responses_create_params"]["input"]
        assert asked["content"] == row(1, name)["responses_create_params"]["input"][0]["content"]
        assert (shown["role"], json.loads(shown["content"])["day"]) == ("user", 1001)  # what reset told
    assert best.verified["reward"] == 1.0
    fleet.hasty.assert_free()


def test_gymnasium_agent_tells_the_model_what_is_wrong_with_its_calls(fleet: Fleet) -> None:
    wrong = (call("fly"), call("dispatch", battery_mw=99, generator_mw=0), ToolCall("dispatch", "{battery_mw: 0}"))
    fleet.model.scripts["gymnasium-wrong"] = [Turn(wrong), *turns(IDLE)]
    result = fleet.run("hasty_gymnasium", row(0, "gymnasium-wrong"))
    assert outputs(result)[:3] == played(fleet.hasty, 1000, wrong).answers
    assert json.loads(outputs(result)[2])["error"] == "bad_arguments"
    assert outputs(result)[3:] == played(fleet.hasty, 1000, IDLE).answers[:-1]
    assert (result["reward"], result["terminated"]) == (0.0, True)


def test_a_plain_message_ends_gymnasium_agents_episode(fleet: Fleet) -> None:
    fleet.model.scripts["gymnasium-early"] = turns(IDLE[:2])
    result = fleet.run("hasty_gymnasium", row(0, "gymnasium-early"))
    assert kinds(result) == A_CALL * 2 + ["message"]
    assert (result["reward"], result["terminated"], result["truncated"]) == (0.0, True, False)
    assert (result["info"]["steps"], result["info"]["done"], result["info"]["no_reward"]) == (2, False, True)
    assert "mask_sample" not in result["info"]
    fleet.hasty.assert_free()


def test_gymnasium_agent_closes_an_episode_that_it_cuts_off(fleet: Fleet) -> None:
    fleet.model.scripts["gymnasium-endless"] = turns([call("status")] * (MAX_STEPS + 1))
    result = fleet.run("hasty_gymnasium", row(0, "gymnasium-endless"))
    assert kinds(result) == A_CALL * MAX_STEPS
    assert (result["reward"], result["terminated"], result["truncated"]) == (0.0, False, True)
    assert "cleanup_warning" not in result["info"]
    fleet.hasty.assert_free(within_seconds=1)  # sooner than by the idle timeout


def test_a_model_that_thinks_longer_than_the_idle_timeout_ends_gymnasium_agents_episode(fleet: Fleet) -> None:
    gate = Event()
    thoughtful = Turn((IDLE[1],), gate=gate)
    fleet.model.scripts["gymnasium-slow"] = [Turn((IDLE[0],)), thoughtful]
    with fleet.running("hasty_gymnasium", [row(0, "gymnasium-slow")]) as results, opened_at_last(gate):
        assert thoughtful.reached.wait(20), fleet.logs()
        assert fleet.hasty.occupancy() == (1, 0)
        fleet.hasty.assert_free(within_seconds=3)
    (result,) = results
    assert kinds(result) == [*A_CALL, "function_call"]
    assert (result["reward"], result["terminated"], result["truncated"]) == (0.0, True, False)
    info = result["info"]
    assert (info["mask_sample"], info["instance_config"]) == (True, {"mask_sample": True})
    assert (failure(info), info["steps"]) == (("session_expired", REASON), 1)
    assert "cleanup_warning" not in info


# -- environment servers ---------------------------------------------------------------------------------------------


def test_an_environment_server_plays_whole_days_over_http(fleet: Fleet) -> None:
    gate = Event()
    first, *later = turns(optimal(1002))
    fleet.model.scripts |= {"turns": [Turn(first.calls, gate=gate), *later]}
    agent = {"type": "responses_api_agents", "name": "grid_agent"}
    given = [row(2, "turns", agent_ref=agent, _ng_rollout_index=index, note=index) for index in range(3)]
    with fleet.running("grid_turns", given) as results, opened_at_last(gate):
        eventually(lambda: fleet.grid.occupancy() == (3, 0), within_seconds=30)
        assert [session["label"] for session in fleet.grid.sessions()] == ["grid"] * 3  # the taskset

    expected = played(fleet.grid, 1002, optimal(1002))
    for index, result in enumerate(results):
        assert outputs(result) == expected.answers
        assert (result["reward"], result["steps"], result["done"]) == (1.0, HOURS, True)
        assert (result["note"], result["reset_kwargs"]) == (index, {"day": 1002})
        assert (result["mask_sample"], failure(result)) == (False, (None, None))
    fleet.grid.assert_closed()


def test_an_environment_server_plays_a_whole_day_over_mcp(fleet: Fleet) -> None:
    refused = call("dispatch", battery_mw=99, generator_mw=0)
    calls = [call("status"), refused, *optimal(1003)]
    fleet.model.scripts["mcp"] = turns([*calls[:2], call("fly"), *calls[2:]])
    request = episode(3, "mcp", tools=[])
    answered = fleet.post("grid_mcp_turns", "/run", request)
    assert answered["failure"] is None, answered
    assert answered["episode_id"] == request["episode_id"]
    result = answered["result"]
    assert result["response"]["metadata"] == {
        "mcp_server": "gymserve",
        "offered": " ".join(f"mcp__gymserve__{name}" for name in ("forecast", "status", "dispatch", "observation")),
    }
    told = [json.loads(output) for output in outputs(result)]
    unknown = told.pop(2)
    assert unknown["isError"] is True
    assert unknown["content"][0]["text"].startswith("Unknown tool: 'fly'. Available tools: ['dispatch', ")
    answers = played(fleet.grid, 1003, calls).answers
    assert [item["content"] for item in told] == [[{"type": "text", "text": answer}] for answer in answers]
    assert [item["isError"] for item in told] == [tool == refused for tool in calls]
    assert told[0]["structuredContent"] == json.loads(answers[0])
    assert (result["reward"], result["steps"], result["done"]) == (1.0, HOURS + 2, True)
    assert (result["source"], result["reset_kwargs"]) == ("π", {"day": 1003})
    assert kinds(result) == A_CALL * (HOURS + 3) + ["message"]
    assert result["response"]["output"][0]["name"] == "mcp__gymserve__status"  # as the model wrote it
    fleet.grid.assert_closed()


def test_an_environment_server_whose_model_fails_closes_its_session_at_once(fleet: Fleet) -> None:
    agent = {"type": "responses_api_agents", "name": "grid_agent"}
    result = fleet.run("grid_turns", row(0, "no such script", agent_ref=agent))
    assert (result["_ng_failure_class"], result["_ng_failure_stage"]) == ("environment_server_failed", "agent")
    fleet.grid.assert_closed()


def test_an_environment_server_gives_up_a_seed_that_waits_in_line(fleet: Fleet) -> None:
    fleet.model.scripts["brief"] = turns(IDLE)
    with ExitStack() as stack:
        for _ in range(SLOTS):
            client = stack.enter_context(fleet.grid.client())
            assert client.seed(day=1000).status_code == 200
            stack.callback(client.http.post, "/close_session")
        with fleet.running("grid_brief_turns", [episode(0, "brief")]) as results:
            eventually(lambda: fleet.grid.occupancy() == (SLOTS, 1), within_seconds=20)
        assert results[0]["failure"] == {
            "failure_reason": "Episode timed out",
            "terminal": False,
            "partial_response": None,
        }
        eventually(lambda: fleet.grid.occupancy() == (SLOTS, 0), within_seconds=1)
    fleet.grid.assert_closed()


def test_gymserve_keeps_nemo_gyms_session_contract(fleet: Fleet) -> None:
    seed = ResourcesSeedSessionRequest.model_validate(
        {
            "resources_session_id": "resources-session-of-this-test",
            "episode_id": {"rollout_id": "0-0"},
            "task_id": {"taskset": "days", "task_id": "1000"},
            "task_data": {"reset_kwargs": {"day": 1000}},
        }
    )
    check_resources_session_contract(forwarding_app(fleet.grid.url), seed, keeps_state=True)
    fleet.grid.assert_closed()


# -- answers that are lost -------------------------------------------------------------------------------------------


def test_gymnasium_agent_repeats_steps_whose_answer_is_lost(fleet: Fleet) -> None:
    fleet.model.scripts["losing"] = turns(optimal(1000))
    fleet.losing.lose(lambda path, number: (path, number) in {("/step", 1), ("/step", 5), ("/step", 26), ("/close", 1)})
    result = fleet.run("losing_gymnasium", row(0, "losing"))
    assert fleet.losing.lost == {"/step": 3, "/close": 1, "/reset": 0}  # the 26th is the 24th and last, told twice
    expected = played(fleet.grid, 1000, optimal(1000))
    assert outputs(result) == expected.answers[:-1]
    assert (result["reward"], result["terminated"], result["info"]["steps"]) == (1.0, True, HOURS)
    assert "cleanup_warning" not in result["info"]
    fleet.grid.assert_closed()


def test_an_environment_server_repeats_requests_whose_answer_is_lost(fleet: Fleet) -> None:
    fleet.model.scripts["losing"] = turns(optimal(1000))
    fleet.losing.lose(lambda path, number: path in {"/seed_session", "/verify", "/close_session"} and number < 3)
    answered = fleet.post("losing_turns", "/run", episode(0, "losing"))
    assert fleet.losing.lost == {"/seed_session": 2, "/dispatch": 0, "/verify": 2, "/close_session": 2}
    assert answered["failure"] is None, answered
    result = answered["result"]
    assert outputs(result) == played(fleet.grid, 1000, optimal(1000)).answers
    assert (result["reward"], result["steps"], result["mask_sample"]) == (1.0, HOURS, False)
    fleet.grid.assert_closed()


# -- a whole run -----------------------------------------------------------------------------------------------------


def test_a_run_of_nemo_gyms_command_line(fleet: Fleet, tmp_path: Path) -> None:
    fleet.model.scripts |= {
        "run-optimal": turns(optimal(1000)),
        "run-steady": turns(STEADY),
        "run-slow": [Turn((IDLE[0],)), Turn((IDLE[1],), think_seconds=4)],
    }
    given = [
        ("grid_agent", "run-optimal"),
        ("grid_agent", "run-steady"),
        ("hasty_agent", "run-optimal"),
        ("hasty_agent", "run-slow"),
        ("hasty_gymnasium", "run-steady"),
    ]
    lines = []
    for agent, script in given:
        row_of_a_file = {key: value for key, value in row(0, script).items() if not key.startswith("_ng_")}
        lines.append(json.dumps({**row_of_a_file, "agent_ref": {"type": "responses_api_agents", "name": agent}}))
    (tmp_path / "rows.jsonl").write_text("\n".join(lines) + "\n")
    files = ["--input", "rows.jsonl", "--output", "out.jsonl"]
    fleet.gym(tmp_path, "eval", "run", "--no-serve", "--no-health-check", *files)

    results = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    results.sort(key=lambda result: result["_ng_task_index"])
    steady = played(fleet.grid, 1000, STEADY).verified["reward"]
    assert [result["reward"] for result in results] == [1.0, steady, 1.0, 0.0, steady]
    assert [result["mask_sample"] for result in results] == [False, False, False, True, False]
    assert results[3]["instance_config"] == {"mask_sample": True}
    metrics = {
        entry["agent_ref"]["name"]: entry for entry in json.loads((tmp_path / "out_aggregate_metrics.json").read_text())
    }
    assert metrics["grid_agent"]["agent_metrics"]["mean/reward"] == (1 + steady) / 2
    assert metrics["hasty_agent"]["agent_metrics"]["mean/reward"] == 1.0
    assert metrics["hasty_agent"]["agent_metrics"]["coverage/masked_rollouts"] == 1
    fleet.grid.assert_free()
    fleet.hasty.assert_free()


@pytest.mark.parametrize("name", ["grid_agent", "grid_turns", "hasty_environment_server", "hasty_gymnasium"])
def test_aggregate_metrics_by_way_of_each_proxy(fleet: Fleet, name: str) -> None:
    verified = [
        {"_ng_task_index": 0, "_ng_rollout_index": 0, "reward": 0.5, "steps": 24, "response": {"usage": usage(25)}},
        {"_ng_task_index": 0, "_ng_rollout_index": 1, "reward": 0.25, "steps": 23, "mask_sample": False},
        {"_ng_task_index": 1, "_ng_rollout_index": 0, "reward": 0.0, "steps": 3, "mask_sample": True},
    ]
    answered = fleet.post(name, "/aggregate_metrics", {"verify_responses": verified})
    theirs = compute_aggregate_metrics(verified).model_dump()
    assert answered["group_level_metrics"] == theirs["group_level_metrics"]
    assert answered["key_metrics"] == theirs["key_metrics"]
    assert answered["key_metrics"]["mean/reward"] == 0.375
    assert answered["agent_metrics"].items() <= theirs["agent_metrics"].items()
    assert answered["agent_metrics"]["coverage/masked_rollouts"] == 1
