"""The warning that many sessions are reclaimed, in virtual time: when it comes, and what it says."""

import math
from typing import Any

import pytest
import trio
import trio.testing
from counting import Counting
from hypothesis import given
from hypothesis import strategies as st
from stage import raise_the_curtain
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from gymserve.expiries import Expiries
from gymserve.gridsim.server import EnvironmentServer
from gymserve.score import Ending
from gymserve.telemetry import Called, Ended, ReclaimedAlive

MANY = "many sessions are reclaimed by their idle timeout"
CLOSE = (
    "a trainer abandons rollouts: have it close them (POST /close_session), or close its run by the label "
    "(gymserve close, gymserve hold)"
)
LOWER = ", or have their slots back sooner by a lower --idle-timeout (README: Choosing the idle timeout)"


class Run:
    """Sessions that end, and what is said of them: ``(time, line)``."""

    def __init__(self) -> None:
        self.expiries = Expiries()
        self.said: list[tuple[float, dict[str, Any]]] = []
        self._sessions = 0

    def tell(self, fact: Any) -> None:
        with capture_logs() as logs:
            self.expiries.hear(fact)
        self.said += [(trio.current_time(), dict(line)) for line in logs]

    def end(self, count: int = 1, ending: Ending = Ending.VERIFIED, label: str | None = "run") -> list[str]:
        """:returns: the sessions."""
        ended = []
        for _ in range(count):
            self._sessions += 1
            ended.append(f"{self._sessions:012x}")
            self.tell(Ended(ended[-1], label, "http://a:1", ending.value, "", False, 0.0, 0))
        return ended

    def reclaim(self, count: int = 1, label: str | None = "run") -> list[str]:
        return self.end(count, Ending.EXPIRED, label)

    def come_back(self, session: str, silent_seconds: float) -> None:
        self.tell(ReclaimedAlive(session, "run", silent_seconds, 100))

    @property
    def said_at(self) -> list[float]:
        return [at for at, _ in self.said]


async def test_the_tenth_is_warned_of_and_the_ninth_is_not(autojump_clock):
    run = Run()
    run.reclaim(9)
    assert run.said == []
    await trio.sleep(7)
    run.reclaim()
    assert run.said_at == [7]
    run.reclaim(50)
    assert run.said_at == [7]


@pytest.mark.parametrize(("others", "said"), [(39, 1), (40, 1), (41, 0)])
async def test_they_must_be_a_fifth_of_those_that_ended(autojump_clock, others, said):
    run = Run()
    run.end(others)
    run.reclaim(10)
    assert len(run.said) == said


async def test_every_ending_counts_among_all_and_one_only_as_a_reclaim(autojump_clock):
    run = Run()
    for ending in Ending:
        if ending is not Ending.EXPIRED:
            run.end(10, ending)
    assert run.said == []
    run.reclaim(22)  # of 112
    assert run.said == []
    run.reclaim()
    assert [(line["reclaimed"], line["ended"]) for _, line in run.said] == [(23, 113)]


async def test_the_window_slides(autojump_clock):
    run = Run()
    run.reclaim(5)
    await trio.sleep(1)
    run.reclaim(4)
    await trio.sleep_until(600)  # the five are over
    run.reclaim(5)
    assert run.said == []
    await trio.sleep_until(600.5)
    run.reclaim()
    assert run.said_at == [600.5]
    assert (run.said[0][1]["reclaimed"], run.said[0][1]["ended"], run.said[0][1]["within_seconds"]) == (10, 10, 600)


async def test_others_leave_the_window_too(autojump_clock):
    run = Run()
    run.end(100)
    await trio.sleep(599)
    run.reclaim(10)
    assert run.said == []
    await trio.sleep_until(600)
    run.reclaim()
    assert run.said_at == [600]


async def test_it_is_said_again_after_exactly_the_window_as_long_as_it_lasts(autojump_clock):
    run = Run()
    for at in range(0, 1810, 10):
        await trio.sleep_until(at)
        run.reclaim()
    assert run.said_at == [90, 690, 1290]
    assert [line["reclaimed"] for _, line in run.said] == [10, 60, 60]


async def test_it_is_not_said_again_where_it_has_ceased_and_is_when_it_comes_back(autojump_clock):
    run = Run()
    run.reclaim(20)
    await trio.sleep_until(600)
    run.reclaim(9)
    await trio.sleep_until(1190)
    assert run.said_at == [0]
    run.reclaim()
    assert run.said_at == [0, 1190]


