"""Sessions as they are shown, in virtual time: pages, filters, and what is told of one."""

from typing import Any

import pytest
import trio
from counting import Counting
from scripted import ScriptedServer, observed, refused
from stage import Client, Stage, raise_the_curtain
from trio.testing import wait_all_tasks_blocked

from gymserve.events import Events
from gymserve.gridsim.faults import parse_fault
from gymserve.gridsim.server import EnvironmentServer
from gymserve.identity import short
from gymserve.telemetry import Called, Stepped, Telemetry, Touched, Waiting
from gymserve.timelines import Timelines

ENV = "http://environment:8000"


def counting(capacity: int = 9, *faults: str) -> EnvironmentServer:
    return EnvironmentServer(Counting, capacity=capacity, faults=[parse_fault(fault) for fault in faults])


async def seeded(stage: Stage, label: str | None = None, **row: Any) -> Client:
    client = stage.client()
    assert (await client.seed({**({} if label is None else {"gymserve_label": label}), **row})).status == 200
    return client


async def asking(stage: Stage, label: str) -> Client:
    client = stage.client()
    await client.send("POST", "/seed_session", {"gymserve_label": label})
    await wait_all_tasks_blocked()
    return client


async def look(stage: Stage, query: str = "", *, at: str = "/gymserve/sessions") -> Any:
    answer = await stage.client().ask("GET", f"{at}{query}")
    assert answer.status == 200, answer.body
    return answer.body


def of(body: Any, name: str = "label") -> list[Any]:
    return [session[name] for session in body["sessions"]]


async def test_each_state_is_counted_listed_and_filtered(autojump_clock):
    async with raise_the_curtain(counting(4, "slow-step:20", "slow-close:20"), idle_timeout_seconds=100) as stage:
        done = await seeded(stage, "done", reset_kwargs={"target": 1})
        await done.step()
        await trio.sleep_until(50)
        await seeded(stage, "idle")
        await seeded(stage, "rests")
        busy, closing = await seeded(stage, "busy"), await seeded(stage, "closing")
        await busy.send("POST", "/step", {"by": 1})
        await wait_all_tasks_blocked()
        await closing.verify()
        await asking(stage, "waiting")
        body = await look(stage)
        assert {session["label"]: (session["state"], session["holds_slot"]) for session in body["sessions"]} == {
            "done": ("done", False),
            "idle": ("idle", True),
            "rests": ("idle", True),
            "busy": ("busy", True),
            "closing": ("closing", True),
        }
        assert body["counts"] == {"waiting": 1, "opening": 0, "idle": 2, "busy": 1, "done": 1, "closing": 1}
        assert of(await look(stage, "?state=busy")) == ["busy"]
        assert of(await look(stage, "?label=idle&state=busy")) == []
        assert of(await look(stage, "?label=idle&state=idle")) == ["idle"]


async def test_a_session_whose_turn_it_is_opens(autojump_clock):
    async with raise_the_curtain(counting(1, "slow-reset:20")) as stage:
        await asking(stage, "a")
        await trio.sleep_until(10)
        body = await look(stage, "?slots=true")
        assert [(row["state"], row["env"], row["age_seconds"]) for row in body["sessions"]] == [("opening", None, 10)]
        assert (body["counts"]["opening"], body["waiting"], body["servers"][0]["held"]) == (1, 0, 1)
        assert body["servers"][0]["slots"] == {"opening": 1, "idle": 0, "busy": 0, "closing": 0}


async def test_those_in_the_line_are_listed_where_they_are_asked_for(autojump_clock):
    async with raise_the_curtain(counting(1), patience_seconds=100) as stage:
        await seeded(stage, "a")
        await asking(stage, "b")
        await trio.sleep_until(30)
        await asking(stage, "b")
        await asking(stage, "a")
        await trio.sleep_until(40)
        body = await look(stage)
        assert of(body) == ["a"] and body["matching"] == 1
        assert body["counts"]["waiting"] == body["waiting"] == 3
        assert body["line"] == [
            {"label": "b", "waiting": 2, "oldest_wait_seconds": 40},
            {"label": "a", "waiting": 1, "oldest_wait_seconds": 10},
        ]
        waiting = await look(stage, "?state=waiting&label=b")
        assert [(row["age_seconds"], row["env"], row["holds_slot"]) for row in waiting["sessions"]] in (
            [(40, None, False), (10, None, False)],
            [(10, None, False), (40, None, False)],
        )


