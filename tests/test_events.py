"""Server-sent events in virtual time: what is told and when, how one goes on, and clients that do not read."""

import json
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
from counting import Counting
from http_peer import Peer, connect
from scripted import ScriptedServer
from stage import INSTANCE, Client, Stage, raise_the_curtain, seen_from
from trio.testing import memory_stream_pair, wait_all_tasks_blocked

from gymserve.events import Events, Missed
from gymserve.gridsim.faults import parse_fault
from gymserve.gridsim.server import EnvironmentServer
from gymserve.http.limits import Limits
from gymserve.telemetry import Called, Telemetry, Verified, Waiting

ENV = "http://environment:8000"


def counting(capacity: int = 2, *faults: str) -> EnvironmentServer:
    return EnvironmentServer(Counting, capacity=capacity, faults=[parse_fault(fault) for fault in faults])


@dataclass
class Reader:
    """A client of the events, and what it was told: when, the name, and what beside."""

    stage: Stage
    path: str = "/gymserve/events"
    headers: tuple[str, ...] = ()
    told: list[tuple[float, str, dict[str, Any]]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    head: bytes = b""
    is_over: bool = False

    async def begin(self) -> "Reader":
        self.peer = connect(self.stage.nursery, seen_from(self.stage.app, "127.0.0.1"))
        lines = [f"GET {self.path} HTTP/1.1", "Host: gymserve", *self.headers, "", ""]
        await self.peer.send("\r\n".join(lines).encode())
        self.stage.nursery.start_soon(self._read)
        await wait_all_tasks_blocked()
        return self

    async def _read(self) -> None:
        text = b""
        try:
            while more := await self.peer.stream.receive_some(65536):
                text += more
                if not self.head and b"\r\n\r\n" in text:
                    self.head, _, text = text.partition(b"\r\n\r\n")
                if self.head:
                    text = self._take(text)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        self.is_over = True

    def _take(self, text: bytes) -> bytes:
        """Chunks hold whole events."""
        while b"\r\n" in text:
            size, _, rest = text.partition(b"\r\n")
            self.is_over = int(size, 16) == 0
            if len(rest) < int(size, 16) + 2:
                return text
            chunk, text = rest[: int(size, 16)], rest[int(size, 16) + 2 :]
            for event in chunk.decode("ascii").split("\n\n"):
                self._note(dict(line.split(": ", 1) for line in event.split("\n") if line))
        return text

    def _note(self, fields: dict[str, str]) -> None:
        if "event" in fields:
            self.told.append((trio.current_time(), fields["event"], json.loads(fields["data"])))
        if "id" in fields:
            self.ids.append(fields["id"])

    def facts(self) -> list[tuple[float, str, dict[str, Any]]]:
        """Without what stands, and with the times of what happened instead of when it was told."""
        epoch = self.stage.instruments.events._epoch  # virtual time begins anywhere
        facts = []
        for _, name, data in self.told:
            if "at_epoch_seconds" in data:
                at = round(data.pop("at_epoch_seconds") - epoch, 3)
                facts.append((at, name, data))
        return facts

    def names(self) -> list[str]:
        return [name for _, name, _ in self.told if name != "standing"]

    @property
    def standing(self) -> list[tuple[float, dict[str, Any]]]:
        return [(at, data) for at, name, data in self.told if name == "standing"]


async def seeded(stage: Stage, label: str | None = None, **row: Any) -> Client:
    client = stage.client()
    assert (await client.seed({**({} if label is None else {"gymserve_label": label}), **row})).status == 200
    return client


async def test_a_rollout_is_told_as_it_happens(autojump_clock):
    async with raise_the_curtain(counting(1, "slow-step:2", "slow-close:3"), idle_timeout_seconds=100) as stage:
        reader = await Reader(stage).begin()
        await trio.sleep_until(10)
        client = await seeded(stage, "run")
        [session] = (await stage.listing())["sessions"]
        await trio.sleep_until(40)
        await client.step()
        await trio.sleep_until(50)
        await client.verify()
        await trio.sleep_until(60)
        about = {"session": session["id"], "label": "run"}
        assert reader.facts() == [
            (
                10,
                "opened",
                {
                    **about,
                    "env": ENV,
                    "waited_seconds": 0,
                    "reset_seconds": 0,
                    "tries": 1,
                    "idle_deadline_in_seconds": 100,
                },
            ),
            (40, "called", {**about, "think_seconds": 30}),
            (
                42,
                "stepped",
                {
                    **about,
                    "step_seconds": 2,
                    "steps": 1,
                    "reward": 0.1,
                    "done": False,
                    "idle_deadline_in_seconds": 100,
                },
            ),
            (50, "called", {**about, "think_seconds": 8}),
            (
                50,
                "ended",
                {
                    **about,
                    "env": ENV,
                    "ending": "verified",
                    "reason": "verified",
                    "scored": True,
                    "reward": 0.1,
                    "steps": 1,
                    "overshoot_seconds": None,
                },
            ),
            (50, "verified", {**about, "masked_kind": None, "reward": 0.1}),
            (53, "freed", {**about, "env": ENV, "goodbye_seconds": 3}),
        ]
        assert reader.ids == [f"{INSTANCE}-{number}" for number in range(1, 8)]


async def test_an_answer_says_that_it_goes_on_and_is_not_to_be_kept(autojump_clock):
    async with raise_the_curtain(counting()) as stage:
        reader = await Reader(stage).begin()
        head = reader.head.decode().lower().split("\r\n")
        assert head[0] == "http/1.1 200 ok"
        assert {"content-type: text/event-stream", "cache-control: no-store", "transfer-encoding: chunked"} <= {*head}


async def test_how_gymserve_stands_is_told_at_once_and_every_second(autojump_clock):
    async with raise_the_curtain(counting(1), patience_seconds=50) as stage:
        await seeded(stage, "a")
        waiting = stage.client()
        await waiting.send("POST", "/seed_session", {"gymserve_label": "b"})
        await trio.sleep_until(7)
        reader = await Reader(stage).begin()
        await trio.sleep_until(9.5)
        assert [at for at, _ in reader.standing] == [7, 8, 9]
        _, standing = reader.standing[-1]
        assert standing["line"] == [{"label": "b", "waiting": 1, "oldest_wait_seconds": 9}]
        assert standing["servers"] == [{"url": ENV, "held": 1, "capacity": 1, "state": "full"}]
        listing = await stage.listing()
        assert {name: listing[name] for name in standing} == {
            **standing,
            "oldest_wait_seconds": 9.5,
            "line": [{"label": "b", "waiting": 1, "oldest_wait_seconds": 9.5}],
        }


async def test_a_client_goes_on_where_it_left_off(autojump_clock):
    async with raise_the_curtain(counting(9)) as stage:
        first = await Reader(stage).begin()
        client = await seeded(stage)
        await trio.sleep(1)
        assert first.names() == ["opened"]
        await first.peer.stream.aclose()
        await client.step()
        await client.verify()
        later = await Reader(stage, headers=(f"Last-Event-ID: {first.ids[-1]}",)).begin()
        await trio.sleep(1)
        assert later.names() == ["called", "stepped", "called", "ended", "verified", "freed"]
        by_query = await Reader(stage, f"/gymserve/events?after={first.ids[-1]}").begin()
        await trio.sleep(1)
        assert by_query.ids == later.ids


async def test_a_listing_names_the_event_to_go_on_from(autojump_clock):
    async with raise_the_curtain(counting(9)) as stage:
        client = await seeded(stage)
        event = (await stage.listing())["event"]
        await client.step()
        reader = await Reader(stage, f"/gymserve/events?after={event}").begin()
        await trio.sleep(1)
        assert reader.names() == ["called", "stepped"]


@pytest.mark.parametrize(
    "after",
    [
        *("0badbeef-1", "1", "", "-", "0a1b2c3d-", "0a1b2c3d--1", "0a1b2c3d-99", "0a1b2c3d-\xb2"),
        "0a1b2c3d-" + "9" * 5000,
    ],
)
async def test_who_asks_for_what_is_not_remembered_is_told_so(autojump_clock, after):
    async with raise_the_curtain(counting(9)) as stage:
        await seeded(stage)
        reader = await Reader(stage, headers=(f"Last-Event-ID: {after}",)).begin()
        await seeded(stage)
        await trio.sleep(1)
        assert reader.names() == ([] if after == "" else ["missed"]) + ["opened"]


async def test_events_beyond_the_number_that_is_remembered_are_forgotten(autojump_clock):
    telemetry = Telemetry()
    events = Events("0a1b2c3d", telemetry, most=10)
    for place in range(15):
        telemetry.tell(Waiting("s", None, "why", place))
    assert [event.fact.place for event in events.after(5)] == list(range(5, 15))
    assert events.after(15) == []
    for number in (4, 16):
        with pytest.raises(Missed):
            events.after(number)


async def test_what_happened_while_a_client_was_not_reading_is_missed_and_slows_nobody(autojump_clock):
    """Memory streams hold whatever is not read; this connection takes no byte until it is told to."""
    async with raise_the_curtain(counting(9), idle_timeout_seconds=1000) as stage:
        stage.instruments.events._kept = type(stage.instruments.events._kept)(maxlen=50)
        stuck = await stuck_reader(stage, stall_seconds=30)
        client = await seeded(stage, reset_kwargs={"target": 1000})
        started = trio.current_time()
        for _ in range(100):
            await client.step()
        assert trio.current_time() == started
        await trio.sleep(4)
        stuck.takes.set()
        await trio.sleep(4)
        assert (stuck.taken.count(b"event: missed"), stuck.taken.count(b"event: stepped")) == (1, 0)
        await client.step()
        await trio.sleep(1)
        assert stuck.taken.count(b"event: stepped") == 1


async def test_a_client_that_takes_nothing_is_cut(autojump_clock):
    async with raise_the_curtain(counting(9)) as stage:
        stuck = await stuck_reader(stage, stall_seconds=30)
        client = await seeded(stage)
        await client.step()
        await trio.sleep_until(29.9)
        assert not stuck.is_closed
        await trio.sleep_until(30.1)
        assert stuck.is_closed
        assert (await client.step()).status == 200


class Stuck(trio.abc.Stream):
    """The server's end of a connection whose client reads nothing until `takes` is set."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.takes = trio.Event()
        self.taken = b""
        self.is_closed = False

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        return await self._stream.receive_some(max_bytes)

    async def send_all(self, data: Any) -> None:
        await self.takes.wait()
        self.taken += bytes(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self.takes.wait()

    async def aclose(self) -> None:
        self.is_closed = True
        await self._stream.aclose()


async def stuck_reader(stage: Stage, *, stall_seconds: float) -> Stuck:
    client, server = memory_stream_pair()
    stuck = Stuck(server)
    peer: Peer = connect(
        stage.nursery,
        seen_from(stage.app, "127.0.0.1"),
        limits=Limits(stall_seconds=stall_seconds),
        pair=(client, stuck),
    )
    await peer.send(b"GET /gymserve/events HTTP/1.1\r\nHost: gymserve\r\n\r\n")
    await wait_all_tasks_blocked()
    return stuck


async def test_what_is_unknown_of_a_query_is_refused(autojump_clock):
    async with raise_the_curtain(counting()) as stage:
        answer = await stage.client().ask("GET", "/gymserve/events?since=1")
        assert (answer.status, answer.body["detail"][0]["loc"]) == (422, ["query", "since"])


async def test_no_more_than_so_many_read_at_once(autojump_clock):
    async with raise_the_curtain(counting()) as stage:
        readers = [await Reader(stage).begin() for _ in range(64)]
        refused = await stage.client().ask("GET", "/gymserve/events")
        assert (refused.status, refused.body["error"], refused.headers[b"retry-after"]) == (
            503,
            "too_many_watchers",
            b"10",
        )
        await readers[0].peer.stream.aclose()
        await trio.sleep(1)
        assert (await Reader(stage).begin()).head.startswith(b"HTTP/1.1 200")


async def test_a_thousand_calls_are_told_in_few_parts(autojump_clock):
    async with raise_the_curtain(counting(2)) as stage:
        reader = await Reader(stage).begin()
        client = await seeded(stage, reset_kwargs={"target": 1000})
        for _ in range(40):
            await client.step()
        await trio.sleep(0.5)
        assert {at for at, name, _ in reader.told if name == "stepped"} == {0.1}
        assert len(reader.names()) == 81


async def test_readers_are_told_of_the_stop_and_do_not_delay_it(autojump_clock):
    async with raise_the_curtain(counting(2, "slow-step:2")) as stage:
        reader = await Reader(stage).begin()
        client = await seeded(stage, "run")
        await trio.sleep_until(20)
        await client.send("POST", "/step", {"by": 1})
        await trio.sleep_until(21)
        await stage.gateway.drain(3)
        assert trio.current_time() == 22
        await trio.sleep(0.2)
        assert reader.is_over
        told = [(at, name) for at, name, _ in reader.facts() if name != "freed"]  # which may come a moment too late
        assert told[-3:] == [(21, "stopping"), (22, "stepped"), (22, "ended")]


async def test_readers_of_a_gymserve_without_sessions_do_not_delay_its_stop(autojump_clock):
    async with raise_the_curtain(counting(2)) as stage:
        reader = await Reader(stage).begin()
        await trio.sleep_until(20.5)
        await stage.gateway.drain(3)
        await wait_all_tasks_blocked()
        assert (trio.current_time(), reader.is_over, reader.names()) == (20.5, True, ["stopping"])


async def test_a_session_that_thinks_for_long_is_told_to_be_touched(autojump_clock):
    async with raise_the_curtain(counting(2), idle_timeout_seconds=100) as stage:
        client = await seeded(stage)
        reader = await Reader(stage).begin()
        await trio.sleep_until(70)
        touched = await client.ask("POST", "/gymserve/touch")
        await trio.sleep_until(71)
        [(at, name, data)] = reader.facts()
        assert (at, name, data["idle_deadline_in_seconds"]) == (70, "touched", 100)
        assert touched.body == {"idle_deadline_in_seconds": 100}


async def test_a_step_that_fails_is_told_before_what_it_led_to(autojump_clock):
    async def fails(message: dict[str, Any]) -> Any:
        return 1011 if message["type"] == "step" else {"type": "observation", "data": {"observation": {}, "reward": 0}}

    async with raise_the_curtain(ScriptedServer(fails)) as stage:
        client = await seeded(stage)
        reader = await Reader(stage).begin()
        assert (await client.step()).status == 502
        await trio.sleep(1)
        assert reader.names()[:3] == ["called", "stepped", "ended"]


async def test_labels_are_told_as_json(autojump_clock):
    label = 'a"\\\u2028é\U0001f600'
    async with raise_the_curtain(counting(2)) as stage:
        reader = await Reader(stage).begin()
        await seeded(stage, label)
        await trio.sleep(1)
        assert [data["label"] for _, name, data in reader.told if name == "opened"] == [label]


async def test_facts_of_no_session_and_calls_are_numbered_alike():
    telemetry = Telemetry()
    events = Events("0a1b2c3d", telemetry)
    telemetry.tell(Verified(None, None, "session_lost", 0.0))
    telemetry.tell(Called("s", "l", 1 / 3))
    assert [(event.name, event.data()["session"]) for event in events.after(0)] == [("verified", None), ("called", "s")]
    assert events.after(1)[0].data()["think_seconds"] == 0.333333
