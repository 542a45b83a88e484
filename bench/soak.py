"""Nothing lost, nothing left: rollouts through gymserve for a long time, with both sides at fault all the while.

Starts ``gymserve serve`` as a process of its own before a ``gymserve env`` that is slow, full, talks garbage, drops
episodes, hangs, is stopped, killed and started again every few seconds; ``--clients`` at a time finish their rollouts,
abandon them, hang up, close twice at once, trickle, or do not speak HTTP (``bench/soaking/`` has all of it). Every
second it looks at what the gymserve process holds.

gymserve is held to this: every request is answered; no score but the right one, and none for a rollout that was lost;
memory and descriptors do not grow after the warm-up (by the trend over all samples); when the load is over no session,
waiting request, slot, episode, connection or descriptor is left; the logs have no error; further rollouts then play
as if nothing had been; SIGTERM ends it with status 0. Exit status 0 only if all of that holds. Ctrl-C ends the load,
judges what there was and exits with 130; a second one leaves at once.

What gymserve remembers on purpose would look like a leak until the first of it is forgotten: tombstones and names are
kept for 10 s here instead of 900, which is less than the warm-up. ``--seed`` makes all choices again, though not the
moments in which they meet. Needs Linux (/proc).
"""

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path

import trio
from rich.console import Console
from rich.table import Table
from server import ServerFailed
from soaking.environment import reserved_port
from soaking.logs import read_log
from soaking.run import TOMBSTONE_SECONDS, Sample, Soak
from soaking.watch import Holding, growth

WARM_UP_SHARE = 0.25
WARM_UP_SECONDS = (1.5 * TOMBSTONE_SECONDS, 120.0)  # at least and at most
MEMORY_GROWTH_KIB = 4096
"""The most that the trend may gain in a whole run, however long: an allocator's fragments move by as much."""
DESCRIPTORS_GROWTH = 16
"""The same of descriptors, which come and go with the clients' connections; in the end not one may be left."""
INTERRUPTED_STATUS = 130  # 128 + SIGINT, as a shell reports it


@dataclass(frozen=True, slots=True)
class Growth:
    """What the trends gained from the warm-up to the end of the load, and the rollouts meanwhile."""

    memory_kib: float
    descriptors: float
    rollouts: int


@dataclass
class Result:
    """All is as it should be where ``faults`` is empty; then ``unanswered``, ``wrong_scores`` and ``left`` are too.

    The growths are None where the run was too short to have a trend.
    """

    seed: int
    seconds: float
    rollouts: int
    became: Mapping[str, int]
    clients: Mapping[str, int]
    sessions: Mapping[str, int]
    environment_server: Mapping[str, int]
    requests: int
    unanswered: int
    wrong_scores: int
    memory_mib_before_and_after: tuple[float, float]
    memory_growth_kib: float | None
    memory_growth_kib_per_1000_rollouts: float | None
    descriptors_before_and_after: tuple[int, int]
    descriptors_growth: float | None
    left: Mapping[str, int]
    faults: list[str] = field(default_factory=list)


def grown(samples: Sequence[Sample]) -> Growth | None:
    """None where there are no two samples after the warm-up."""
    least, most = WARM_UP_SECONDS
    end_seconds = samples[-1].at_seconds if samples else 0.0
    warm_up_seconds = max(least, min(most, end_seconds * WARM_UP_SHARE))
    warm = [sample for sample in samples if sample.at_seconds >= warm_up_seconds]
    if len(warm) < 2:
        return None
    return Growth(
        memory_kib=growth([(sample.at_seconds, sample.holding.memory_kib) for sample in warm]),
        descriptors=growth([(sample.at_seconds, sample.holding.descriptors) for sample in warm]),
        rollouts=warm[-1].rollouts - warm[0].rollouts,
    )


