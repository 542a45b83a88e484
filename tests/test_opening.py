"""Opening with patience, in virtual time: what is waited out and until when, what fails at once, and what is said."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from counting import Counting
from scripted import ScriptedServer, agreeable, observed, refused, welcome
from stage import Answer, Stage, raise_the_curtain
from trio.testing import wait_all_tasks_blocked

from gymserve.errors import GymserveFailed
from gymserve.gridsim.faults import parse_fault
from gymserve.gridsim.http import HttpConnection
from gymserve.gridsim.server import EnvironmentServer
from gymserve.resets import ResetRules, parse_failed_observation

BACKOFFS = [0, 0.05, 0.15, 0.35, 0.75, 1.55, 3.15, 5.15]
"""When a server is knocked at that answers none of it: the pauses double from 50 ms to 2 s."""

SERVER = "the environment server at http://environment:8000"
ADVICE = "raise --patience or give the server more slots"

Message = dict[str, Any]
Upgraded = Callable[[HttpConnection, trio.abc.Stream], Awaitable[bool]]


def counting(capacity: int = 1, *faults: str) -> EnvironmentServer:
    return EnvironmentServer(Counting, capacity=capacity, faults=[parse_fault(fault) for fault in faults])


async def drops(connection: HttpConnection, stream: trio.abc.Stream) -> bool:
    await stream.aclose()
    return False


async def is_silent(connection: HttpConnection, stream: trio.abc.Stream) -> bool:
    await trio.sleep_forever()


async def begins_an_answer(connection: HttpConnection, stream: trio.abc.Stream) -> bool:
    await stream.send_all(b"HTTP/1.1 10")
    return await drops(connection, stream)


async def talks_nonsense(connection: HttpConnection, stream: trio.abc.Stream) -> bool:
    await stream.send_all(b"SSH-2.0-OpenSSH_9.2\r\n")
    return False


def answers(status: int) -> Upgraded:
    async def answer(connection: HttpConnection, stream: trio.abc.Stream) -> bool:
        await connection.answer(status, {})
        return False

    return answer


def says(answer: Any) -> Callable[[Message], Awaitable[Any]]:
    """A script whose every answer is that; a number is a CLOSE."""

    async def script(message: Message) -> Any:
        return answer

    return script


def after(times: int, first: Any, then: Any) -> Any:
    """A script or an upgrade that is ``first`` as many times, and then ``then``."""
    left = iter([first] * times)

    async def play(*asked: Any) -> Any:
        return await next(left, then)(*asked)

    return play


def busy_at_upgrade(upgrade: Upgraded) -> Callable[[int], ScriptedServer]:
    return lambda times: ScriptedServer(upgrade=after(times, upgrade, welcome))


def busy_at_reset(answer: Any) -> Callable[[int], ScriptedServer]:
    return lambda times: ScriptedServer(after(times, says(answer), agreeable))


FULL_ELSEWHERE = refused("CAPACITY_REACHED", "Server at capacity: 2/2", active_sessions=2, max_sessions=2)


# -- what is waited out ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "server",
    [
        pytest.param(busy_at_upgrade(drops), id="handshake dropped"),
        pytest.param(busy_at_upgrade(begins_an_answer), id="handshake dropped in its status line"),
        pytest.param(busy_at_upgrade(answers(502)), id="502"),
        pytest.param(busy_at_upgrade(answers(504)), id="504"),
        pytest.param(busy_at_upgrade(answers(429)), id="429"),
        pytest.param(busy_at_upgrade(answers(503)), id="503"),
        pytest.param(busy_at_reset(1011), id="CLOSE 1011"),
        pytest.param(busy_at_reset(1012), id="CLOSE 1012"),
        pytest.param(busy_at_reset(1013), id="CLOSE 1013"),
        pytest.param(busy_at_reset(1006), id="dropped before the first reply"),
        pytest.param(busy_at_reset(FULL_ELSEWHERE), id="full of others"),
        pytest.param(busy_at_reset(refused("CAPACITY_REACHED", "at capacity")), id="full, without a number"),
    ],
)
async def test_a_busy_or_full_server_is_waited_out_with_a_backoff(autojump_clock, server):
    environment = server(7)
    async with raise_the_curtain(environment) as stage:
        assert (await stage.client().seed()).status == 200
        assert trio.current_time() == pytest.approx(5.15)
        assert (environment.knocked, environment.most_unanswered) == (BACKOFFS, 1)


async def test_a_server_that_resets_connections_is_waited_out(autojump_clock):
    class Resets(ScriptedServer):
        async def serve_stream(self, stream: trio.abc.Stream) -> None:
            if trio.current_time() < 1:
                await stream.aclose()
            else:
                await super().serve_stream(stream)

    environment = Resets()
    async with raise_the_curtain(environment) as stage:
        assert (await stage.client().seed()).status == 200
        assert environment.knocked == [1.55]


async def test_the_next_opens_in_the_moment_a_goodbye_is_acknowledged(autojump_clock):
    environment = counting(1, "slow-close:7")
    async with raise_the_curtain(environment) as stage:
        holder, waiting = stage.client(), stage.client()
        await holder.seed()
        await waiting.send("POST", "/seed_session", {})
        await trio.sleep_until(10)
        await holder.verify()
        assert (await waiting.answer()).status == 200
        assert trio.current_time() == 17
        assert environment.episodes["opened"] == 2


# -- what fails at once ----------------------------------------------------------------------------------------------


HOPELESS: list[Any] = [
    pytest.param(
        ScriptedServer(upgrade=answers(200)), "the server answered HTTP 200 to the WebSocket upgrade", id="200"
    ),
    pytest.param(
        ScriptedServer(upgrade=answers(403)), "the server answered HTTP 403 to the WebSocket upgrade", id="403"
    ),
    pytest.param(
        ScriptedServer(upgrade=answers(500)), "the server answered HTTP 500 to the WebSocket upgrade", id="500"
    ),
    pytest.param(
        ScriptedServer(upgrade=talks_nonsense),
        "the server does not speak HTTP: it begins with b'SSH-2.0-OpenSSH_9.2\\r'",
        id="garbage",
    ),
    pytest.param(
        ScriptedServer(says(refused("FACTORY_ERROR", "Environment factory 'Env' failed to create instance."))),
        "FACTORY_ERROR: Environment factory 'Env' failed to create instance.",
        id="FACTORY_ERROR",
    ),
    pytest.param(
        ScriptedServer(says(refused("SESSION_ERROR", "Unknown session_id"))),
        "SESSION_ERROR: Unknown session_id",
        id="SESSION_ERROR",
    ),
    pytest.param(ScriptedServer(says(1008)), "the server closed the connection with code 1008", id="CLOSE 1008"),
]


@pytest.mark.parametrize(("environment", "sentence"), HOPELESS)
async def test_a_hopeless_server_fails_after_one_attempt(autojump_clock, environment, sentence):
    async with raise_the_curtain(environment) as stage:
        failed = await stage.client().seed()
        assert (failed.status, failed.body["error"], trio.current_time()) == (502, "environment_error", 0)
        assert failed.body["detail"] == (
            f"{SERVER} cannot be used: {sentence}; "
            "check that --env is right and that an OpenEnv server is running there"
        )
        await trio.sleep(600)
        assert (environment.knocked, stage.opener.line.held, stage.opener.line.waiting) == ([0], 0, 0)


async def test_a_closed_port_fails_after_one_attempt_each(autojump_clock):
    async with raise_the_curtain(counting()) as stage:
        stage.network.refuses = True
        for _ in range(3):
            assert (await stage.client().seed()).status == 502
        assert (trio.current_time(), stage.network.connections) == (0, 0)


async def test_after_16_hopeless_answers_within_a_second_further_ones_are_held_back(autojump_clock):
    failed_at: list[float] = []
    async with raise_the_curtain(counting()) as stage:
        stage.network.refuses = True

        async def fail() -> None:
            assert (await stage.client().seed()).status == 502
            failed_at.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            for _ in range(40):
                nursery.start_soon(fail)
        assert failed_at == [0] * 16 + [1] * 24
        await trio.sleep(1)
        await fail()
        assert failed_at[40:] == [2]


async def test_a_fault_of_ours_in_a_knock_is_one_sessions_and_ends_no_other(autojump_clock):
    async with raise_the_curtain(counting(2)) as stage:
        holder = stage.client()
        await holder.seed()
        open_stream, stage.network.open_stream = stage.network.open_stream, None
        failed = await stage.client().seed()
        assert (failed.status, failed.body["error"]) == (500, GymserveFailed.kind)
        stage.network.open_stream = open_stream
        assert (await holder.step(3)).body["count"] == 3
        assert (await stage.client().seed()).status == 200


# -- a server that restarts ------------------------------------------------------------------------------------------


@asynccontextmanager
async def opened_before(**how: Any) -> AsyncIterator[Stage]:
    """A stage whose server has opened an episode, and then refuses."""
    async with raise_the_curtain(counting(8), **how) as stage:
        await stage.client().seed()
        await trio.sleep_until(10)
        stage.network.refuses = True
        yield stage


async def test_a_server_that_has_opened_before_and_refuses_is_waited_out(autojump_clock):
    async with opened_before() as stage:
        waiting = [stage.client() for _ in range(3)]
        for client in waiting:
            await client.send("POST", "/seed_session", {})
        await trio.sleep(5)
        stage.network.refuses = False
        assert [(await client.answer()).status for client in waiting] == [200, 200, 200]
        assert trio.current_time() == pytest.approx(10 + 5.15)


async def test_a_restart_an_hour_after_one_that_nobody_waited_out_is_waited_out_too(autojump_clock):
    async with opened_before() as stage:
        hasty, late = stage.client(), stage.client()
        await hasty.send("POST", "/seed_session", {})
        await trio.sleep(5)
        await hasty.hang_up()
        stage.network.refuses = False  # up again, but nobody asks for an hour
        await trio.sleep(3600)
        stage.network.refuses = True
        await late.send("POST", "/seed_session", {})
        await trio.sleep(5)
        stage.network.refuses = False
        assert (await late.answer()).status == 200


@pytest.mark.parametrize("restart_patience_seconds", [60.0, 20.0, 0.0])
async def test_a_server_that_does_not_come_back_is_hopeless_when_the_restart_patience_ends(
    autojump_clock, restart_patience_seconds
):
    async with opened_before(restart_patience_seconds=restart_patience_seconds) as stage:
        failed = await stage.client().seed()
        assert (failed.status, trio.current_time()) == (502, 10 + restart_patience_seconds)
        assert "Connection refused" in failed.body["detail"]
        await trio.sleep(5)
        now = trio.current_time()
        assert (await stage.client().seed()).status == 502
        assert trio.current_time() == now  # it was waited for once
        stage.network.refuses = False
        assert (await stage.client().seed()).status == 200
        stage.network.refuses = True
        assert (await stage.client().seed()).status == 502
        assert trio.current_time() == now + restart_patience_seconds  # and after it was back, once more


async def test_the_patience_ends_a_wait_for_a_restart_too(autojump_clock):
    async with opened_before(patience_seconds=30) as stage:
        failed = await stage.client().seed()
        assert (failed.status, failed.body["error"], trio.current_time()) == (503, "no_room", 40)


# -- the patience, in every phase ------------------------------------------------------------------------------------


async def no_room(stage: Stage, within_seconds: float) -> str:
    """What a seed is told that waits until its patience ends, without the words that are always there."""
    started = trio.current_time()
    refusal = await stage.client().seed()
    assert (refusal.status, refusal.body["error"], refusal.body["done"]) == (503, "no_room", False)
    assert trio.current_time() - started == within_seconds
    assert int(refusal.headers[b"retry-after"]) > 0
    before, after = f"{SERVER} had no room within {within_seconds:g} s (", f"); {ADVICE}"
    detail = refusal.body["detail"]
    assert detail.startswith(before) and detail.endswith(after)
    return detail.removeprefix(before).removesuffix(after)


async def no_slot_is_held(stage: Stage, *, but: int = 0) -> bool:
    await wait_all_tasks_blocked()
    return (stage.opener.line.held, stage.opener.line.waiting) == (but, 0)


async def test_patience_ends_in_the_line(autojump_clock):
    async with raise_the_curtain(counting(), patience_seconds=20) as stage:
        await stage.client().seed()
        assert (
            await no_room(stage, 20) == "1 try; last: CAPACITY_REACHED: Server at capacity: 1/1 sessions active. "
            "Cannot accept new connections."
        )
        assert await no_slot_is_held(stage, but=1)


async def test_patience_ends_while_tcp_connects(autojump_clock):
    async with raise_the_curtain(counting(), patience_seconds=37) as stage:
        stage.network.connecting_seconds = 1000
        assert await no_room(stage, 37) == "4 tries; last: no TCP connection in time"
        stage.network.connecting_seconds = 0
        await trio.sleep(20)
        assert await no_slot_is_held(stage)


async def test_patience_ends_before_the_schema(autojump_clock):
    environment = ScriptedServer()
    environment.freeze()
    async with raise_the_curtain(environment, patience_seconds=37) as stage:
        assert await no_room(stage, 37) == "4 tries; last: GET /schema was not answered in time"
        assert environment.knocked == []


async def test_patience_ends_in_the_handshake(autojump_clock):
    environment = ScriptedServer()
    async with raise_the_curtain(environment, patience_seconds=37) as stage:
        await stage.client().seed()
        environment.freeze()
        assert await no_room(stage, 37) == "1 try; last: it has not answered a WebSocket upgrade for 10 s or more"
        environment.thaw()
        await wait_all_tasks_blocked()
        assert environment.times("close") == [37]  # nobody wants it any more
        assert await no_slot_is_held(stage, but=1)


async def test_a_short_patience_ends_in_the_handshake(autojump_clock):
    async with raise_the_curtain(counting(1, "slow-handshake:8"), patience_seconds=7) as stage:
        assert await no_room(stage, 7) == "1 try; it has not answered yet"
        await trio.sleep(1)
        assert await no_slot_is_held(stage)
        assert stage.episodes == {"active": 0, "max": 1, "opened": 1, "closed": 1}


@pytest.mark.parametrize(
    ("action", "silent_at", "asked"), [("CallToolAction", "mcp", "tools/list"), ("Action", "reset", "reset")]
)
async def test_patience_ends_before_the_first_answer(autojump_clock, action, silent_at, asked):
    async def script(message: Message) -> Any:
        return None if message["type"] == silent_at else await agreeable(message)

    environment = ScriptedServer(script, action=action)
    async with raise_the_curtain(environment, patience_seconds=37) as stage:
        assert await no_room(stage, 37) == f"1 try; its {asked} was not answered"
        await wait_all_tasks_blocked()
        assert environment.closed_at == [(37, 1006)]
        assert await no_slot_is_held(stage)


async def test_patience_ends_in_a_backoff(autojump_clock):
    environment = ScriptedServer(upgrade=drops)
    async with raise_the_curtain(environment, patience_seconds=4) as stage:
        said = "7 tries; last: the server closed the connection before it answered the WebSocket upgrade"
        assert await no_room(stage, 4) == said
        await trio.sleep(100)
        assert environment.knocked == BACKOFFS[:7]


async def test_patience_ends_in_the_goodbye_to_a_failed_reset(autojump_clock):
    async with raise_the_curtain(counting(1, "failed-reset:9", "slow-close:50"), patience_seconds=37) as stage:
        assert (await no_room(stage, 37)).startswith("1 try; last: ")
        await trio.sleep(60)
        assert await no_slot_is_held(stage)
        assert stage.episodes["active"] == 0


async def test_without_patience_one_attempt_is_all(autojump_clock):
    environment = ScriptedServer(upgrade=drops)
    async with raise_the_curtain(environment, patience_seconds=0) as stage:
        refusal = await stage.client().seed()
        assert (refusal.status, refusal.body["error"], trio.current_time()) == (503, "no_room", 0)
        assert "(1 try; last: the server closed the connection" in refusal.body["detail"]
        await trio.sleep(100)
        assert environment.knocked == [0]


async def test_without_patience_a_server_that_is_known_to_be_full_is_not_waited_for(autojump_clock):
    async with raise_the_curtain(EnvironmentServer(Counting, capacity=1), patience_seconds=0) as stage:
        assert (await stage.client().seed()).status == 200
        for _ in range(3):
            refusal = await stage.client().seed()
            assert (refusal.status, refusal.body["error"], trio.current_time()) == (503, "no_room", 0)
            assert "without waiting" in refusal.body["detail"]
        assert stage.opener.line.waiting == 0


async def test_garbage_is_hopeless_and_tried_once(autojump_clock):
    faults = [parse_fault("garbage:1")]
    async with raise_the_curtain(EnvironmentServer(Counting, capacity=1, faults=faults)) as stage:
        failed = await stage.client().seed()
        assert (failed.status, trio.current_time()) == (502, 0)
        assert "broke the protocol" in failed.body["detail"]
        assert stage.episodes["opened"] == 1


# -- unanswered handshakes -------------------------------------------------------------------------------------------


async def test_a_handshake_lost_by_a_living_server_is_dropped_after_two_connect_timeouts(autojump_clock):
    environment = ScriptedServer(upgrade=after(1, is_silent, welcome))
    async with raise_the_curtain(environment, connect_timeout_seconds=4) as stage:
        assert (await stage.client().seed()).status == 200
        assert (trio.current_time(), environment.knocked) == (8, [0, 8])
        assert environment.asked == [(0, "/schema"), (4, "/health"), (8, "/health")]


async def test_a_handshake_answered_late_is_waited_for(autojump_clock):
    async def answer_late(connection: HttpConnection, stream: trio.abc.Stream) -> bool:
        await trio.sleep(19)
        return True

    environment = ScriptedServer(upgrade=answer_late)
    async with raise_the_curtain(environment) as stage:
        assert (await stage.client().seed()).status == 200
        assert (trio.current_time(), environment.knocked) == (19, [0])
        await trio.sleep(100)
        assert environment.asked == [(0, "/schema"), (10, "/health")]  # and not asked after it any more


async def test_a_frozen_server_is_asked_ever_less_and_given_no_second_handshake(autojump_clock):
    environment = ScriptedServer()
    async with raise_the_curtain(environment, idle_timeout_seconds=1000) as stage:
        await stage.client().seed()
        environment.freeze()
        opened: list[float] = []

        async def seed() -> None:
            assert (await stage.client().seed()).status == 200
            opened.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            for _ in range(32):
                nursery.start_soon(seed)
            await trio.sleep_until(400)
            # Each ask is given up after 10 s; the pauses between them double.
            assert environment.asked[1:] == [(at, "/health") for at in (10, 40, 90, 180, 350)]
            assert environment.knocked == [0] * 17
            environment.thaw()
        assert opened == [400] * 32
        assert (len(environment.knocked), environment.most_unanswered) == (33, 16)
        assert environment.times("close") == []


@pytest.mark.parametrize("most", [1, 3, 16])
async def test_no_more_handshakes_are_pending_than_allowed(autojump_clock, most):
    environment = ScriptedServer()
    async with raise_the_curtain(environment, max_handshakes=most) as stage:
        async with trio.open_nursery() as nursery:
            for _ in range(40):
                nursery.start_soon(stage.client().seed)
            await wait_all_tasks_blocked()
            environment.freeze()
            for _ in range(40):
                nursery.start_soon(stage.client().seed)
            await trio.sleep(100)
            assert environment.unanswered == most
            environment.thaw()
        assert (environment.most_unanswered, len(environment.knocked), trio.current_time()) == (most, 80, 100)


async def test_a_pending_handshake_serves_whoever_is_first_when_it_is_answered(autojump_clock):
    environment = counting(1, "slow-handshake:12")
    async with raise_the_curtain(environment) as stage:
        hangs_up, client = stage.client(), stage.client()
        await hangs_up.send("POST", "/seed_session", {})
        await trio.sleep_until(5)
        await hangs_up.hang_up()
        await trio.sleep_until(6)
        assert (await client.seed()).status == 200
        assert (trio.current_time(), environment.episodes["opened"]) == (12, 1)


async def test_a_pending_handshake_that_nobody_wants_any_more_gets_a_goodbye(autojump_clock):
    environment = ScriptedServer()
    async with raise_the_curtain(environment) as stage:
        await stage.client().seed()
        environment.freeze()
        hangs_up = stage.client()
        await hangs_up.send("POST", "/seed_session", {})
        await trio.sleep_until(5)
        await hangs_up.hang_up()
        await wait_all_tasks_blocked()
        assert stage.opener.line.held == 2  # it may yet become a slot
        await trio.sleep_until(12)
        environment.thaw()
        await wait_all_tasks_blocked()
        assert (environment.times("close"), environment.times("reset")) == ([12], [0])
        assert await no_slot_is_held(stage, but=1)


# -- failed resets ---------------------------------------------------------------------------------------------------


SOFT_FAILURE = ResetRules(failed=(parse_failed_observation("reward_type=reset_error"),))
FAILED_RESETS = [
    pytest.param(refused("EXECUTION_ERROR", "no display"), "no display", ResetRules(), id="EXECUTION_ERROR"),
    pytest.param(refused("EXECUTION_ERROR"), "an error without a message", ResetRules(), id="EXECUTION_ERROR, empty"),
    pytest.param(
        observed(done=True), "the environment was done at once, without a reward", ResetRules(), id="done, no reward"
    ),
    pytest.param(
        observed(0.0, reward_type="reset_error"),
        'the observation has reward_type = "reset_error"',
        SOFT_FAILURE,
        id="an observation of a failed reset",
    ),
]


@pytest.mark.parametrize(("answer", "reason", "resets"), FAILED_RESETS)
async def test_a_failed_reset_is_tried_on_fresh_episodes(autojump_clock, answer, reason, resets):
    environment = ScriptedServer(says(answer))
    async with raise_the_curtain(environment, resets=resets) as stage:
        failed = await stage.client().seed()
        assert (failed.status, failed.body["error"], trio.current_time()) == (502, "environment_error", 0)
        assert failed.body["detail"] == (
            f"the environment's reset failed 3 times, each on a fresh episode: {reason}; "
            "look at the environment, or raise --reset-retries"
        )
        assert environment.times("reset") == environment.times("close") == [0, 0, 0]  # each got a goodbye
        assert environment.knocked == [0, 0, 0]
        assert await no_slot_is_held(stage)


@pytest.mark.parametrize(("answer", "reason", "resets"), FAILED_RESETS)
async def test_an_episode_after_failed_resets_is_one_like_any_other(autojump_clock, answer, reason, resets):
    environment = ScriptedServer(after(2, says(answer), agreeable))
    async with raise_the_curtain(environment, resets=resets) as stage:
        client = stage.client()
        assert (await client.seed()).status == 200
        await client.call("step", {})
        result = (await client.verify()).body
        assert (result["reward"], "mask_sample" in result) == (1.0, False)


async def test_a_verify_after_failed_resets_is_masked(autojump_clock):
    async with raise_the_curtain(ScriptedServer(says(refused("EXECUTION_ERROR", "no display")))) as stage:
        client = stage.client()
        await client.seed()
        masked = (await client.verify()).body
        assert (masked["mask_sample"], masked["failure_kind"]) == (True, "provider_unavailable")
        assert "no display" in masked["failure_reason"]


@pytest.mark.parametrize(("retries", "resets", "words"), [(0, 1, "failed once: "), (4, 5, "failed 5 times, each on ")])
async def test_as_many_fresh_episodes_as_are_allowed(autojump_clock, retries, resets, words):
    environment = ScriptedServer(says(refused("EXECUTION_ERROR", "no display")))
    async with raise_the_curtain(environment, resets=ResetRules(retries=retries)) as stage:
        failed = await stage.client().seed()
        assert failed.status == 502 and words in failed.body["detail"]
        assert len(environment.times("reset")) == resets


async def test_a_reset_that_is_done_with_a_reward_is_an_episode(autojump_clock):
    async with raise_the_curtain(ScriptedServer(says(observed(1.0, done=True)))) as stage:
        client = stage.client()
        assert (await client.seed()).status == 200
        assert (await client.verify()).body["reward"] == 1.0


async def test_a_failed_factory_is_a_failed_reset_once_the_server_has_opened(autojump_clock):
    factory_error = says(refused("FACTORY_ERROR", "Environment factory 'Env' failed to create instance."))
    environment = ScriptedServer(after(1, agreeable, after(2, factory_error, agreeable)))
    async with raise_the_curtain(environment) as stage:
        assert (await stage.client().seed()).status == 200
        assert (await stage.client().seed()).status == 200
        assert (environment.knocked, trio.current_time()) == ([0] * 4, 0)


async def test_a_failed_reset_keeps_its_turn(autojump_clock):
    environment = counting(1, "failed-reset:2", "slow-reset:3", "slow-close:4")
    async with raise_the_curtain(environment) as stage:
        opened: list[tuple[str, float]] = []

        async def rollout(name: str) -> None:
            client = stage.client()
            assert (await client.seed()).status == 200
            opened.append((name, trio.current_time()))
            await client.verify()

        async with trio.open_nursery() as nursery:
            for name in "abc":
                nursery.start_soon(rollout, name)
                await wait_all_tasks_blocked()
        # a: two resets of 3 s and goodbyes of 4 s, and then its own; b and c after it
        assert opened == [("a", 17), ("b", 24), ("c", 31)]


async def test_resets_fail_within_the_patience(autojump_clock):
    async def fail_slowly(message: Message) -> Message:
        await trio.sleep(15)
        return refused("EXECUTION_ERROR", "no display")

    environment = ScriptedServer(fail_slowly)
    async with raise_the_curtain(environment, patience_seconds=37, resets=ResetRules(retries=100)) as stage:
        assert await no_room(stage, 37) == "3 tries; its reset was not answered"
        assert environment.times("close") == [15, 30]


async def test_invalid_arguments_are_told_at_once(autojump_clock):
    errors = [{"type": "int_type", "loc": ["level"], "msg": "Input should be a valid integer"}]
    environment = ScriptedServer(says(refused("VALIDATION_ERROR", "Invalid message", errors=errors)))
    async with raise_the_curtain(environment) as stage:
        client = stage.client()
        answer: Answer = await client.seed({"reset_kwargs": {"level": "x"}})
        assert (answer.status, answer.body["error"], answer.body["detail"]) == (422, "bad_arguments", errors)
        assert (environment.times("reset"), environment.times("close"), trio.current_time()) == ([0], [0], 0)
        assert (await client.verify()).body["mask_sample"] is True


# -- who is first when nothing is known yet --------------------------------------------------------------------------


async def test_nobody_of_a_burst_before_a_new_server_is_overtaken(autojump_clock):
    async with raise_the_curtain(EnvironmentServer(Counting, capacity=3), idle_timeout_seconds=10) as stage:
        opened: list[int] = []

        async def come(number: int) -> None:
            client = stage.client()
            assert (await client.seed()).status == 200
            opened.append(number)
            await trio.sleep(1)
            await client.verify()

        async with trio.open_nursery() as nursery:
            for number in range(30):
                nursery.start_soon(come, number)
                await wait_all_tasks_blocked()
        assert [sorted(opened[first : first + 3]) for first in range(0, 30, 3)] == [
            [first, first + 1, first + 2] for first in range(0, 30, 3)
        ]


async def test_a_server_that_says_nothing_on_a_connection_is_busy_and_holds_no_slot_for_ever(autojump_clock):
    async def script(message: Message) -> Any:
        return None

    environment = ScriptedServer(script, welcomes=False)
    async with raise_the_curtain(environment, patience_seconds=37) as stage:
        refusal = await stage.client().seed()
        assert (refusal.status, refusal.body["error"], trio.current_time()) == (503, "no_room", 37)
        await trio.sleep(1)
        assert environment.closed_at == [(37, 1006)] and stage.opener.line.held == 0
