"""Sessions in virtual time, from HTTP to the environment: who is reclaimed when, what is kept, what is told."""

from typing import Any

import pytest
import trio
from counting import Counting
from scripted import ScriptedServer, agreeable, observed, refused
from stage import raise_the_curtain
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from gymserve.gridsim.faults import parse_fault
from gymserve.gridsim.server import EnvironmentServer
from gymserve.score import RewardRule


class Closings(list[float]):
    """Environments whose close is timed."""

    def make(self) -> Counting:
        closings = self

        class Timed(Counting):
            def close(self) -> None:
                closings.append(trio.current_time())

        return Timed()


def server(capacity: int = 1, *faults: str, make: Any = Counting) -> EnvironmentServer:
    return EnvironmentServer(make, capacity=capacity, faults=[parse_fault(fault) for fault in faults])


# -- the idle deadline -------------------------------------------------------------------------------------------------


async def test_an_abandoned_session_is_reclaimed_at_its_deadline(autojump_clock):
    closings = Closings()
    async with raise_the_curtain(server(make=closings.make), idle_timeout_seconds=120) as stage:
        client = stage.client()
        await client.seed()
        await trio.sleep(7)
        await client.step(3)
        await trio.sleep(1000)
        assert closings[1:] == [127]  # the first was made for /schema
        assert stage.episodes["active"] == 0 and stage.opener.line.held == 0
        gone = await client.step(1)
        assert (gone.status, gone.body["error"], gone.body["done"]) == (410, "session_expired", True)
        assert "idle" not in gone.body["detail"]  # the reason is not for the model's context
        masked = await client.verify(task="t1")
        assert masked.status == 200 and masked.body["task"] == "t1"
        assert (masked.body["reward"], masked.body["mask_sample"]) == (0.0, True)
        assert masked.body["instance_config"] == {"mask_sample": True}
        assert masked.body["failure_kind"] == "session_expired" and "120 s" in masked.body["failure_reason"]


async def test_a_request_just_before_the_deadline_enters_and_one_at_the_deadline_does_not(autojump_clock):
    async with raise_the_curtain(server(2), idle_timeout_seconds=100) as stage:
        early, late = stage.client(), stage.client()
        await early.seed()
        await late.seed()
        await trio.sleep_until(100 - 1e-6)
        assert (await early.step(1)).status == 200
        await trio.sleep_until(100)
        assert (await late.step(1)).status == 410
        await trio.sleep_until(200 - 2e-6)
        assert (await early.step(1)).status == 200


@pytest.mark.parametrize("path", ["/observation", "/nope", "/step"])
async def test_every_request_that_names_the_session_restarts_its_clock(autojump_clock, path):
    async with raise_the_curtain(server(), idle_timeout_seconds=100) as stage:
        client = stage.client()
        await client.seed()
        for _ in range(5):
            await trio.sleep(99)
            await client.ask("POST", path, {"by": "nonsense"})
        assert (await client.step(1)).status == 200
        assert trio.current_time() == 495


async def test_a_step_longer_than_the_idle_timeout_is_not_idle(autojump_clock):
    async with raise_the_curtain(server(1, "slow-step:250"), idle_timeout_seconds=100) as stage:
        client = stage.client()
        await client.seed()
        await client.send("POST", "/step", {"by": 2})
        await trio.sleep_until(200)
        [busy] = (await stage.listing())["sessions"]
        assert (busy["state"], busy["idle_deadline_in_seconds"]) == ("busy", None)
        assert (await client.answer()).body["count"] == 2
        assert trio.current_time() == 250
        [idle] = (await stage.listing())["sessions"]
        assert (idle["state"], idle["idle_deadline_in_seconds"]) == ("idle", 100)
        await trio.sleep_until(350)
        assert (await client.step(1)).status == 410


async def test_the_lifetime_is_never_suspended(autojump_clock):
    async with raise_the_curtain(server(1, "slow-step:250"), lifetime_seconds=200) as stage:
        client = stage.client()
        await client.seed()
        await trio.sleep(10)
        answer = await client.step(2)
        assert (answer.status, answer.body["error"], trio.current_time()) == (410, "session_expired", 200)
        masked = await client.verify()
        assert masked.body["failure_kind"] == "session_expired"
        assert "lifetime of 200 s" in masked.body["failure_reason"]


