"""Sessions that their client names (NeMo Gym's typed lifecycle): whatever is repeated, comes late or comes first."""

import json
from typing import Any

import pytest
import trio
from counting import Counting
from scripted import ScriptedServer, agreeable
from stage import Answer, Stage, raise_the_curtain, typed_close, typed_seed
from trio.testing import wait_all_tasks_blocked

from gymserve.gridsim.faults import parse_fault
from gymserve.gridsim.server import EnvironmentServer

NAME = "resources-session-0123456789abcdef"


def server(capacity: int = 1, *faults: str) -> EnvironmentServer:
    return EnvironmentServer(Counting, capacity=capacity, faults=[parse_fault(fault) for fault in faults])


def said(answer: Answer) -> tuple[int, Any]:
    return answer.status, answer.body["error"]


async def labels(stage: Stage) -> list[str | None]:
    return [
        session["label"]
        for session in (await stage.client().ask("GET", "/gymserve/sessions?sort=label")).body["sessions"]
    ]


# -- what it says ----------------------------------------------------------------------------------------------------


async def test_a_whole_rollout_as_an_environment_server_drives_it(autojump_clock):
    async with raise_the_curtain(server()) as stage:
        client = stage.client()
        seeded = await client.seed(typed_seed(NAME, {"reset_kwargs": {"target": 4}}))
        assert (seeded.status, seeded.body) == (
            200,
            {"resources_session_id": NAME, "resources_tools": None, "sandbox_access": None},
        )
        assert (await client.step(3)).body["count"] == 3
        assert (await client.verify(task=1)).body["reward"] == 0.75
        closed = await client.close_by_name(NAME)
        assert (closed.status, closed.body) == (200, {"resources_session_id": NAME})
        await wait_all_tasks_blocked()
        assert stage.episodes["active"] == 0


async def test_a_client_that_keeps_its_cookies_through_all_of_it_changes_nothing(autojump_clock):
    """As ``nemo_gym/testing/session_conformance.py`` asks."""
    async with raise_the_curtain(server(2)) as stage:
        client = stage.client()
        assert [(await client.seed(typed_seed(NAME))).status for _ in range(2)] == [200, 200]
        assert stage.episodes["opened"] == 1
        assert [(await client.close_by_name(NAME)).status for _ in range(2)] == [200, 200]
        await wait_all_tasks_blocked()
        assert (await client.close_by_name("never-seeded")).status == 200
        assert said(await client.seed(typed_seed(NAME))) == (409, "seed_conflict")
        assert said(await client.seed(typed_seed("never-seeded"))) == (409, "seed_conflict")
        assert stage.episodes == {"active": 0, "max": 2, "opened": 1, "closed": 1}


async def test_the_prefix_of_nemo_gyms_client_changes_nothing(autojump_clock):
    async with raise_the_curtain(server()) as stage:
        first, again = stage.client(), stage.client()
        assert (await first.ask("POST", "/ng-rollout/0-3/seed_session", typed_seed(NAME))).status == 200
        assert (await again.seed(typed_seed(NAME))).status == 200 and again.cookies == first.cookies
        assert (await again.ask("POST", "/ng-rollout/0-3-a1/close_session", typed_close(NAME))).status == 200
        await wait_all_tasks_blocked()
        assert stage.episodes["active"] == 0


