"""Metrics in virtual time: exact values after scripted rollouts, read as Prometheus reads them."""

from collections.abc import Mapping
from typing import Any

import pytest
import trio
from counting import Counting
from prometheus_client.parser import text_string_to_metric_families
from scripted import ScriptedServer, agreeable
from stage import ADDRESS, Client, Stage, raise_the_curtain, slow_pair
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from gymserve.address import parse_address
from gymserve.gridsim.faults import parse_fault
from gymserve.gridsim.server import EnvironmentServer
from gymserve.http.access import Guard
from gymserve.score import MASKED_KINDS
from gymserve.telemetry import LinesLost, Telemetry, Verified

A, B = ADDRESS, parse_address("b:8000")
ENV = "http://environment:8000"

Labels = frozenset[tuple[str, str]]


def counting(capacity: int = 1, *faults: str) -> EnvironmentServer:
    return EnvironmentServer(Counting, capacity=capacity, faults=[parse_fault(fault) for fault in faults])


class Scrape:
    """What a scrape read: values by the sample's name and labels."""

    def __init__(self, text: str) -> None:
        self.families = {family.name: family for family in text_string_to_metric_families(text)}
        self._values: dict[tuple[str, Labels], float] = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in self.families.values()
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float | None:
        """None where there is no such sample."""
        return self._values.get((f"gymserve_{name}", frozenset(labels.items())))

    def all(self, name: str) -> Mapping[Labels, float]:
        """Those that are not 0."""
        return {
            labels: value for (sample, labels), value in self._values.items() if sample == f"gymserve_{name}" and value
        }

    def seen(self, name: str, **labels: str) -> tuple[float | None, float | None]:
        """How many a histogram has observed, and their sum."""
        return self(f"{name}_count", **labels), self(f"{name}_sum", **labels)

    def buckets(self, name: str, **labels: str) -> list[str]:
        """The upper bounds of the buckets into which something fell, once for each."""
        bounds = []
        before = 0.0
        for (sample, sample_labels), value in self._values.items():
            if sample == f"gymserve_{name}_bucket" and labels.items() <= dict(sample_labels).items():
                bounds += [dict(sample_labels)["le"]] * int(value - before)
                before = value
        return bounds


async def scrape(stage: Stage) -> Scrape:
    client = stage.client()
    await client.send("GET", "/gymserve/metrics")
    assert client.peer is not None
    reply = await client.peer.reply()
    assert reply.status == 200 and reply.headers[b"content-type"].startswith(b"text/plain; version=")
    return Scrape(reply.body.decode())


async def seeded(stage: Stage, label: str | None = None, **row: Any) -> Client:
    client = stage.client()
    assert (await client.seed({**({} if label is None else {"gymserve_label": label}), **row})).status == 200
    return client


async def send_seed(stage: Stage, label: str = "run") -> Client:
    client = stage.client()
    await client.send("POST", "/seed_session", {"gymserve_label": label})
    await wait_all_tasks_blocked()
    return client


# -- times -----------------------------------------------------------------------------------------------------------


async def test_think_times_are_those_between_an_answer_and_the_next_request_by_label(autojump_clock):
    async with raise_the_curtain(counting(2, "slow-step:3")) as stage:
        slow, quick = await seeded(stage, "slow"), await seeded(stage, "quick")
        for _ in range(3):
            await trio.sleep(70)
            await slow.step()
        await quick.step()
        await quick.verify()
        read = await scrape(stage)
        assert read.seen("think_seconds", label="slow") == (3, 210)
        assert read.seen("think_seconds", label="quick") == (2, 219)  # from its opening on, and not at all
        assert read.buckets("think_seconds", label="slow") == ["120.0"] * 3
        assert read.buckets("think_seconds", label="quick") == ["0.1", "300.0"]
        assert read.seen("step_seconds", label="slow") == (3, 9)


async def test_a_call_that_comes_while_another_is_in_flight_is_no_think_time(autojump_clock):
    async with raise_the_curtain(counting(1, "slow-step:3")) as stage:
        client = await seeded(stage, "a")
        await trio.sleep(10)
        other = Client(client.connect, dict(client.cookies))
        await client.send("POST", "/step", {"by": 1})
        await trio.sleep(1)
        assert (await other.step()).status == (await client.answer()).status == 200
        read = await scrape(stage)
        assert read.seen("think_seconds", label="a") == (1, 10)
        assert read.seen("step_seconds", label="a") == (2, 6)


