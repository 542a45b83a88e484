"""How each client hears of a masked result, and what else stands in results: a failure class, the parts of a reward."""

from typing import Any

import pytest
import trio
from counting import Counting
from scripted import ScriptedServer, agreeable, observed
from stage import Answer, Client, Stage, raise_the_curtain
from structlog.testing import capture_logs

from gymserve.gridsim.server import EnvironmentServer
from gymserve.http.rollouts import Dialect
from gymserve.score import RewardRule

HTTPX = "python-httpx/0.28.1"
AIOHTTP = "Python/3.11 aiohttp/3.12.15"
ROW = {"responses_create_params": {}, "response": {"output": []}}


def counting() -> EnvironmentServer:
    return EnvironmentServer(Counting, capacity=4)


def is_masked(answer: Answer) -> bool:
    result = answer.body["info"] if "info" in answer.body else answer.body
    assert result.get("mask_sample", False) == result.get("instance_config", {}).get("mask_sample", False)
    return bool(result.get("mask_sample", False))


async def results(stage: Stage, path: str, agent: str | None, wish: str | None) -> list[tuple[int, bool]]:
    """Status and mask of a result without a session, and of one with."""
    headers = {name: value for name, value in (("User-Agent", agent), ("X-Gymserve-Masked", wish)) if value is not None}
    client = stage.client()
    without = await client.ask("POST", path, ROW, headers)
    await client.seed()
    within = await client.ask("POST", path, ROW, headers)
    return [(answer.status, is_masked(answer)) for answer in (without, within)]


# -- with an error or a flag -----------------------------------------------------------------------------------------


async def test_without_a_choice_verifiers_gets_an_error_and_all_others_a_flag(autojump_clock):
    statuses = {
        HTTPX: 503,
        "python-httpx/1.0": 503,
        AIOHTTP: 200,
        "python-requests/2.32": 200,
        "not python-httpx/0.28.1": 200,
        "Python-HTTPX": 200,
        "": 200,
        None: 200,
    }
    async with raise_the_curtain(EnvironmentServer(Counting, capacity=20)) as stage:
        for agent, status in statuses.items():
            assert await results(stage, "/verify", agent, None) == [(status, True), (200, False)], agent


@pytest.mark.parametrize("path", ["/verify", "/step"])
@pytest.mark.parametrize(
    ("rule", "agent", "wish", "status"),
    [
        ("auto", HTTPX, None, 503),
        ("auto", AIOHTTP, None, 200),
        ("auto", HTTPX, "flag", 200),
        ("auto", AIOHTTP, "error", 503),
        ("never", HTTPX, None, 200),
        ("never", HTTPX, "error", 503),
        ("always", AIOHTTP, None, 503),
        ("always", AIOHTTP, "flag", 200),
    ],
)
async def test_the_requests_wish_beats_the_setting_and_the_setting_the_agent(
    autojump_clock, path, rule, agent, wish, status
):
    if path == "/step" and (rule, wish) == ("auto", None):
        status = 200  # verifiers does not speak that protocol
    async with raise_the_curtain(counting(), dialect=Dialect(masked_as_error=rule)) as stage:
        assert await results(stage, path, agent, wish) == [(status, True), (200, False)]


@pytest.mark.parametrize("path", ["/verify", "/step"])
async def test_any_other_wish_is_refused_and_ends_nothing(autojump_clock, path):
    async with raise_the_curtain(counting()) as stage:
        client = stage.client()
        await client.seed()
        for wish in ("Error", "", "yes", "error, flag"):
            answer = await client.ask("POST", path, ROW, {"X-Gymserve-Masked": wish})
            assert (answer.status, answer.body["error"]) == (422, "bad_arguments"), wish
            assert answer.body["detail"] == [
                {"type": "literal_error", "loc": ["header", "X-Gymserve-Masked"], "msg": "must be error or flag"}
            ]
        assert (await client.step(1)).status == 200