BAD_BODIES: list[tuple[dict[str, Any], list[str], str]] = [
    ({"resources_session_id": ""}, ["resources_session_id"], "string_too_short"),
    ({"resources_session_id": "x" * 1001}, ["resources_session_id"], "string_too_long"),
    ({"resources_session_id": None}, ["resources_session_id"], "string_type"),
    ({"resources_session_id": 5}, ["resources_session_id"], "string_type"),
    ({"episode_id": None}, ["episode_id"], "model_type"),
    ({"episode_id": {"attempt": 0}}, ["episode_id", "rollout_id"], "missing"),
    ({"episode_id": {"rollout_id": "r", "attempt": -1}}, ["episode_id", "attempt"], "greater_than_equal"),
    ({"episode_id": {"rollout_id": "r", "extra": 1}}, ["episode_id", "extra"], "extra_forbidden"),
    ({"episode_id": {"rollout_id": ""}}, ["episode_id", "rollout_id"], "string_pattern_mismatch"),
    ({"episode_id": {"rollout_id": "-r"}}, ["episode_id", "rollout_id"], "string_pattern_mismatch"),
    ({"episode_id": {"rollout_id": "a/b"}}, ["episode_id", "rollout_id"], "string_pattern_mismatch"),
    ({"episode_id": {"rollout_id": "r\n"}}, ["episode_id", "rollout_id"], "string_pattern_mismatch"),
    ({"episode_id": {"rollout_id": "r-a1"}}, ["episode_id", "rollout_id"], "value_error"),
    ({"extra": 1}, ["extra"], "extra_forbidden"),
    ({"responses_create_params": {}}, ["responses_create_params"], "extra_forbidden"),
]
BAD_SEEDS: list[tuple[dict[str, Any], list[str], str]] = [
    *BAD_BODIES,
    ({"task_id": {"taskset": "", "task_id": "7"}}, ["task_id", "taskset"], "string_too_short"),
    ({"task_id": {"taskset": "t"}}, ["task_id", "task_id"], "missing"),
    ({"task_id": {"taskset": "t", "task_id": "7", "extra": 1}}, ["task_id", "extra"], "extra_forbidden"),
    ({"task_data": None}, ["task_data"], "dict_type"),
    ({"task_data": [1]}, ["task_data"], "dict_type"),
]


async def test_a_seed_of_another_shape_is_refused_with_the_place_of_its_fault(autojump_clock):
    async with raise_the_curtain(server()) as stage:
        for changed, loc, kind in BAD_SEEDS:
            answer = await stage.client().seed({**typed_seed(NAME), **changed})
            assert said(answer) == (422, "bad_arguments"), changed
            [fault] = answer.body["detail"]
            assert (fault["type"], fault["loc"], set(fault)) == (kind, ["body", *loc], {"type", "loc", "msg"})
        assert stage.network.connections == 0
        assert (await stage.client().seed(typed_seed(NAME))).status == 200  # nothing is remembered of it


async def test_a_close_of_another_shape_is_refused_and_closes_nothing(autojump_clock):
    async with raise_the_curtain(server()) as stage:
        client = stage.client()
        await client.seed(typed_seed(NAME))
        for changed, loc, kind in BAD_BODIES:
            answer = await client.ask("POST", "/close_session", typed_close(NAME, **changed))
            assert said(answer) == (422, "bad_arguments"), changed
            assert [(fault["type"], fault["loc"]) for fault in answer.body["detail"]] == [(kind, ["body", *loc])]
        assert (await client.step(1)).status == 200


async def test_every_fault_of_a_body_is_told(autojump_clock):
    async with raise_the_curtain(server()) as stage:
        answer = await stage.client().seed({"resources_session_id": NAME, "a": 1, "b": 2})
        places = [tuple(fault["loc"]) for fault in answer.body["detail"]]
        assert places == [("body", key) for key in ("episode_id", "task_id", "task_data", "a", "b")]


async def test_what_nemo_gym_takes_for_a_rollout_id_is_one(autojump_clock):
    async with raise_the_curtain(server()) as stage:
        for rollout_id in ("0", "r-a0", "a1", "A.b_c-1"):
            seed = typed_seed(
                rollout_id, episode_id={"rollout_id": rollout_id}
            )  # the attempt is 0 where it is left out
            assert (await stage.client().seed(seed)).status == 200, rollout_id
            assert (await stage.client().close_by_name(rollout_id)).status == 200