async def test_the_line(autojump_clock):
    run = Run()
    for label, count in (("a", 1), ("b", 3), (None, 2), ("c" * 200, 3), ("e", 1)):
        run.reclaim(count, label)
    [(_, line)] = run.said
    assert line == {
        "event": MANY,
        "log_level": "warning",
        "reclaimed": 10,
        "ended": 10,
        "within_seconds": 600,
        "labels": {"b": 3, "c" * 100: 3, "": 2},
        "came_back": 0,
        "advice": CLOSE + LOWER,
    }


@pytest.mark.parametrize(("not_back", "others"), [(1, ""), (9, ""), (10, f"; of the others, {CLOSE}")])
async def test_where_clients_came_back_the_longest_silence_is_named(autojump_clock, not_back, others):
    run = Run()
    run.end(30)
    sessions = run.reclaim(9)
    for session, seconds in zip(sessions, (130.25, 250, 110, *[101] * 6), strict=True):
        run.come_back(session, seconds)
    run.come_back("ffffffffffff", 999)  # of another time
    run.end(5 * (9 + not_back) - 30 - 9 - not_back)
    run.reclaim(not_back)
    [(_, line)] = run.said
    assert (line["reclaimed"], line["came_back"]) == (9 + not_back, 9)
    assert line["advice"] == f"clients came back: raise --idle-timeout above 250, their longest silence{others}"


async def test_those_that_left_the_window_no_longer_count_as_back(autojump_clock):
    run = Run()
    back = run.reclaim(10)
    await trio.sleep_until(600)
    run.reclaim(9)
    for session in back:
        run.come_back(session, 5000)
    run.reclaim()
    assert [(at, line["came_back"]) for at, line in run.said] == [(0, 0), (600, 0)]


async def test_no_more_are_remembered_than_ten_thousand(autojump_clock):
    run = Run()
    run.end(9_990)
    run.reclaim(10)
    run.end(2_000)
    run.reclaim(1)
    remembered = [vars(run.expiries)[name] for name in ("_ended", "_expired")]
    assert list(map(len, remembered)) == [10_000, 11]
    run.end(10_000)
    assert list(map(len, remembered)) == [10_000, 0]


labels = st.one_of(st.none(), st.text(max_size=300))
seconds = st.floats(0, 1e12)
facts = st.one_of(
    st.builds(Ended, st.sampled_from("abcdefghijklmn"), labels, st.none(), st.sampled_from([e.value for e in Ending]),
              st.text(), st.booleans(), st.floats(), st.integers()),
    st.builds(ReclaimedAlive, st.sampled_from("abcdefghijklmn"), labels, seconds, seconds),
    st.builds(Called, st.text(), labels, seconds),
)  # fmt: skip


@given(st.lists(st.tuples(facts, st.floats(0, 400)), max_size=60))
def test_whatever_it_hears_nothing_is_raised(told):
    async def hear() -> None:
        expiries = Expiries()
        for fact, pause in told:
            expiries.hear(fact)
            await trio.sleep(pause)

    with capture_logs() as logs:
        trio.run(hear, clock=trio.testing.MockClock(autojump_threshold=0))
    assert all(math.isfinite(line["reclaimed"]) and line["event"] == MANY for line in logs)


async def test_a_whole_gymserve(autojump_clock):
    """Ten rollouts are abandoned and one of their clients comes back."""
    environment = EnvironmentServer(Counting, capacity=20)
    async with raise_the_curtain(environment, idle_timeout_seconds=100) as stage:
        stage.gateway.telemetry.listen(Expiries().hear)
        back = stage.client()
        await back.seed({"gymserve_label": "run-7"})
        for _ in range(9):
            await trio.sleep(10)
            await stage.client().seed({"gymserve_label": "run-7"})
        await trio.sleep_until(150)
        await back.step()
        with capture_logs() as logs:
            await trio.sleep_until(189.9)
            assert MANY not in [line["event"] for line in logs]
            await trio.sleep_until(190)
            await wait_all_tasks_blocked()
    [line] = [line for line in logs if line["event"] == MANY]
    assert (line["reclaimed"], line["ended"], line["came_back"], line["labels"]) == (10, 10, 1, {"run-7": 10})
    assert line["advice"].startswith("clients came back: raise --idle-timeout above 150, ")