async def test_the_lifetime_ends_a_session_that_is_never_idle(autojump_clock):
    async with raise_the_curtain(server(), idle_timeout_seconds=100, lifetime_seconds=250) as stage:
        client = stage.client()
        await client.seed({"reset_kwargs": {"target": 1000}})
        for at in (90, 180, 249):
            await trio.sleep_until(at)
            assert (await client.step(1)).status == 200
        await trio.sleep_until(250)
        assert (await client.step(1)).status == 410


async def test_a_thousand_sessions_expire_in_one_tick(autojump_clock):
    closings = Closings()
    async with raise_the_curtain(server(1000, make=closings.make), idle_timeout_seconds=60) as stage:
        clients = [stage.client() for _ in range(1000)]
        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(client.seed)
        assert stage.episodes["active"] == 1000 and trio.current_time() == 0
        await trio.sleep(61)
        assert closings[1:] == [60] * 1000
        assert stage.opener.line.held == 0 and (await stage.listing())["sessions"] == []
        assert (await clients[-1].step(1)).body["error"] == "session_expired"


# -- done --------------------------------------------------------------------------------------------------------------


async def test_done_frees_the_slot_and_keeps_the_score_past_the_deadline(autojump_clock):
    async with raise_the_curtain(server(1, "slow-close:5"), idle_timeout_seconds=100) as stage:
        client, other = stage.client(), stage.client()
        await client.seed({"reset_kwargs": {"target": 3}})
        assert (await client.step(3)).body["done"] is True
        assert trio.current_time() == 0  # the caller does not wait for the goodbye
        [closing] = (await stage.listing())["servers"]
        assert closing["held"] == 1  # held until the server has said CLOSE
        assert (await other.seed()).status == 200 and trio.current_time() == 5
        over = await client.step(1)
        assert (over.status, over.body["error"], over.body["done"]) == (409, "episode_over", True)
        assert (await client.call("observation")).body["count"] == 3
        await trio.sleep_until(400)
        assert (await client.step(1)).body["error"] == "session_expired"
        scored = await client.verify()
        assert (scored.body["reward"], scored.body["done"], scored.body["steps"]) == (1.0, True, 1)
        assert "mask_sample" not in scored.body and "failure_kind" not in scored.body


async def test_nothing_expires_while_the_goodbye_of_a_finished_episode_lasts(autojump_clock):
    async with raise_the_curtain(server(1, "slow-close:50"), idle_timeout_seconds=20) as stage:
        client = stage.client()
        await client.seed({"reset_kwargs": {"target": 1}})
        await client.step(1)
        await trio.sleep_until(40)
        assert (await client.step(1)).status == 409
        await trio.sleep_until(59)
        assert (await client.step(1)).status == 409
        await trio.sleep_until(79)
        assert (await client.step(1)).status == 410


async def test_a_verify_during_the_goodbye_is_answered_at_once(autojump_clock):
    async with raise_the_curtain(server(1, "slow-close:30")) as stage:
        client = stage.client()
        await client.seed({"reset_kwargs": {"target": 2}})
        await client.step(2)
        await trio.sleep(1)
        assert (await client.verify()).body["reward"] == 1.0
        assert trio.current_time() == 1
        assert [shown["state"] for shown in (await stage.listing())["sessions"]] == ["closing"]
        await trio.sleep(30)
        assert (await stage.listing())["sessions"] == []


async def test_calls_that_wait_behind_the_last_step_hear_that_the_episode_is_over_and_a_verify_gets_the_score(
    autojump_clock,
):
    async with raise_the_curtain(server(1, "slow-step:10")) as stage:
        client, second, third = (stage.client() for _ in range(3))
        await client.seed({"reset_kwargs": {"target": 3}})
        second.cookies = third.cookies = client.cookies
        await client.send("POST", "/step", {"by": 3})
        await wait_all_tasks_blocked()
        await second.send("POST", "/step", {"by": 1})
        await wait_all_tasks_blocked()
        await third.send("POST", "/verify", {})
        assert (await client.answer()).body["done"] is True
        assert (await second.answer()).status == 409
        assert (await third.answer()).body["reward"] == 1.0
        assert trio.current_time() == 10