async def test_an_error_has_the_whole_result_and_the_cookie_and_may_be_asked_for_again_as_a_flag(autojump_clock):
    async with raise_the_curtain(counting(), idle_timeout_seconds=100) as stage:
        client = stage.client()
        await client.seed()
        await client.step(3)
        await trio.sleep(100)
        error = await client.ask("POST", "/verify", {**ROW, "task": 1}, {"User-Agent": HTTPX})
        flag = await client.verify(**ROW, task=1)
        assert (error.status, flag.status, error.body) == (503, 200, flag.body)
        assert (flag.body["failure_kind"], flag.body["steps"], flag.body["task"]) == ("session_expired", 1, 1)
        assert b"set-cookie" in error.headers


# -- with a failure class --------------------------------------------------------------------------------------------


async def masked_and_scored(stage: Stage, path: str) -> list[Any]:
    """The results of one session that expired, one that nobody knows, and one that is well."""
    expired, unknown, well = (stage.client() for _ in range(3))
    await expired.seed()
    await trio.sleep(100)
    await well.seed()
    bodies = [(await client.ask("POST", path, ROW)).body for client in (expired, unknown, well)]
    return [body.get("info", body) for body in bodies]


@pytest.mark.parametrize("path", ["/verify", "/step"])
async def test_a_failure_class_is_in_masked_results_only(autojump_clock, path):
    async with raise_the_curtain(counting(), failure_class="lost:session", idle_timeout_seconds=100) as stage:
        expired, unknown, well = await masked_and_scored(stage, path)
        assert (expired["_ng_failure_class"], expired["failure_kind"]) == ("lost:session", "session_expired")
        assert (unknown["_ng_failure_class"], unknown["failure_kind"]) == ("lost:session", "session_lost")
        assert "_ng_failure_class" not in well


async def test_without_a_failure_class_there_is_none(autojump_clock):
    async with raise_the_curtain(counting(), idle_timeout_seconds=100) as stage:
        for result in await masked_and_scored(stage, "/verify"):
            assert "_ng_failure_class" not in result


@pytest.mark.parametrize("failure_class", [None, "again"])
async def test_a_rows_own_failure_class_of_an_earlier_try_is_dropped(autojump_clock, failure_class):
    async with raise_the_curtain(counting(), failure_class=failure_class) as stage:
        client = stage.client()
        assert (await client.verify(_ng_failure_class="old")).body.get("_ng_failure_class") == failure_class
        await client.seed()
        assert "_ng_failure_class" not in (await client.verify(_ng_failure_class="old")).body


# -- with the parts of a reward --------------------------------------------------------------------------------------


class Parts(ScriptedServer):
    """Answers steps, in order, with a reward and the parts that it names for it."""

    def __init__(self, *given: tuple[Any, Any]) -> None:
        super().__init__(self._answer)
        self._given = list(given)

    async def _answer(self, message: dict[str, Any]) -> Any:
        if message["type"] != "step":
            return await agreeable(message)
        reward, parts = self._given.pop(0)
        return observed(reward, metadata={"reward_components": parts} if parts is not None else {})


async def played(stage: Stage, steps: int) -> Client:
    client = stage.client()
    await client.seed()
    for _ in range(steps):
        assert (await client.call("step", {})).status == 200
    return client


GIVEN = [(0.75, {"a": 1.0, "b": -0.25}), (None, None), (2.0, {"b": 0.5, "c": 1.5}), (-1.0, {"a": -1.0})]


@pytest.mark.parametrize(
    ("rule", "reward", "parts"),
    [
        (RewardRule.SUM, 1.75, {"a": 0.0, "b": 0.25, "c": 1.5}),
        (RewardRule.LAST, -1.0, {"a": -1.0}),
        (RewardRule.MAX, 2.0, {"b": 0.5, "c": 1.5}),
    ],
)
async def test_the_parts_of_a_reward_are_passed_on_as_the_reward_is(autojump_clock, rule, reward, parts):
    with capture_logs() as logs:
        async with raise_the_curtain(Parts(*GIVEN), reward_rule=rule) as stage:
            client = await played(stage, 4)
            result = (await client.verify()).body
            assert (result["reward"], result["reward_components"]) == (reward, parts)
            assert {name: result.get(name) for name in "abc"} == {name: parts.get(name) for name in "abc"}
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == []


