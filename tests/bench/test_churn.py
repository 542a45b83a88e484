"""The churn bench: nothing lost in real time, and in virtual time every moment exact."""

import json
import math
import random
from pathlib import Path

import pytest
from churn import main
from churning.crowd import Shape
from churning.figures import figures, gaps, overshoots, phases, spans, use, waits
from churning.habits import THINK, Habits, Phase, Think
from churning.real import churn_in_real_time
from churning.records import Churn, EpisodeRecord, Outcome, RolloutRecord
from churning.virtual import churn_in_virtual_time
from curve import killed_share_expected, points, summed_up
from reporting import Target, percentile

ALWAYS = Think(median_seconds=10.0, p99_seconds=10.0)  # ten seconds, by no chance


def virtual(habits: Habits, shape: Shape, *, slots: int = 2, idle: float = 60.0, reset: float = 1.0) -> Churn:
    return churn_in_virtual_time(habits, shape, slots=slots, idle_timeout_seconds=idle, reset_seconds=reset, seed=0)


def habits(*, abandoned: float = 0.0, cancelled: float = 0.0, phase: Phase = Phase.THINKING) -> Habits:
    return Habits(2, ALWAYS, 1.0, abandoned_share=abandoned, cancelled_share=cancelled, phases=(phase,))


def seen(churn: Churn) -> list[tuple[float, float | None]]:
    """The episodes' first and last moments, from the beginning."""
    moments = [(one.reset_at - churn.began_at, (one.closed_at or math.nan) - churn.began_at) for one in churn.episodes]
    return sorted((round(first, 6), round(last, 6)) for first, last in moments)


def test_rollouts_follow_each_other_in_their_slots() -> None:
    churn = virtual(habits(), Shape(groups=1, group_size=4, seconds=1.0))
    # A second for the reset, thirty for three thinks, two for two calls.
    assert seen(churn) == [(1.0, 33.0), (1.0, 33.0), (34.0, 66.0), (34.0, 66.0)]
    assert [rollout.outcome for rollout in churn.rollouts] == [Outcome.FINISHED] * 4
    assert sorted(waits(churn)) == pytest.approx([1, 1, 34, 34])
    assert gaps(churn) == []  # nothing was begun after the first second, so nothing counts


def test_who_leaves_between_two_calls_is_reclaimed_in_the_moment() -> None:
    churn = virtual(habits(abandoned=1.0), Shape(groups=1, group_size=1, seconds=1.0))
    [episode] = churn.episodes
    assert episode.closed_at == pytest.approx(episode.last_at + 60.0)
    assert overshoots(churn) == pytest.approx([0.0])
    assert phases(churn) == {"between two calls": 1}


def test_who_leaves_during_a_call_is_reclaimed_after_its_answer() -> None:
    churn = virtual(habits(abandoned=1.0, phase=Phase.CALL), Shape(groups=1, group_size=1, seconds=1.0))
    assert phases(churn) == {"during a call": 1}
    assert overshoots(churn) == pytest.approx([0.0])


def test_who_leaves_the_line_takes_no_slot() -> None:
    shape = Shape(groups=0, group_size=1, seconds=20.0, arrivals_per_second=0.5)
    churn = virtual(habits(abandoned=1.0, phase=Phase.LINE), shape, slots=1)
    assert phases(churn)["in the line"] > 0
    assert all(one.closed_at == one.reset_at for one in episodes_of_who_left_before_the_answer(churn))
    assert churn.left == {"sessions": 0, "waiting": 0, "slots": 0}


def test_who_leaves_while_it_is_opened_has_its_slot_taken_back_at_once() -> None:
    shape = Shape(groups=0, group_size=1, seconds=20.0, arrivals_per_second=0.5)
    churn = virtual(habits(abandoned=1.0, phase=Phase.OPENING), shape, slots=1)
    left = episodes_of_who_left_before_the_answer(churn)
    assert 0 < len(left) == phases(churn)["while it was opened"]
    assert all(one.closed_at == one.reset_at for one in left)


def episodes_of_who_left_before_the_answer(churn: Churn) -> list[EpisodeRecord]:
    return [one for one in churn.episodes if churn.rollouts[one.rollout].opened_at is None]


def test_a_cancelled_group_gives_everything_back() -> None:
    churn = virtual(habits(cancelled=1.0), Shape(groups=1, group_size=4, seconds=200.0))
    counted = figures(churn)
    assert counted["cancelled"] > 0
    assert (counted["leaked"], counted["lost"], counted["masked"]) == (0, 0, 0)
    assert max(overshoots(churn)) == pytest.approx(0.0, abs=1e-6)


def test_nobody_acts_in_a_pause() -> None:
    shape = Shape(groups=1, group_size=1, seconds=1.0, pause_every_seconds=5.0, pause_seconds=20.0)
    churn = virtual(habits(), shape)
    assert seen(churn)[0] == (1.0, 75.0)  # each think of ten ends in a pause: it goes on at 25, 50 and 75
    assert [(round(began - churn.began_at), round(ended - churn.began_at)) for began, ended in churn.pauses] == [
        (5, 25),
        (30, 50),
        (55, 75),
    ]


def test_groups_arrive_by_chance() -> None:
    churn = virtual(habits(), Shape(groups=0, group_size=1, seconds=300.0, arrivals_per_second=0.05), slots=8)
    assert 5 < len(churn.rollouts) < 30
    assert {rollout.outcome for rollout in churn.rollouts} == {Outcome.FINISHED}