# -- calls -------------------------------------------------------------------------------------------------------------


async def test_a_client_that_hangs_up_in_a_step_leaves_the_step_to_be_counted(autojump_clock):
    async with raise_the_curtain(server(1, "slow-step:30"), idle_timeout_seconds=100) as stage:
        client = stage.client()
        await client.seed()
        await client.send("POST", "/step", {"by": 3})
        await trio.sleep(1)
        await client.hang_up()
        await trio.sleep_until(31)
        [session] = (await stage.listing())["sessions"]
        assert (session["steps"], session["reward"], session["idle_deadline_in_seconds"]) == (1, 0.3, 99)
        assert (await client.step(2)).body["count"] == 5
        assert (await client.verify()).body["reward"] == 0.5


async def test_a_call_whose_client_left_before_its_turn_is_not_sent(autojump_clock):
    async with raise_the_curtain(server(1, "slow-step:30")) as stage:
        client, impatient = stage.client(), stage.client()
        await client.seed()
        impatient.cookies = client.cookies
        await client.send("POST", "/step", {"by": 1})
        await wait_all_tasks_blocked()
        await impatient.send("POST", "/step", {"by": 3})
        await trio.sleep(5)
        await impatient.hang_up()
        assert (await client.answer()).body["count"] == 1
        assert (await client.step(1)).body["count"] == 2
        assert trio.current_time() == 60


async def test_calls_run_one_at_a_time_in_order_and_verify_waits_for_its_turn(autojump_clock):
    async with raise_the_curtain(server(1, "slow-step:10")) as stage:
        first, second, verifier = (stage.client() for _ in range(3))
        await first.seed()
        second.cookies = verifier.cookies = first.cookies
        await first.send("POST", "/step", {"by": 1})
        await wait_all_tasks_blocked()
        await second.send("POST", "/step", {"by": 2})
        await wait_all_tasks_blocked()
        await verifier.send("POST", "/verify", {})
        assert (await first.answer()).body["count"] == 1 and trio.current_time() == 10
        assert (await second.answer()).body["count"] == 3 and trio.current_time() == 20
        scored = await verifier.answer()
        assert trio.current_time() == 20
        assert (scored.body["reward"], scored.body["steps"], scored.body["done"]) == (pytest.approx(0.3), 2, False)
        assert scored.body["seconds_stepping"] == 20


async def test_the_seconds_of_a_rollout_add_up(autojump_clock):
    async with raise_the_curtain(server(1, "slow-handshake:4", "slow-reset:3", "slow-step:2")) as stage:
        client = stage.client()
        await client.seed()
        await trio.sleep(5)
        await client.step(1)
        await trio.sleep(6)
        await client.step(1)
        await trio.sleep(7)
        scored = (await client.verify()).body
        spent = {name: scored[f"seconds_{name}"] for name in ("waiting", "resetting", "stepping", "thinking")}
        assert spent == {"waiting": 4, "resetting": 3, "stepping": 4, "thinking": 18}
        await trio.sleep(50)
        assert {name: (await client.verify()).body[name] for name in scored} == scored


# -- seeds -------------------------------------------------------------------------------------------------------------


async def test_a_full_server_is_waited_out_in_order(autojump_clock):
    async with raise_the_curtain(server(1, "slow-reset:3")) as stage:
        opened: list[tuple[str, float]] = []

        async def rollout(name: str) -> None:
            client = stage.client()
            assert (await client.seed()).status == 200
            opened.append((name, trio.current_time()))
            await trio.sleep(9.5)
            await client.verify()

        async with trio.open_nursery() as nursery:
            for name in "abc":
                nursery.start_soon(rollout, name)
                await wait_all_tasks_blocked()
        assert opened == [("a", 3), ("b", 15.5), ("c", 28)]


