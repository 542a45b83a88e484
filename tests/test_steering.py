"""The acting routes in virtual time: runs that are closed, held and drained, and the idle clock that starts again."""

import json
from typing import Any

import pytest
import trio
from counting import Counting
from stage import Client, Stage, raise_the_curtain, typed_seed
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from gymserve.gridsim.faults import parse_fault
from gymserve.gridsim.server import EnvironmentServer

GRACE_SECONDS = 3
DRAIN = "/gymserve/drain"


def counting(capacity: int = 8, *faults: str) -> EnvironmentServer:
    return EnvironmentServer(Counting, capacity=capacity, faults=[parse_fault(fault) for fault in faults])


async def seeded(stage: Stage, label: str | None = None) -> Client:
    client = stage.client()
    answer = await client.seed({} if label is None else {"gymserve_label": label})
    assert answer.status == 200
    return client


async def waiting(stage: Stage, label: str) -> Client:
    client = stage.client()
    await client.send("POST", "/seed_session", {"gymserve_label": label})
    await wait_all_tasks_blocked()
    return client


async def act(stage: Stage, name: str, **body: Any) -> tuple[int, Any]:
    answer = await stage.client().ask("POST", f"/gymserve/{name}", body)
    return answer.status, answer.body


async def refused(stage: Stage, label: str | None, path: str = "/seed_session") -> str | None:
    answer = await stage.client().ask("POST", path, {} if label is None else {"gymserve_label": label})
    return None if answer.status == 200 else f"{answer.status} {answer.body['error']}"


async def why_masked(client: Client) -> tuple[str, str]:
    body = (await client.verify()).body
    assert body["mask_sample"] is True
    return body["failure_kind"], body["failure_reason"]


# Closing a run


async def test_a_closed_run_gives_its_slots_back_and_leaves_the_line_at_once(autojump_clock):
    async with raise_the_curtain(counting(3)) as stage:
        ours, other = [await seeded(stage, "a"), await seeded(stage, "a")], await seeded(stage, "b")
        ours.append(await waiting(stage, "a"))
        behind = await waiting(stage, "b")
        await trio.sleep(7)
        assert await act(stage, "close", label="a") == (200, {"closed": 3})
        gone = await ours[2].answer()
        assert (gone.status, gone.body["error"]) == (410, "session_closed")
        assert (await behind.answer()).status == 200
        assert [(await client.step()).body["error"] for client in ours] == ["session_closed"] * 3
        assert [(await client.step()).status for client in (other, behind)] == [200, 200]
        assert [await why_masked(client) for client in ours] == [("cancelled", "the sessions of a were closed")] * 3
        assert (trio.current_time(), stage.episodes["active"]) == (7, 2)
        assert await act(stage, "close", label="a") == (200, {"closed": 0})


async def test_a_call_in_flight_hears_of_the_close_and_a_score_stays(autojump_clock):
    async with raise_the_curtain(counting(8, "slow-step:10")) as stage:
        busy, done = await seeded(stage, "a"), await seeded(stage, "a")
        for _ in range(4):
            answer = await done.step(3)
        assert answer.body["done"] is True
        await busy.send("POST", "/step", {"by": 1})
        await trio.sleep(1)
        assert await act(stage, "close", label="a") == (200, {"closed": 2})
        assert ((await busy.answer()).status, trio.current_time()) == (410, 41)
        assert (await done.verify()).body["reward"] == pytest.approx(0.9)


@pytest.mark.parametrize("path", ["/seed_session", "/reset"])
async def test_seeds_of_stragglers_are_refused_for_exactly_so_long(autojump_clock, path):
    async with raise_the_curtain(counting()) as stage:
        await trio.sleep(10)
        assert await act(stage, "close", label="a", for_seconds=60) == (200, {"closed": 0})
        assert [await refused(stage, label, path) for label in ("a", "b", "A", None)] == [
            "409 label_closed",
            None,
            None,
            None,
        ]
        await trio.sleep(59.5)
        answer = await stage.client().ask("POST", path, {}, {"X-Gymserve-Label": "a"})
        assert answer.body == {
            "error": "label_closed",
            "detail": "the run 'a' was closed and takes no seeds for another 1 s; another label is another run",
            "done": False,
        }
        await trio.sleep_until(10 + 60)
        assert await refused(stage, "a", path) is None


