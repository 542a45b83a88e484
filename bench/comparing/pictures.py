"""The comparison and the latency as pictures."""

from collections.abc import Callable, Mapping
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING

from reporting import PALETTE, pictures

from comparing.loads import Outcome
from comparing.rounds import Rounds, middle
from comparing.scenarios import RATES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLOURS = dict(zip(("gymserve", "adapter", "direct", "bare"), PALETTE, strict=False))
_LABELS = {
    "adapter": "NeMo Gym's adapter, in-process",
    "gymserve": "gymserve, to an OpenEnv server",
    "bare": "bare Trio + h11, to an OpenEnv server",
    "direct": "OpenEnv server directly",
}
_SCENARIOS = {"step": "step", "mcp": "MCP echo", "sleep": "step of 0.2 s", "connect": "new connections"}
_BAR = 0.2


def draw(folder: Path, results: Mapping[str, Rounds]) -> None:
    """``comparison.png`` and ``latency.png``, of what was played."""
    compared = {name: results[name] for name in _SCENARIOS if name in results}
    if compared:
        _draw_comparison(folder / "comparison.png", compared)
    latency = {rate: results[name] for rate in RATES if (name := f"latency-{rate}") in results}
    if latency:
        _draw_latency(folder / "latency.png", latency)


def _draw_comparison(path: Path, results: Mapping[str, Rounds]) -> None:
    title = "gymserve beside NeMo Gym's in-process adapter, 64 rollouts at once"
    labels = ["calls/s", "CPU, µs a request"]
    with pictures(path, title, x="", y=labels, height_inches=7.0) as [speed, cpu]:
        _bars(speed, results, lambda outcome: outcome.calls_per_second)
        _bars(cpu, results, lambda outcome: outcome.cpu_us)
        cpu.set_xticks(range(len(results)), [_SCENARIOS[name] for name in results])
        cpu.set_xlabel("CPU is that of the arm's own process, without the OpenEnv server behind it")
        cpu.legend().set_visible(False)
        speed.legend(frameon=False, fontsize=8, loc="upper center", ncols=2, bbox_to_anchor=(0.5, 1.22))


def _bars(axes: "Axes", results: Mapping[str, Rounds], figure: Callable[[Outcome], float]) -> None:
    """A group for each scenario; logarithmic, since both figures span two decades."""
    labelled: set[str] = set()
    for place, rounds in enumerate(results.values()):
        arms = [arm for arm in _LABELS if arm in rounds[0]]
        for number, arm in enumerate(arms):
            x = place + (number - (len(arms) - 1) / 2) * _BAR
            label = "" if arm in labelled else _LABELS[arm]
            labelled.add(arm)
            bars = axes.bar(x, middle(rounds, arm, figure) or 0.0, _BAR * 0.92, color=_COLOURS[arm], label=label)
            axes.bar_label(bars, fmt="{:,.0f}", fontsize=8)
    axes.set_yscale("log")
    axes.margins(y=0.15)


def _draw_latency(path: Path, results: Mapping[int, Rounds]) -> None:
    title = "Latency of a call through gymserve, and to the same OpenEnv server directly"
    with pictures(path, title, x="calls/s", y=["p50, ms", "p99, ms"], height_inches=6.0) as panels:
        for axes, name in zip(panels, ("p50_ms", "p99_ms"), strict=True):
            _lines(axes, results, name)
            axes.set_ylim(bottom=0)
        panels[-1].legend().set_visible(False)
        panels[-1].set_xticks(list(results))


def _lines(axes: "Axes", results: Mapping[int, Rounds], name: str) -> None:
    for arm in ("gymserve", "bare", "direct"):
        values = [middle(rounds, arm, attrgetter(name)) or 0.0 for rounds in results.values()]
        axes.plot(list(results), values, marker="o", color=_COLOURS[arm], label=_LABELS[arm])