async def test_reset_kwargs_are_in_the_task_data(autojump_clock):
    rows: list[tuple[dict[str, Any], int]] = [
        ({}, 10),
        ({"reset_kwargs": {"target": 7}}, 7),
        ({"verifier_metadata": {"reset_kwargs": {"target": 8}}}, 8),
        ({"reset_kwargs": None}, 10),
    ]
    async with raise_the_curtain(server(len(rows))) as stage:
        for number, (task_data, target) in enumerate(rows):
            client = stage.client()
            await client.seed(typed_seed(f"{NAME}-{number}", task_data))
            assert (await client.call("observation")).body["target"] == target


async def test_a_label_is_the_headers_the_rows_or_the_tasksets(autojump_clock):
    row = {"gymserve_label": "row's"}
    async with raise_the_curtain(server(3)) as stage:
        await stage.client().seed(typed_seed("a"))
        await stage.client().seed(typed_seed("b", row))
        await stage.client().seed(typed_seed("c", row), **{"X-Gymserve-Label": "header's"})
        assert await labels(stage) == ["header's", "row's", "tasks"]


async def test_a_tasksets_long_name_is_cut_as_any_label_is(autojump_clock):
    async with raise_the_curtain(server()) as stage:
        await stage.client().seed(typed_seed(NAME, task_id={"taskset": "t" * 300, "task_id": "7"}))
        assert await labels(stage) == ["t" * 200]


async def test_there_is_no_sandbox(autojump_clock):
    async with raise_the_curtain(server()) as stage:
        client = stage.client()
        assert said(await client.ask("POST", "/sandbox_access")) == (404, "not_found")
        await client.seed(typed_seed(NAME))
        assert said(await client.ask("POST", "/sandbox_access", typed_close(NAME))) == (404, "not_found")
        assert (await client.step(1)).body["count"] == 1


async def test_a_deep_payload_is_seeded_or_refused_and_no_fault_of_ours(autojump_clock):
    """Some are too deep to be compared, though not to be read: which, is a matter of the stack (and of CPython's
    version).
    """
    async with raise_the_curtain(server(100)) as stage:
        for depth in (100, *range(960, 1_000), 9_990):
            deep = b"[" * depth + b"]" * depth
            head = json.dumps(typed_seed(f"deep-{depth}")).removesuffix("{}}").encode()
            answer = await stage.client().ask("POST", "/seed_session", head + b'{"a":' + deep + b"}}")
            assert answer.status in (200, 422), (depth, answer.body)
        assert len((await stage.listing())["sessions"]) == stage.episodes["opened"] > 0


# -- repeated --------------------------------------------------------------------------------------------------------


async def test_equal_seeds_at_one_time_share_one_opening(autojump_clock):
    async with raise_the_curtain(server(4, "slow-reset:5")) as stage:
        clients = [stage.client() for _ in range(3)]
        answered: list[tuple[int, float]] = []

        async def seed_at(client: Any, at: float) -> None:
            await trio.sleep_until(at)
            answered.append(((await client.seed(typed_seed(NAME))).status, trio.current_time()))

        async with trio.open_nursery() as nursery:
            for at, client in enumerate(clients):
                nursery.start_soon(seed_at, client, at)
        assert answered == [(200, 5)] * 3
        assert clients[0].cookies == clients[1].cookies == clients[2].cookies
        assert stage.episodes["opened"] == 1
        assert (await clients[0].step(1)).body["count"] == 1
        assert (await clients[2].step(1)).body["count"] == 2


async def test_a_repeated_seed_finds_the_session_as_it_is_and_restarts_its_clock(autojump_clock):
    async with raise_the_curtain(server(), idle_timeout_seconds=100) as stage:
        first, again = stage.client(), stage.client()
        seeded = await first.seed(typed_seed(NAME))
        await first.step(3)
        await trio.sleep(60)
        repeated = await again.seed(typed_seed(NAME))
        assert (repeated.status, repeated.body, again.cookies) == (200, seeded.body, first.cookies)
        await trio.sleep(60)
        assert (await again.call("observation")).body["count"] == 3
        assert stage.episodes["opened"] == 1