async def test_a_typed_seed_of_a_closed_run_can_be_tried_again(autojump_clock):
    async with raise_the_curtain(counting()) as stage:
        seed = typed_seed("mine", {"gymserve_label": "a"})
        await act(stage, "close", label="a", for_seconds=60)
        client = stage.client()
        assert (await client.ask("POST", "/seed_session", seed)).body["error"] == "label_closed"
        await trio.sleep(60)
        assert (await client.ask("POST", "/seed_session", seed)).status == 200


async def test_the_last_word_on_a_run_counts(autojump_clock):
    async with raise_the_curtain(counting()) as stage:
        await act(stage, "close", label="a", for_seconds=60)
        await act(stage, "close", label="a", for_seconds=0)
        assert await refused(stage, "a") is None
        await act(stage, "close", label="a", for_seconds=10)
        await act(stage, "close", label="a", for_seconds=20)
        await trio.sleep(15)
        assert await refused(stage, "a") == "409 label_closed"


@pytest.mark.parametrize("name", ["close", "hold"])
@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({}, ["body", "label"]),
        ({"label": ""}, ["body", "label"]),
        ({"label": 7}, ["body", "label"]),
        ({"label": "a", "for_seconds": -1}, ["body", "for_seconds"]),
        ({"label": "a", "for_seconds": 1e9}, ["body", "for_seconds"]),
        ({"label": "a", "seconds": 60}, ["body", "seconds"]),
    ],
)
async def test_a_body_that_is_none_is_refused_with_its_place(autojump_clock, name, body, place):
    async with raise_the_curtain(counting()) as stage:
        status, answer = await act(stage, name, **body)
        assert (status, answer["error"], answer["detail"][0]["loc"]) == (422, "bad_arguments", place)
        assert (await stage.listing())["held_labels"] == []


# Touching a session


async def test_a_touch_starts_the_idle_clock_again(autojump_clock):
    async with raise_the_curtain(counting(), idle_timeout_seconds=100) as stage:
        client = await seeded(stage)
        await trio.sleep(60)
        touched = await client.ask("POST", "/gymserve/touch")
        assert (touched.status, touched.body) == (200, {"idle_deadline_in_seconds": 100})
        await trio.sleep(99)
        assert stage.episodes["active"] == 1
        await trio.sleep(1)
        await wait_all_tasks_blocked()
        assert (trio.current_time(), stage.episodes["active"]) == (160, 0)
        late = await client.ask("POST", "/gymserve/touch")
        assert (late.status, late.body["error"]) == (410, "session_expired")
        nobody = await stage.client().ask("POST", "/gymserve/touch")
        assert (nobody.status, nobody.body["error"]) == (404, "no_session")


async def test_a_touch_during_a_call_has_no_deadline_to_tell(autojump_clock):
    async with raise_the_curtain(counting(8, "slow-step:10")) as stage:
        client = await seeded(stage)
        await client.send("POST", "/step", {"by": 1})
        await wait_all_tasks_blocked()
        beside = stage.client()
        beside.cookies = client.cookies
        assert (await beside.ask("POST", "/gymserve/touch")).body == {"idle_deadline_in_seconds": None}


# Holding a run


class Holder:
    """Who holds a run: the lines it hears, and when."""

    def __init__(self, stage: Stage, label: str, for_seconds: float = 60) -> None:
        self.client = stage.client()
        self.heard: list[tuple[float, Any]] = []
        self._body = {"label": label, "for_seconds": for_seconds}

    async def begin(self) -> None:
        await self.client.send("POST", "/gymserve/hold", self._body)
        assert self.client.peer is not None
        head = await self.client.peer.stream.receive_some(4096)
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        self._hear(head.partition(b"\r\n\r\n")[2])

    async def listen(self) -> None:
        assert self.client.peer is not None
        async for packet in self.client.peer.stream:
            self._hear(packet)

    def _hear(self, chunks: bytes) -> None:
        for line in chunks.split(b"\r\n")[1::2]:  # a chunk is its size, a line, and a line's end that is its own
            if line:
                self.heard.append((trio.current_time(), json.loads(line) if line.strip() else None))


