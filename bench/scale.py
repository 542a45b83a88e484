"""How much one gymserve process carries: memory a session, deadlines to the millisecond, storms of ends and of seeds.

Starts ``gymserve serve`` as a process of its own before an environment server that costs next to nothing, writes
down when each goodbye arrives (by CLOCK_MONOTONIC, which both processes share) and is a process of its own too. A
deadline is counted from the moment at which that server answered the reset, a little before gymserve knows of it,
so that a lateness is never shown too small. Meanwhile other sessions are called at a fixed rate.

Every session takes a file descriptor here and one there: 10,000 need a limit (``ulimit -Hn``) of about 13,000, or
``--sessions`` must be fewer. Exit status 0 only if every target is met. Needs Linux (/proc).
"""

import argparse
import gc
import resource
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from reporting import Report, Target, add_arguments
from scaling import deadlines, memory, seeds
from scaling.deadlines import Plan

from gymserve.descriptors import Descriptors, raise_limit

_CLIENTS = 1000  # connections to gymserve that are not sessions

Scenario = Callable[[argparse.Namespace, Report], None]


@dataclass(frozen=True, slots=True)
class Scale:
    """How many sessions each scenario has."""

    open: int
    alone: int
    spread: int
    storm: int
    seeds: int


FULL = Scale(open=10_000, alone=1000, spread=10_000, storm=5000, seeds=2000)
QUICK = Scale(open=200, alone=30, spread=200, storm=200, seeds=100)


def scale_of(options: argparse.Namespace) -> Scale:
    scale = QUICK if options.quick else FULL
    return Scale(
        open=min(scale.open, options.sessions),
        alone=min(scale.alone, options.sessions),
        spread=min(scale.spread, options.sessions),
        storm=min(scale.storm, options.sessions),
        seeds=min(scale.seeds, options.sessions),
    )


def measure_memory(options: argparse.Namespace, report: Report) -> None:
    sessions = scale_of(options).open
    outcome = memory.run(sessions)
    pauses_ms = [1000 * pause.seconds for pause in outcome.pauses]
    report.figures |= {
        "open sessions": sessions,
        "memory a session (KiB)": outcome.kib_per_session,
        "opened per second": sessions / outcome.seconds,
        "collector: objects a session": outcome.objects_per_session,
        "collector: worst pause while they were opened (ms)": max(pauses_ms, default=0.0),
        "collector: a full collection, which is avoided, would take (ms)": 1000 * outcome.full.seconds,
        "collector: garbage that it would find (objects)": outcome.full.collected,
    }
    report.targets += [
        Target("open sessions", sessions, ">=", FULL.open, needs_full_run=True),
        Target("memory a session", outcome.kib_per_session, "<=", 32, "KiB", needs_full_run=True),
    ]


def measure_alone(options: argparse.Namespace, report: Report) -> None:
    plan = Plan(scale_of(options).alone, 0.02, options.seconds_per_session, probes_per_second=0, opened_at_once=1)
    outcome = deadlines.run(plan)
    note(report, "alone", outcome)
    report.targets.append(
        Target("a deadline alone: CLOSE late by, p99", outcome.late_ms(99), "<=", 5, "ms", needs_full_run=True)
    )


def measure_spread(options: argparse.Namespace, report: Report) -> None:
    sessions = scale_of(options).spread
    outcome = deadlines.run(Plan(sessions, 10 / FULL.spread, options.seconds_per_session))
    note(report, "spread", outcome)
    report.targets.append(
        Target(
            f"{sessions:,} deadlines, a thousand a second: CLOSE late by, p99",
            outcome.late_ms(99),
            "<=",
            50,
            "ms",
            needs_full_run=True,
        )
    )


def measure_storm(options: argparse.Namespace, report: Report) -> None:
    sessions = scale_of(options).storm
    outcome = deadlines.run(Plan(sessions, 0.0, options.seconds_per_session))
    note(report, "storm", outcome)
    name = f"{sessions:,} deadlines at one instant"
    report.targets += [
        Target(f"{name}: the last CLOSE after", outcome.last_after_seconds, "<=", 10, "s", needs_full_run=True),
        Target(f"{name}: goodbyes lost", outcome.lost, "==", 0),
        Target(f"{name}: others' calls, p99", outcome.other_calls_ms(99), "<=", 150, "ms", needs_full_run=True),
    ]