async def test_pages_have_every_session_once_also_where_some_end_meanwhile(autojump_clock):
    async with raise_the_curtain(counting(30)) as stage:
        clients = [await seeded(stage, f"{number % 2}") for number in range(30)]
        everything = of(await look(stage), "id")
        assert everything == sorted(everything)
        first = await look(stage, "?limit=7")
        assert of(first, "id") == everything[:7] and (first["next"], first["matching"]) == (everything[6], 30)
        by_id = {short(session.id): session for session in stage.gateway.all_sessions()}
        stage.gateway.close(by_id[everything[6]].id, "over")  # the very one that the next page begins after
        await trio.sleep(1)
        seen, after = of(first, "id"), first["next"]
        while after is not None:
            page = await look(stage, f"?limit=7&after={after}")
            seen, after = seen + of(page, "id"), page["next"]
        assert seen == everything
        exact = await look(stage, f"?limit=2&after={everything[27]}")
        assert of(exact, "id") == everything[28:] and exact["next"] is None
        half = await look(stage, "?label=1&limit=100")
        assert set(of(half)) == {"1"} and half["next"] is None
        assert len(clients) == 30


async def test_the_first_in_an_order_are_shown_where_one_is_asked_for(autojump_clock):
    async with raise_the_curtain(counting(9, "slow-step:20"), idle_timeout_seconds=100) as stage:
        first = await seeded(stage, "b", reset_kwargs={"target": 1})
        await trio.sleep_until(10)
        second = await seeded(stage, "c")
        await trio.sleep_until(15)
        await seeded(stage, None)
        await first.send("POST", "/step", {"by": 1})
        await trio.sleep_until(40)
        await second.step()
        await second.step()
        await second.send("POST", "/step", {"by": 1})
        await trio.sleep_until(90)
        await seeded(stage, "a")
        sessions = {sort: of(await look(stage, f"?sort={sort}")) for sort in ("expires", "age", "steps", "label")}
        assert sessions == {
            "expires": [None, "a", "b", "c"],  # one is done and holds no slot, one is busy
            "age": ["b", "c", None, "a"],
            "steps": ["c", "b", None, "a"],
            "label": ["a", "b", "c", None],
        }
        some = await look(stage, "?sort=steps&limit=2")
        assert (of(some), some["matching"], some["next"]) == (["c", "b"], 4, None)
        assert of(await look(stage, "?sort=age&state=idle")) == [None, "a"]


async def test_the_slots_of_each_server_are_told_by_what_holds_them(autojump_clock):
    async with raise_the_curtain(counting(5, "slow-step:20", "slow-close:20")) as stage:
        clients = [await seeded(stage, reset_kwargs={"target": 1}) for _ in range(5)]
        await clients[0].step()
        await clients[1].send("POST", "/step", {"by": 1})
        await clients[2].verify()
        await wait_all_tasks_blocked()
        [server] = (await look(stage, "?slots=true&limit=1"))["servers"]
        assert (server["held"], server["slots"]) == (5, {"opening": 0, "idle": 2, "busy": 1, "closing": 2})


@pytest.mark.parametrize(
    "query, place",
    [
        ("?limit=0", "limit"),
        ("?limit=-1", "limit"),
        ("?limit=many", "limit"),
        ("?limit=1.5", "limit"),
        ("?state=asleep", "state"),
        ("?sort=up", "sort"),
        ("?slots=some", "slots"),
        ("?labels=a", "labels"),
        ("?ended=perhaps", "ended"),
    ],
)
async def test_what_cannot_be_wanted_is_refused_with_its_place(autojump_clock, query, place):
    async with raise_the_curtain(counting()) as stage:
        answer = await stage.client().ask("GET", f"/gymserve/sessions{query}")
        assert (answer.status, answer.body["error"]) == (422, "bad_arguments")
        assert [fault["loc"] for fault in answer.body["detail"]] == [["query", place]]


async def test_a_page_of_another_order_has_no_next(autojump_clock):
    async with raise_the_curtain(counting()) as stage:
        answer = await stage.client().ask("GET", "/gymserve/sessions?sort=age&after=0123456789ab")
        assert (answer.status, [fault["type"] for fault in answer.body["detail"]]) == (422, ["value_error"])


# -- one session -----------------------------------------------------------------------------------------------------