async def test_a_run_ends_with_whoever_holds_it(autojump_clock):
    async with raise_the_curtain(counting(2)) as stage:
        holder = Holder(stage, "a")
        await holder.begin()
        assert holder.heard == [(0, {"held": "a"})]
        ours, other = await seeded(stage, "a"), await seeded(stage, "b")
        late = await waiting(stage, "a")
        assert (await stage.listing())["held_labels"] == ["a"]
        await trio.sleep(500)
        await holder.client.hang_up()
        assert ((await late.answer()).status, trio.current_time()) == (410, 500)
        await wait_all_tasks_blocked()
        assert ((await stage.listing())["held_labels"], stage.episodes["active"]) == ([], 1)
        assert await why_masked(ours) == ("cancelled", "the sessions of a were closed")
        assert (await other.step()).status == 200
        await trio.sleep_until(559)
        assert await refused(stage, "a") == "409 label_closed"
        await trio.sleep_until(560)
        assert await refused(stage, "a") is None


async def test_a_holder_hears_that_gymserve_lives(autojump_clock):
    async with raise_the_curtain(counting()) as stage:
        holder = Holder(stage, "a")
        await holder.begin()
        with trio.move_on_after(50):
            await holder.listen()
        assert holder.heard == [(0, {"held": "a"}), (15, None), (30, None), (45, None)]


async def test_the_last_holder_of_a_run_closes_it(autojump_clock):
    async with raise_the_curtain(counting()) as stage:
        holders = [Holder(stage, "a"), Holder(stage, "a")]
        for holder in holders:
            await holder.begin()
        client = await seeded(stage, "a")
        await holders[0].client.hang_up()
        await trio.sleep(1)
        assert ((await client.step()).status, (await stage.listing())["held_labels"]) == (200, ["a"])
        await holders[1].client.hang_up()
        await trio.sleep(1)
        assert ((await client.step()).status, (await stage.listing())["held_labels"]) == (410, [])


async def test_a_run_that_was_just_closed_cannot_be_held_yet(autojump_clock):
    async with raise_the_curtain(counting()) as stage:
        await act(stage, "close", label="a", for_seconds=30)
        status, answer = await act(stage, "hold", label="a")
        assert (status, answer["error"]) == (409, "label_closed")
        await trio.sleep(30)
        await Holder(stage, "a").begin()
        assert (await stage.listing())["held_labels"] == ["a"]


async def test_a_stop_ends_the_hold_at_once_and_does_not_close_its_run(autojump_clock):
    async with raise_the_curtain(counting(8, "slow-step:2")) as stage:
        holder = Holder(stage, "a")
        await holder.begin()
        client = await seeded(stage, "a")
        await client.send("POST", "/step", {"by": 3})
        await trio.sleep(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.gateway.drain, GRACE_SECONDS)
            with trio.move_on_after(0.5):
                await holder.listen()
            assert [(at, line["error"]) for at, line in holder.heard[1:]] == [(1, "shutting_down")]
            answer = await client.answer()
            assert (answer.status, answer.body["count"], trio.current_time()) == (200, 3, 2)


# Draining gymserve


async def stop_when_drained(stage: Stage, *, task_status: trio.TaskStatus[dict[str, float]]) -> None:
    """What `gymserve serve` does."""
    times: dict[str, float] = {}
    task_status.started(times)
    await stage.gateway.seeds_held_to_the_end()
    times["over"] = trio.current_time()
    await stage.gateway.drain(GRACE_SECONDS)
    times["stopped"] = trio.current_time()


