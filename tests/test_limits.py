"""How many and how large: what becomes of whoever is one too many, and of what is too large."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
import trio
from counting import Counting
from http_peer import connect
from hypothesis import given
from hypothesis import strategies as st
from scripted import ScriptedServer, observed
from stage import Answer, Client, Stage, raise_the_curtain
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from gymserve.descriptors import Descriptors, OutOfDescriptors
from gymserve.gridsim.faults import Fault
from gymserve.gridsim.server import EnvironmentServer
from gymserve.http.crowd import Crowd
from gymserve.nesting import MAX_DEPTH, is_too_deep
from gymserve.wire import WireError, decode_answer


def counting(*faults: Fault, capacity: int = 8) -> EnvironmentServer:
    return EnvironmentServer(Counting, capacity=capacity, faults=faults)


def typed(name: str, **task_data: Any) -> dict[str, Any]:
    """A seed whose session has a name."""
    return {
        "resources_session_id": name,
        "episode_id": {"rollout_id": name},
        "task_id": {"taskset": "counting", "task_id": "1"},
        "task_data": task_data,
    }


def told(answer: Answer) -> tuple[int, str, bytes | None]:
    return answer.status, answer.body["error"], answer.headers.get(b"retry-after")


Seed = Callable[[Client, str], Any]

SEEDS: dict[str, Seed] = {
    "an agent's": lambda client, name: client.seed(),
    "by name": lambda client, name: client.seed(typed(name)),
    "gymnasium": lambda client, name: client.ask("POST", "/reset", {"responses_create_params": {}}),
}


@pytest.fixture(params=SEEDS.values(), ids=SEEDS)
def seed(request: Any) -> Seed:
    """Each way to open a session."""
    return request.param


# -- sessions --------------------------------------------------------------------------------------------------------


async def test_a_session_too_many_is_refused(autojump_clock, seed):
    async with raise_the_curtain(counting(), max_sessions=2) as stage:
        clients = [stage.client() for _ in range(3)]
        for number, client in enumerate(clients[:2]):
            assert (await seed(client, f"{number}")).status == 200
        refused = await seed(clients[2], "2")
        assert told(refused) == (503, "too_many_sessions", b"10")
        assert "2 sessions" in refused.body["detail"] and "--max-sessions" in refused.body["detail"]
        assert (await clients[2].ask("GET", "/gymserve/ready")).status == 503
        assert stage.episodes["opened"] == 2
        await clients[0].verify()
        assert (await clients[2].ask("GET", "/gymserve/ready")).status == 200
        assert (await seed(clients[2], "2")).status == 200


async def test_sessions_that_wait_count_and_those_that_say_goodbye_do_not(autojump_clock):
    async with raise_the_curtain(counting(Fault("slow-close", 30), capacity=1), max_sessions=2) as stage:
        first, second, third = (stage.client() for _ in range(3))
        await first.seed()
        await second.send("POST", "/seed_session", {})
        await wait_all_tasks_blocked()
        assert told(await third.seed()) == (503, "too_many_sessions", b"10")
        await first.verify()
        await third.send("POST", "/seed_session", {})
        assert ((await second.answer()).status, trio.current_time()) == (200, 30)
        await second.verify()
        assert ((await third.answer()).status, trio.current_time()) == (200, 60)


async def test_a_finished_episode_counts_until_it_is_verified(autojump_clock):
    async with raise_the_curtain(counting(), max_sessions=1) as stage:
        done, other = stage.client(), stage.client()
        await done.seed({"reset_kwargs": {"target": 1}})
        assert (await done.step()).body["done"] is True
        await trio.sleep(10)
        assert told(await other.seed()) == (503, "too_many_sessions", b"10")
        assert (await done.verify()).body["reward"] == 1.0
        assert (await other.seed()).status == 200


async def test_an_expired_session_makes_room_at_that_moment(autojump_clock):
    async with raise_the_curtain(counting(), max_sessions=1, idle_timeout_seconds=60) as stage:
        abandoned, other = stage.client(), stage.client()
        await abandoned.seed()
        await trio.sleep(59.9)
        assert (await other.seed()).status == 503
        await trio.sleep(0.1)
        assert (await other.seed()).status == 200


async def test_no_seed_is_refused_because_of_the_session_that_it_replaces(autojump_clock):
    async with raise_the_curtain(counting(Fault("slow-close", 30)), max_sessions=1) as stage:
        client = stage.client()
        for _ in range(3):
            assert (await client.seed()).status == 200
            assert (await client.ask("POST", "/reset", {"responses_create_params": {}})).status == 200


async def test_a_seed_by_name_that_is_repeated_is_no_other_session(autojump_clock):
    async with raise_the_curtain(counting(), max_sessions=1, max_waiting=1) as stage:
        client = stage.client()
        for _ in range(3):
            assert (await client.seed(typed("a"))).status == 200
        assert (await client.seed(typed("b"))).status == 503
        await client.ask("POST", "/close_session", {"resources_session_id": "a", "episode_id": {"rollout_id": "a"}})
        assert (await client.seed(typed("b"))).status == 200


async def test_a_refused_seed_can_be_verified_and_seeded_again(autojump_clock):
    async with raise_the_curtain(counting(), max_sessions=1) as stage:
        first, refused = stage.client(), stage.client()
        await first.seed()
        await refused.seed()
        verified = (await refused.verify()).body
        assert (verified["mask_sample"], verified["failure_kind"]) == (True, "session_lost")
        await first.ask("POST", "/close_session", {})
        assert (await refused.seed()).status == (await refused.step()).status == 200


# -- the line --------------------------------------------------------------------------------------------------------


async def send_seeds(stage: Stage, count: int) -> list[Client]:
    clients = [stage.client() for _ in range(count)]
    for client in clients:
        await client.send("POST", "/seed_session", {})
    await wait_all_tasks_blocked()
    return clients


async def test_whoever_comes_to_a_full_line_is_refused(autojump_clock, seed):
    async with raise_the_curtain(counting(capacity=1), max_waiting=2) as stage:
        holder, late = stage.client(), stage.client()
        await holder.seed()
        waiting = await send_seeds(stage, 2)
        refused = await seed(late, "late")
        assert told(refused) == (503, "line_full", b"10")
        assert "2 sessions wait" in refused.body["detail"] and "--max-waiting" in refused.body["detail"]
        assert (await late.ask("GET", "/gymserve/ready")).status == 503
        await holder.verify()
        assert (await waiting[0].answer()).status == 200
        await late.send("POST", "/seed_session", {})
        for client, following in ((waiting[0], waiting[1]), (waiting[1], late)):
            await client.verify()
            assert (await following.answer()).status == 200
        assert trio.current_time() == 0


async def test_of_many_that_come_at_once_as_many_as_may_wait(autojump_clock):
    async with raise_the_curtain(counting(capacity=1), max_waiting=10) as stage:
        await stage.client().seed()
        clients = [stage.client() for _ in range(30)]
        statuses: list[int] = []

        async def seed_and_leave(client: Client) -> None:
            with trio.move_on_after(5):
                statuses.append((await client.seed()).status)

        async with trio.open_nursery() as nursery:
            for client in clients:
                nursery.start_soon(seed_and_leave, client)
        assert statuses == [503] * 20


async def test_whoever_seeds_again_may_wait_for_its_own_slot(autojump_clock):
    server = counting(Fault("slow-close", 30), capacity=1)
    async with raise_the_curtain(server, max_sessions=1, max_waiting=1) as stage:
        client = stage.client()
        for number in range(3):
            assert ((await client.seed()).status, trio.current_time()) == (200, number * 30)


async def test_whoever_leaves_the_line_makes_room_in_it(autojump_clock):
    async with raise_the_curtain(counting(capacity=1), max_waiting=1, patience_seconds=50) as stage:
        await stage.client().seed()
        [waiting] = await send_seeds(stage, 1)
        await waiting.hang_up()
        [waiting] = await send_seeds(stage, 1)
        assert told(await stage.client().seed()) == (503, "line_full", b"10")
        assert told(await waiting.answer()) == (503, "no_room", b"10")
        assert trio.current_time() == 50
        [waiting] = await send_seeds(stage, 1)
        assert (await stage.listing())["waiting"] == 1


async def test_a_connection_in_its_reset_waits_for_nobody(autojump_clock):
    async with raise_the_curtain(counting(Fault("slow-reset", 20)), max_waiting=1) as stage:
        for _ in range(3):
            await send_seeds(stage, 1)
        assert stage.opener.line.waiting == 0
        await trio.sleep(20)
        assert stage.episodes["active"] == 3


async def test_a_refused_reset_leads_back_into_the_line(autojump_clock):
    full = iter([True, False, False])

    async def script(message: dict[str, Any]) -> Any:
        if message["type"] == "reset" and next(full):
            return 1013
        return observed(text="ready")

    async with raise_the_curtain(ScriptedServer(script), max_waiting=1) as stage:
        [first] = await send_seeds(stage, 1)
        assert told(await stage.client().seed()) == (503, "line_full", b"10")
        assert ((await first.answer()).status, trio.current_time()) == (200, 0.05)
        assert (await stage.client().seed()).status == 200


# -- connections and descriptors -------------------------------------------------------------------------------------


async def test_a_connection_too_many_may_do_all_but_seed(autojump_clock, seed):
    async with raise_the_curtain(counting()) as stage:
        crowd = Crowd(most=1, descriptors=Descriptors(1_000_000))
        player, other = (Client(lambda: connect(stage.nursery, stage.app, crowd=crowd)) for _ in range(2))
        await player.seed()
        waiting = connect(stage.nursery, stage.app, crowd=crowd)
        await waiting.send(b"POST /seed_session HTTP/1.1\r\n")
        await wait_all_tasks_blocked()
        refused = await seed(other, "a")
        assert told(refused) == (503, "too_many_connections", b"10")
        assert "--max-connections" in refused.body["detail"] and "ulimit" in refused.body["detail"]
        assert (await player.step()).status == 200
        assert (await other.ask("GET", "/gymserve/health")).status == 200
        assert (await other.ask("GET", "/gymserve/ready")).status == 503
        assert (await player.verify()).body["steps"] == 1
        await waiting.stream.aclose()
        await trio.sleep(80)  # each request's connection has been left behind, until it has been idle for long enough
        assert (await seed(other, "a")).status == 200


async def test_an_episode_waits_for_a_descriptor_and_the_server_is_not_blamed(autojump_clock):
    with capture_logs() as logged:
        async with raise_the_curtain(counting()) as stage:
            stage.network.fails_with = OutOfDescriptors(1024)
            [client] = await send_seeds(stage, 1)
            assert (await stage.client().ask("GET", "/gymserve/ready")).status == 503
            await trio.sleep(100)
            stage.network.fails_with = None
            assert (await client.answer()).status == 200
            assert 100 <= trio.current_time() <= 102
    [why] = [event["reason"] for event in logged if event["event"] == "session waits"]
    assert why == "gymserve is out of file descriptors (its limit is 1024)"


@pytest.mark.parametrize(("patience_seconds", "within"), [(30, "within 30 s"), (0, "without waiting")])
async def test_no_descriptor_within_the_patience_is_told_as_it_is(autojump_clock, patience_seconds, within):
    async with raise_the_curtain(counting(), patience_seconds=patience_seconds) as stage:
        stage.network.fails_with = OutOfDescriptors(1024)
        refused = await stage.client().seed()
        assert (told(refused), trio.current_time()) == ((503, "no_room", b"10"), patience_seconds)
        assert refused.body["detail"] == (
            f"no connection to the environment server at http://environment:8000 could be opened {within}: "
            "gymserve is out of file descriptors (its limit is 1024); raise the limit on open files (ulimit -n), "
            "or have fewer rollouts at once"
        )


async def test_of_as_many_episodes_as_there_are_descriptors_for_each_makes_room_for_the_next(autojump_clock):
    with capture_logs() as logged:
        async with raise_the_curtain(counting(), max_connections=2, patience_seconds=50) as stage:
            first, _ = await send_seeds(stage, 2)
            third, fourth, _ = await send_seeds(stage, 3)
            assert (stage.network.connections, stage.opener.line.waiting) == (2 + 1, 3)  # one asked for the schema
            assert (await stage.client().ask("GET", "/gymserve/ready")).status == 503
            await trio.sleep(40)
            await first.answer()
            await first.verify()
            assert ((await third.answer()).status, trio.current_time()) == (200, 40)
            refused = await fourth.answer()
            assert (told(refused), trio.current_time()) == ((503, "no_room", b"10"), 50)
            assert "gymserve has file descriptors for no more than its 2 episodes; raise" in refused.body["detail"]
            assert stage.episodes["opened"] == 3
    whys = [event["reason"] for event in logged if event["event"] == "session waits"]
    assert whys == ["gymserve has file descriptors for no more than its 2 episodes"] * 3


# -- JSON ------------------------------------------------------------------------------------------------------------


def nested(depth: int, innermost: str = "1") -> str:
    """An object with so many levels, itself the first."""
    return '{"a":' + "[" * (depth - 1) + innermost + "]" * (depth - 1) + "}"


@pytest.mark.parametrize("innermost", ["1", "1e400", '"[[[["', '"]]]]\\""', '"\\\\"'])
@pytest.mark.parametrize("path", ["/verify", "/step", "/seed_session", "/reset", "/aggregate_metrics"])
async def test_a_body_may_be_nested_as_deep_as_it_is_told(autojump_clock, path, innermost):
    async with raise_the_curtain(counting()) as stage:
        client = stage.client()
        await client.seed()
        refused = await client.ask("POST", path, nested(MAX_DEPTH + 1, innermost).encode())
        assert refused.status == 422
        assert refused.body["detail"][0]["msg"] == "the body is nested too deep, beyond 128 levels"
        taken = await client.ask("POST", path, nested(MAX_DEPTH, innermost).encode())
        assert "nested" not in json.dumps(taken.body)
        if path == "/verify":
            assert taken.status == 200


async def test_an_observation_nested_too_deep_loses_its_episode(autojump_clock):
    depths = iter([MAX_DEPTH - 2, MAX_DEPTH - 1])

    async def script(message: dict[str, Any]) -> Any:
        if message["type"] == "reset":
            return observed(text="ready")
        return f'{{"type":"observation","data":{{"observation":{nested(next(depths))}}}}}'

    async with raise_the_curtain(ScriptedServer(script)) as stage:
        client = stage.client()
        await client.seed()
        shown = await client.step()
        assert (shown.status, json.dumps(shown.body).count("[")) == (200, MAX_DEPTH - 3)
        assert (await client.step()).status == 502
        verified = (await client.verify()).body
        assert (verified["mask_sample"], verified["failure_kind"]) == (True, "session_lost")
        assert "JSON nested beyond 128 levels" in verified["failure_reason"]


def test_an_answer_too_deep_is_told_from_one_that_is_not():
    body = '{"type":"observation","data":{"observation":%s}}'
    decode_answer(body % nested(MAX_DEPTH - 2))
    with pytest.raises(WireError, match=r"^JSON nested beyond 128 levels$"):
        decode_answer(body % nested(MAX_DEPTH - 1))


JSON = st.recursive(
    st.none() | st.text('[]{}"\\é/', max_size=5),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text('[{"\\', max_size=3), values, max_size=3),
    max_leaves=20,
)


def depth_of(value: Any) -> int:
    match value:
        case dict():
            return 1 + max(map(depth_of, value.values()), default=0)
        case list():
            return 1 + max(map(depth_of, value), default=0)
    return 0


@given(value=JSON, added=st.integers(MAX_DEPTH - 5, MAX_DEPTH), in_ascii=st.booleans())
def test_brackets_in_strings_are_no_depth(value: Any, added: int, in_ascii: bool) -> None:
    text = "[" * added + json.dumps(value, ensure_ascii=in_ascii) + "]" * added
    deep = added + depth_of(value) > MAX_DEPTH
    assert is_too_deep(text) is is_too_deep(text.encode()) is deep


@pytest.mark.parametrize("text", ["[" * 3_000_000, '{"a":' * 1_000_000, "[]," * 1_000_000, '"' + "\\" * 3_000_000])
def test_no_text_takes_long_to_measure(text: str) -> None:
    started = time.process_time()
    is_too_deep(text)
    assert time.process_time() - started < 3


# -- sizes and lengths -----------------------------------------------------------------------------------------------


async def test_an_observation_too_large_loses_its_episode_and_says_what_to_raise(autojump_clock):
    async def script(message: dict[str, Any]) -> Any:
        return observed(text="ready" if message["type"] == "reset" else "x" * 2_000)

    async with raise_the_curtain(ScriptedServer(script), max_message_bytes=2_000) as stage:
        client = stage.client()
        await client.seed()
        assert (await client.step()).status == 502
        verified = (await client.verify()).body
        assert verified["failure_kind"] == "session_lost"
        assert "the server's message was larger than --max-observation allows" in verified["failure_reason"]


async def test_a_reset_that_is_too_large_is_not_tried_again(autojump_clock):
    async def script(message: dict[str, Any]) -> Any:
        return observed(text="x" * 2_000)

    async with raise_the_curtain(ScriptedServer(script), max_message_bytes=2_000) as stage:
        refused = await stage.client().seed()
        assert (refused.status, refused.body["error"], trio.current_time()) == (502, "environment_error", 0)
        assert "--max-observation" in refused.body["detail"]


@pytest.mark.parametrize(
    ("row", "headers"), [({"gymserve_label": "x" * 201}, {}), ({}, {"X-Gymserve-Label": "x" * 201})]
)
async def test_a_label_too_long_is_refused(autojump_clock, row, headers):
    async with raise_the_curtain(counting()) as stage:
        client = stage.client()
        refused = await client.seed(row, **headers)
        assert (refused.status, refused.body["error"]) == (422, "bad_arguments")
        assert "at most 200 characters" in refused.body["detail"][0]["msg"]
        assert (await stage.listing())["sessions"] == []


async def test_a_long_taskset_is_cut_to_a_label(autojump_clock):
    async with raise_the_curtain(counting()) as stage:
        body = typed("a")
        body["task_id"]["taskset"] = "t" * 1_000
        assert (await stage.client().seed(body)).status == 200
        assert [session["label"] for session in (await stage.listing())["sessions"]] == ["t" * 200]


@pytest.mark.parametrize("length", [1_000, 1_001])
async def test_a_name_too_long_is_refused(autojump_clock, length):
    async with raise_the_curtain(counting()) as stage:
        assert (await stage.client().seed({**typed("a"), "resources_session_id": "n" * length})).status == (
            200 if length == 1_000 else 422
        )
