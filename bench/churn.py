"""Churn: rollouts that come, think, leave without a word in every phase, are cancelled in groups and pause together.

Keeps ``--groups`` groups of ``--group-size`` rollouts going for ``--seconds``, each a seed, 8 tool calls and a verify
with lognormal think times before them (the shape of median 8 s and p99 120 s, scaled to a mean episode of 2 s), against
``gymserve serve`` and an environment server as processes of their own. Of the rollouts ``--abandoned`` leave without a
word, each in a phase by chance: in the line, while they are opened, between two calls, during a call, before verify.
Of the groups ``--cancelled`` are cancelled as a whole, at any moment. Now and then all pause, as when a trainer
updates its weights. Thinks are cut below the idle timeout, so that nothing alive may be reclaimed: bench/curve.py is
about those.

The environment writes down each episode's reset, last answer and end, the clients their seeds, answers and leaves,
all by one clock. A slot is busy from the end of an episode's reset (20 ms) to the end of its environment; what is
needed between two episodes (goodbye, handshake, question for room, reset) is what it lacks to 100 %.

``--virtual`` plays the same by Trio's mock clock, in memory and unscaled: a day in a minute.
"""

import argparse
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from churning.crowd import Shape
from churning.drawing import draw_occupancy
from churning.figures import figures
from churning.habits import THINK, Habits
from churning.real import churn_in_real_time
from churning.records import Churn
from churning.virtual import churn_in_virtual_time
from reporting import Report, Target, add_arguments

BUSY = "slots busy while there is work for all"
BUSY_SHARE = 0.97
PHASES = 6  # those of `Phase`, and with its group

CALLS = 8
EPISODE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Usual:
    """What the two ways of time differ in. ``most_seconds``: the longest think; with a pause after it it is still less
    than the idle timeout. ``latest_seconds``: a reclaim after its deadline.
    """

    seconds: float
    quick_seconds: float
    drawn_seconds: float
    slots: int
    groups: int
    step_seconds: float
    reset_seconds: float
    stagger_seconds: float
    most_seconds: float
    idle_timeout_seconds: float
    pause_every_seconds: float
    pause_seconds: float
    latest_seconds: float


REAL = Usual(
    seconds=180.0,
    quick_seconds=12.0,
    drawn_seconds=60.0,
    slots=16,
    groups=8,
    step_seconds=0.025,
    reset_seconds=0.02,
    stagger_seconds=0.002,
    most_seconds=2.0,
    idle_timeout_seconds=5.0,
    pause_every_seconds=20.0,
    pause_seconds=2.0,
    latest_seconds=0.05,
)
VIRTUAL = Usual(
    seconds=86_400.0,
    quick_seconds=7_200.0,
    drawn_seconds=14_400.0,
    slots=4,
    groups=3,
    step_seconds=1.0,
    reset_seconds=1.0,
    stagger_seconds=0.0,
    most_seconds=450.0,
    idle_timeout_seconds=600.0,
    pause_every_seconds=1_800.0,
    pause_seconds=120.0,
    latest_seconds=1e-6,
)


def in_real_time(options: argparse.Namespace) -> Churn:
    habits = habits_of(options, REAL)
    thinking = (EPISODE_SECONDS - CALLS * REAL.step_seconds) / (CALLS + 1)
    return churn_in_real_time(
        replace(habits, think=habits.think.scaled_to(thinking, most_seconds=REAL.most_seconds)),
        shape_of(options, REAL),
        slots=options.slots,
        idle_timeout_seconds=REAL.idle_timeout_seconds,
        reset_seconds=REAL.reset_seconds,
        seed=options.seed,
    )


def in_virtual_time(options: argparse.Namespace) -> Churn:
    return churn_in_virtual_time(
        habits_of(options, VIRTUAL),
        shape_of(options, VIRTUAL),
        slots=options.slots,
        idle_timeout_seconds=VIRTUAL.idle_timeout_seconds,
        reset_seconds=VIRTUAL.reset_seconds,
        seed=options.seed,
    )


def habits_of(options: argparse.Namespace, usual: Usual) -> Habits:
    return Habits(
        calls=CALLS,
        think=replace(THINK, most_seconds=usual.most_seconds),
        step_seconds=usual.step_seconds,
        abandoned_share=options.abandoned,
        cancelled_share=options.cancelled,
    )


def shape_of(options: argparse.Namespace, usual: Usual) -> Shape:
    return Shape(
        groups=options.groups,
        group_size=options.group_size,
        seconds=options.seconds,
        stagger_seconds=usual.stagger_seconds,
        arrivals_per_second=options.arrivals,
        pause_every_seconds=usual.pause_every_seconds,
        pause_seconds=usual.pause_seconds,
    )


def targets(found: Mapping[str, Any], *, latest_seconds: float) -> list[Target]:
    """:param latest_seconds: after its deadline a session may be reclaimed, in 99 of 100 cases."""
    return [
        Target("slots busy while there is work for all", found[BUSY], ">=", BUSY_SHARE),
        Target(
            "reclaim after the deadline, p99", found["reclaim after the deadline, p99 (s)"], "<=", latest_seconds, "s"
        ),
        Target("rollouts masked", found["masked"], "==", 0),
        Target("rollouts lost", found["lost"], "==", 0),
        Target("rollouts reclaimed alive", found["reclaimed alive"], "==", 0),
        Target("leaked: sessions, waiting seeds, slots", found["leaked"], "==", 0),
        Target("phases in which clients left", len(found["left without a word"]), ">=", PHASES, needs_full_run=True),
    ]


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--virtual", action="store_true", help="in virtual time")
    parser.add_argument("--seconds", type=float, help="for which rollouts are begun (180; --virtual: a day)")
    parser.add_argument("--slots", type=int, help="of the environment server (16; --virtual: 4)")
    parser.add_argument("--groups", type=int, help="at a time (8; --virtual: 3)")
    parser.add_argument("--group-size", type=int, default=8, help="rollouts of a group (8)")
    parser.add_argument("--arrivals", type=float, help="groups a second instead, by chance (a Poisson process)")
    parser.add_argument("--abandoned", type=float, default=0.1, help="share of rollouts (0.1)")
    parser.add_argument("--cancelled", type=float, default=0.1, help="share of groups (0.1)")
    parser.add_argument("--seed", type=int, default=0, help="of the clients' choices (0)")
    add_arguments(parser, quick="12 seconds; --virtual: 2 hours")
    options = parser.parse_args(arguments)
    usual = VIRTUAL if options.virtual else REAL
    options.seconds = options.seconds or (usual.quick_seconds if options.quick else usual.seconds)
    options.slots = options.slots or usual.slots
    options.groups = options.groups or usual.groups
    return options


def measure(options: argparse.Namespace, report: Report) -> Churn:
    began = time.monotonic()
    if options.virtual:
        churn = in_virtual_time(options)
        report.figures["took (s)"] = round(time.monotonic() - began, 1)
    else:
        churn = in_real_time(options)
    report.figures.update(figures(churn))
    report.targets += targets(report.figures, latest_seconds=(VIRTUAL if options.virtual else REAL).latest_seconds)
    return churn


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    name = "churn in virtual time" if options.virtual else "churn"
    report = Report.begin(name, options)
    churn = measure(options, report)
    if report.pictures is not None:
        usual = VIRTUAL if options.virtual else REAL
        path = report.pictures / f"{name.replace(' ', '_')}.png"
        draw_occupancy(churn, path, f"Slots of an environment server under {name}", most_seconds=usual.drawn_seconds)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