async def test_a_rows_own_keys_and_the_results_stand_above_parts_of_their_name(autojump_clock):
    parts = {"task": 0.25, "steps": 0.25, "reward": 0.25, "free": 0.25}
    async with raise_the_curtain(Parts((1.0, parts))) as stage:
        result = (await (await played(stage, 1)).verify(task="t1")).body
        assert (result["task"], result["steps"], result["reward"], result["free"]) == ("t1", 1, 1.0, 0.25)
        assert result["reward_components"] == parts


async def test_parts_that_do_not_add_up_are_left_out_with_one_warning(autojump_clock):
    given = [(0.5, {"a": 0.5, "b": 0.1}), (0.5, {"a": 0.5, "b": 0.1})]
    with capture_logs() as logs:
        async with raise_the_curtain(Parts(*given)) as stage:
            for _ in range(2):
                result = (await (await played(stage, 1)).verify()).body
                assert result["reward"] == 0.5
                assert {"reward_components", "a", "b"}.isdisjoint(result)
    warnings = [line["event"] for line in logs if line["log_level"] == "warning"]
    assert [event for event in warnings if "reward" in event] == [
        "reward_components do not add up to the reward: they are left out (said once)"
    ]


async def test_parts_of_some_rewards_only_do_not_add_up(autojump_clock):
    async with raise_the_curtain(Parts((0.5, {"a": 0.5}), (0.25, None))) as stage:
        result = (await (await played(stage, 2)).verify()).body
        assert result["reward"] == 0.75 and "reward_components" not in result


@pytest.mark.parametrize("parts", [None, [], "a", {}, {"a": None, "b": "0.5", "c": {"d": 1}}])
async def test_what_names_no_parts_is_no_matter(autojump_clock, parts):
    with capture_logs() as logs:
        async with raise_the_curtain(Parts((0.5, parts))) as stage:
            result = (await (await played(stage, 1)).verify()).body
            assert result["reward"] == 0.5 and "reward_components" not in result
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == []


async def test_masked_results_have_zeros_and_no_warning(autojump_clock):
    with capture_logs() as logs:
        async with raise_the_curtain(Parts((0.75, {"a": 1.0, "b": -0.25})), idle_timeout_seconds=100) as stage:
            client = await played(stage, 1)
            await trio.sleep(100)
            result = (await client.verify()).body
            assert is_masked(Answer(200, result, {}))
            assert (result["reward"], result["reward_components"]) == (0.0, {"a": 0.0, "b": 0.0})
            assert {"a", "b"}.isdisjoint(result)
    warned = [line["event"] for line in logs if line["log_level"] == "warning"]
    assert warned == ["a session was reclaimed though its client was alive"]


async def test_the_last_step_of_a_gymnasium_episode_has_them_in_its_info(autojump_clock):
    async with raise_the_curtain(Parts((0.75, {"a": 1.0, "b": -0.25}))) as stage:
        client = stage.client()
        await client.ask("POST", "/reset", {"responses_create_params": {}})
        item = {"type": "function_call", "call_id": "c", "name": "step", "arguments": "{}"}
        stepped = await client.ask("POST", "/step", {**ROW, "response": {"output": [item]}})
        last = await client.ask("POST", "/step", ROW)
        assert stepped.body["reward"] + last.body["reward"] == 0.75
        assert last.body["info"]["reward_components"] == {"a": 1.0, "b": -0.25}
        assert (last.body["info"]["a"], last.body["info"]["b"]) == (1.0, -0.25)
