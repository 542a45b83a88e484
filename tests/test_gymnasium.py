"""NeMo Gym's gymnasium protocol: what `gymnasium_agent` asks, repeats and adds up, and what becomes of a session that
ends meanwhile.
"""

import json
from typing import Any

import pytest
import trio
from counting import Counting
from scripted import ScriptedServer, agreeable, observed, refused
from stage import Answer, Client, raise_the_curtain
from trio.testing import wait_all_tasks_blocked

from gymserve import wire
from gymserve.gridsim.faults import parse_fault
from gymserve.gridsim.server import EnvironmentServer
from gymserve.http.rollouts import Dialect
from gymserve.score import RewardRule

INFO = {"supports_explicit_close": True, "supports_step_idempotency": True}
OVER = "The episode is over; no further call can succeed."


def server(capacity: int = 1, *faults: str) -> EnvironmentServer:
    return EnvironmentServer(Counting, capacity=capacity, faults=[parse_fault(fault) for fault in faults])


def call(arguments: Any, tool: str = "step", call_id: str = "c1") -> dict[str, Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return {"type": "function_call", "call_id": call_id, "name": tool, "arguments": text}


def message(*texts: str) -> dict[str, Any]:
    parts = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
    return {"type": "message", "role": "assistant", "content": parts}


def row(*output: Any, request_id: str | None = None, **more: Any) -> dict[str, Any]:
    asked = {} if request_id is None else {"_ng_step_request_id": request_id}
    return {"responses_create_params": {"input": []}, "response": {"output": list(output)}, **asked, **more}


async def reset(client: Client, **more: Any) -> Answer:
    return await client.ask("POST", "/reset", {"responses_create_params": {"input": []}, **more})


async def act(client: Client, *output: Any, request_id: str | None = None) -> Answer:
    return await client.ask("POST", "/step", row(*output, request_id=request_id))


async def begin_to_act(client: Client, *output: Any, request_id: str | None = None) -> None:
    await client.send("POST", "/step", row(*output, request_id=request_id))
    await wait_all_tasks_blocked()


def shown(count: int, reward: float | None, *, target: int = 10) -> dict[str, Any]:
    return {"count": count, "target": target, "metadata": {}, "reward": reward, "done": count >= target}


def outputs(answer: Answer) -> list[Any]:
    """What the tools answered, of a step that did not end the episode."""
    assert (answer.status, answer.body["terminated"], answer.body["truncated"]) == (200, False, False)
    assert list(answer.body["info"]) == ["tool_outputs"]
    for output in answer.body["info"]["tool_outputs"]:
        assert set(output) == {"call_id", "output"}
    return [json.loads(output["output"]) for output in answer.body["info"]["tool_outputs"]]


def ended(answer: Answer) -> tuple[float, bool, str | None]:
    """Reward, whether it is masked, and the failure of a step that ended the episode."""
    assert (answer.status, answer.body["terminated"], answer.body["truncated"]) == (200, True, False)
    info = answer.body["info"]
    assert info.get("mask_sample", False) == info.get("instance_config", {}).get("mask_sample", False)
    assert "reward" not in info
    return answer.body["reward"], info.get("mask_sample", False), info.get("failure_kind")


class Steps(ScriptedServer):
    """Answers steps with the given rewards, in order, and keeps the actions; the reset's reward comes first."""

    def __init__(
        self, *rewards: Any, seconds: float = 0, last_is_done: bool = False, fields: dict[str, Any] | None = None
    ) -> None:
        super().__init__(self._answer)
        self.actions: list[Any] = []
        self._rewards = list(rewards)
        self._seconds = seconds
        self._last_is_done = last_is_done
        self._fields = fields

    async def _answer(self, message: dict[str, Any]) -> Any:
        if message["type"] not in ("reset", "step"):
            return await agreeable(message)
        if message["type"] == "step":
            self.actions.append(message["data"])
            await trio.sleep(self._seconds)
        reward = self._rewards.pop(0)
        fields = {"text": f"worth {reward}"} if self._fields is None else self._fields
        return observed(reward, done=self._last_is_done and not self._rewards, **fields)


# -- a whole episode -------------------------------------------------------------------------------------------------


async def test_an_episode_from_reset_to_done_and_close(autojump_clock):
    async with raise_the_curtain(server(1, "slow-step:2")) as stage:
        client = stage.client()
        began = await reset(client, reset_kwargs={"target": 5})
        assert (began.status, began.body) == (200, {"observation": '{"count":0,"target":5}', "info": INFO})
        await trio.sleep(1)
        stepped = await act(client, {"type": "reasoning", "summary": []}, message("So:"), call({"by": 3}))
        output = json.dumps(shown(3, 0.6, target=5), separators=(",", ":"))
        assert stepped.body == {
            "observation": None,
            "reward": 0.6,
            "terminated": False,
            "truncated": False,
            "info": {"tool_outputs": [{"call_id": "c1", "output": output}]},
        }
        assert trio.current_time() == 3
        last = await act(client, call({"by": 2}))
        output = json.dumps(shown(5, 0.4, target=5), separators=(",", ":"))
        assert last.body == {
            "observation": None,
            "reward": 0.4,
            "terminated": True,
            "truncated": False,
            "info": {
                "tool_outputs": [{"call_id": "c1", "output": output}],
                "steps": 2,
                "done": True,
                "seconds_waiting": 0.0,
                "seconds_resetting": 0.0,
                "seconds_stepping": 4.0,
                "seconds_thinking": 1.0,
            },
        }
        await wait_all_tasks_blocked()
        assert stage.episodes["active"] == 0
        closed = await client.ask("POST", "/close", {})
        assert (closed.status, closed.body) == (200, {"ok": True, "already_closed": True})


async def test_under_the_prefix_of_nemo_gyms_client(autojump_clock):
    async with raise_the_curtain(server()) as stage:
        client = stage.client()
        assert (await client.ask("POST", "/ng-rollout/0-1/reset", {"responses_create_params": {}})).status == 200
        stepped = await client.ask("POST", "/ng-rollout/0-1/step", row(call({"by": 1})))
        assert outputs(stepped) == [shown(1, 0.1)]
        assert (await client.ask("POST", "/ng-rollout/0-1/close", {})).body == {"ok": True, "already_closed": False}


async def test_a_reset_is_a_seed_with_all_that_a_row_may_say(autojump_clock):
    async with raise_the_curtain(server()) as stage:
        client = stage.client()
        began = await reset(client, verifier_metadata={"reset_kwargs": {"target": 3}}, gymserve_label="run-7")
        assert json.loads(began.body["observation"]) == {"count": 0, "target": 3}
        assert [session["label"] for session in (await stage.listing())["sessions"]] == ["run-7"]
        assert (await client.step(1)).body["count"] == 1  # the session's tools are where they always are
        assert (await client.verify()).body["reward"] == 1 / 3


async def test_another_reset_with_the_cookie_ends_the_episode_before(autojump_clock):
    async with raise_the_curtain(server()) as stage:
        client, old = stage.client(), stage.client()
        await reset(client)
        await act(client, call({"by": 3}))
        old.cookies = dict(client.cookies)
        await reset(client)
        assert client.cookies != old.cookies and stage.episodes["opened"] == 2
        stepped = await act(client, call({"by": 2}))
        assert (stepped.body["reward"], outputs(stepped)) == (0.2, [shown(2, 0.2)])
        assert ended(await act(old, call({"by": 1}))) == (0.0, True, "cancelled")


async def test_a_reset_that_finds_no_room_is_an_error(autojump_clock):
    async with raise_the_curtain(server(), patience_seconds=50) as stage:
        await stage.client().seed()
        client = stage.client()
        refusal = await reset(client)
        assert (refusal.status, refusal.body["error"], trio.current_time()) == (503, "no_room", 50)
        assert ended(await act(client, call({"by": 1}))) == (0.0, True, "provider_unavailable")


async def test_an_observation_is_its_one_text_or_its_fields(autojump_clock):
    seen: list[tuple[dict[str, Any], str | None]] = [
        ({}, None),
        ({"metadata": {"a": 1}}, None),
        ({"text": "Which way?", "metadata": {"a": 1}}, "Which way?"),
        ({"text": ""}, ""),
        ({"count": 3}, '{"count":3}'),
        ({"text": None}, '{"text":null}'),
        ({"text": "é", "left": 2, "metadata": {}}, '{"text":"\\u00e9","left":2}'),
    ]
    for fields, text in seen:
        environment = Steps(None, 1.0, fields=fields)
        async with raise_the_curtain(environment, dialect=Dialect(text_action="move")) as stage:
            client = stage.client()
            assert (await reset(client)).body["observation"] == text
            assert (await act(client, message("left"))).body["observation"] == text


# -- function calls --------------------------------------------------------------------------------------------------


async def test_function_calls_run_in_order_and_each_has_its_output(autojump_clock):
    async with raise_the_curtain(server(1, "slow-step:5")) as stage:
        client = stage.client()
        await reset(client)
        stepped = await act(
            client,
            call({}, "observation", "a"),
            call({"by": 1}, call_id="b"),
            message("and"),
            call({"by": 9}, call_id="c"),
            call("", "observation", "d"),
            call({"by": 3}, call_id="e"),
            call("not even JSON", "observation", "f"),
        )
        said = stepped.body["info"]["tool_outputs"]
        assert [output["call_id"] for output in said] == ["a", "b", "c", "d", "e", "f"]
        a, b, c, d, e, f = outputs(stepped)
        assert (a, b, d, e, f) == (shown(0, None), shown(1, 0.1), shown(1, 0.1), shown(4, 0.3), shown(4, 0.3))
        assert (c["error"], c["done"], c["detail"][0]["loc"]) == ("bad_arguments", False, ["by"])
        assert (stepped.body["reward"], trio.current_time()) == (0.4, 15)


FAILING_CALLS = [
    (call({}, "nope"), "unknown_tool", "there is no tool 'nope'; the tools are observation, step"),
    (call({}, "verify"), "unknown_tool", "there is no tool 'verify'; the tools are observation, step"),
    (call("{'by': 1}"), "bad_arguments", "json_invalid"),
    (call('{"by": 1'), "bad_arguments", "json_invalid"),
    (call("[1]"), "bad_arguments", "dict_type"),
    (call("null"), "bad_arguments", "dict_type"),
    (call('"\ud800"'), "bad_arguments", "json_invalid"),
    (call(""), "bad_arguments", "missing"),
    ({"type": "function_call", "call_id": "c1", "name": "step"}, "bad_arguments", "missing"),
    ({"type": "function_call", "call_id": "c1"}, "bad_arguments", "string_type"),
    (call({"by": 1, "extra": 1}), "bad_arguments", "extra_forbidden"),
]


async def test_a_call_that_fails_tells_the_model_and_the_episode_goes_on(autojump_clock):
    async with raise_the_curtain(server()) as stage:
        client = stage.client()
        await reset(client, reset_kwargs={"target": 100})
        for turn, (item, kind, said) in enumerate(FAILING_CALLS):
            stepped = await act(client, call({"by": 1}), item, call({"by": 2}))
            first, failed, last = outputs(stepped)
            assert (first, last) == (shown(3 * turn + 1, 0.01, target=100), shown(3 * turn + 3, 0.02, target=100))
            assert (failed["error"], failed["done"], set(failed)) == (kind, False, {"error", "detail", "done"}), item
            detail = failed["detail"]
            assert (detail if isinstance(detail, str) else detail[0]["type"]) == said
            assert stepped.body["reward"] == pytest.approx(0.03)


async def test_what_the_environment_raises_is_the_tools_output(autojump_clock):
    answers = iter([observed(), refused("EXECUTION_ERROR", "boom"), observed(1.0, text="fine")])

    async def script(message: dict[str, Any]) -> Any:
        return next(answers) if message["type"] in ("reset", "step") else await agreeable(message)

    async with raise_the_curtain(ScriptedServer(script)) as stage:
        client = stage.client()
        await reset(client)
        failed, fine = outputs(await act(client, call({}), call({})))
        sentence = "the environment raised an error: boom"
        assert failed == {"error": "environment_error", "detail": sentence, "done": False}
        assert fine == {"text": "fine", "reward": 1.0, "done": False}


async def test_an_mcp_tools_answers_and_errors_are_its_outputs(autojump_clock):
    async def script(message: dict[str, Any]) -> Any:
        if message["type"] != "step":
            return await agreeable(message)
        match message["data"]["tool_name"]:
            case "add":
                return observed(0.5, tool_name="add", result={"data": 5, "is_error": False}, error=None)
            case "divide":
                content = [{"type": "text", "text": "division by zero"}]
                return observed(None, tool_name="divide", result={"content": content, "is_error": True}, error=None)
            case other:
                unknown = {"error_type": "tool_not_found", "message": f"Unknown tool: {other}"}
                return observed(None, tool_name=other, result=None, error=unknown)

    async with raise_the_curtain(ScriptedServer(script, action="CallToolAction")) as stage:
        client = stage.client()
        await reset(client)
        stepped = await act(client, call({"a": 2}, "add"), call({}, "divide"), call({}, "nope"))
        assert outputs(stepped) == [
            {"result": 5, "error": None},
            {"result": None, "error": {"error_type": "execution_error", "message": "division by zero"}},
            {"result": None, "error": {"error_type": "tool_not_found", "message": "Unknown tool: nope"}},
        ]
        assert stepped.body["reward"] == 0.5


async def test_calls_behind_the_one_that_ends_the_episode_are_not_made(autojump_clock):
    environment = Steps(None, 1.0, 0.5, last_is_done=True)
    async with raise_the_curtain(environment) as stage:
        client = stage.client()
        await reset(client)
        assert ended(await act(client, *[call({"n": n}) for n in range(4)])) == (1.5, False, None)
        assert environment.actions == [{"n": 0}, {"n": 1}]


@pytest.mark.parametrize("tool", ["look", None])
async def test_the_observation_tool_is_the_one_that_was_chosen(autojump_clock, tool):
    async with raise_the_curtain(server(), dialect=Dialect(observation_tool=tool)) as stage:
        client = stage.client()
        await reset(client)
        [observation, look] = outputs(await act(client, call({}, "observation"), call({}, "look")))
        assert observation["error"] == "unknown_tool"
        assert look == shown(0, None) if tool else look["error"] == "unknown_tool"


# -- plain messages --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("output", [(message("I am done."),), ({"type": "reasoning"},), ()])
async def test_without_a_text_action_a_step_without_a_call_ends_the_episode(autojump_clock, output):
    async with raise_the_curtain(server()) as stage:
        client = stage.client()
        await reset(client)
        await act(client, call({"by": 2}))
        last = await act(client, *output)
        assert ended(last) == (0.0, False, None)
        assert (last.body["observation"], last.body["info"]["steps"], last.body["info"]["done"]) == (None, 1, False)
        await wait_all_tasks_blocked()
        assert stage.episodes["active"] == 0


SAID: list[tuple[tuple[Any, ...], str]] = [
    ((message("left"),), "left"),
    ((message("left", " and up"), {"type": "reasoning", "content": "hm"}, message("!")), "left and up!"),
    (({"role": "assistant", "content": "left"},), "left"),
    ((message('"é\\'),), '"é\\'),
]


async def test_a_plain_message_is_the_action_where_its_field_is_named(autojump_clock):
    environment = Steps(None, *[0.25] * len(SAID))
    async with raise_the_curtain(environment, dialect=Dialect(text_action="move")) as stage:
        client = stage.client()
        await reset(client)
        for output, _ in SAID:
            stepped = await act(client, *output)
            assert stepped.body == {
                "observation": "worth 0.25",
                "reward": 0.25,
                "terminated": False,
                "truncated": False,
                "info": {"tool_outputs": []},
            }
        assert environment.actions == [{"move": text} for _, text in SAID]


@pytest.mark.parametrize("output", [[], [5], [{"type": "reasoning"}], [{"content": [{"type": "refusal"}, 5]}, "no"]])
async def test_where_nothing_is_said_there_is_no_action_and_the_episode_ends(autojump_clock, output):
    environment = Steps(None, 0.25)
    async with raise_the_curtain(environment, dialect=Dialect(text_action="move")) as stage:
        client = stage.client()
        await reset(client)
        assert ended(await act(client, *output)) == (0.0, False, None)
        assert environment.actions == []


async def test_a_function_call_beats_the_message_beside_it(autojump_clock):
    environment = Steps(None, 0.25)
    async with raise_the_curtain(environment, dialect=Dialect(text_action="move")) as stage:
        client = stage.client()
        await reset(client)
        await act(client, message("left"), call({"n": 1}))
        assert environment.actions == [{"n": 1}]


async def test_a_message_that_the_environment_refuses_is_told_to_the_model(autojump_clock):
    async with raise_the_curtain(server(), dialect=Dialect(text_action="by")) as stage:
        client = stage.client()
        await reset(client)
        stepped = await act(client, message("three"))
        assert outputs(stepped) == [] and stepped.body["reward"] == 0.0
        told = json.loads(stepped.body["observation"])
        assert (told["error"], told["detail"][0]["input"]) == ("bad_arguments", "three")


async def test_a_message_may_be_the_last_action(autojump_clock):
    environment = Steps(None, 0.25, 0.5, last_is_done=True)
    async with raise_the_curtain(environment, dialect=Dialect(text_action="move")) as stage:
        client = stage.client()
        await reset(client)
        await act(client, message("left"))
        assert ended(await act(client, message("right"))) == (0.5, False, None)


async def test_a_verify_action_is_sent_for_the_message_that_ends_the_episode(autojump_clock):
    environment = Steps(None, 0.25, 0.5, seconds=3)
    async with raise_the_curtain(environment, verify_action=wire.action({"evaluate": True})) as stage:
        client = stage.client()
        await reset(client)
        await act(client, call({"n": 1}))
        last = await act(client, message("done"))
        assert ended(last) == (0.5, False, None) and trio.current_time() == 6
        assert environment.actions == [{"n": 1}, {"evaluate": True}]


# -- rewards ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "told", "score"),
    [
        (RewardRule.SUM, [0.75, 2.0, 0.0, -1.25], 1.5),
        (RewardRule.LAST, [0.25, 1.75, 0.0, -2.25], -0.25),
        (RewardRule.MAX, [0.5, 1.5, 0.0, 0.0], 2.0),
    ],
)
async def test_the_rewards_of_the_steps_add_up_to_the_score(autojump_clock, rule, told, score):
    environment = Steps(0.5, 0.25, 2.0, None, -1.0, -0.25)
    turns = [[call({})], [call({})], [call({})], [call({}), call({})]]
    async with raise_the_curtain(environment, reward_rule=rule) as stage:
        client = stage.client()
        await reset(client)
        rewards = [(await act(client, *turn)).body["reward"] for turn in turns]
        last = await act(client, message("done"))
        assert (rewards, ended(last)) == (told, (0.0, False, None))
        assert sum(rewards) == score
        assert (await client.verify()).body["reward"] == score