async def test_openings_resets_and_goodbyes_are_timed_by_server(autojump_clock):
    async with raise_the_curtain(counting(1, "slow-handshake:2", "slow-reset:3", "slow-close:7")) as stage:
        client = await seeded(stage, "a")
        waiting = await send_seed(stage)
        await trio.sleep_until(10)
        await client.verify()
        await waiting.answer()
        assert trio.current_time() == 10 + 7 + 2 + 3
        read = await scrape(stage)
        assert read.seen("opening_seconds", env=ENV) == (2, 5 + (17 + 5 - 5))
        assert read.buckets("opening_seconds", env=ENV) == ["5.0", "30.0"]
        assert read.seen("reset_seconds", env=ENV) == (2, 6)
        assert read.seen("goodbye_seconds", env=ENV) == (1, 7)


async def test_a_reclaim_in_time_overshoots_by_nothing(autojump_clock):
    async with raise_the_curtain(counting(2), idle_timeout_seconds=100, lifetime_seconds=150) as stage:
        await seeded(stage, "idle")
        outlives = await seeded(stage, "outlives")
        await trio.sleep_until(90)
        await outlives.step()
        await trio.sleep_until(200)
        read = await scrape(stage)
        assert read.seen("reclaim_overshoot_seconds") == (2, 0)
        assert read.buckets("reclaim_overshoot_seconds") == ["0.0005"] * 2


# -- counts ----------------------------------------------------------------------------------------------------------


async def test_endings_are_counted_by_why_and_label(autojump_clock):
    async with raise_the_curtain(counting(9), idle_timeout_seconds=100) as stage:
        await (await seeded(stage, "a")).verify()
        await (await seeded(stage)).verify()
        await (await seeded(stage, "a")).ask("POST", "/close_session", {})
        await seeded(stage, "a")
        done = await seeded(stage, "b", reset_kwargs={"target": 1})
        await done.step()
        await trio.sleep_until(50)
        assert (await scrape(stage))("sessions_ended_total", ending="verified", label="b") is None
        await done.verify()
        await seeded(stage, "late")
        await trio.sleep_until(120)
        stage.network.kill(A)
        await wait_all_tasks_blocked()
        refused = stage.client()
        await refused.send("POST", "/seed_session", {"gymserve_label": "waits"})
        await wait_all_tasks_blocked()
        await refused.hang_up()
        await wait_all_tasks_blocked()
        read = await scrape(stage)
        assert read.all("sessions_ended_total") == {
            frozenset({("ending", "verified"), ("label", "a")}): 1,
            frozenset({("ending", "verified"), ("label", "")}): 1,
            frozenset({("ending", "verified"), ("label", "b")}): 1,
            frozenset({("ending", "closed by the client"), ("label", "a")}): 1,
            frozenset({("ending", "closed by the client"), ("label", "waits")}): 1,
            frozenset({("ending", "idle timeout"), ("label", "a")}): 1,
            frozenset({("ending", "lost"), ("label", "late")}): 1,
        }


async def test_verifies_are_counted_by_what_masked_them(autojump_clock):
    async with raise_the_curtain(counting(9), idle_timeout_seconds=100) as stage:
        scored, expired = await seeded(stage, "a"), await seeded(stage, "b")
        for _ in range(2):
            await scored.verify()
        await trio.sleep_until(200)
        await expired.verify()
        await stage.client().verify()
        assert (await scrape(stage)).all("verifies_total") == {
            frozenset({("masked_kind", ""), ("label", "a")}): 2,
            frozenset({("masked_kind", "session_expired"), ("label", "b")}): 1,
            frozenset({("masked_kind", "session_lost"), ("label", "")}): 1,
        }


async def test_lost_lines_of_trajectories_are_counted_by_why(autojump_clock):
    async with raise_the_curtain(counting()) as stage:
        read = await scrape(stage)
        assert (read("trajectory_lines_lost_total", why="dropped"), read.all("trajectory_lines_lost_total")) == (0, {})
        stage.gateway.telemetry.tell(LinesLost(3, "unwritten"))
        assert (await scrape(stage))("trajectory_lines_lost_total", why="unwritten") == 3


