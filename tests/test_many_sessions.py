"""Many sessions: they end at one instant without keeping others from the loop, and leave nothing behind."""

import gc
from contextvars import ContextVar
from typing import Any

import pytest
import trio
from counting import Counting
from scripted import ScriptedServer, agreeable
from stage import raise_the_curtain
from trio.testing import wait_all_tasks_blocked

from gymserve.alarms import IN_ONE_TURN
from gymserve.call import Reply
from gymserve.deadline import Deadline
from gymserve.episode import Episode
from gymserve.gridsim.server import EnvironmentServer
from gymserve.opening import Progress
from gymserve.session import Seed, Session
from gymserve.telemetry import Ended
from gymserve.ticket import Ticket


class Endings(trio.abc.Instrument):
    """When sessions ended, and how many of them in each turn of Trio's loop."""

    def __init__(self) -> None:
        self.at: list[float] = []
        self.in_turns: list[int] = []
        self._before = 0

    def hear(self, fact: Any) -> None:
        if isinstance(fact, Ended):
            self.at.append(trio.current_time())

    def before_io_wait(self, timeout: float) -> None:
        self.in_turns.append(len(self.at) - self._before)
        self._before = len(self.at)


class SlotsInTurns(trio.abc.Instrument):
    """How many slots an environment server gets back in each turn of Trio's loop."""

    def __init__(self, server: EnvironmentServer) -> None:
        self.freed: list[int] = []
        self._server = server
        self._active = server.episodes["active"]

    def before_io_wait(self, timeout: float) -> None:
        active = self._server.episodes["active"]
        self.freed.append(self._active - active)
        self._active = active


async def test_those_that_end_at_one_instant_do_so_at_that_instant_a_few_in_each_turn(autojump_clock):
    sessions = 5 * IN_ONE_TURN
    environment = EnvironmentServer(Counting, capacity=sessions + 1)
    async with raise_the_curtain(environment, idle_timeout_seconds=120) as stage:
        for _ in range(sessions):
            await stage.client().seed()
        other = stage.client()
        await trio.sleep(1)
        await other.seed()
        endings = Endings()
        stage.gateway.telemetry.listen(endings.hear)
        trio.lowlevel.add_instrument(endings)
        await trio.sleep_until(120)
        assert (await other.step(1)).status == 200
        await wait_all_tasks_blocked()
        trio.lowlevel.remove_instrument(endings)
        assert trio.current_time() == 120  # others do not wait for goodbyes, and these take no time
        assert endings.at == [120] * sessions
        assert max(endings.in_turns) == IN_ONE_TURN
        assert stage.episodes["active"] == stage.opener.line.held == 1


async def test_each_of_many_ends_at_its_own_instant(autojump_clock):
    environment = EnvironmentServer(Counting, capacity=20)
    endings = Endings()
    async with raise_the_curtain(environment, idle_timeout_seconds=60) as stage:
        stage.gateway.telemetry.listen(endings.hear)
        for number in range(20):
            await trio.sleep_until(number / 64)
            await stage.client().seed()
        await trio.sleep(100)
    assert endings.at == [60 + number / 64 for number in range(20)]


async def test_a_run_that_is_closed_lets_go_of_its_slots_a_few_in_each_turn(autojump_clock):
    sessions = 5 * IN_ONE_TURN
    environment = EnvironmentServer(Counting, capacity=sessions)
    async with raise_the_curtain(environment) as stage:
        for _ in range(sessions):
            await stage.client().seed({"gymserve_label": "run"})
        turns = SlotsInTurns(environment)
        trio.lowlevel.add_instrument(turns)
        assert stage.gateway.close_label("run", refused_seconds=10) == sessions
        await wait_all_tasks_blocked()
        trio.lowlevel.remove_instrument(turns)
        assert (environment.episodes["active"], trio.current_time()) == (0, 0)
        assert 0 < max(turns.freed) <= 2 * IN_ONE_TURN  # what began in two turns may come over there in one


OURS = (Session, Episode, Ticket, Deadline, Progress, Reply)


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def left() -> list[Any]:
    return [thing for thing in gc.get_objects() if isinstance(thing, OURS)]


@pytest.mark.parametrize("ending", ["verified", "expired", "closed", "closed in a step", "lost", "done"])
async def test_an_ended_session_leaves_nothing_for_the_collector(autojump_clock, no_collector, ending):
    async def script(message: dict[str, Any]) -> Any:
        if message["type"] == "step" and ending == "closed in a step":
            await trio.sleep(100)
        if message["type"] == "step" and ending == "done":
            return {"type": "observation", "data": {"observation": {}, "reward": 1, "done": True}}
        return 1006 if message["type"] == "step" and ending == "lost" else await agreeable(message)

    async with raise_the_curtain(ScriptedServer(script), idle_timeout_seconds=50, keepalive_seconds=20) as stage:
        client, closer = stage.client(), stage.client()
        await client.seed()
        closer.cookies = client.cookies
        if ending in ("closed in a step", "lost", "done"):
            await client.send("POST", "/step", {})
            await trio.sleep(1)
        if ending.startswith("closed"):
            await closer.ask("POST", "/close_session")
        elif ending in ("verified", "done"):
            await closer.verify()
        await trio.sleep(100)
        if ending in ("closed in a step", "lost", "done"):
            await client.answer()
        assert stage.gateway.all_sessions() == []
        assert left() == []


async def test_a_session_holds_nothing_of_the_request_that_began_it(autojump_clock, no_collector):
    class Request:
        """What a framework keeps in a context variable while it serves a request."""

    current: ContextVar[Request] = ContextVar("current")

    async with raise_the_curtain(EnvironmentServer(Counting, capacity=1)) as stage:

        async def serve() -> None:
            current.set(Request())
            await stage.gateway.seed(stage.gateway.new_session_id(), Seed())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
        assert len(stage.gateway.all_sessions()) == 1
        assert [thing for thing in gc.get_objects() if type(thing) is Request] == []