async def test_a_reward_that_came_between_two_steps_is_in_the_next(autojump_clock):
    async with raise_the_curtain(server()) as stage:
        client = stage.client()
        await reset(client)
        await client.step(2)
        assert (await act(client, call({"by": 1}))).body["reward"] == pytest.approx(0.3)
        await client.step(3)
        assert ended(await act(client, message("done")))[0] == pytest.approx(0.3)


# -- repeated --------------------------------------------------------------------------------------------------------


async def test_a_repeated_step_has_the_same_answer_and_does_nothing(autojump_clock):
    async with raise_the_curtain(server()) as stage:
        client = stage.client()
        await reset(client)
        first = await act(client, call({"by": 2}), request_id="one")
        again = await act(client, call({"by": 2}), request_id="one")
        assert again.body == first.body and outputs(first) == [shown(2, 0.2)]
        another = await act(client, call({"by": 2}), request_id="two")
        assert (another.body["reward"], outputs(another)) == (0.2, [shown(4, 0.2)])
        for count in (6, 8):  # without an id nothing says that it is a repetition
            assert outputs(await act(client, call({"by": 2}))) == [shown(count, 0.2)]


async def test_ids_belong_to_their_sessions(autojump_clock):
    async with raise_the_curtain(server(2)) as stage:
        for by in (1, 2):
            client = stage.client()
            await reset(client)
            assert outputs(await act(client, call({"by": by}), request_id="one")) == [shown(by, by / 10)]