async def test_false_reclaims_are_counted_by_label(autojump_clock):
    async with raise_the_curtain(counting(9), idle_timeout_seconds=100) as stage:
        clients = [await seeded(stage, label) for label in ("a", "a", "b", "c")]
        await clients[3].verify()
        await trio.sleep_until(150)
        for client in clients:
            await client.step()
            await client.verify()
        assert (await scrape(stage)).all("reclaimed_alive_total") == {
            frozenset({("label", "a")}): 2,
            frozenset({("label", "b")}): 1,
        }


async def test_labels_beyond_the_first_fifty_count_together(autojump_clock):
    async with raise_the_curtain(ScriptedServer()) as stage:
        for number in range(53):
            await (await seeded(stage, f"run-{number}")).verify()
        await (await seeded(stage, "run-0")).verify()
        await (await seeded(stage)).verify()
        read = await scrape(stage)
        ended = {dict(labels)["label"]: value for labels, value in read.all("sessions_ended_total").items()}
        assert ended == {**{f"run-{number}": 1 for number in range(1, 50)}, "run-0": 2, "(others)": 3, "": 1}
        assert read.seen("think_seconds", label="(others)") == (3, 0)


async def test_what_alerts_look_for_begins_at_0(autojump_clock):
    """Else Prometheus, which sees only what follows a first sample, would miss what befalls a whole run at once."""
    async with raise_the_curtain(counting(2)) as stage:
        kinds = {"", *MASKED_KINDS}
        read = await scrape(stage)
        assert {kind: read("verifies_total", masked_kind=kind, label="") for kind in kinds} == dict.fromkeys(kinds, 0)
        assert read("reclaimed_alive_total", label="") == 0
        assert read("verifies_total", masked_kind="session_lost", label="run-7") is None
        await seeded(stage, "run-7")
        read = await scrape(stage)
        assert {read("verifies_total", masked_kind=kind, label="run-7") for kind in kinds} == {0}
        assert read("reclaimed_alive_total", label="run-7") == 0


# -- HTTP ------------------------------------------------------------------------------------------------------------

ROW = {"responses_create_params": {}, "response": {}}
TYPED = {"resources_session_id": "mine", "episode_id": {"rollout_id": "r"}}


async def test_requests_are_timed_by_what_they_are_for(autojump_clock):
    async with raise_the_curtain(counting(4, "slow-reset:3", "slow-step:2")) as stage:
        client = await seeded(stage)
        await client.step()
        await client.ask("POST", "/ng-rollout/r-1/step", {"by": 1})
        await client.ask("POST", "/observation")
        await client.ask("POST", "/nope", {})
        await client.ask("POST", "/verify", ROW)
        await client.ask("POST", "/reset", ROW)
        await client.ask("POST", "/close", {})
        await client.ask("POST", "/close_session", TYPED)
        await client.ask("POST", "/mcp", {})
        await client.ask("GET", "/mcp")
        await client.ask("GET", "/")
        await client.ask("GET", "/nope")
        await client.ask("POST", "//step", {})
        await client.ask("POST", "/gymserve/touch", {})
        read = await scrape(stage)
        routes = {dict(labels)["route"]: count for labels, count in read.all("request_seconds_count").items()}
        assert routes == {"seed": 2, "tool": 4, "verify": 1, "close": 2, "mcp": 2, "other": 3, "gymserve": 1}
        assert {route: read("request_seconds_sum", route=route) for route in routes} == {
            **dict.fromkeys(routes, 0), "seed": 6, "tool": 4
        }  # fmt: skip
        assert read.buckets("request_seconds", route="tool") == ["0.001"] * 2 + ["2.5"] * 2
        assert (await scrape(stage))("request_seconds_count", route="gymserve") == 2  # the scrape before


async def test_a_request_that_is_refused_is_one_of_its_route(autojump_clock):
    async with raise_the_curtain(counting(1), guard=Guard(token="a token of the tests", hosts=["gymserve"])) as stage:
        assert (await stage.client().seed()).status == 401
        read = await scrape(stage)
        assert read.seen("request_seconds", route="seed") == (1, 0)