async def test_a_drain_holds_seeds_and_is_over_when_the_last_session_ends(autojump_clock):
    async with raise_the_curtain(counting(1)) as stage, trio.open_nursery() as nursery:
        times = await nursery.start(stop_when_drained, stage)
        running, next_in_line = await seeded(stage, "a"), await waiting(stage, "a")
        await trio.sleep(10)
        asker, held = stage.client(), stage.client()
        await asker.send("POST", DRAIN, {"wait_seconds": 1000})
        await wait_all_tasks_blocked()
        await held.send("POST", "/seed_session", {})
        ready = await stage.client().ask("GET", "/gymserve/ready")
        assert (ready.status, ready.body["ready"], (await stage.listing())["holds_seeds"]) == (503, False, True)
        await trio.sleep(10)
        assert (await running.step()).status == 200
        assert (await running.verify()).body.get("mask_sample") is None
        assert (await next_in_line.answer()).status == 200  # it came before the drain
        await trio.sleep(10)
        assert (times, stage.episodes["opened"]) == ({}, 2)
        await next_in_line.verify()
        refused = await held.answer()
        assert (refused.status, refused.body["error"]) == (503, "shutting_down")
        assert int(refused.headers[b"retry-after"]) > 0
        assert (await asker.answer()).body == {"cut_short": 0}
        await wait_all_tasks_blocked()
        assert (times, stage.episodes) == (
            {"over": 30, "stopped": 30},
            {"active": 0, "max": 1, "opened": 2, "closed": 2},
        )


async def test_a_drain_without_sessions_is_over_at_once(autojump_clock):
    async with raise_the_curtain(counting()) as stage, trio.open_nursery() as nursery:
        times = await nursery.start(stop_when_drained, stage)
        await trio.sleep(5)
        assert await act(stage, "drain") == (200, {"cut_short": 0})
        await wait_all_tasks_blocked()
        assert times == {"over": 5, "stopped": 5}


async def test_a_finished_episode_is_waited_for_until_it_is_verified(autojump_clock):
    async with raise_the_curtain(counting()) as stage, trio.open_nursery() as nursery:
        times = await nursery.start(stop_when_drained, stage)
        client = stage.client()
        await client.seed({"reset_kwargs": {"target": 3}})
        assert (await client.step(3)).body["done"] is True
        stage.gateway.hold_seeds(1000)
        await trio.sleep(100)
        assert times == {}
        assert (await client.verify()).body["reward"] == 1.0
        await wait_all_tasks_blocked()
        assert times == {"over": 100, "stopped": 100}


async def test_sessions_that_outlast_the_wait_are_ended_after_the_grace(autojump_clock):
    async with raise_the_curtain(counting(8, "slow-step:70")) as stage, trio.open_nursery() as nursery:
        times = await nursery.start(stop_when_drained, stage)
        idle, busy = await seeded(stage), await seeded(stage)
        await busy.send("POST", "/step", {"by": 1})
        assert await act(stage, "drain", wait_seconds=60) == (200, {"cut_short": 2})
        assert trio.current_time() == 60
        assert ((await busy.answer()).status, trio.current_time()) == (410, 63)
        assert times == {"over": 60, "stopped": 63}
        assert [(await why_masked(client))[0] for client in (idle, busy)] == ["shutdown"] * 2


@pytest.mark.parametrize(("first", "second", "over"), [(1000, 0, 10), (1000, 5, 15), (20, 1000, 1010)])
async def test_the_last_wait_that_was_asked_for_counts(autojump_clock, first, second, over):
    async with raise_the_curtain(counting(), idle_timeout_seconds=5000) as stage, trio.open_nursery() as nursery:
        times = await nursery.start(stop_when_drained, stage)
        await seeded(stage)
        stage.gateway.hold_seeds(first)
        await trio.sleep(10)
        assert (await act(stage, "drain", wait_seconds=second)) == (200, {"cut_short": 1})
        await wait_all_tasks_blocked()
        assert times["over"] == over


async def test_who_asked_for_a_drain_may_hang_up(autojump_clock):
    async with raise_the_curtain(counting()) as stage, trio.open_nursery() as nursery:
        times = await nursery.start(stop_when_drained, stage)
        client, asker = await seeded(stage), stage.client()
        await asker.send("POST", DRAIN, {"wait_seconds": 1000})
        await wait_all_tasks_blocked()
        await asker.hang_up()
        await trio.sleep(5)
        await client.verify()
        await wait_all_tasks_blocked()
        assert times == {"over": 5, "stopped": 5}