async def test_an_id_that_is_none_is_refused_and_nothing_is_done(autojump_clock):
    async with raise_the_curtain(server()) as stage:
        client = stage.client()
        await reset(client)
        for request_id in ("", "x" * 129, 5, ["one"], True):
            answer = await client.ask("POST", "/step", row(call({"by": 1}), _ng_step_request_id=request_id))
            assert (answer.status, answer.body["error"]) == (422, "bad_arguments"), request_id
            assert answer.body["detail"][0]["loc"] == ["body", "_ng_step_request_id"]
        assert outputs(await act(client, call({"by": 1}), request_id="x" * 128)) == [shown(1, 0.1)]


async def test_a_step_repeated_while_it_is_under_way_waits_for_the_same_answer(autojump_clock):
    async with raise_the_curtain(server(1, "slow-step:30")) as stage:
        client, again = stage.client(), stage.client()
        await reset(client)
        again.cookies = dict(client.cookies)
        await begin_to_act(client, call({"by": 2}), request_id="one")
        await trio.sleep(5)
        await begin_to_act(again, call({"by": 2}), request_id="one")
        first, second = await client.answer(), await again.answer()
        assert (outputs(first), first.body["reward"], trio.current_time()) == ([shown(2, 0.2)], 0.2, 30)
        assert second.body == first.body
        assert (await act(client, call({"by": 3}), request_id="two")).body["reward"] == 0.3


