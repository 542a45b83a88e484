"""``gymserve demo``: an environment server with few slots, gymserve before it, and a run that abandons some of its
rollouts.
"""

import json
import logging
import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import trio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from gymserve.address import EnvironmentAddress, Server
from gymserve.cli.entrance import read_entrance
from gymserve.cli.logs import configure_logging
from gymserve.cli.refusals import printable
from gymserve.cli.rollouts import Rollout, RolloutFailed
from gymserve.cli.serving import compose_gateway, serve_http
from gymserve.descriptors import raise_limit
from gymserve.gridsim.day import EVALUATION_DAYS
from gymserve.gridsim.grid import GridSim
from gymserve.gridsim.policies import greedy
from gymserve.gridsim.server import EnvironmentServer
from gymserve.settings import ServeSettings
from gymserve.wire import Observation

_HOST = "127.0.0.1"
_SLOTS = 8
_ROLLOUTS = 64
_ABANDONED = range(0, 60, 5)  # 12 of them, spread over the run
_IDLE_TIMEOUT_SECONDS = 2.0
_CALLS_APART = 2  # the n-th abandoned rollout stops after n times so many calls
_RECLAIM_SECONDS = 5.0  # beyond its deadline, until an abandoned episode counts as never reclaimed
_SIGNALLED = 128  # plus the signal's number, as a shell reports it
_SETTLE_SECONDS = 0.1  # for the last slot to be counted as free


@dataclass(frozen=True, slots=True)
class Report:
    """What happened. ``latest_reclaim_overshoot_seconds`` is from a silent session's deadline to its environment's
    close.
    """

    finished: int
    abandoned: int
    reclaimed: int
    masked: int
    lost: int
    mean_reward: float | None
    latest_reclaim_overshoot_seconds: float | None
    slots_held: int

    @property
    def is_as_it_should_be(self) -> bool:
        return self.lost == self.masked == self.slots_held == 0 and self.reclaimed == self.abandoned


class Closings:
    """When each environment closed, by the day it played."""

    def __init__(self) -> None:
        self.at: dict[int, float] = {}
        self._one_more = trio.Event()

    def make(self) -> GridSim:
        return _Watched(self)

    def note(self, day: int) -> None:
        self.at[day] = trio.current_time()
        self._one_more.set()

    async def wait_for(self, days: Iterable[int]) -> None:
        """Wait until the environments of all ``days`` have closed."""
        while not self.at.keys() >= set(days):
            self._one_more = trio.Event()
            await self._one_more.wait()


class _Watched(GridSim):
    def __init__(self, closings: Closings) -> None:
        super().__init__()
        self._closings = closings
        self._played: int | None = None

    def reset(self, day: Any = None, seed: Any = None) -> Observation:
        observation = super().reset(day, seed)
        self._played = day
        return observation

    def close(self) -> None:
        if self._played is not None:
            self._closings.note(self._played)


class Run:
    """64 rollouts at once, a day each, 12 of which end in silence."""

    def __init__(self, url: str, closings: Closings, advance: Callable[[], None]) -> None:
        self._url = url
        self._closings = closings
        self._advance = advance
        self._rewards: list[float] = []
        self._deadlines: dict[int, float] = {}
        self._masked = 0
        self.failures: list[str] = []

    async def play(self) -> None:
        async with trio.open_nursery() as nursery:
            for number, day in zip(range(_ROLLOUTS), EVALUATION_DAYS, strict=False):
                nursery.start_soon(self._play_one, number, day)

    async def _play_one(self, number: int, day: int) -> None:
        rollout = Rollout(self._url, {"responses_create_params": {"input": []}, "reset_kwargs": {"day": day}})
        try:
            await rollout.seed()
            if number in _ABANDONED:
                await rollout.play(greedy(), at_most_calls=_ABANDONED.index(number) * _CALLS_APART)
                self._deadlines[day] = rollout.answered_at + _IDLE_TIMEOUT_SECONDS
            else:
                await rollout.play(greedy())
                self._count(await rollout.verify())
        except RolloutFailed as exc:
            self.failures.append(str(exc))
        finally:
            await rollout.aclose()
        self._advance()

    def _count(self, result: Any) -> None:
        if result.get("mask_sample"):
            self._masked += 1
        else:
            self._rewards.append(result["reward"])

    async def reclaimed(self) -> None:
        """Wait until the abandoned ones are reclaimed, or should long have been."""
        latest = max(self._deadlines.values(), default=trio.current_time())
        with trio.move_on_at(latest + _RECLAIM_SECONDS):
            await self._closings.wait_for(self._deadlines)
        await trio.sleep(_SETTLE_SECONDS)

    def report(self, slots_held: int) -> Report:
        overshoots = [
            self._closings.at[day] - deadline for day, deadline in self._deadlines.items() if day in self._closings.at
        ]
        return Report(
            finished=len(self._rewards),
            abandoned=len(self._deadlines),
            reclaimed=len(overshoots),
            masked=self._masked,
            lost=len(self.failures),
            mean_reward=round(fmean(self._rewards), 4) if self._rewards else None,
            latest_reclaim_overshoot_seconds=round(max(overshoots), 4) if overshoots else None,
            slots_held=slots_held,
        )