async def test_a_hang_up_during_the_seed_frees_the_place_at_once(autojump_clock):
    async with raise_the_curtain(server(1, "slow-reset:20")) as stage:
        first, waiting, third = (stage.client() for _ in range(3))
        await first.send("POST", "/seed_session", {})
        await wait_all_tasks_blocked()
        await waiting.send("POST", "/seed_session", {})
        await wait_all_tasks_blocked()
        await third.send("POST", "/seed_session", {})
        await trio.sleep(1)
        assert (await stage.listing())["waiting"] == 2
        await waiting.hang_up()
        await wait_all_tasks_blocked()
        assert (await stage.listing())["waiting"] == 1
        await trio.sleep(4)
        await first.hang_up()  # in the middle of its reset: the environment is freed when the reset is over, at 20
        assert (await third.answer()).status == 200
        # The backoffs from 5 on, 0.05 s doubled to 2 s, find the slot free at 20.15; then a reset of its own.
        assert trio.current_time() == pytest.approx(40.15)


async def test_no_room_within_the_patience(autojump_clock):
    async with raise_the_curtain(server(1), patience_seconds=50, idle_timeout_seconds=1000) as stage:
        await stage.client().seed()
        client = stage.client()
        refusal = await client.seed()
        assert (refusal.status, trio.current_time()) == (503, 50)
        assert refusal.body["error"] == "no_room" and refusal.body["done"] is False
        assert "within 50 s" in refusal.body["detail"] and "--patience" in refusal.body["detail"]
        assert int(refusal.headers[b"retry-after"]) > 0
        masked = await client.verify()
        assert masked.body["failure_kind"] == "provider_unavailable"


async def test_patience_zero_waits_nothing_out(autojump_clock):
    async with raise_the_curtain(server(1), patience_seconds=0) as stage:
        assert (await stage.client().seed()).status == 200
        refusal = await stage.client().seed()
        assert (refusal.status, refusal.body["error"], trio.current_time()) == (503, "no_room", 0)


async def test_a_refused_port_fails_at_once(autojump_clock):
    async with raise_the_curtain(server()) as stage:
        stage.network.refuses = True
        refusal = await stage.client().seed()
        assert (refusal.status, refusal.body["error"], trio.current_time()) == (502, "environment_error", 0)
        assert "http://environment:8000" in refusal.body["detail"] and "refused" in refusal.body["detail"]
        stage.network.refuses = False
        assert (await stage.client().seed()).status == 200


async def test_seeding_again_ends_the_old_session(autojump_clock):
    async with raise_the_curtain(server(2)) as stage:
        client = stage.client()
        await client.seed()
        old = stage.client()
        old.cookies = dict(client.cookies)
        await client.seed()
        assert client.cookies != old.cookies
        assert (await old.step(1)).body["error"] == "session_closed"
        assert (await old.verify()).body["failure_kind"] == "cancelled"
        assert (await client.step(1)).status == 200
        await wait_all_tasks_blocked()
        assert stage.episodes["active"] == 1


async def test_a_reset_that_fails_and_one_that_is_refused(autojump_clock):
    async def script(message: dict[str, Any]) -> Any:
        if message["data"].get("level") == "bad":
            return refused("VALIDATION_ERROR", "Invalid message", errors=[{"loc": ["level"], "msg": "no such level"}])
        return refused("EXECUTION_ERROR", "the container did not start")

    environment = ScriptedServer(script)
    async with raise_the_curtain(environment) as stage:
        failed = await stage.client().seed()
        assert failed.status == 502 and "the container did not start" in failed.body["detail"]
        assert "3 times" in failed.body["detail"] and "--reset-retries" in failed.body["detail"]
        assert environment.times("reset") == [0, 0, 0]
        invalid = await stage.client().seed({"reset_kwargs": {"level": "bad"}})
        assert (invalid.status, invalid.body["detail"]) == (422, [{"loc": ["level"], "msg": "no such level"}])
        assert environment.times("reset") == environment.times("close") == [0] * 4  # each environment was given back
        assert stage.opener.line.held == 0


# -- loss --------------------------------------------------------------------------------------------------------------