@pytest.mark.parametrize("back_at", [10, 45, 70, 500])
async def test_a_step_whose_client_hung_up_goes_on_and_is_answered_when_it_is_repeated(autojump_clock, back_at):
    """Two calls of 30 s; the client comes back in the first, in the second, afterwards, and after the session's end."""
    async with raise_the_curtain(server(1, "slow-step:30"), idle_timeout_seconds=100) as stage:
        client = stage.client()
        await reset(client)
        assert (await act(client, call({"by": 1}), request_id="one")).body["reward"] == 0.1
        calls = [call({"by": 2}, call_id="a"), call({"by": 3}, call_id="b")]
        await begin_to_act(client, *calls, request_id="two")
        await trio.sleep(5)
        await client.hang_up()
        await trio.sleep_until(30 + back_at)
        answer = await act(client, *calls, request_id="two")
        assert trio.current_time() == 30 + max(back_at, 60)
        if back_at == 500:
            assert ended(answer) == (0.0, True, "session_expired")
        else:
            assert outputs(answer) == [shown(3, 0.2), shown(6, 0.3)]
            assert answer.body["reward"] == pytest.approx(0.5)
            assert outputs(await act(client, call({}, "observation"), request_id="three")) == [shown(6, 0.3)]
        assert stage.episodes["opened"] == 1


