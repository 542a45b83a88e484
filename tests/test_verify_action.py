"""The action that asks an environment for its score at verify: when it is sent, what comes of it, who waits for it."""

from typing import Any

import pytest
import trio
from scripted import ScriptedServer, agreeable, observed, refused
from stage import Answer, Client, raise_the_curtain
from trio.testing import wait_all_tasks_blocked

from gymserve import wire
from gymserve.score import RewardRule

EVALUATE = wire.action({"evaluate": True})
SECONDS = 30
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
VERIFY = {"responses_create_params": {}, "response": {}}


class Judge(ScriptedServer):
    """Steps are worth 0.25 each; the score, ``verdict``, is to be asked for and takes its time."""

    def __init__(self, verdict: Any = None, *, action: str = "Action", seconds: float = SECONDS) -> None:
        super().__init__(self._answer, action=action)
        self.asked_at: list[float] = []
        self.actions: list[Any] = []
        self._seconds = seconds
        self._verdict = observed(0.5, text="scored") if verdict is None else verdict

    async def _answer(self, message: dict[str, Any]) -> Any:
        if message["type"] != "step":
            return await agreeable(message)
        action = message["data"]
        self.actions.append(action)
        if "evaluate" in action or action.get("tool_name") == "score":
            self.asked_at.append(trio.current_time())
            await trio.sleep(self._seconds)
            return None if self._verdict == "silence" else self._verdict
        await trio.sleep(action.get("seconds", 0))
        return observed(0.25, done=action.get("last", False), text="ok")


def verdict(answer: Answer) -> tuple[float, bool, str | None]:
    """Reward, whether it is masked, and the failure."""
    assert answer.status == 200
    body = answer.body
    assert body.get("mask_sample", False) == body.get("instance_config", {}).get("mask_sample", False)
    return body["reward"], body.get("mask_sample", False), body.get("failure_kind")


async def seeded(stage: Any, *others: Client) -> Client:
    """A client whose session has made one step; ``others`` share it."""
    client: Client = stage.client()
    await client.seed()
    assert (await client.call("step", {})).status == 200
    for other in others:
        other.cookies = dict(client.cookies)
    return client


async def begin_to_verify(client: Client, **row: Any) -> None:
    await client.send("POST", "/verify", {**VERIFY, **row})
    await wait_all_tasks_blocked()


# -- when it is sent -------------------------------------------------------------------------------------------------


async def test_it_is_sent_once_before_the_goodbye_and_its_reward_counts(autojump_clock):
    environment = Judge()
    async with raise_the_curtain(environment, verify_action=EVALUATE, idle_timeout_seconds=20) as stage:
        client = await seeded(stage)
        await trio.sleep(4)
        scored = await client.verify(task=1)
        assert (verdict(scored), trio.current_time()) == ((0.75, False, None), 34)
        assert scored.body == {
            **VERIFY,
            "task": 1,
            "reward": 0.75,
            "steps": 1,  # it is no step of the policy's
            "done": False,
            "seconds_waiting": 0.0,
            "seconds_resetting": 0.0,
            "seconds_stepping": 30.0,
            "seconds_thinking": 4.0,
        }
        assert (await client.verify(task=2)).body == {**scored.body, "task": 2}
        await wait_all_tasks_blocked()
        assert environment.actions == [{}, {"evaluate": True}]
        at = [(at, kind) for at, kind in environment.heard if kind in ("step", "close")]
        assert at == [(0, "step"), (4, "step"), (34, "close")]
        assert stage.opener.line.held == 0


async def test_it_may_be_a_tool_call_by_the_environments_own_name(autojump_clock):
    scored = observed(0.5, tool_name="score", result={"data": 0.5, "is_error": False}, error=None)
    environment = Judge(scored, action="CallToolAction")
    action = wire.action({"tool_name": "score", "arguments": {"strict": True}})
    async with raise_the_curtain(environment, verify_action=action) as stage:
        client = stage.client()
        await client.seed()
        assert verdict(await client.verify()) == (0.5, False, None)
        assert environment.actions == [{"type": "call_tool", "tool_name": "score", "arguments": {"strict": True}}]