async def test_a_held_seed_whose_client_hangs_up_is_nothing_to_wait_for(autojump_clock):
    async with raise_the_curtain(counting()) as stage, trio.open_nursery() as nursery:
        times = await nursery.start(stop_when_drained, stage)
        client, held = await seeded(stage), stage.client()
        stage.gateway.hold_seeds(1000)
        await held.send("POST", "/seed_session", typed_seed("mine"))
        await trio.sleep(5)
        await held.hang_up()
        await trio.sleep(5)
        await client.verify()
        await wait_all_tasks_blocked()
        assert (times, stage.episodes["opened"]) == ({"over": 10, "stopped": 10}, 1)


@pytest.mark.parametrize("path", ["/seed_session", "/reset", "/ng-rollout/r1-0/seed_session"])
async def test_where_the_port_outlives_gymserve_what_it_refuses_is_sent_to_the_next_one_there(autojump_clock, path):
    async with raise_the_curtain(counting(), is_followed=True) as stage, trio.open_nursery() as nursery:
        await nursery.start(stop_when_drained, stage)
        client, held = await seeded(stage), stage.client()
        stage.gateway.hold_seeds(1000)
        await held.send("POST", path, {})
        await trio.sleep(5)
        await client.verify()
        await trio.sleep(1)
        assert held.peer is not None
        await held.peer.context.terminated.set()  # nobody is accepted here any more
        sent_on = await held.answer()
        assert (sent_on.status, sent_on.body["error"], trio.current_time()) == (307, "shutting_down", 6)
        assert (sent_on.headers[b"location"], sent_on.headers[b"connection"]) == (path.encode(), b"close")


# The pool


async def test_the_pool_is_steered(autojump_clock):
    async with raise_the_curtain(counting()) as stage:
        assert await act(stage, "pool/add", env="other:8000", slots=2) == (
            200,
            {"url": "http://other:8000", "state": "ready"},
        )
        assert [(each["url"], each["capacity"]) for each in (await stage.listing())["servers"]] == [
            ("http://environment:8000", None),
            ("http://other:8000", 2),
        ]
        assert await act(stage, "pool/drain", env="http://other:8000") == (200, {"url": "http://other:8000", "held": 0})
        assert len((await stage.listing())["servers"]) == 1
        status, answer = await act(stage, "pool/drain", env="other:8000")
        assert (status, answer["error"], answer["detail"]) == (
            404,
            "no_such_server",
            "there is no environment server http://other:8000; there are http://environment:8000",
        )


@pytest.mark.parametrize("body", [{}, {"env": "nowhere"}, {"env": "other:8000", "slots": 0}, {"env": 7}])
async def test_what_is_no_server_is_not_added(autojump_clock, body):
    async with raise_the_curtain(counting()) as stage:
        status, answer = await act(stage, "pool/add", **body)
        assert (status, answer["error"]) == (422, "bad_arguments")
        assert len((await stage.listing())["servers"]) == 1


# What the log says


async def test_what_somebody_does_to_gymserve_is_one_line_each(autojump_clock):
    async with raise_the_curtain(counting(3)) as stage:
        for label in ("a", "a", "b"):
            await seeded(stage, label)
        with capture_logs() as logs:
            await act(stage, "close", label="a", for_seconds=5)
            await act(stage, "pool/add", env="b:8000", slots=3)
            await act(stage, "pool/add", env="c:8000")
            await act(stage, "pool/drain", env="environment:8000")
            stage.gateway.hold_seeds(60)
        ours = [dict(line) for line in logs if line["event"] != "session ended"]
        assert ours == [
            {"event": "run closed", "label": "a", "sessions": 2, "refused_seconds": 5, "log_level": "info"},
            {"event": "environment server added", "env": "http://b:8000", "slots": 3, "log_level": "info"},
            {"event": "environment server added", "env": "http://c:8000", "log_level": "info"},
            {"event": "environment server drains", "env": "http://environment:8000", "held": 1, "log_level": "info"},
            {
                "event": "seeds are held until gymserve is drained",
                "sessions": 1,
                "wait_seconds": 60,
                "log_level": "info",
            },
        ]