def test_every_phase_at_once_and_nothing_is_left() -> None:
    habits = Habits(3, Think(8.0, 120.0, most_seconds=100.0), 1.0, abandoned_share=0.4, cancelled_share=0.15)
    churn = virtual(habits, Shape(groups=4, group_size=3, seconds=900.0), slots=4, idle=101.0)
    found = figures(churn)
    assert {"in the line", "between two calls", "during a call", "before verify"} <= found["left without a word"].keys()
    assert (found["lost"], found["masked"], found["reclaimed alive"], found["leaked"]) == (0, 0, 0, 0)
    assert found["reclaim after the deadline, max (s)"] < 1e-6
    assert found["slots busy while there is work for all"] > 0.97
    assert found["complaints"] == []


def test_a_live_rollout_is_killed_only_by_a_think_beyond_the_idle_timeout() -> None:
    churn = virtual(Habits(8, THINK, 1.0, 0.1, 0.0), Shape(groups=2, group_size=4, seconds=500.0), slots=4, idle=60.0)
    played = summed_up(churn, 0.1)
    assert played.killed > 0
    assert (played.killed_in_time, played.lived_too_long) == (0, 0)
    [point] = points([played])
    assert point.killed_share == pytest.approx(killed_share_expected(60.0), abs=0.3)


def test_thinks_have_the_median_and_the_percentile_that_they_should() -> None:
    chance = random.Random(0)
    drawn = sorted(THINK.draw(chance) for _ in range(20_000))
    assert drawn[10_000] == pytest.approx(8.0, rel=0.05)
    assert drawn[19_800] == pytest.approx(120.0, rel=0.1)
    assert sum(drawn) / 20_000 == pytest.approx(THINK.mean_seconds, rel=0.05)
    assert THINK.scaled_to(0.2).mean_seconds == pytest.approx(0.2)


def test_use_counts_only_the_time_with_work_for_all() -> None:
    churn = Churn(slots=2, idle_timeout_seconds=9.0, began_at=0.0, ended_at=20.0)
    churn.rollouts = [
        RolloutRecord(0, seeded_at=0.0, opened_at=1.0, left_at=10.0, outcome=Outcome.FINISHED),
        RolloutRecord(1, seeded_at=0.0, opened_at=1.0, left_at=4.0, outcome=Outcome.ABANDONED),
        RolloutRecord(2, seeded_at=2.0, opened_at=14.0, left_at=19.0, outcome=Outcome.FINISHED),
    ]
    churn.episodes = [
        EpisodeRecord(0, reset_at=1.0, last_at=9.0, closed_at=10.0),
        EpisodeRecord(1, reset_at=1.0, last_at=4.0, closed_at=13.0),
        EpisodeRecord(2, reset_at=14.0, last_at=18.0, closed_at=19.0),
    ]
    assert [(span.began_at, span.busy, span.live, span.waiting) for span in spans(churn)] == [
        (0.0, 0, 0, 2),
        (1.0, 2, 2, 0),
        (2.0, 2, 2, 1),
        (4.0, 2, 1, 1),
        (10.0, 1, 0, 1),
        (13.0, 0, 0, 1),
        (14.0, 1, 1, 0),
        (19.0, 0, 0, 0),
    ]
    used = use(churn)
    assert used is not None and used.contended_seconds == 13.0
    assert (used.busy, used.live, used.useful) == pytest.approx((21 / 26, 12 / 26, 9 / 26))
    assert gaps(churn) == [4.0]
    assert overshoots(churn) == [0.0]


def test_percentiles_are_values_that_were_measured() -> None:
    assert percentile([], 50) is None
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile([float(n) for n in range(1, 101)], 99) == 99.0


def test_a_target_is_missed_by_what_was_not_measured() -> None:
    assert Target("a", 3, ">=", 3).is_met and Target("b", 3, "<=", 3).is_met and Target("c", 0, "==", 0).is_met
    assert not Target("d", None, "==", 0).is_met and not Target("e", math.nan, "<=", 3).is_met


def test_against_real_processes() -> None:
    """What it measures is for a quiet machine; that nothing is lost or left holds on any."""
    habits = Habits(4, Think(0.02, 0.2, most_seconds=0.5), 0.01, abandoned_share=0.2, cancelled_share=0.1)
    shape = Shape(groups=2, group_size=3, seconds=2.0, pause_every_seconds=1.0, pause_seconds=0.2)
    found = figures(churn_in_real_time(habits, shape, slots=3, idle_timeout_seconds=1.5, reset_seconds=0.01, seed=0))
    assert found["finished"] > 0 and found["complaints"] == []
    assert (found["lost"], found["masked"], found["leaked"]) == (0, 0, 0)


def test_the_bench_tells_what_it_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = tmp_path / "churn.json"
    assert main(["--virtual", "--seconds", "300", "--abandoned", "0.5", "--quick", "--json", str(document)]) == 0
    written = json.loads(document.read_text())
    assert written["bench"] == "churn in virtual time"
    assert written["machine"]["cores"] >= 1
    met = {target["name"]: target["met"] for target in written["targets"]}
    assert met.pop("phases in which clients left") is None  # five minutes do not show them all
    assert set(met.values()) == {True}
    assert "slots busy while there is work for all" in capsys.readouterr().out