@pytest.mark.parametrize(("rule", "score"), [(RewardRule.SUM, 0.75), (RewardRule.LAST, 0.5), (RewardRule.MAX, 0.5)])
async def test_its_reward_is_the_last_of_the_episode(autojump_clock, rule, score):
    async with raise_the_curtain(Judge(), verify_action=EVALUATE, reward_rule=rule) as stage:
        assert verdict(await (await seeded(stage)).verify()) == (score, False, None)


async def test_an_answer_without_a_reward_adds_nothing(autojump_clock):
    async with raise_the_curtain(Judge(observed(None, done=True)), verify_action=EVALUATE) as stage:
        scored = await (await seeded(stage)).verify()
        assert (verdict(scored), scored.body["done"]) == ((0.25, False, None), True)


async def test_without_one_nothing_is_sent(autojump_clock):
    environment = Judge()
    async with raise_the_curtain(environment) as stage:
        assert verdict(await (await seeded(stage)).verify()) == (0.25, False, None)
        assert (environment.actions, trio.current_time()) == ([{}], 0)


async def test_an_episode_that_is_done_is_not_asked(autojump_clock):
    environment = Judge()
    async with raise_the_curtain(environment, verify_action=EVALUATE) as stage:
        client = await seeded(stage)
        await client.call("step", {"last": True})
        assert (verdict(await client.verify()), trio.current_time()) == ((0.5, False, None), 0)
        assert environment.asked_at == []


async def test_a_verify_behind_the_last_step_does_not_ask_either(autojump_clock):
    environment = Judge()
    async with raise_the_curtain(environment, verify_action=EVALUATE) as stage:
        verifier = stage.client()
        client = await seeded(stage, verifier)
        await client.send("POST", "/step", {"last": True, "seconds": 10})
        await wait_all_tasks_blocked()
        assert (verdict(await verifier.verify()), trio.current_time()) == ((0.5, False, None), 10)
        assert environment.asked_at == []


@pytest.mark.parametrize(("path", "kind"), [(None, "session_expired"), ("/close_session", "cancelled")])
async def test_a_session_that_has_ended_is_not_asked(autojump_clock, path, kind):
    environment = Judge()
    async with raise_the_curtain(environment, verify_action=EVALUATE, idle_timeout_seconds=100) as stage:
        client = await seeded(stage)
        if path is not None:
            await client.ask("POST", path, {})
        await trio.sleep(100)
        assert verdict(await client.verify()) == (0.0, True, kind)
        assert environment.asked_at == []


async def test_it_waits_for_the_calls_before_it_and_those_behind_it_are_too_late(autojump_clock):
    environment = Judge()
    async with raise_the_curtain(environment, verify_action=EVALUATE) as stage:
        stepping, verifier, late = (stage.client() for _ in range(3))
        await seeded(stage, stepping, verifier, late)
        await stepping.send("POST", "/step", {"seconds": 10})
        await wait_all_tasks_blocked()
        await begin_to_verify(verifier)
        await late.send("POST", "/step", {})
        assert (await stepping.answer()).status == 200 and trio.current_time() == 10
        assert verdict(await verifier.answer()) == (1.0, False, None)
        refusal = await late.answer()
        assert (refusal.status, refusal.body["error"], trio.current_time()) == (410, "session_closed", 40)
        assert (environment.asked_at, len(environment.actions)) == ([10], 3)


async def test_nothing_else_is_sent_meanwhile(autojump_clock):
    environment = Judge()
    async with raise_the_curtain(environment, verify_action=EVALUATE, keepalive_seconds=20) as stage:
        client = await seeded(stage)
        await trio.sleep(15)
        await begin_to_verify(client)
        [busy] = (await stage.listing())["sessions"]
        assert (busy["state"], busy["idle_deadline_in_seconds"]) == ("busy", None)
        await client.answer()
        assert environment.times("mcp") == []


# -- when it fails ---------------------------------------------------------------------------------------------------


FAILURES: list[tuple[Any, str]] = [
    (refused("EXECUTION_ERROR", "no grader"), "EXECUTION_ERROR: no grader"),
    (refused("VALIDATION_ERROR", "Invalid message", errors=[]), "VALIDATION_ERROR: Invalid message"),
    (refused("SESSION_ERROR", "it cannot be said"), "SESSION_ERROR: it cannot be said"),
    (1011, "the server closed the connection with code 1011"),
    (1009, "the server closed the connection with code 1009"),
    (1006, "the server dropped the connection"),
    ("<html>", "the server broke the protocol: not JSON: '<html>'"),
]