def note(report: Report, name: str, outcome: deadlines.Outcome) -> None:
    pauses_ms = [1000 * pause.seconds for pause in outcome.pauses]
    report.figures |= {
        f"{name}: sessions": len(outcome.late_seconds) + outcome.lost,
        f"{name}: CLOSE late, p50 (ms)": outcome.late_ms(50),
        f"{name}: CLOSE late, p99 (ms)": outcome.late_ms(99),
        f"{name}: CLOSE late, worst (ms)": outcome.late_ms(100),
        f"{name}: close message late, p99 (ms)": outcome.goodbye_late_ms(99),
        f"{name}: the last after (s)": outcome.last_after_seconds,
        f"{name}: lost": outcome.lost,
        f"{name}: others' calls, p50 (ms)": outcome.other_calls_ms(50),
        f"{name}: others' calls, p99 (ms)": outcome.other_calls_ms(99),
        f"{name}: gymserve's CPU a goodbye, calls included (us)": outcome.cpu_us_per_session,
        f"{name}: collector: worst pause (ms)": max(pauses_ms, default=0.0),
    }


def measure_seeds(options: argparse.Namespace, report: Report) -> None:
    count = scale_of(options).seeds
    outcome = seeds.run(count, count / FULL.seeds)
    report.figures |= {
        "seeds": count,
        "seeds: refused": outcome.refused,
        "seeds: all served after (s)": outcome.served_in_seconds,
        "seeds: served out of order": len(outcome.overtaken_by_seconds),
        "seeds: the most that one was overtaken by (ms)": 1000 * max(outcome.overtaken_by_seconds, default=0.0),
        "seeds: others' calls, p50 (ms)": outcome.other_calls_ms(50),
        "seeds: others' calls, p99 (ms)": outcome.other_calls_ms(99),
    }
    tie_ms = round(1000 * seeds.TIE_SECONDS)
    report.targets += [
        Target(f"{count:,} seeds in a second: overtaken by one sent {tie_ms} ms later", outcome.overtaken, "==", 0),
        Target(f"{count:,} seeds in a second: refused", outcome.refused, "==", 0),
        Target(
            f"{count:,} seeds in a second: others' calls, p99",
            outcome.other_calls_ms(99),
            "<=",
            50,
            "ms",
            needs_full_run=True,
        ),
    ]


SCENARIOS: Mapping[str, Scenario] = {
    "memory": measure_memory,
    "alone": measure_alone,
    "spread": measure_spread,
    "storm": measure_storm,
    "seeds": measure_seeds,
}


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=SCENARIOS, action="append", help="one of the scenarios; repeatable (all)")
    parser.add_argument("--sessions", type=int, default=FULL.open, help="at most so many in each scenario (10,000)")
    parser.add_argument(
        "--seconds-per-session",
        type=float,
        default=0.02,
        help="what opening one takes here at most: deadlines begin when all should be open (0.02)",
    )
    add_arguments(parser, quick="some hundred sessions, half a minute")
    return parser.parse_args(arguments)


def check_descriptors(sessions: int) -> None:
    """:raises SystemExit: so many sessions cannot be had here."""
    room = Descriptors(raise_limit(), max_clients=_CLIENTS).episodes
    if sessions > room:
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        raise SystemExit(
            f"{sessions} sessions need more file descriptors than there are: the hard limit (ulimit -Hn) is {hard}, "
            f"which is enough for --sessions {room}"
        )


def main() -> int:
    options = parse(sys.argv[1:])
    check_descriptors(scale_of(options).open)
    report = Report.begin("scale", options)
    for name in options.only or SCENARIOS:
        SCENARIOS[name](options, report)
    return report.finish()


if __name__ == "__main__":
    gc.disable()  # a pause of its own would look like one of gymserve's
    sys.exit(main())