async def test_the_order_of_keys_makes_no_other_payload(autojump_clock):
    async with raise_the_curtain(server()) as stage:
        first, again = stage.client(), stage.client()
        await first.seed(typed_seed(NAME, {"a": 1, "b": {"c": 2, "d": 3}}))
        turned = dict(reversed(typed_seed(NAME, {"b": {"d": 3, "c": 2}, "a": 1}).items()))
        assert (await again.seed(turned)).status == 200 and again.cookies == first.cookies


async def test_the_name_decides_and_never_the_cookie(autojump_clock):
    async with raise_the_curtain(server(3)) as stage:
        named, other = stage.client(), stage.client()
        await named.seed(typed_seed(NAME))
        await named.step(3)
        await other.seed()
        await other.step(2)
        theirs = dict(other.cookies)
        assert (await other.seed(typed_seed(NAME))).status == 200
        assert other.cookies == named.cookies
        assert stage.episodes == {"active": 2, "max": 3, "opened": 2, "closed": 0}
        other.cookies = theirs
        assert (await other.seed(typed_seed("another"))).status == 200  # nor is a session the old one's successor
        assert other.cookies not in (theirs, named.cookies)
        other.cookies = theirs
        assert (await other.step(1)).body["count"] == 3
        assert (await named.step(1)).body["count"] == 4


@pytest.mark.parametrize(
    "other",
    [
        typed_seed(NAME, {"task": 2}),
        typed_seed(NAME, episode_id={"rollout_id": "r-1", "attempt": 1}),
        typed_seed(NAME, task_id={"taskset": "tasks", "task_id": "8"}),
    ],
)
async def test_a_name_belongs_to_one_payload(autojump_clock, other):
    async with raise_the_curtain(server(2, "slow-reset:5")) as stage:
        client = stage.client()
        await client.send("POST", "/seed_session", typed_seed(NAME))
        await trio.sleep(1)
        refused = await stage.client().seed(other)  # already while it opens
        assert said(refused) == (409, "seed_conflict") and "another payload" in refused.body["detail"]
        assert trio.current_time() == 1
        assert (await client.answer()).status == 200
        assert said(await stage.client().seed(other)) == (409, "seed_conflict")
        assert (await client.step(1)).body["count"] == 1
        assert stage.episodes["opened"] == 1


@pytest.mark.parametrize("end", ["expire", "verify", "lose", "close by cookie"])
async def test_a_seed_repeated_after_the_end_hears_of_it_and_opens_nothing(autojump_clock, end):
    async with raise_the_curtain(server(1, "drop-mid-step:1"), idle_timeout_seconds=100) as stage:
        client, again = stage.client(), stage.client()
        await client.seed(typed_seed(NAME))
        match end:
            case "expire":
                await trio.sleep(100)
            case "verify":
                await client.verify()
            case "lose":
                await client.step(1)
            case "close by cookie":
                await client.ask("POST", "/close_session", {})
        answer = await again.seed(typed_seed(NAME))
        assert said(answer) == (409, "seed_conflict") and "has ended" in answer.body["detail"]
        assert said(await again.seed(typed_seed(NAME, {"task": 2}))) == (409, "seed_conflict")
        assert stage.episodes["opened"] == 1


# -- closed ----------------------------------------------------------------------------------------------------------


async def test_a_close_needs_no_cookie_and_may_be_repeated(autojump_clock):
    async with raise_the_curtain(server()) as stage:
        client, closer = stage.client(), stage.client()
        await client.seed(typed_seed(NAME))
        await client.step(2)
        for _ in range(3):
            closed = await closer.close_by_name(NAME)
            assert (closed.status, closed.body) == (200, {"resources_session_id": NAME})
            await wait_all_tasks_blocked()
            assert stage.episodes == {"active": 0, "max": 1, "opened": 1, "closed": 1}
        assert said(await client.step(1)) == (410, "session_closed")
        result = (await client.verify()).body
        assert (result["failure_kind"], result["mask_sample"]) == ("cancelled", True)
        late = await closer.seed(typed_seed(NAME))
        assert said(late) == (409, "seed_conflict") and "has been closed" in late.body["detail"]