async def test_a_step_that_was_answered_has_the_same_answer_after_the_sessions_end(autojump_clock):
    async with raise_the_curtain(server(), idle_timeout_seconds=100) as stage:
        client = stage.client()
        await reset(client)
        first = await act(client, call({"by": 2}), request_id="one")
        await trio.sleep(500)
        assert (await act(client, call({"by": 2}), request_id="one")).body == first.body
        assert ended(await act(client, call({"by": 2}), request_id="two")) == (0.0, True, "session_expired")


@pytest.mark.parametrize("back_at", [10, 45, 500])
async def test_the_last_step_too_is_repeated_after_a_hang_up_and_rewarded_once(autojump_clock, back_at):
    """The episode is done at 60, its session forgotten but for a tombstone at 160."""
    async with raise_the_curtain(server(1, "slow-step:30"), idle_timeout_seconds=100) as stage:
        client = stage.client()
        await reset(client, reset_kwargs={"target": 4})
        rewards = [(await act(client, call({"by": 1}), request_id="one")).body["reward"]]
        await begin_to_act(client, call({"by": 3}), request_id="two")
        await trio.sleep(5)
        await client.hang_up()
        await trio.sleep_until(30 + back_at)
        last = await act(client, call({"by": 3}), request_id="two")
        assert (ended(last), last.body["info"]["steps"]) == ((0.75, False, None), 2)
        assert trio.current_time() == 30 + max(back_at, 30)
        assert (await act(client, call({"by": 3}), request_id="two")).body == last.body
        rewards += [last.body["reward"], (await act(client, call({"by": 1}), request_id="three")).body["reward"]]
        assert rewards == [0.25, 0.75, 0.0]


