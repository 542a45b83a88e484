"""The idle timeout's price: slots that wait for nobody against live rollouts that are killed while they think.

For each idle timeout, and each share of rollouts that are abandoned without a word, gymserve plays the same crowd in
virtual time (see bench/churn.py --virtual), ``--seeds`` times: 4 slots, always more rollouts than slots, each with 8
calls of 1 s and 9 thinks, lognormal with median 8 s and p99 120 s. All is in gymserve's hands as it is in real time,
but for the sockets.

Shown for each: the share of slot time that has a live rollout, and that has one that is finished in the end; live
rollouts killed, beside what the distribution lets one expect; rollouts finished for each hour of a slot. The targets
hold gymserve to the letter: nobody is killed who was heard of in time, nobody lives who was not.
"""

import argparse
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product

from churning.crowd import Shape
from churning.figures import overshoots, use
from churning.habits import THINK, Habits, Phase
from churning.records import Churn, Outcome
from churning.virtual import churn_in_virtual_time
from reporting import PALETTE, Report, Target, add_arguments, picture, pictures
from rich.table import Table

CALLS = 8
SLOTS = 4
GROUPS, GROUP_SIZE = 2, 8
STEP_SECONDS = 1.0
RESET_SECONDS = 1.0
IDLE_TIMEOUTS = (5, 10, 20, 30, 45, 60, 90, 120, 180, 240, 300, 450, 600)
QUICK_IDLE_TIMEOUTS = (20, 120, 600)
ABANDONED_SHARES = (0.02, 0.1, 0.25)
PHASES = (Phase.THINKING, Phase.CALL, Phase.VERIFY)  # those in which a slot is held
WORKERS = 2


@dataclass(frozen=True, slots=True)
class Played:
    """One churn, summed up. Seconds are a slot's."""

    idle_timeout_seconds: float
    abandoned_share: float
    slot_seconds: float
    live_seconds: float
    useful_seconds: float
    finished: int
    killed: int
    killed_in_time: int
    lived_too_long: int
    latest_seconds: float


@dataclass(frozen=True, slots=True)
class Point:
    """All churns of one idle timeout and one share of abandoned rollouts."""

    idle_timeout_seconds: float
    abandoned_share: float
    live_share: float
    useful_share: float
    killed_share: float
    killed_share_expected: float
    killed: int
    rollouts: int
    finished_per_slot_hour: float


def habits(abandoned_share: float) -> Habits:
    return Habits(CALLS, THINK, STEP_SECONDS, abandoned_share, cancelled_share=0.0, phases=PHASES)


def play(seconds: float, case: tuple[float, float, int]) -> Played:
    """:param case: idle timeout, share of abandoned rollouts, seed."""
    idle_timeout_seconds, abandoned_share, seed = case
    churn = churn_in_virtual_time(
        habits(abandoned_share),
        Shape(GROUPS, GROUP_SIZE, seconds),
        slots=SLOTS,
        idle_timeout_seconds=idle_timeout_seconds,
        reset_seconds=RESET_SECONDS,
        seed=seed,
    )
    return summed_up(churn, abandoned_share)


def summed_up(churn: Churn, abandoned_share: float) -> Played:
    used = use(churn)
    assert used is not None, "there is more work than slots"
    slot_seconds = churn.slots * used.contended_seconds
    killed = [rollout for rollout in churn.rollouts if rollout.outcome is Outcome.RECLAIMED]
    finished = [rollout for rollout in churn.rollouts if rollout.outcome is Outcome.FINISHED]
    timeout = churn.idle_timeout_seconds
    return Played(
        idle_timeout_seconds=timeout,
        abandoned_share=abandoned_share,
        slot_seconds=slot_seconds,
        live_seconds=used.live * slot_seconds,
        useful_seconds=used.useful * slot_seconds,
        finished=len(finished),
        killed=sum(rollout.is_to_finish for rollout in killed),
        killed_in_time=sum(rollout.longest_silence_seconds < timeout for rollout in killed),
        lived_too_long=sum(rollout.longest_silence_seconds > timeout for rollout in finished),
        latest_seconds=max(overshoots(churn), default=0.0),
    )


def killed_share_expected(idle_timeout_seconds: float) -> float:
    """Of rollouts that would have got to their end: one think of all is longer."""
    deviations = math.log(idle_timeout_seconds / THINK.median_seconds) / THINK.sigma
    shorter = 0.5 * (1 + math.erf(deviations / math.sqrt(2)))
    return 1.0 - float(shorter ** (CALLS + 1))


def point(played: Sequence[Played]) -> Point:
    first, slot_seconds = played[0], sum(one.slot_seconds for one in played)
    finished, killed = sum(one.finished for one in played), sum(one.killed for one in played)
    return Point(
        idle_timeout_seconds=first.idle_timeout_seconds,
        abandoned_share=first.abandoned_share,
        live_share=sum(one.live_seconds for one in played) / slot_seconds,
        useful_share=sum(one.useful_seconds for one in played) / slot_seconds,
        killed_share=killed / (killed + finished),
        killed_share_expected=killed_share_expected(first.idle_timeout_seconds),
        killed=killed,
        rollouts=killed + finished,
        finished_per_slot_hour=3600 * finished / slot_seconds,
    )


def points(played: Iterable[Played]) -> list[Point]:
    cases: dict[tuple[float, float], list[Played]] = {}
    for one in played:
        cases.setdefault((one.abandoned_share, one.idle_timeout_seconds), []).append(one)
    return [point(cases[case]) for case in sorted(cases)]