async def test_a_close_that_comes_first_keeps_the_late_seed_out(autojump_clock):
    async with raise_the_curtain(server()) as stage:
        assert (await stage.client().close_by_name(NAME)).body == {"resources_session_id": NAME}
        assert said(await stage.client().seed(typed_seed(NAME))) == (409, "seed_conflict")
        assert stage.network.connections == 0
        assert (await stage.client().seed(typed_seed("another"))).status == 200


async def test_a_close_with_somebody_elses_cookie_leaves_their_session_alone(autojump_clock):
    async with raise_the_curtain(server(2)) as stage:
        client, other = stage.client(), stage.client()
        await client.seed(typed_seed(NAME))
        await other.seed(typed_seed("another"))
        client.cookies = dict(other.cookies)
        assert (await client.close_by_name("never-seeded")).status == 200
        await wait_all_tasks_blocked()
        assert stage.episodes["active"] == 2
        assert (await client.close_by_name(NAME)).status == 200
        await wait_all_tasks_blocked()
        assert stage.episodes["active"] == 1
        assert (await other.step(1)).status == 200


async def test_a_close_ends_a_seed_that_waits_in_the_line(autojump_clock):
    async with raise_the_curtain(server()) as stage:
        holder, waiting, joined, behind = (stage.client() for _ in range(4))
        await holder.seed()
        await waiting.send("POST", "/seed_session", typed_seed(NAME))
        await joined.send("POST", "/seed_session", typed_seed(NAME))
        await wait_all_tasks_blocked()
        await behind.send("POST", "/seed_session", typed_seed("behind"))
        await trio.sleep(5)
        assert (await stage.listing())["waiting"] == 2
        assert (await stage.client().close_by_name(NAME)).status == 200
        assert [said(await client.answer()) for client in (waiting, joined)] == [(409, "seed_conflict")] * 2
        assert (await stage.listing())["waiting"] == 1
        assert said(await waiting.seed(typed_seed(NAME))) == (409, "seed_conflict")
        assert trio.current_time() == 5
        await trio.sleep(1)
        await holder.verify()
        assert (await behind.answer()).status == 200 and trio.current_time() == 6
        assert stage.episodes["opened"] == 2  # nothing was opened for the closed one


async def test_a_close_cuts_a_reset_short(autojump_clock):
    environment = ScriptedServer(slow_reset(50))
    async with raise_the_curtain(environment) as stage:
        client = stage.client()
        await client.send("POST", "/seed_session", typed_seed(NAME))
        await trio.sleep(5)
        await stage.client().close_by_name(NAME)
        assert said(await client.answer()) == (409, "seed_conflict")
        await wait_all_tasks_blocked()
        assert trio.current_time() == 5 and stage.opener.line.held == 0


def slow_reset(seconds: float) -> Any:
    async def script(message: dict[str, Any]) -> Any:
        if message["type"] == "reset":
            await trio.sleep(seconds)
        return await agreeable(message)

    return script


# -- without its client ----------------------------------------------------------------------------------------------


async def test_a_seed_outlives_its_client_and_its_idle_clock_starts_when_it_opens(autojump_clock):
    async with raise_the_curtain(server(1, "slow-reset:3"), idle_timeout_seconds=100) as stage:
        holder, client = stage.client(), stage.client()
        await holder.seed()
        await client.send("POST", "/seed_session", typed_seed(NAME))
        await trio.sleep_until(5)
        await client.hang_up()
        await trio.sleep_until(90)
        assert (await stage.listing())["waiting"] == 1
        await holder.verify()
        await trio.sleep_until(93)  # open
        await trio.sleep_until(193 - 1e-6)
        [session] = (await stage.listing())["sessions"]
        assert (session["state"], stage.episodes["active"]) == ("idle", 1)
        await trio.sleep_until(193)
        await wait_all_tasks_blocked()
        assert (stage.episodes["active"], stage.opener.line.held) == (0, 0)
        assert said(await client.seed(typed_seed(NAME))) == (409, "seed_conflict")