def run_demo(*, as_json: bool) -> int:
    """Play, print what happened on stdout, progress on stderr; 0 if all is as it should be, else 1."""
    configure_logging("text", least_level=logging.WARNING)
    raise_limit()
    played = _play_with_a_bar() if sys.stderr.isatty() else trio.run(_play, PlainProgress().advance)
    if isinstance(played, int):
        return played
    report, failures = played
    for failure in failures:
        sys.stderr.write(f"lost: {printable(failure)}\n")
    if as_json:
        sys.stdout.write(json.dumps(asdict(report)) + "\n")
    else:
        Console(file=sys.stdout).print(_table(report))
    return 0 if report.is_as_it_should_be else 1


class PlainProgress:
    """A line on stderr for each quarter of the rollouts."""

    def __init__(self) -> None:
        self._done = 0

    def advance(self) -> None:
        self._done += 1
        if self._done % (_ROLLOUTS // 4) == 0:
            sys.stderr.write(f"{self._done} of {_ROLLOUTS} rollouts\n")


def _play_with_a_bar() -> "Played | int":
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(file=sys.stderr)) as progress:
        task = progress.add_task("rollouts", total=_ROLLOUTS)
        return trio.run(_play, lambda: progress.advance(task))


async def _play(advance: Callable[[], None]) -> "Played | int":
    """What happened, and the failures' sentences; the exit status where SIGINT or SIGTERM came first."""
    settings = ServeSettings(host=_HOST, port=0, idle_timeout=_IDLE_TIMEOUT_SECONDS)
    closings, over = Closings(), trio.Event()
    server = EnvironmentServer(closings.make, capacity=_SLOTS)
    played: Played | int = 0

    async def stop_at_a_signal() -> None:
        # In the middle of anything else it would leave a terminal without its cursor, or a traceback on it.
        nonlocal played
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            played = _SIGNALLED + await anext(signals)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop_at_a_signal)
        address = EnvironmentAddress(_HOST, await nursery.start(server.listen, _HOST, 0))
        async with compose_gateway(settings, [Server(address)]) as gateway, trio.open_nursery() as http:
            [url] = await http.start(serve_http, settings, read_entrance(settings), gateway, over.wait)
            run = Run(url, closings, advance)
            await run.play()
            await run.reclaimed()
            played = run.report(server.episodes["active"]), run.failures
            over.set()
        nursery.cancel_scope.cancel()
    return played


Played = tuple[Report, list[str]]


def _table(report: Report) -> Table:
    table = Table(
        title=f"{_ROLLOUTS} rollouts, {_SLOTS} slots, idle timeout {_IDLE_TIMEOUT_SECONDS:g} s", show_header=False
    )
    table.add_column()
    table.add_column(justify="right")
    rows = {
        "finished": report.finished,
        "mean reward": _shown(report.mean_reward),
        "abandoned": report.abandoned,
        "reclaimed": report.reclaimed,
        "latest reclaim after its deadline": f"{_shown(report.latest_reclaim_overshoot_seconds)} s",
        "masked": report.masked,
        "lost": report.lost,
        "slots still held": report.slots_held,
    }
    for name, value in rows.items():
        table.add_row(name, str(value))
    return table


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