@pytest.mark.parametrize("back_at", [10, 45, 500])
async def test_the_step_that_asks_for_the_score_is_repeated_after_a_hang_up_and_rewarded_once(autojump_clock, back_at):
    environment = Steps(None, 0.25, 0.5, seconds=30)
    async with raise_the_curtain(
        environment, verify_action=wire.action({"evaluate": True}), idle_timeout_seconds=100
    ) as stage:
        client = stage.client()
        await reset(client)
        assert (await act(client, call({"n": 1}), request_id="one")).body["reward"] == 0.25
        await begin_to_act(client, message("done"), request_id="two")
        await trio.sleep(5)
        await client.hang_up()
        await trio.sleep_until(30 + back_at)
        assert ended(await act(client, message("done"), request_id="two")) == (0.5, False, None)
        assert trio.current_time() == 30 + max(back_at, 30)
        assert environment.actions == [{"n": 1}, {"evaluate": True}]


async def test_what_was_told_is_remembered_from_the_last_step_on_however_long_the_policy_thought(autojump_clock):
    environment = Steps(None, 0.25, 0.5, seconds=30)
    action = wire.action({"evaluate": True})
    async with raise_the_curtain(
        environment, verify_action=action, idle_timeout_seconds=1000, tombstone_seconds=100
    ) as stage:
        client = stage.client()
        await reset(client)
        assert (await act(client, call({"n": 1}), request_id="one")).body["reward"] == 0.25
        await trio.sleep(150)
        await begin_to_act(client, message("done"), request_id="two")
        await trio.sleep(5)
        await client.hang_up()
        await trio.sleep(60)  # longer than it takes: nobody is there when the session ends
        assert ended(await act(client, message("done"), request_id="two")) == (0.5, False, None)


async def test_a_step_that_takes_longer_than_anything_is_remembered_can_be_repeated(autojump_clock):
    async with raise_the_curtain(server(1, "slow-step:30"), tombstone_seconds=20) as stage:
        client = stage.client()
        await reset(client, reset_kwargs={"target": 4})
        await act(client, call({"by": 1}), request_id="one")
        last = await act(client, call({"by": 3}), request_id="two")
        assert ended(last) == (0.75, False, None)
        assert (await act(client, call({"by": 3}), request_id="two")).body == last.body


@pytest.mark.parametrize("output", [call({"by": 2}), message("by two")])
async def test_a_step_whose_client_hangs_up_before_its_turn_is_made_all_the_same(autojump_clock, output):
    environment = Steps(None, 0.25, 0.5, seconds=30)
    async with raise_the_curtain(environment, dialect=Dialect(text_action="move")) as stage:
        client, other = stage.client(), stage.client()
        await reset(client)
        other.cookies = dict(client.cookies)
        await begin_to_act(client, call({"by": 1}), request_id="one")
        await begin_to_act(other, output, request_id="two")
        await trio.sleep(5)
        await other.hang_up()
        assert (await client.answer()).body["reward"] == 0.25
        again = await act(other, output, request_id="two")
        assert (again.body["reward"], trio.current_time(), len(environment.actions)) == (0.5, 60, 2)


