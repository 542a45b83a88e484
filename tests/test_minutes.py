"""What ended in each minute, in virtual time."""

import math

import trio
from counting import Counting
from stage import Client, Stage, raise_the_curtain

from gymserve.events import Events
from gymserve.gridsim.server import EnvironmentServer
from gymserve.minutes import Minutes
from gymserve.telemetry import Ended, Telemetry, Verified


async def seeded(stage: Stage) -> Client:
    client = stage.client()
    assert (await client.seed()).status == 200
    return client


async def test_a_listing_tells_what_ended_in_each_minute_where_it_is_asked_to(autojump_clock):
    async with raise_the_curtain(EnvironmentServer(Counting, capacity=9), idle_timeout_seconds=100) as stage:
        first = 60 * math.ceil(stage.instruments.events.now_epoch_seconds / 60)
        await trio.sleep(first - stage.instruments.events.now_epoch_seconds + 1)
        began = trio.current_time()
        await (await seeded(stage)).verify()
        expired = await seeded(stage)
        await trio.sleep_until(began + 61)
        await (await seeded(stage)).verify()
        await (await seeded(stage)).ask("POST", "/close_session", {})
        await trio.sleep_until(began + 125)
        await expired.verify()
        listing = (await stage.client().ask("GET", "/gymserve/sessions?ended=true")).body
        assert listing["ended"]["since_epoch_seconds"] == round(
            stage.instruments.events.now_epoch_seconds - trio.current_time(), 3
        )
        assert listing["ended"]["minutes"] == [
            {"at_epoch_seconds": first, "scored": 1, "not_scored": 0, "verified": 1, "masked": {}},
            {"at_epoch_seconds": first + 60, "scored": 1, "not_scored": 2, "verified": 1, "masked": {}},
            {
                "at_epoch_seconds": first + 120,
                "scored": 0,
                "not_scored": 0,
                "verified": 1,
                "masked": {"session_expired": 1},
            },
        ]
        assert "ended" not in await stage.listing()


async def test_no_more_than_half_an_hour_is_remembered(autojump_clock):
    telemetry = Telemetry()
    minutes = Minutes(Events("0a1b2c3d", telemetry, epoch_seconds=lambda: 6_000_000.0))
    for _ in range(100):
        telemetry.tell(Ended("s", None, None, "lost", "", False, 0.0, 0))
        telemetry.tell(Verified("s", None, "session_lost", 0.0))
        await trio.sleep(60)
    told = minutes.told()["minutes"]
    assert [minute["at_epoch_seconds"] for minute in told] == [6_000_000 + 60 * number for number in range(69, 100)]
    assert all(minute["masked"] == {"session_lost": 1} and minute["not_scored"] == 1 for minute in told)