@pytest.mark.parametrize(("answer", "sentence"), FAILURES, ids=[sentence for _, sentence in FAILURES])
async def test_where_it_fails_there_is_no_score(autojump_clock, answer, sentence):
    environment = Judge(answer)
    async with raise_the_curtain(environment, verify_action=EVALUATE, step_timeout_is_scored=True) as stage:
        client = await seeded(stage)
        masked = await client.verify()
        assert (verdict(masked), trio.current_time()) == ((0.0, True, "verifier_error"), SECONDS)
        assert masked.body["failure_reason"] == f"the verify action failed: {sentence}"
        assert (masked.body["steps"], masked.body["done"]) == (1, False)
        assert (await client.verify()).body == masked.body
        refusal = await client.call("step", {})
        assert (refusal.status, refusal.body["error"]) == (410, "session_lost")
        await wait_all_tasks_blocked()
        assert (environment.asked_at, stage.opener.line.held) == ([0], 0)


@pytest.mark.parametrize("scored", [True, False])
async def test_it_may_take_as_long_as_a_step(autojump_clock, scored):
    environment = Judge("silence")
    async with raise_the_curtain(
        environment, verify_action=EVALUATE, step_timeout_seconds=40, step_timeout_is_scored=scored
    ) as stage:
        client = await seeded(stage)
        await trio.sleep(5)
        masked = await client.verify()
        assert (verdict(masked), trio.current_time()) == ((0.0, True, "verifier_error"), 45)
        assert masked.body["failure_reason"] == "the verify action failed: no answer within 40 s"
        await wait_all_tasks_blocked()
        assert (environment.times("close"), environment.closed_at) == ([], [(45, 1000)])


@pytest.mark.parametrize("done", [False, True])
async def test_an_mcp_tools_error_is_no_score_even_of_an_episode_that_is_done_with_it(autojump_clock, done):
    broken = {"content": [{"type": "text", "text": "no tests found"}], "is_error": True}
    failed = observed(1.0, done=done, tool_name="score", result=broken, error=None)
    environment = Judge(failed, action="CallToolAction")
    action = wire.action({"tool_name": "score", "arguments": {}})
    async with raise_the_curtain(environment, verify_action=action) as stage:
        client = stage.client()
        await client.seed()
        masked = await client.verify()
        assert (verdict(masked), masked.body["done"]) == ((0.0, True, "verifier_error"), done)
        assert "no tests found" in masked.body["failure_reason"]
        await wait_all_tasks_blocked()
        assert environment.times("close") == [SECONDS]


# -- who waits for it ------------------------------------------------------------------------------------------------


async def test_a_verify_repeated_meanwhile_joins_it(autojump_clock):
    environment = Judge()
    async with raise_the_curtain(environment, verify_action=EVALUATE) as stage:
        first, second, third = (stage.client() for _ in range(3))
        await seeded(stage, first, second, third)
        await begin_to_verify(first, task=1)
        await trio.sleep(5)
        await begin_to_verify(second, task=2)
        await trio.sleep(20)
        await begin_to_verify(third, task=3)
        answers = [await client.answer() for client in (first, second, third)]
        assert [answer.body.pop("task") for answer in answers] == [1, 2, 3]
        assert verdict(answers[0]) == (0.75, False, None)
        assert answers[0].body == answers[1].body == answers[2].body
        assert (environment.asked_at, trio.current_time()) == ([0], SECONDS)


async def test_a_verify_repeated_meanwhile_hears_of_its_failure(autojump_clock):
    environment = Judge(1011)
    async with raise_the_curtain(environment, verify_action=EVALUATE) as stage:
        first, second = stage.client(), stage.client()
        await seeded(stage, first, second)
        await begin_to_verify(first)
        await begin_to_verify(second)
        answers = [await first.answer(), await second.answer()]
        assert [verdict(answer) for answer in answers] == [(0.0, True, "verifier_error")] * 2
        assert answers[0].body == answers[1].body
        assert (environment.asked_at, trio.current_time()) == ([0], SECONDS)