async def test_a_client_that_comes_back_finds_its_place_in_the_line(autojump_clock):
    async with raise_the_curtain(server()) as stage:
        holder, client, behind = (stage.client() for _ in range(3))
        await holder.seed()
        await client.send("POST", "/seed_session", typed_seed(NAME))
        await trio.sleep(5)
        await client.hang_up()
        await behind.send("POST", "/seed_session", {})
        await trio.sleep(5)
        await client.send("POST", "/seed_session", typed_seed(NAME))
        await trio.sleep(10)
        await holder.verify()
        assert (await client.answer()).status == 200 and trio.current_time() == 20
        assert (await stage.listing())["waiting"] == 1
        await behind.hang_up()
        assert (await client.step(1)).body["count"] == 1


async def test_one_of_two_who_wait_for_it_hangs_up_and_the_other_gets_it(autojump_clock):
    async with raise_the_curtain(server(1, "slow-reset:5")) as stage:
        client, other = stage.client(), stage.client()
        for each in (client, other):
            await each.send("POST", "/seed_session", typed_seed(NAME))
        await trio.sleep(1)
        await client.hang_up()
        assert (await other.answer()).status == 200 and trio.current_time() == 5
        assert (await other.step(1)).status == 200


async def test_a_seed_without_its_client_waits_no_longer_than_the_patience(autojump_clock):
    async with raise_the_curtain(server(), patience_seconds=50, idle_timeout_seconds=1000) as stage:
        holder, client = stage.client(), stage.client()
        await holder.seed()
        await client.send("POST", "/seed_session", typed_seed(NAME))
        await trio.sleep(5)
        await client.hang_up()
        await trio.sleep_until(50 - 1e-6)
        assert (await stage.listing())["waiting"] == 1
        await trio.sleep_until(50)
        assert (await stage.listing())["waiting"] == 0
        await client.send("POST", "/seed_session", typed_seed(NAME))  # a new try, with a patience of its own
        await trio.sleep_until(90)
        await holder.verify()
        assert (await client.answer()).status == 200 and trio.current_time() == 90


# -- not opened ------------------------------------------------------------------------------------------------------


async def test_an_opening_that_failed_may_be_tried_again(autojump_clock):
    async with raise_the_curtain(server(), patience_seconds=50, idle_timeout_seconds=1000) as stage:
        holder, client, joined = (stage.client() for _ in range(3))
        await holder.seed()
        await client.send("POST", "/seed_session", typed_seed(NAME))
        await trio.sleep(10)
        await joined.send("POST", "/seed_session", typed_seed(NAME))
        failed = await client.answer()
        assert (said(failed), failed.headers[b"retry-after"]) == ((503, "no_room"), b"10")
        assert (said(await joined.answer()), trio.current_time()) == ((503, "no_room"), 50)
        await holder.verify()
        assert (await client.seed(typed_seed(NAME))).status == 200
        assert (await joined.seed(typed_seed(NAME))).status == 200 and joined.cookies == client.cookies
        assert trio.current_time() == 50


async def test_a_payload_that_the_environment_refused_may_be_mended(autojump_clock):
    async with raise_the_curtain(server()) as stage:
        client = stage.client()
        assert said(await client.seed(typed_seed(NAME, {"reset_kwargs": {"target": 0}}))) == (502, "environment_error")
        assert (await client.seed(typed_seed(NAME, {"reset_kwargs": {"target": 5}}))).status == 200
        assert (await client.call("observation")).body["target"] == 5


async def test_a_close_after_a_failed_opening_closes_the_name_all_the_same(autojump_clock):
    async with raise_the_curtain(server()) as stage:
        stage.network.refuses = True
        assert said(await stage.client().seed(typed_seed(NAME))) == (502, "environment_error")
        assert (await stage.client().close_by_name(NAME)).status == 200
        stage.network.refuses = False
        assert said(await stage.client().seed(typed_seed(NAME))) == (409, "seed_conflict")


