"""The incident again: a policy is trained with GRPO on GridSim, through three ways to an environment server that is
slow under load.

A trainer by prime-rl's rules (`bench/training/dispatcher.py`, `sink.py`) has 64 rollouts in flight on 64 slots: 40
steps of 32 rollouts, evaluations on 200 days at steps 0, 20 and 40. When the last one begins, the training rollouts
in flight are cancelled without a word. All times are those of the incident (`bench/training/incident.py`), divided
by ``--scale``.

Each arm is a run of some minutes; ``--records FOLDER`` keeps what was measured, so that ``--arm`` can measure one
at a time: arms that are not run are taken from there. Exit status 0 only if no target is missed.
"""

import argparse
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import trio
from reporting import Report, Target, add_arguments, percentile, written
from rich.table import Table
from server import ServerFailed
from training.arm import leaf, run_arm
from training.figures import PHASES, Figures, rises
from training.incident import EVALUATED_STEPS, STEPS
from training.record import ARMS, DIRECT, PATIENT, Plan, Record

SCALE = 12.0
QUICK_STEPS, QUICK_DAYS, QUICK_ARMS = 2, 16, (DIRECT.name, PATIENT.name)
OUTAGE_AFTER, OUTAGE_STEPS = 10, 14
LATE_SECONDS = 0.05
OCCUPANCY_POINTS = 120


def plans(options: argparse.Namespace) -> dict[str, Plan]:
    """By what they are for: the run itself, and a shorter one with an outage."""
    if options.quick:
        steps = (0, QUICK_STEPS)
        return {"run": Plan(options.scale, options.seed, QUICK_STEPS, steps, QUICK_DAYS)}
    return {
        "run": Plan(options.scale, options.seed, STEPS, EVALUATED_STEPS),
        "outage": Plan(options.scale, options.seed, OUTAGE_STEPS, (), outage_after=OUTAGE_AFTER),
    }


def measure(options: argparse.Namespace, records: Path) -> None:
    """Run what was asked for, each into a record of its own. :raises ServerFailed"""
    for purpose, plan in plans(options).items():
        for name in options.arm:
            if purpose in options.only:
                with tempfile.TemporaryDirectory() as folder:
                    record = trio.run(run_arm, ARMS[name], plan, Path(folder))
                (records / f"{purpose}-{name}.json").write_text(record.to_json())


def read(records: Path, purpose: str) -> list[Figures]:
    files = [records / f"{purpose}-{name}.json" for name in ARMS]
    return [Figures(Record.from_json(file.read_text())) for file in files if file.exists()]


# -- the table -------------------------------------------------------------------------------------------------------


def told(one: Figures) -> dict[str, str]:
    """An arm's column of the table."""
    record, reclaimed = one.record, one.reclaimed()
    steps = record.plan.evaluated_steps
    failed = {f"evaluation at {step}: failed (%)": written(one.evaluation_failed_percent(step)) for step in steps}
    rewards = {f"evaluation reward at {step}": str(one.evaluation_reward(step) or "-") for step in steps}
    return {
        "seed answered 503": of_gymserve(one, one.count("seed 503")),
        "verify answered 503": of_gymserve(one, one.count("verify 503")),
        "handshake timed out, refused at capacity": of_direct(one),
        **failed,
        "training rollouts failed": written(sum(one.failures.values()) - failed_evaluations(one)),
        "groups trained in part, dropped": f"{record.groups['partial']}, {record.groups['dropped']}",
        "abandoned, reclaimed": f"{len(one.abandoned)}, {len(reclaimed.late_seconds)}",
        "reclaimed after the deadline (ms): median, latest": lateness(one),
        "held after the cancellation (s): latest": written(max(reclaimed.held_seconds, default=None)),
        "trained samples per slot-hour": written(one.trained_per_slot_hour),
        "scored rollouts per slot-hour, evaluations too": written(one.scored_per_slot_hour),
        "slots in use until the last batch (%)": written(one.slots_in_use_percent),
        "steps trained": written(len(record.batches)),
        "time (minutes, as they were)": written(round(one.minutes, 1)),
        **rewards,
        "training reward by blocks of 10": ", ".join(f"{reward:.3f}" for reward in one.training_blocks),
    }


def of_gymserve(one: Figures, number: int) -> str:
    return "-" if ARMS[one.record.arm].patience_seconds is None else written(number)


def of_direct(one: Figures) -> str:
    if ARMS[one.record.arm].patience_seconds is not None:
        return "-"
    return f"{written(one.count('handshake timed out'))}, {written(one.count('at capacity'))}"


def failed_evaluations(one: Figures) -> int:
    return sum(rollout.outcome != "" for step in one.record.plan.evaluated_steps for rollout in one.evaluation(step))


def lateness(one: Figures) -> str:
    late = [1000 * seconds for seconds in one.reclaimed().late_seconds]
    since = " after the cancellation" if ARMS[one.record.arm].idle_seconds is None else ""
    return f"{written(percentile(late, 50))}, {written(max(late, default=None))}{since}"


def outage_row(one: Figures) -> str:
    lost = f"{written(one.lost_in_outage)} lost"
    if not one.record.aborted:
        return lost
    return f"{lost}; the run was aborted at step {len(one.record.batches)}"