async def test_interim_answers_are_counted_as_they_are_sent(autojump_clock):
    async with raise_the_curtain(counting(1, "slow-step:20")) as stage:
        client = await seeded(stage)
        waits = await send_seed(stage)
        await trio.sleep_until(14.9)
        assert (await scrape(stage)).all("interim_responses_total") == {}
        await trio.sleep_until(46)
        await client.step()
        await client.verify()
        await waits.answer()
        read = await scrape(stage)
        assert read("interim_responses_total", route="seed") == 4  # in 66 s
        assert read("interim_responses_total", route="tool") == 1  # in 20 s
        assert read("request_seconds_sum", route="seed") == 66
        assert read.all("hang_ups_total") == {}


async def test_a_client_that_takes_no_interim_answers_has_none_counted(autojump_clock):
    async with raise_the_curtain(counting(1, "slow-reset:40")) as stage:
        client = stage.client()
        client.peer = client.connect()
        await client.peer.send(b"POST /seed_session HTTP/1.0\r\nHost: gymserve\r\nContent-Length: 0\r\n\r\n")
        await client.answer()
        read = await scrape(stage)
        assert (read.all("interim_responses_total"), read.seen("request_seconds", route="seed")) == ({}, (1, 40))


async def test_hang_ups_are_counted_once_each(autojump_clock):
    async with raise_the_curtain(counting(1, "slow-step:50")) as stage:
        client = await seeded(stage)
        for _ in range(2):
            waits = await send_seed(stage)
            await trio.sleep(20)
            await waits.hang_up()
            await wait_all_tasks_blocked()
        await client.send("POST", "/step", {"by": 1})
        await trio.sleep(1)
        await client.hang_up()
        await trio.sleep(100)
        await client.verify()
        await client.hang_up()  # its answer is out
        await wait_all_tasks_blocked()
        read = await scrape(stage)
        assert {dict(labels)["route"]: count for labels, count in read.all("hang_ups_total").items()} == {
            "seed": 2, "tool": 1
        }  # fmt: skip
        assert read("request_seconds_count", route="seed") == 1
        assert read("interim_responses_total", route="seed") == 2


async def test_a_client_that_left_before_its_request_was_begun_is_counted(autojump_clock):
    async with raise_the_curtain(counting(1, "slow-reset:50")) as stage:
        client = stage.client()
        client.peer = client.connect()
        await client.peer.send(b"POST /seed_session HTTP/1.1\r\nHost: gymserve\r\nContent-Length: 0\r\n\r\n")
        await client.peer.stream.send_eof()
        await wait_all_tasks_blocked()
        assert (await scrape(stage))("hang_ups_total", route="seed") == 1


async def test_a_client_that_stops_reading_is_a_hang_up(autojump_clock):
    async with raise_the_curtain(counting(1)) as stage:
        client = stage.client(pair=slow_pair(1000))
        await client.send("POST", "/seed_session", {})
        await trio.sleep(200)
        read = await scrape(stage)
        assert (read("hang_ups_total", route="seed"), read("request_seconds_count", route="seed")) == (1, None)


# -- as things stand -------------------------------------------------------------------------------------------------


async def test_sessions_are_shown_by_state_and_those_that_wait_apart(autojump_clock):
    async with raise_the_curtain(counting(4, "slow-step:100", "slow-close:100")) as stage:
        for _ in range(2):
            await seeded(stage)
        busy, closing = await seeded(stage), await seeded(stage)
        await busy.send("POST", "/step", {"by": 1})
        await closing.verify()
        await send_seed(stage)
        await trio.sleep_until(5)
        await send_seed(stage)
        await trio.sleep_until(25)
        read = await scrape(stage)
        states = {state: read("sessions", state=state) for state in ("opening", "idle", "busy", "done", "closing")}
        assert states == {"opening": 0, "idle": 2, "busy": 1, "done": 0, "closing": 1}
        assert (read("waiting"), read("oldest_wait_seconds")) == (2, 25)
        assert (read("ready"), read("patience_seconds")) == (0, 600)
        assert read("expected_wait_seconds") == 25  # 3 more openings after the first in 25 s, and three would wait