async def test_one_lost_session_touches_no_other(autojump_clock):
    async with raise_the_curtain(server(2, "drop-mid-step:2")) as stage:
        unlucky, other = stage.client(), stage.client()
        await unlucky.seed()
        await other.seed()
        await unlucky.step(1)
        lost = await unlucky.step(1)
        assert (lost.status, lost.body["error"], lost.body["done"]) == (502, "environment_error", True)
        assert (await unlucky.step(1)).body["error"] == "session_lost"
        assert (await unlucky.verify()).body["failure_kind"] == "session_lost"
        assert (await other.step(3)).body["count"] == 3
        assert (await other.verify()).body["reward"] == 0.3
        await wait_all_tasks_blocked()
        assert stage.opener.line.held == 0


async def test_garbage_is_a_loss(autojump_clock):
    async with raise_the_curtain(server(1, "garbage:3")) as stage:
        client = stage.client()
        await client.seed()
        assert (await client.step(1)).status == 502
        assert (await client.step(1)).status == 410


async def test_a_drop_while_idle_is_noticed_at_once(autojump_clock):
    environment = ScriptedServer()
    async with raise_the_curtain(environment) as stage:
        client = stage.client()
        await client.seed()
        await trio.sleep(5)
        with trio.move_on_after(0.001):
            await environment.sockets[0].aclose(1012, "restarting")
        [] = (await stage.listing())["sessions"]
        assert stage.opener.line.held == 0
        assert (await client.step(1)).body["error"] == "session_lost"
        masked = await client.verify()
        assert masked.body["failure_kind"] == "session_lost" and "1012" in masked.body["failure_reason"]


@pytest.mark.parametrize("scored", [False, True])
async def test_a_step_timeout(autojump_clock, scored):
    async def script(message: dict[str, Any]) -> Any:
        if message["type"] == "step" and message["data"].get("hang"):
            return None
        return await agreeable(message)

    environment = ScriptedServer(script)
    async with raise_the_curtain(environment, step_timeout_seconds=40, step_timeout_is_scored=scored) as stage:
        client = stage.client()
        await client.seed()
        await client.call("step", {})
        lost = await client.call("step", {"hang": True})
        assert (lost.status, lost.body["done"], trio.current_time()) == (502, True, 40)
        await wait_all_tasks_blocked()
        assert environment.times("close") == []  # an answer may still come: no message behind it, a CLOSE frame
        assert environment.closed_at == [(40, 1000)]
        result = (await client.verify()).body
        if scored:
            assert (result["reward"], result["failure_kind"]) == (1.0, "gymserve:step_timed_out")
        else:
            assert (result["reward"], result["mask_sample"], result["failure_kind"]) == (0.0, True, "session_lost")


async def test_an_episode_that_an_action_ended_is_scored(autojump_clock):
    async def script(message: dict[str, Any]) -> Any:
        if message["type"] == "step" and message["data"].get("trap"):
            return refused("SESSION_ERROR", "Unable to serialize unknown type: <class 'ValueError'>")
        return await agreeable(message)

    async with raise_the_curtain(ScriptedServer(script)) as stage:
        client = stage.client()
        await client.seed()
        await client.call("step", {})
        ended = await client.call("step", {"trap": 1})
        assert (ended.status, ended.body["error"], ended.body["done"]) == (502, "environment_error", True)
        assert "serialize" not in ended.body["detail"]
        assert (await client.call("step", {})).status == 410
        scored = (await client.verify()).body
        assert (scored["reward"], scored["failure_kind"]) == (1.0, "gymserve:action_ended_episode")
        assert "serialize" in scored["failure_reason"] and "mask_sample" not in scored


async def test_an_execution_error_belongs_to_its_caller_and_the_episode_goes_on(autojump_clock):
    async def script(message: dict[str, Any]) -> Any:
        if message["type"] == "step" and message["data"].get("raise"):
            return refused("EXECUTION_ERROR", "'missing thing'")
        return await agreeable(message)

    async with raise_the_curtain(ScriptedServer(script)) as stage:
        client = stage.client()
        await client.seed()
        failed = await client.call("step", {"raise": 1})
        assert (failed.status, failed.body["error"], failed.body["done"]) == (502, "environment_error", False)
        assert "missing thing" in failed.body["detail"]
        assert (await client.call("step", {})).status == 200