@pytest.mark.parametrize("output", [call({"by": 2}), message("more")])
async def test_a_step_after_the_end_that_nobody_heard_of_is_told_of_it(autojump_clock, output):
    environment = Steps(None, 0.25, 0.5, last_is_done=True, seconds=30)
    async with raise_the_curtain(environment, dialect=Dialect(text_action="move")) as stage:
        client = stage.client()
        await reset(client)
        await act(client, call({"by": 1}), request_id="one")
        await begin_to_act(client, call({"by": 2}), request_id="two")
        await client.hang_up()
        await trio.sleep(40)
        assert ended(await act(client, output, request_id="three")) == (0.5, False, None)
        assert len(environment.actions) == 2


async def test_another_step_before_the_answer_waits_its_turn_and_all_rewards_are_told_once(autojump_clock):
    async with raise_the_curtain(server(1, "slow-step:30")) as stage:
        client, other = stage.client(), stage.client()
        await reset(client)
        other.cookies = dict(client.cookies)
        await begin_to_act(client, call({"by": 1}), request_id="one")
        await client.hang_up()
        await begin_to_act(other, call({"by": 2}), request_id="two")
        answer = await other.answer()
        assert (outputs(answer), trio.current_time()) == ([shown(3, 0.2)], 60)
        assert answer.body["reward"] == pytest.approx(0.3)


async def test_what_can_be_repeated_is_forgotten_with_the_tombstone(autojump_clock):
    async with raise_the_curtain(server(), tombstone_seconds=900) as stage:
        client = stage.client()
        await reset(client, reset_kwargs={"target": 1})
        last = await act(client, call({"by": 1}), request_id="one")
        await trio.sleep_until(899)
        assert (await act(client, call({"by": 1}), request_id="one")).body == last.body
        await trio.sleep_until(899 + 900)  # for as long from each repetition on
        assert ended(await act(client, call({"by": 1}), request_id="one")) == (0.0, True, "session_lost")


# -- without a session -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("output", [call({"by": 1}), message("done")])
async def test_a_step_without_a_session_is_over_and_masked(autojump_clock, output):
    async with raise_the_curtain(server()) as stage:
        answer = await act(stage.client(), output)
        assert answer.body == {
            "observation": None,
            "reward": 0.0,
            "terminated": True,
            "truncated": False,
            "info": {
                "steps": 0,
                "done": False,
                "seconds_waiting": 0.0,
                "seconds_resetting": 0.0,
                "seconds_stepping": 0.0,
                "seconds_thinking": 0.0,
                "mask_sample": True,
                "instance_config": {"mask_sample": True},
                "failure_kind": "session_lost",
                "failure_reason": "this request names no session that gymserve knows: seed one and send its cookie",
            },
        }
        assert answer.status == 200


async def test_an_expired_session_is_over_and_masked(autojump_clock):
    async with raise_the_curtain(server(), idle_timeout_seconds=100) as stage:
        client = stage.client()
        await reset(client)
        assert (await act(client, call({"by": 3}))).body["reward"] == 0.3
        await trio.sleep(100)
        answer = await act(client, call({"by": 3}))
        assert ended(answer) == (0.0, True, "session_expired")
        info = answer.body["info"]
        assert (info["failure_reason"], info["steps"]) == ("no request for 100 s, the idle timeout", 1)


async def test_a_session_lost_in_a_step_is_over_and_masked(autojump_clock):
    async with raise_the_curtain(server(1, "drop-mid-step:2")) as stage:
        client = stage.client()
        await reset(client)
        assert (await act(client, call({"by": 3}))).body["reward"] == 0.3
        lost = await act(client, call({"by": 3}), call({"by": 3}), request_id="two")
        assert (ended(lost), lost.body["observation"]) == ((0.0, True, "session_lost"), None)
        assert (await act(client, call({"by": 3}), request_id="two")).body == lost.body
        assert ended(await act(client, call({"by": 3}))) == (0.0, True, "session_lost")


async def test_a_session_lost_between_two_steps_is_over_and_masked(autojump_clock):
    environment = ScriptedServer()
    async with raise_the_curtain(environment) as stage:
        client = stage.client()
        await reset(client)
        with trio.move_on_after(0.001):
            await environment.sockets[0].aclose(1012)
        assert ended(await act(client, call({}))) == (0.0, True, "session_lost")