# -- forgotten -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seeded", [True, False])
async def test_a_closed_name_is_forgotten_after_the_tombstone_time(autojump_clock, seeded):
    async with raise_the_curtain(server(), tombstone_seconds=900) as stage:
        client = stage.client()
        if seeded:
            await client.seed(typed_seed(NAME))
        await trio.sleep_until(10)
        await client.close_by_name(NAME)
        await trio.sleep_until(910 - 1e-6)
        assert said(await client.seed(typed_seed(NAME, {"another": 1}))) == (409, "seed_conflict")
        await trio.sleep_until(910)
        assert (await client.seed(typed_seed(NAME, {"another": 1}))).status == 200


async def test_a_repeated_close_is_remembered_from_then_on(autojump_clock):
    async with raise_the_curtain(server(), tombstone_seconds=900) as stage:
        client = stage.client()
        await client.close_by_name(NAME)
        await trio.sleep_until(500)
        await client.close_by_name(NAME)
        await trio.sleep_until(1400 - 1e-6)
        assert said(await client.seed(typed_seed(NAME))) == (409, "seed_conflict")
        await trio.sleep_until(1400)
        assert (await client.seed(typed_seed(NAME))).status == 200


async def test_an_ended_sessions_name_is_forgotten_with_its_tombstone(autojump_clock):
    async with raise_the_curtain(server(), idle_timeout_seconds=100, tombstone_seconds=900) as stage:
        client = stage.client()
        await client.seed(typed_seed(NAME))
        await trio.sleep_until(1000 - 1e-6)
        assert said(await client.seed(typed_seed(NAME))) == (409, "seed_conflict")
        await trio.sleep_until(1000)
        assert (await client.seed(typed_seed(NAME))).status == 200
        assert stage.episodes == {"active": 1, "max": 1, "opened": 2, "closed": 1}


async def test_an_open_sessions_name_is_never_forgotten(autojump_clock):
    async with raise_the_curtain(server(), idle_timeout_seconds=500, tombstone_seconds=50) as stage:
        client, again = stage.client(), stage.client()
        await client.seed(typed_seed(NAME))
        await trio.sleep(499)
        assert (await again.seed(typed_seed(NAME))).status == 200 and again.cookies == client.cookies


# -- shutdown --------------------------------------------------------------------------------------------------------


async def test_a_seed_that_waits_at_the_shutdown_hears_503(autojump_clock):
    async with raise_the_curtain(server()) as stage:
        await stage.client().seed()
        waiting = stage.client()
        await waiting.send("POST", "/seed_session", typed_seed(NAME))
        await trio.sleep(5)
        await stage.gateway.drain(3)
        assert said(await waiting.answer()) == (503, "shutting_down")
        assert said(await waiting.seed(typed_seed("another"))) == (503, "shutting_down")
        assert trio.current_time() == 5


# -- clients that do not stay ------------------------------------------------------------------------------------------


async def test_a_seed_or_close_that_arrived_whole_takes_effect_though_its_client_is_gone_at_once(autojump_clock):
    async with raise_the_curtain(server()) as stage:
        client = stage.client()
        await client.send("POST", "/seed_session", typed_seed(NAME))
        await client.hang_up()
        await trio.sleep(1)
        assert stage.episodes["active"] == 1
        assert (await client.seed(typed_seed(NAME))).status == 200
        await client.send("POST", "/close_session", typed_close(NAME))
        await client.hang_up()
        await trio.sleep(1)
        assert stage.episodes["active"] == 0


async def test_a_default_that_is_spelled_out_is_the_same_payload(autojump_clock):
    async with raise_the_curtain(server()) as stage:
        client = stage.client()
        seed = typed_seed(NAME)
        await client.seed(seed)
        del seed["episode_id"]["attempt"]
        assert (await client.seed(seed)).status == 200
