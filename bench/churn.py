"""Session churn under load: rollouts a second, how long seeds wait, and when abandoned slots come back.

Starts ``gymserve env`` and ``gymserve serve`` as processes of their own on loopback, keeps ``--clients`` rollouts of
GridSim going for ``--seconds``, lets every tenth stop without a word at a random point, and compares the moment when
gymserve's log says that it was reclaimed with its deadline by the client's clock (which runs a little late: the answer
has to arrive first). Exit status 0 only if nothing was lost, masked or left.
"""

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from statistics import median, quantiles

import httpx
import trio
from rich.console import Console
from rich.table import Table

from gymserve.cli.rollouts import Rollout, RolloutFailed
from gymserve.gridsim.day import TRAINING_DAYS
from gymserve.gridsim.policies import greedy

ABANDONED_SHARE = 0.1
CALLS = 26  # of a whole day
SETTLE_SECONDS = 2.0


@dataclass
class Result:
    seconds: float
    finished: int
    abandoned: int
    reclaimed: int
    lost: int
    masked: int
    slots_held: int
    rollouts_per_second: float
    requests_per_second: float
    seed_seconds_p50: float | None
    seed_seconds_p99: float | None
    reclaim_overshoot_seconds_p50: float | None
    reclaim_overshoot_seconds_max: float | None

    @property
    def is_as_it_should_be(self) -> bool:
        return self.lost == self.masked == self.slots_held == 0 and self.reclaimed == self.abandoned


class Load:
    """``clients`` rollouts at a time, until the time is over."""

    def __init__(self, url: str, seconds: float, seed: int) -> None:
        self.url = url
        self.finished = self.requests = self.lost = self.masked = 0
        self.seed_seconds: list[float] = []
        self.last_answers: list[float] = []  # of the abandoned ones, in seconds since the epoch
        self._ends_at = trio.current_time() + seconds
        self._random = random.Random(seed)

    async def client(self) -> None:
        while trio.current_time() < self._ends_at:
            try:
                await self._rollout()
            except RolloutFailed as exc:
                self.lost += 1
                sys.stderr.write(f"lost: {exc}\n")

    async def _rollout(self) -> None:
        day = self._random.choice(TRAINING_DAYS)
        rollout = Rollout(self.url, {"responses_create_params": {"input": []}, "reset_kwargs": {"day": day}})
        try:
            began = trio.current_time()
            await rollout.seed()
            self.seed_seconds.append(trio.current_time() - began)
            if self._random.random() < ABANDONED_SHARE:
                await rollout.play(greedy(), at_most_calls=self._random.randrange(CALLS))
                self.last_answers.append(time.time())
            else:
                await rollout.play(greedy())
                result = await rollout.verify()
                self.masked += bool(result.get("mask_sample"))
                self.finished += 1
        finally:
            self.requests += 1 + rollout.calls
            await rollout.aclose()


@contextmanager
def gymserve(*arguments: str, log: Path) -> Iterator[str]:
    """A gymserve process; its URL."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GYMSERVE_")}
    with log.open("w") as stderr:
        process = subprocess.Popen([sys.executable, "-m", "gymserve", *arguments], env=environment, stderr=stderr)
    try:
        while not (found := re.search(r"^listening on (\S+)$", log.read_text(), re.MULTILINE)):
            if process.poll() is not None:
                raise SystemExit(log.read_text())
            time.sleep(0.05)
        yield found.group(1)
    finally:
        process.terminate()
        process.wait(30)


async def drive(url: str, env_url: str, options: argparse.Namespace) -> tuple[Load, float, int]:
    load = Load(url, options.seconds, options.seed)
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(options.clients):
            nursery.start_soon(load.client)
    seconds = trio.current_time() - began
    await trio.sleep(options.idle_timeout + SETTLE_SECONDS)
    async with httpx.AsyncClient(trust_env=False, verify=False) as client:
        held = (await client.get(f"{env_url}/gymserve/episodes")).json()["active"]
    return load, seconds, held


def overshoots(log: Path, last_answers: list[float], idle_timeout_seconds: float) -> list[float]:
    """How long after its deadline each abandoned session ended: both in order of time, as all have the same timeout."""
    ended = []
    for line in log.read_text().splitlines():
        if line.startswith("{") and (event := json.loads(line)).get("ending") == "idle timeout":
            ended.append(datetime.fromisoformat(event["timestamp"]).timestamp())
    pairs = zip(sorted(ended), sorted(last_answers), strict=False)
    return [end - (last + idle_timeout_seconds) for end, last in pairs]


def run(options: argparse.Namespace) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "serve")
        capacity = str(options.slots)
        serving = ("serve", "--port", "0", "--log-format", "json", "--idle-timeout", str(options.idle_timeout))
        with (
            gymserve("env", "--port", "0", "--capacity", capacity, log=Path(folder, "env")) as env_url,
            gymserve(*serving, "--env", env_url, log=log) as url,
        ):
            load, seconds, held = trio.run(drive, url, env_url, options)
        late = overshoots(log, load.last_answers, options.idle_timeout)
    waits = sorted(load.seed_seconds)
    return Result(
        seconds=round(seconds, 1),
        finished=load.finished,
        abandoned=len(load.last_answers),
        reclaimed=len(late),
        lost=load.lost,
        masked=load.masked,
        slots_held=held,
        rollouts_per_second=round(load.finished / seconds, 2),
        requests_per_second=round(load.requests / seconds, 1),
        seed_seconds_p50=rounded(median(waits) if waits else None),
        seed_seconds_p99=rounded(quantiles(waits, n=100)[98] if len(waits) > 1 else None),
        reclaim_overshoot_seconds_p50=rounded(median(late) if late else None),
        reclaim_overshoot_seconds_max=rounded(max(late, default=None)),
    )


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def table(result: Result) -> Table:
    shown = Table(show_header=False)
    for name, value in asdict(result).items():
        shown.add_row(name.replace("_", " "), str(value))
    return shown


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long rollouts are begun (30)")
    parser.add_argument("--clients", type=int, default=24, help="rollouts at a time (24)")
    parser.add_argument("--slots", type=int, default=16, help="of the environment server (16)")
    parser.add_argument("--idle-timeout", type=float, default=2.0, help="seconds (2)")
    parser.add_argument("--seed", type=int, default=0, help="of the load's random choices (0)")
    parser.add_argument("--quick", action="store_true", help="5 seconds")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    options.seconds = 5.0 if options.quick else options.seconds
    return options


def main() -> int:
    options = parse(sys.argv[1:])
    result = run(options)
    if options.json:
        sys.stdout.write(json.dumps(asdict(result)) + "\n")
    else:
        Console().print(table(result))
    return 0 if result.is_as_it_should_be else 1


if __name__ == "__main__":
    sys.exit(main())