# -- keepalive ---------------------------------------------------------------------------------------------------------


async def test_the_keepalive_runs_only_while_nothing_else_does(autojump_clock):
    async def script(message: dict[str, Any]) -> Any:
        if message["type"] == "step":
            await trio.sleep(100)
        return await agreeable(message)

    environment = ScriptedServer(script)
    async with raise_the_curtain(environment, keepalive_seconds=30, idle_timeout_seconds=1000) as stage:
        client = stage.client()
        await client.seed()
        await trio.sleep_until(95)
        await client.call("step", {})
        assert trio.current_time() == 195
        await trio.sleep_until(260)
        assert environment.times("mcp") == [30, 60, 90, 225, 255]
        await client.verify()


async def test_no_keepalive_where_it_is_off(autojump_clock):
    environment = ScriptedServer()
    async with raise_the_curtain(environment, keepalive_seconds=float("inf"), idle_timeout_seconds=500) as stage:
        await stage.client().seed()
        await trio.sleep(600)
        assert environment.times("mcp") == [] and environment.times("close") == [500]


async def test_a_keepalive_does_not_keep_a_session_alive(autojump_clock):
    environment = ScriptedServer()
    async with raise_the_curtain(environment, keepalive_seconds=30, idle_timeout_seconds=100) as stage:
        await stage.client().seed()
        await trio.sleep(600)
        assert environment.times("mcp") == [30, 60, 90] and environment.times("close") == [100]


async def test_a_late_answer_to_a_keepalive_is_no_loss_and_a_call_waits_behind_it(autojump_clock):
    async def script(message: dict[str, Any]) -> Any:
        if message["type"] == "mcp":
            await trio.sleep(200)
        return await agreeable(message)

    environment = ScriptedServer(script)
    async with raise_the_curtain(environment, keepalive_seconds=30, idle_timeout_seconds=300) as stage:
        client = stage.client()
        await client.seed()
        await trio.sleep_until(50)
        assert (await client.call("step", {})).status == 200
        assert trio.current_time() == 230


async def test_a_keepalive_that_is_never_answered_is_a_loss_at_the_step_timeout(autojump_clock):
    async def script(message: dict[str, Any]) -> Any:
        return None if message["type"] == "mcp" else await agreeable(message)

    environment = ScriptedServer(script)
    async with raise_the_curtain(
        environment, keepalive_seconds=30, step_timeout_seconds=100, idle_timeout_seconds=1000
    ) as stage:
        client = stage.client()
        await client.seed()
        await trio.sleep_until(129)
        assert [shown["state"] for shown in (await stage.listing())["sessions"]] == ["idle"]
        await trio.sleep_until(131)
        assert (await stage.listing())["sessions"] == []
        assert environment.closed_at == [(130, 1000)]
        assert (await client.verify()).body["failure_kind"] == "session_lost"


async def test_an_idle_deadline_during_a_keepalive_ends_with_a_close_frame(autojump_clock):
    async def script(message: dict[str, Any]) -> Any:
        return None if message["type"] == "mcp" else await agreeable(message)

    environment = ScriptedServer(script)
    async with raise_the_curtain(environment, keepalive_seconds=30, idle_timeout_seconds=100) as stage:
        await stage.client().seed()
        await trio.sleep(200)
        assert environment.times("close") == [] and environment.closed_at == [(100, 1000)]


# -- goodbyes ----------------------------------------------------------------------------------------------------------


async def test_a_slot_counts_as_held_until_close_and_no_longer_than_the_close_timeout(autojump_clock):
    async with raise_the_curtain(server(1, "slow-close:500"), close_timeout_seconds=60) as stage:
        client = stage.client()
        await client.seed()
        await trio.sleep(10)
        assert (await client.verify()).status == 200 and trio.current_time() == 10
        await trio.sleep_until(69.9)
        assert stage.opener.line.held == 1
        assert [shown["state"] for shown in (await stage.listing())["sessions"]] == ["closing"]
        await trio.sleep_until(70.1)
        assert stage.opener.line.held == 0 and (await stage.listing())["sessions"] == []