@pytest.mark.parametrize("back_at", [10, 100])
async def test_who_hangs_up_meanwhile_and_verifies_again_gets_the_score(autojump_clock, back_at):
    environment = Judge()
    async with raise_the_curtain(environment, verify_action=EVALUATE) as stage:
        client = await seeded(stage)
        await begin_to_verify(client)
        await trio.sleep(5)
        await client.hang_up()
        await trio.sleep_until(back_at)
        assert verdict(await client.verify()) == (0.75, False, None)
        assert (environment.asked_at, trio.current_time()) == ([0], max(back_at, SECONDS))


async def test_a_verify_whose_client_left_before_its_turn_asks_nothing(autojump_clock):
    environment = Judge()
    async with raise_the_curtain(environment, verify_action=EVALUATE, idle_timeout_seconds=100) as stage:
        verifier = stage.client()
        client = await seeded(stage, verifier)
        await client.send("POST", "/step", {"seconds": 10})
        await wait_all_tasks_blocked()
        await begin_to_verify(verifier)
        await trio.sleep(5)
        await verifier.hang_up()
        assert (await client.answer()).status == 200
        await trio.sleep_until(50)
        assert environment.asked_at == []
        [session] = (await stage.listing())["sessions"]
        assert (session["state"], session["idle_deadline_in_seconds"]) == ("idle", 60)
        assert verdict(await verifier.verify()) == (1.0, False, None)
        assert (environment.asked_at, trio.current_time()) == ([50], 80)


# -- what may come between -------------------------------------------------------------------------------------------


async def test_a_close_meanwhile(autojump_clock):
    environment = Judge()
    async with raise_the_curtain(environment, verify_action=EVALUATE) as stage:
        joined, closer = stage.client(), stage.client()
        client = await seeded(stage, joined, closer)
        await begin_to_verify(client)
        await begin_to_verify(joined)
        await trio.sleep(5)
        assert (await closer.ask("POST", "/close_session", {})).status == 200
        answers = [await client.answer(), await joined.answer(), await closer.verify()]
        assert [verdict(answer) for answer in answers] == [(0.0, True, "cancelled")] * 3
        await wait_all_tasks_blocked()
        assert trio.current_time() == 5
        assert environment.times("close") == []  # its answer is still to come: only a CLOSE frame can be sent
        assert stage.opener.line.held == 0


async def test_the_lifetime_ends_it(autojump_clock):
    environment = Judge()
    async with raise_the_curtain(environment, verify_action=EVALUATE, lifetime_seconds=20) as stage:
        joined = stage.client()
        client = await seeded(stage, joined)
        await trio.sleep(5)
        await begin_to_verify(client)
        await begin_to_verify(joined)
        answers = [await client.answer(), await joined.answer()]
        assert [verdict(answer) for answer in answers] == [(0.0, True, "session_expired")] * 2
        assert "lifetime of 20 s" in answers[0].body["failure_reason"]
        assert trio.current_time() == 20


@pytest.mark.parametrize("grace", [3, 40])
async def test_a_shutdown_meanwhile_grants_it_the_grace(autojump_clock, grace):
    environment = Judge()
    async with raise_the_curtain(environment, verify_action=EVALUATE) as stage:
        joined = stage.client()
        client = await seeded(stage, joined)
        await begin_to_verify(client)
        await begin_to_verify(joined)
        await trio.sleep(5)
        await stage.gateway.drain(grace)
        assert trio.current_time() == min(5 + grace, SECONDS)
        scored = (0.75, False, None) if grace == 40 else (0.0, True, "shutdown")
        assert [verdict(await each.answer()) for each in (client, joined)] == [scored] * 2


async def test_whoever_waits_for_it_is_told_so(autojump_clock):
    async with raise_the_curtain(Judge(seconds=40), verify_action=EVALUATE) as stage:
        joined = stage.client()
        client = await seeded(stage, joined)
        told: dict[str, tuple[list[float], bytes]] = {}

        async def verify(name: str, client: Client) -> None:
            await begin_to_verify(client)
            assert client.peer is not None
            times = []
            while (packet := await client.peer.stream.receive_some(65536)) == CONTINUE:
                times.append(trio.current_time())
            told[name] = times, packet[:12]

        async with trio.open_nursery() as verifying:
            verifying.start_soon(verify, "first", client)
            await trio.sleep(4)
            verifying.start_soon(verify, "joined", joined)
        assert told == {"first": ([15, 30], b"HTTP/1.1 200"), "joined": ([19, 34], b"HTTP/1.1 200")}
        assert trio.current_time() == 40