def by_share(found: Sequence[Point]) -> Iterator[tuple[float, list[Point]]]:
    for share in sorted({one.abandoned_share for one in found}):
        yield share, [one for one in found if one.abandoned_share == share]


def table(found: Sequence[Point]) -> Table:
    shown = Table("abandoned", "idle timeout", "live", "finished", "killed", "expected", "finished per slot-hour")
    for share, of_share in by_share(found):
        best = max(of_share, key=lambda one: one.finished_per_slot_hour)
        for one in of_share:
            shown.add_row(
                f"{share:.0%}",
                f"{one.idle_timeout_seconds:g} s",
                f"{one.live_share:.1%}",
                f"{one.useful_share:.1%}",
                f"{one.killed_share:.2%} of {one.rollouts}",
                f"{one.killed_share_expected:.2%}",
                f"{one.finished_per_slot_hour:.1f}{' (most)' if one is best else ''}",
            )
        shown.add_section()
    return shown


def draw_trade(found: Sequence[Point], report: Report) -> None:
    assert report.pictures is not None
    title = "What an idle timeout costs: slots that wait for nobody, or live rollouts killed"
    x, y = (
        "live rollouts killed while they think (%, expected of the distribution)",
        "slot time with a live rollout (%)",
    )
    with picture(report.pictures / "curve.png", title, x=x, y=y) as axes:
        for colour, (share, of_share) in zip(PALETTE, by_share(found), strict=False):
            killed = [100 * one.killed_share_expected for one in of_share]
            live = [100 * one.live_share for one in of_share]
            axes.plot(killed, live, "o-", color=colour, markersize=4, label=f"{share:.0%} of rollouts abandoned")
            if share == max(ABANDONED_SHARES):  # the labels of the others would stand on each other
                for one, at in zip(of_share, zip(killed, live, strict=True), strict=True):
                    if 5 < one.idle_timeout_seconds < 30:
                        continue
                    name = f"{one.idle_timeout_seconds:g} s"
                    axes.annotate(name, at, (0, -14), textcoords="offset points", fontsize=8, ha="center")
        axes.set_xscale("symlog", linthresh=0.1)
        axes.set_xlim(0.06, 130)
        axes.set_xticks([0.1, 0.3, 1, 3, 10, 30, 100], ["0.1", "0.3", "1", "3", "10", "30", "100"])
        axes.set_ylim(0, 102)


def draw_by_timeout(found: Sequence[Point], report: Report) -> None:
    assert report.pictures is not None
    names = ["slot time with a rollout that is live (dashed), that is finished in the end (solid)", "", ""]
    labels = ["share (%)", "finished per\nslot-hour", "live rollouts\nkilled (%)"]
    path = report.pictures / "curve_by_timeout.png"
    title = "Choosing the idle timeout (think times: median 8 s, p99 120 s; 9 in a rollout)"
    with pictures(path, title, x="idle timeout (s)", y=labels, names=names, height_inches=8.0) as [
        use_,
        hourly,
        killed,
    ]:
        for colour, (share, of_share) in zip(PALETTE, by_share(found), strict=False):
            timeouts = [one.idle_timeout_seconds for one in of_share]
            use_.plot(timeouts, [100 * one.live_share for one in of_share], "--", color=colour)
            use_.plot(timeouts, [100 * one.useful_share for one in of_share], "o-", color=colour, markersize=4)
            hourly.plot(timeouts, [one.finished_per_slot_hour for one in of_share], "o-", color=colour, markersize=4)
            killed.plot(timeouts, [100 * one.killed_share for one in of_share], "o", color=colour, markersize=4)
            use_.plot([], [], color=colour, label=f"{share:.0%} of rollouts abandoned")
        timeouts = [one.idle_timeout_seconds for one in of_share]
        expected = [100 * killed_share_expected(timeout) for timeout in timeouts]
        killed.plot(timeouts, expected, color="#333333", linewidth=1, label="expected of the distribution")
        for axes in (use_, hourly, killed):
            axes.set_xscale("log")
            axes.set_ylim(0)
        killed.set_xticks(timeouts, [f"{timeout:g}" for timeout in timeouts])
        killed.minorticks_off()


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="churns for each point (5)")
    parser.add_argument("--hours", type=float, default=1.0, help="of virtual time for each churn (1)")
    add_arguments(parser, quick="three idle timeouts, half an hour, once")
    options = parser.parse_args(arguments)
    if options.quick:
        options.seeds, options.hours = 1, 0.5
    return options


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    report = Report.begin("curve", options)
    timeouts = QUICK_IDLE_TIMEOUTS if options.quick else IDLE_TIMEOUTS
    with ProcessPoolExecutor(WORKERS) as pool:
        cases = list(product(timeouts, ABANDONED_SHARES, range(options.seeds)))
        played = list(pool.map(partial(play, 3600 * options.hours), cases))
    found = points(played)
    report.tables = [table(found)]
    report.figures["points"] = [asdict(one) for one in found]
    report.targets = [
        Target("killed though heard of in time", sum(one.killed_in_time for one in played), "==", 0),
        Target("alive though silent for longer", sum(one.lived_too_long for one in played), "==", 0),
        Target("reclaim after the deadline, max", max(one.latest_seconds for one in played), "<=", 1e-6, "s"),
    ]
    if report.pictures is not None:
        draw_trade(found, report)
        draw_by_timeout(found, report)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
