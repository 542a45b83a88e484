"""gymserve beside what it replaces: NeMo Gym's OpenEnv adapter, which runs the environment in its own process.

`bench/setup_peers.sh` installs the peers. Each scenario is played on its arms in alternating rounds, by a load
generator in a process of its own; a figure is the median of all rounds, a ratio that of the ratios of each round. CPU
is the user and system time of the arm's own process. The arms:

- ``adapter``: nemo-gym's resources server with its OpenEnv adapter, as released: no hop, one process
- ``gymserve``: `gymserve serve` before the real OpenEnv server
- ``bare``: bench/bare.py, bare Trio + h11 + trio-websocket, before the same OpenEnv server
- ``direct``: that OpenEnv server itself, from the load generator's WebSockets

Exit status 0 if all targets are met. Needs Linux (/proc).
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from comparing.fleet import started
from comparing.loads import LoadFailed
from comparing.pictures import draw
from comparing.rounds import Rounds, difference, middle, played, ratio
from comparing.scenarios import RATES, Scenario, scenarios
from reporting import Report, Target, add_arguments, written
from rich.console import Console
from rich.progress import track
from rich.table import Table
from server import ServerFailed

ROUNDS = 5
QUICK_ROUNDS = 1
PEERS = Path(__file__).parent / ".peers"

_SEED_COSTS = "calls are within it, seeds are not (bench/README.md)"

_SPEED = attrgetter("rollouts_per_second")
_CALLS = attrgetter("calls_per_second")
_CPU = attrgetter("cpu_us")
_P50 = attrgetter("p50_ms")
_P99 = attrgetter("p99_ms")
_COLUMNS = {
    "rollouts/s": _SPEED,
    "calls/s": _CALLS,
    "CPU us/request": _CPU,
    "OpenEnv's": attrgetter("behind_us"),
    "p50 ms": _P50,
    "p99 ms": _P99,
}


def targets(results: dict[str, Rounds]) -> Iterator[Target]:
    """What is asked of the scenarios that were played."""
    if step := results.get("step"):
        yield _full("step: rollouts/s, times the adapter's", ratio(step, "gymserve", "adapter", _SPEED), ">=", 2.5)
        yield _full("step: CPU a request, times the adapter's", ratio(step, "gymserve", "adapter", _CPU), "<=", 0.35)
        yield replace(
            _full("step: CPU a request, times bare Trio's", ratio(step, "gymserve", "bare", _CPU), "<=", 1.5),
            why_missed=_SEED_COSTS,
        )
    if mcp := results.get("mcp"):
        yield _full("MCP: rollouts/s, times the adapter's", ratio(mcp, "gymserve", "adapter", _SPEED), ">=", 2.0)
        yield _full("MCP: rollouts/s, times OpenEnv's directly", ratio(mcp, "gymserve", "direct", _SPEED), ">=", 0.85)
        yield _full("MCP: CPU a request, times the adapter's", ratio(mcp, "gymserve", "adapter", _CPU), "<=", 0.15)
    if sleep := results.get("sleep"):
        yield _full(
            "sleeping step: calls/s, times the adapter's", ratio(sleep, "gymserve", "adapter", _CALLS), ">=", 50
        )
    if new := results.get("connect"):
        yield _full(
            "new connections: rollouts/s, times the adapter's", ratio(new, "gymserve", "adapter", _SPEED), ">=", 2
        )
    if latency := results.get("latency-200"):
        added = difference(latency, "gymserve", "direct", _P99)
        yield _full("latency added at 200 calls/s, p99", added, "<=", 3, "ms")


def _full(name: str, value: float, relation: Any, bound: float, unit: str = "") -> Target:
    return Target(name, round(value, 3), relation, bound, unit, needs_full_run=True)


def shown(scenario: Scenario, rounds: Rounds) -> Table:
    table = Table("arm", *_COLUMNS, title=scenario.title, title_justify="left")
    for arm in scenario.work:
        table.add_row(arm, *(written(middle(rounds, arm, figure)) for figure in _COLUMNS.values()))
    return table


def latency_shown(results: dict[str, Rounds]) -> Table:
    table = Table("calls/s", "p50 added, ms", "p99 added, ms", "bare Trio's p50", "bare Trio's p99")
    table.title, table.title_justify = "latency added to a call, over the OpenEnv server directly", "left"
    for rate in RATES:
        if rounds := results.get(f"latency-{rate}"):
            added = [difference(rounds, arm, "direct", at) for arm in ("gymserve", "bare") for at in (_P50, _P99)]
            table.add_row(str(rate), *map(written, added))
    return table


def chosen(options: argparse.Namespace) -> list[Scenario]:
    every = [scenario for scenario in scenarios() if not options.only or scenario.name in options.only]
    return [scenario.quickly() for scenario in every] if options.quick else every


def compare(options: argparse.Namespace) -> dict[str, Rounds]:
    """The rounds of every scenario. :raises ServerFailed, LoadFailed"""
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    results: dict[str, Rounds] = {}
    progress = Console(stderr=True)
    with tempfile.TemporaryDirectory() as folder, started(options.peers, Path(folder)) as arms:
        for scenario in chosen(options):
            list(played(scenario.warm_up(), arms, 1))
            every = played(scenario, arms, rounds)
            results[scenario.name] = list(track(every, scenario.name, rounds, console=progress, transient=True))
    return results


def report_on(report: Report, results: dict[str, Rounds]) -> None:
    by_name = {scenario.name: scenario for scenario in scenarios()}
    report.tables += [shown(by_name[name], rounds) for name, rounds in results.items()]
    if any(name.startswith("latency-") for name in results):
        report.tables.append(latency_shown(results))
    report.targets += targets(results)
    report.figures = {
        name: [{arm: asdict(outcome) for arm, outcome in outcomes.items()} for outcomes in rounds]
        for name, rounds in results.items()
    }
    if report.pictures is not None:
        draw(report.pictures, results)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", type=Path, default=PEERS, metavar="FOLDER", help="what setup_peers.sh has made")
    parser.add_argument("--rounds", type=int, help=f"of each scenario ({ROUNDS})")
    names = [scenario.name for scenario in scenarios()]
    parser.add_argument("--only", action="append", choices=names, help="this scenario (repeatable; all)")
    add_arguments(parser, quick="one short round of each scenario")
    options = parser.parse_args(arguments)
    if not (options.peers / "nemo_gym").is_dir():
        parser.error(f"there are no peers in {options.peers}: run bench/setup_peers.sh {options.peers}")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    report = Report.begin("compare", options)
    try:
        results = compare(options)
    except (ServerFailed, LoadFailed) as failed:
        raise SystemExit(f"compare: {failed}") from None
    report_on(report, results)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