async def test_closing_in_a_step_sends_a_close_frame_and_answers_the_caller(autojump_clock):
    async def script(message: dict[str, Any]) -> Any:
        if message["type"] == "step":
            await trio.sleep(100)
        return await agreeable(message)

    environment = ScriptedServer(script)
    async with raise_the_curtain(environment) as stage:
        client, closer = stage.client(), stage.client()
        await client.seed()
        closer.cookies = client.cookies
        await client.send("POST", "/step", {})
        await trio.sleep(5)
        assert (await closer.ask("POST", "/close_session")).status == 200
        cut = await client.answer()
        assert (cut.status, cut.body["error"], trio.current_time()) == (410, "session_closed", 5)
        assert (await closer.ask("POST", "/close_session")).status == 200  # again
        await trio.sleep(100)
        assert environment.times("close") == []


# -- what is remembered ------------------------------------------------------------------------------------------------


async def test_tombstones_are_forgotten(autojump_clock):
    async with raise_the_curtain(server(), idle_timeout_seconds=100, tombstone_seconds=900) as stage:
        client = stage.client()
        await client.seed()
        await trio.sleep_until(1000 - 1e-6)
        assert (await client.step(1)).body["error"] == "session_expired"
        await trio.sleep_until(1000)
        assert (await client.step(1)).body["error"] == "no_session"
        assert (await client.verify()).body["failure_kind"] == "session_lost"


async def test_a_repeated_verify_gives_the_same_score_with_the_row_it_came_with(autojump_clock):
    async with raise_the_curtain(server()) as stage:
        client = stage.client()
        await client.seed()
        await client.step(3)
        first = await client.verify(row=1)
        again = await client.verify(row=2)
        assert (first.body.pop("row"), again.body.pop("row")) == (1, 2)
        assert first.body == again.body and first.body["reward"] == 0.3


async def test_a_verify_without_any_reward_says_so_and_warns_once(autojump_clock):
    async def script(message: dict[str, Any]) -> Any:
        return observed(None, text="?") if message["type"] == "step" else await agreeable(message)

    with capture_logs() as logs:
        async with raise_the_curtain(ScriptedServer(script)) as stage:
            for _ in range(2):
                client = stage.client()
                await client.seed()
                await client.call("step", {})
                result = (await client.verify()).body
                assert (result["reward"], result["no_reward"]) == (0.0, True) and "mask_sample" not in result
    assert len([line for line in logs if "no reward" in line["event"]]) == 1


@pytest.mark.parametrize(("rule", "reward"), [(RewardRule.SUM, 1.25), (RewardRule.LAST, -0.5), (RewardRule.MAX, 1.0)])
async def test_the_reward_rules(autojump_clock, rule, reward):
    rewards = iter([0.75, None, True, -0.5])

    async def script(message: dict[str, Any]) -> Any:
        return observed(next(rewards)) if message["type"] in ("reset", "step") else await agreeable(message)

    async with raise_the_curtain(ScriptedServer(script), reward_rule=rule) as stage:
        client = stage.client()
        await client.seed()
        for _ in range(3):
            await client.call("step", {})
        assert (await client.verify()).body["reward"] == reward


async def test_the_end_of_a_session_is_logged(autojump_clock):
    with capture_logs() as logs:
        async with raise_the_curtain(server(), idle_timeout_seconds=100) as stage:
            client = stage.client()
            await client.seed({"gymserve_label": "run-7"})
            await trio.sleep(101)
    [line] = [line for line in logs if line["event"] == "session ended"]
    assert (line["ending"], line["label"], line["reason"]) == (
        "idle timeout",
        "run-7",
        "no request for 100 s, the idle timeout",
    )
    [cookie] = client.cookies.values()
    assert len(line["session"]) == 12 and cookie.startswith(line["session"])
    assert cookie.partition(".")[0] not in str(logs)