def faults_of(grew: Growth | None, before: Holding, after: Holding) -> Iterator[str]:
    """What gymserve holds that it should not."""
    if grew is not None and grew.memory_kib > MEMORY_GROWTH_KIB:
        yield f"memory grew by {grew.memory_kib:.0f} KiB, more than {MEMORY_GROWTH_KIB}"
    if grew is not None and grew.descriptors > DESCRIPTORS_GROWTH:
        yield f"descriptors grew by {grew.descriptors:.1f}, more than {DESCRIPTORS_GROWTH}"
    if after.descriptors > before.descriptors:
        yield f"{after.descriptors} descriptors after the load, {before.descriptors} before"


def result_of(soak: Soak, options: argparse.Namespace, folder: Path) -> Result:
    grew = grown(soak.samples)
    said = read_log(folder / "serve.log")
    ledger, before, after = soak.ledger, soak.before, soak.after
    faults = [*ledger.faults, *faults_of(grew, before, after)]
    faults += [f"sessions that were opened and never ended: {', '.join(sorted(said.unended))}"] if said.unended else []
    faults += [f"in the log: {line}" for line in (*said.faults, *read_log(folder / "env.log").faults)]
    return Result(
        seed=options.seed,
        seconds=round(soak.load_seconds, 1),
        rollouts=ledger.rollouts,
        became=in_order(ledger.outcomes),
        clients=in_order(ledger.parts),
        sessions=in_order(said.endings),
        environment_server=in_order(soak.environment.lives),
        requests=ledger.requests,
        unanswered=ledger.unanswered,
        wrong_scores=ledger.wrong_scores,
        memory_mib_before_and_after=(mib(before), mib(after)),
        memory_growth_kib=None if grew is None else round(grew.memory_kib),
        memory_growth_kib_per_1000_rollouts=None if grew is None else round(1000 * grew.memory_kib / grew.rollouts, 1),
        descriptors_before_and_after=(before.descriptors, after.descriptors),
        descriptors_growth=None if grew is None else round(grew.descriptors, 1),
        left=soak.left,
        faults=faults,
    )


def in_order(counts: Mapping[str, int]) -> dict[str, int]:
    """The most frequent first."""
    return dict(Counter(counts).most_common())


def mib(held: Holding) -> float:
    return round(held.memory_kib / 1024, 1)


def table(result: Result) -> Table:
    shown = Table(show_header=False)
    for name, value in asdict(result).items():
        shown.add_row(name.replace("_", " "), written(value))
    return shown


def written(value: object) -> str:
    match value:
        case dict():
            return "\n".join(f"{number} {what}" for what, number in value.items()) or "nothing"
        case tuple():
            return " and ".join(map(str, value))
        case list():
            return "\n".join(value) or "none"
    return str(value)


def leaves(group: BaseExceptionGroup[Exception]) -> Iterator[Exception]:
    for exc in group.exceptions:
        if isinstance(exc, BaseExceptionGroup):
            yield from leaves(exc)
        else:
            yield exc


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1800.0, help="how long the load lasts (1800)")
    parser.add_argument("--clients", type=int, default=24, help="at a time (24)")
    parser.add_argument("--slots", type=int, default=12, help="of the environment server (12)")
    parser.add_argument("--seed", type=int, default=0, help="of all choices (0)")
    parser.add_argument("--logs", type=Path, help="a new folder to leave the logs and samples in")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args(arguments)


def main() -> int:
    options = parse(sys.argv[1:])
    with ExitStack() as stack:
        folder = options.logs or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        if options.logs is not None:
            options.logs.mkdir(parents=True)
        soak = Soak(
            port=stack.enter_context(reserved_port()),
            slots=options.slots,
            clients=options.clients,
            seconds=options.seconds,
            seed=options.seed,
            folder=folder,
        )
        try:
            if not trio.run(soak.run):
                return INTERRUPTED_STATUS
        except* ServerFailed as group:
            raise SystemExit("\n".join(f"soak: {failed}" for failed in leaves(group))) from None
        (folder / "samples.json").write_text(json.dumps([asdict(sample) for sample in soak.samples]))
        result = result_of(soak, options, folder)
    if options.json:
        sys.stdout.write(json.dumps(asdict(result)) + "\n")
    else:
        Console().print(table(result))
    if soak.was_interrupted:
        return INTERRUPTED_STATUS
    return 1 if result.faults else 0


if __name__ == "__main__":
    sys.exit(main())