async def story(stage: Stage, session: str) -> Any:
    body = await look(stage, at=f"/gymserve/sessions/{session}")
    epoch = stage.instruments.events._epoch
    for entry in body["timeline"]:
        entry["at"] = round(entry.pop("at_epoch_seconds") - epoch, 3)
    return body


async def test_what_happened_to_a_session_is_told_while_it_lives_and_when_it_is_over(autojump_clock):
    async with raise_the_curtain(counting(1, "slow-step:2"), idle_timeout_seconds=100) as stage:
        first = await seeded(stage)
        client = await asking(stage, "run")
        await trio.sleep_until(20)
        await first.verify()
        await client.answer()
        [row] = of(await look(stage, "?label=run"), "id")
        await trio.sleep_until(30)
        await client.step()
        told = await story(stage, row)
        opened = {
            "event": "opened",
            "at": 20,
            "env": ENV,
            "waited_seconds": 20,
            "reset_seconds": 0,
            "tries": 2,
            "idle_deadline_in_seconds": 100,
        }
        assert told["timeline"][0]["event"] == "waiting" and told["timeline"][0]["place"] == 1
        assert told["timeline"][1:] == [
            {**opened, "tries": told["timeline"][1]["tries"]},
            {
                "event": "stepped",
                "at": 32,
                "think_seconds": 10,
                "step_seconds": 2,
                "steps": 1,
                "reward": 0.1,
                "done": False,
            },
        ]
        assert (told["session"]["state"], told["tombstone"], told["left_out"]) == ("idle", None, 0)
        await trio.sleep_until(140)
        await client.verify()
        over = await story(stage, row)
        assert over["session"] is None
        assert {name: over["tombstone"][name] for name in ("ending", "scored", "steps", "seconds_waiting")} == {
            "ending": "idle timeout",
            "scored": False,
            "steps": 1,
            "seconds_waiting": 20,
        }
        assert [(entry["at"], entry["event"]) for entry in over["timeline"][3:]] == [
            (132, "ended"),
            (132, "freed"),
            (140, "reclaimed_alive"),
            (140, "verified"),
        ]
        await trio.sleep_until(132 + 899)
        assert (await story(stage, row))["tombstone"] is not None
        await trio.sleep_until(132 + 901)
        assert (await stage.client().ask("GET", f"/gymserve/sessions/{row}")).status == 404


async def test_a_session_that_never_opened_is_told_of(autojump_clock):
    async def is_broken(message: dict[str, Any]) -> Any:
        return refused("EXECUTION_ERROR", "no such level") if message["type"] == "reset" else observed()

    async with raise_the_curtain(ScriptedServer(is_broken)) as stage:
        client = stage.client()
        assert (await client.seed({"gymserve_label": "run"})).status == 502
        event = stage.instruments.events.after(0)[-1]
        told = await story(stage, event.fact.session)
        assert told["tombstone"]["ending"] == "never opened"
        assert told["timeline"][-1]["event"] in ("ended", "freed")


@pytest.mark.parametrize("session", ["", "0123456789ab", "%00", "..", "a" * 5000, "0123456789ab/more"])
async def test_a_session_that_nobody_knows_is_not_found(autojump_clock, session):
    async with raise_the_curtain(counting()) as stage:
        await seeded(stage)
        assert (await stage.client().ask("GET", f"/gymserve/sessions/{session}")).status == 404


async def test_of_a_long_session_the_beginning_and_the_last_are_told():
    telemetry = Telemetry()
    timelines = Timelines(Events("0a1b2c3d", telemetry), kept_seconds=900)
    telemetry.tell(Waiting("s", None, "full", 1))
    for step in range(1, 101):
        telemetry.tell(Called("s", None, 0.5))
        telemetry.tell(Stepped("s", None, 0.25, step, step / 4, step == 100, 9.0))
        telemetry.tell(Touched("s", None, float(step)))
    timeline = timelines.get("s")
    assert timeline is not None
    entries = timeline.entries()
    assert [entry["steps"] for entry in entries if entry["event"] == "stepped"] == list(range(69, 101))
    assert [entry["idle_deadline_in_seconds"] for entry in entries if entry["event"] == "touched"] == [
        *range(1, 8),
        *range(77, 101),
    ]
    assert entries[-2] == {**entries[-2], "reward": 25, "done": True, "think_seconds": 0.5, "step_seconds": 0.25}
    assert timeline.left_out == 68 + 100 + 1 - 32
    assert timelines.get("t") is None