async def test_a_session_in_its_reset_is_opening_and_one_with_only_a_score_is_done(autojump_clock):
    async with raise_the_curtain(counting(4, "slow-reset:10")) as stage:
        done = await seeded(stage, reset_kwargs={"target": 1})
        await done.step()
        await send_seed(stage)
        await trio.sleep(1)
        read = await scrape(stage)
        assert (read("sessions", state="opening"), read("sessions", state="done"), read("waiting")) == (1, 1, 0)
        assert (read("expected_wait_seconds"), read("ready")) == (0, 1)
        assert read("slots_held", env=ENV) == 1


async def test_what_is_not_known_is_not_shown(autojump_clock):
    async with raise_the_curtain(counting(1)) as stage:
        read = await scrape(stage)
        assert (read("slots_held", env=ENV), read("slots", env=ENV), read("waiting")) == (0, None, 0)
        await seeded(stage)
        await send_seed(stage)
        read = await scrape(stage)
        assert (read("slots_held", env=ENV), read("slots", env=ENV)) == (1, 1)
        assert read("expected_wait_seconds") is None  # of one opening no rate is known


async def test_servers_are_shown_each_for_as_long_as_they_are_there(autojump_clock):
    async with raise_the_curtain(counting(4)) as stage:
        stage.network.servers[B] = counting(4)
        stage.opener.pool.add(B, slots=3)
        await seeded(stage)
        client = await seeded(stage)
        read = await scrape(stage)
        held, slots = (
            {dict(labels)["env"]: value for labels, value in read.all(name).items()} for name in ("slots_held", "slots")
        )
        assert (held, slots) == ({"http://b:8000": 2}, {"http://b:8000": 3})
        stage.opener.pool.drain(A)
        read = await scrape(stage)
        assert read("slots_held", env=ENV) is None
        stage.opener.pool.drain(B)
        await client.verify()
        await wait_all_tasks_blocked()
        assert (await scrape(stage))("slots_held", env="http://b:8000") == 1


async def test_every_metric_has_a_help_text_and_a_unit_in_its_name(autojump_clock):
    async with raise_the_curtain(counting(4)) as stage:
        client = await seeded(stage, 'a "quoted" label\\\n')
        await client.step()
        await client.verify()
        read = await scrape(stage)
        assert read("sessions_ended_total", ending="verified", label='a "quoted" label\\\n') == 1
        families = {name: family for name, family in read.families.items() if not name.endswith("_created")}
        assert all(name.startswith("gymserve_") and family.documentation for name, family in families.items())
        timed = {name for name, family in families.items() if family.type == "histogram"}
        assert all(name.endswith("_seconds") for name in timed)
        what = ("opening", "reset", "step", "think", "goodbye", "reclaim_overshoot", "request")
        assert timed == {f"gymserve_{each}_seconds" for each in what}


# -- the feed --------------------------------------------------------------------------------------------------------


FACT = Verified("0123456789ab", "a", None, 1.0)


def test_every_listener_hears_every_fact_and_one_that_fails_harms_nobody():
    heard = []

    def fail(fact: object) -> None:
        raise RuntimeError("broken")

    telemetry = Telemetry()
    telemetry.tell(FACT)
    for listener in (heard.append, fail, heard.append):
        telemetry.listen(listener)
    with capture_logs() as logs:
        telemetry.tell(FACT)
    assert heard == [FACT, FACT]
    assert [(line["event"], line["log_level"]) for line in logs] == [("a listener of the telemetry failed", "error")]


@pytest.mark.parametrize("script", [agreeable])
async def test_a_listener_that_fails_ends_no_rollout(autojump_clock, script):
    async with raise_the_curtain(ScriptedServer(script)) as stage:

        def fail(fact: object) -> None:
            raise RuntimeError("broken")

        stage.gateway.telemetry.listen(fail)
        with capture_logs():
            client = await seeded(stage)
            assert (await client.call("step", {})).status == 200
            assert (await client.verify()).body["reward"] == 1.0
        assert (await scrape(stage))("sessions_ended_total", ending="verified", label="") == 1