async def test_a_message_on_which_the_session_is_lost_is_over_and_masked(autojump_clock):
    async def script(message: dict[str, Any]) -> Any:
        return 1006 if message["type"] == "step" else await agreeable(message)

    async with raise_the_curtain(ScriptedServer(script), dialect=Dialect(text_action="move")) as stage:
        client = stage.client()
        await reset(client)
        lost = await act(client, message("left"))
        assert ended(lost) == (0.0, True, "session_lost")
        told = json.loads(lost.body["observation"])
        assert told == {"error": "environment_error", "detail": OVER, "done": True}


async def test_an_episode_that_an_action_ended_is_over_with_its_rewards(autojump_clock):
    async def script(message: dict[str, Any]) -> Any:
        if message["type"] == "step" and message["data"].get("trap"):
            return refused("SESSION_ERROR", "Unable to serialize")
        return await agreeable(message)

    async with raise_the_curtain(ScriptedServer(script)) as stage:
        client = stage.client()
        await reset(client)
        assert (await act(client, call({}), request_id="one")).body["reward"] == 1.0
        last = await act(client, call({}), call({"trap": 1}), request_id="two")
        assert ended(last) == (1.0, False, "gymserve:action_ended_episode")


async def test_a_shutdown_in_a_step(autojump_clock):
    async with raise_the_curtain(server(1, "slow-step:30")) as stage:
        client = stage.client()
        await reset(client)
        await begin_to_act(client, call({"by": 1}))
        await trio.sleep(5)
        await stage.gateway.drain(3)
        assert (ended(await client.answer()), trio.current_time()) == ((0.0, True, "shutdown"), 8)


# -- close -----------------------------------------------------------------------------------------------------------


async def test_a_close_gives_the_slot_back_and_may_be_repeated(autojump_clock):
    async with raise_the_curtain(server()) as stage:
        client = stage.client()
        await reset(client)
        await act(client, call({"by": 1}))
        for already_closed in (False, True, True):
            closed = await client.ask("POST", "/close", {})
            assert (closed.status, closed.body) == (200, {"ok": True, "already_closed": already_closed})
            await wait_all_tasks_blocked()
            assert stage.episodes["active"] == 0
        assert ended(await act(client, call({"by": 1}))) == (0.0, True, "cancelled")


async def test_a_close_without_a_session_is_fine_whatever_its_body(autojump_clock):
    async with raise_the_curtain(server()) as stage:
        for body in (None, {}, b"{"):
            closed = await stage.client().ask("POST", "/close", body)
            assert (closed.status, closed.body) == (200, {"ok": True, "already_closed": True})


async def test_a_close_in_a_step_answers_both(autojump_clock):
    async with raise_the_curtain(server(1, "slow-step:30")) as stage:
        client, closer = stage.client(), stage.client()
        await reset(client)
        closer.cookies = dict(client.cookies)
        await begin_to_act(client, call({"by": 1}))
        await trio.sleep(5)
        assert (await closer.ask("POST", "/close", {})).body == {"ok": True, "already_closed": False}
        assert (ended(await client.answer()), trio.current_time()) == ((0.0, True, "cancelled"), 5)


# -- told from the tool `step` ---------------------------------------------------------------------------------------


async def test_a_body_without_a_row_is_the_tools(autojump_clock):
    environment = Steps(None, 1.0, 2.0, 3.0, 4.0)
    actions = [
        {"by": 1},
        {"text": 'the "responses_create_params" of a row'},
        {"nested": {"responses_create_params": {}}, "response": {"output": []}},
        {},
    ]
    async with raise_the_curtain(environment) as stage:
        client = stage.client()
        await reset(client)
        answers = [await client.call("step", action) for action in actions]
        assert [answer.body for answer in answers] == [
            {"text": f"worth {reward}", "reward": reward, "done": False} for reward in (1.0, 2.0, 3.0, 4.0)
        ]
        assert environment.actions == actions


BAD_ROWS: list[tuple[Any, str, list[str]]] = [
    ({"responses_create_params": {}}, "list_type", ["body", "response", "output"]),
    ({"responses_create_params": {}, "response": None}, "list_type", ["body", "response", "output"]),
    ({"responses_create_params": {}, "response": {"output": {}}}, "list_type", ["body", "response", "output"]),
    (b'{"responses_create_params": {}, ', "json_invalid", ["body"]),
    (b'["responses_create_params"]', "dict_type", ["body"]),
]


async def test_a_row_that_cannot_be_used_is_refused_and_nothing_is_done(autojump_clock):
    async with raise_the_curtain(server()) as stage:
        client = stage.client()
        await reset(client)
        for body, kind, loc in BAD_ROWS:
            answer = await client.ask("POST", "/step", body)
            assert (answer.status, answer.body["error"]) == (422, "bad_arguments"), body
            assert [(fault["type"], fault["loc"]) for fault in answer.body["detail"]] == [(kind, loc)]
        assert outputs(await act(client, call({"by": 1}))) == [shown(1, 0.1)]