def table(runs: list[Figures], outages: list[Figures]) -> Table:
    shown = Table("", *(ARMS[one.record.arm].title for one in runs))
    columns = [told(one) for one in runs]
    for name in columns[0]:
        shown.add_row(name, *(column[name] for column in columns))
    if outages:
        by_arm = {one.record.arm: outage_row(one) for one in outages}
        shown.add_row("server down for 30 s at step 10: samples", *(by_arm.get(one.record.arm, "-") for one in runs))
    return shown


# -- targets and the document ----------------------------------------------------------------------------------------


def targets(one: Figures) -> Iterator[Target]:
    """Of the patient arm."""
    first, *_, last = one.record.plan.evaluated_steps
    reclaimed = one.reclaimed()
    latest = max(reclaimed.late_seconds, default=None)
    before, after = one.evaluation_reward(first), one.evaluation_reward(last)
    gain = None if before is None or after is None else after.mean + after.error - (before.mean - before.error)
    yield Target("verify answered 503", one.count("verify 503"), "==", 0)
    yield Target(
        "evaluation rollouts failed", one.evaluation_failed_percent(*one.record.plan.evaluated_steps), "==", 0, "%"
    )
    yield Target("abandoned and not reclaimed", reclaimed.never, "==", 0)
    yield Target(
        "reclaimed after the idle deadline, latest",
        None if latest is None else round(1000 * latest, 1),
        "<=",
        1000 * LATE_SECONDS,
        "ms",
        needs_full_run=True,
    )
    yield Target("slots left", one.record.slots_left, "==", 0)
    yield Target(
        "training reward rises from block to block", int(rises(one.training_blocks)), "==", 1, needs_full_run=True
    )
    yield Target(f"evaluation at {last} above {first}, standard errors granted", gain, ">=", 0, needs_full_run=True)


def documented(one: Figures) -> dict[str, object]:
    """An arm's figures for the JSON document."""
    reclaimed = one.reclaimed()
    steps = one.record.plan.evaluated_steps
    rewards = {step: one.evaluation_reward(step) for step in steps}
    return {
        "failures": one.failures,
        "evaluation failed (%)": {step: one.evaluation_failed_percent(step) for step in steps},
        "evaluation reward": {step: mean and [mean.mean, mean.error] for step, mean in rewards.items()},
        "training reward by blocks": one.training_blocks,
        "groups": one.record.groups,
        "abandoned": len(one.abandoned),
        "never reclaimed": reclaimed.never,
        "late (ms)": sorted(round(1000 * seconds, 2) for seconds in reclaimed.late_seconds),
        "held after the cancellation (s)": sorted(round(seconds, 1) for seconds in reclaimed.held_seconds),
        "trained samples per slot-hour": one.trained_per_slot_hour,
        "scored rollouts per slot-hour": one.scored_per_slot_hour,
        "slots in use (%)": one.slots_in_use_percent,
        "minutes": one.minutes,
        "steps": len(one.record.batches),
        "aborted": one.record.aborted,
        "load average before": one.record.load_average,
        "lost in the outage": one.lost_in_outage,
    }


def run(options: argparse.Namespace, records: Path) -> int:
    report = Report.begin("grpo", options)
    try:
        measure(options, records)
    except* ServerFailed as group:
        raise SystemExit(f"grpo: {leaf(group)}") from None
    runs, outages = read(records, "run"), read(records, "outage")
    if not runs:
        return 0
    report.tables.append(table(runs, outages))
    for one in runs:
        minutes, phases = one.occupancy(OCCUPANCY_POINTS)
        occupancy = {"minutes": [round(minute, 2) for minute in minutes], **dict(zip(PHASES, phases, strict=True))}
        report.figures[one.record.arm] = documented(one) | {"occupancy": occupancy}
        if one.record.arm == PATIENT.name:
            report.targets += targets(one)
    for one in outages:
        report.figures[f"{one.record.arm}, outage"] = documented(one)
    if report.pictures is not None:
        from training.drawing import draw_occupancy, draw_rewards  # matplotlib is for pictures only

        draw_occupancy(runs, report.pictures / "grpo-occupancy.png")
        draw_rewards(runs, report.pictures / "grpo-rewards.png")
    return report.finish()


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arm", action="append", choices=list(ARMS), help="run this one only (repeatable; all)")
    parser.add_argument("--only", action="append", choices=["run", "outage"], help="and only this of it (both)")
    parser.add_argument("--no-run", action="store_true", help="run nothing: report what --records has")
    parser.add_argument("--records", type=Path, metavar="FOLDER", help="keep what was measured there")
    parser.add_argument("--scale", type=float, default=SCALE, help=f"how much faster than the incident ({SCALE:g})")
    parser.add_argument("--seed", type=int, default=0, help="of days, actions and think times (0)")
    add_arguments(parser, quick=f"{QUICK_STEPS} steps, {QUICK_DAYS} evaluation days, two arms, no outage")
    options = parser.parse_args(arguments)
    options.arm = [] if options.no_run else options.arm or list(QUICK_ARMS if options.quick else ARMS)
    options.only = options.only or ["run", "outage"]
    return options


def main() -> int:
    options = parse(sys.argv[1:])
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that no server outlives us
    if options.records is not None:
        options.records.mkdir(parents=True, exist_ok=True)
        return run(options, options.records)
    with tempfile.TemporaryDirectory() as folder:
        return run(options, Path(folder))


if __name__ == "__main__":
    sys.exit(main())
