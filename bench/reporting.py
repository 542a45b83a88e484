"""What all benches print, write down and exit with: a table, targets that are met or missed, JSON, and pictures.

A bench gives its parser `add_arguments`, fills in a `Report` made before it measures, and exits with what `finish`
returns::

    report = Report.begin("churn", options)
    report.figures["rollouts per second"] = 7.3
    report.targets.append(Target("slot utilisation", 0.981, ">=", 0.97))
    if report.pictures is not None:
        with picture(report.pictures / "occupancy.png", "Slots that are busy", x="time (s)", y="slots") as axes:
            axes.plot(seconds, busy)
    return report.finish()
"""

import argparse
import json
import math
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Relation = Literal["<=", ">=", "=="]
Value = float | int | str | bool | None

RESULTS = Path(__file__).parent / "results"
TARGET_MISSED_STATUS = 1
SHOWN_PACKAGES = ("trio", "trio-websocket", "hypercorn", "h11", "httptools", "quart", "pydantic")
PALETTE = ("#1f5fa8", "#d1600d", "#2e8540", "#8a3ffc", "#6f6f6f", "#b3202c")
"""Blue, orange, green, violet, grey, red: distinct in print, and to those who do not tell red from green by their
lightness."""


@dataclass(frozen=True, slots=True)
class Target:
    """``value relation bound``, as in ``0.981 >= 0.97``.

    :param value: what was measured; None (nothing was) misses the target.
    :param needs_full_run: the figure means nothing after a ``--quick`` run: it is shown then, and not judged.
    :param why_missed: where the figure is a floor that is understood, the reason; it is missed all the same.
    """

    name: str
    value: float | int | None
    relation: Relation
    bound: float | int
    unit: str = ""
    needs_full_run: bool = False
    why_missed: str = ""

    @property
    def is_met(self) -> bool:
        if self.value is None or math.isnan(self.value):
            return False
        match self.relation:
            case "<=":
                return self.value <= self.bound
            case ">=":
                return self.value >= self.bound
            case "==":
                return self.value == self.bound


@dataclass(frozen=True, slots=True)
class Machine:
    cpu: str
    cores: int
    system: str
    python: str
    packages: Mapping[str, str]
    load_average: float
    """Of the minute before the bench began: what others did on this machine."""

    @classmethod
    def here(cls) -> "Machine":
        return cls(
            cpu=cpu_name(),
            cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
            system=f"{platform.system()} {platform.release()} {platform.machine()}",
            python=f"{platform.python_implementation()} {platform.python_version()}",
            packages=dict(installed(SHOWN_PACKAGES)),
            load_average=round(os.getloadavg()[0], 2),
        )

    def __str__(self) -> str:
        return f"{self.cores} cores of {self.cpu}, {self.python}, {self.system}, load average {self.load_average:g}"


@dataclass
class Report:
    """:param pictures: the folder that pictures go to; None makes none."""

    bench: str
    options: Mapping[str, Any]
    is_quick: bool
    machine: Machine
    began: datetime
    json_file: Path | None = None
    pictures: Path | None = None
    figures: dict[str, Any] = field(default_factory=dict)
    """Anything that JSON can hold. Numbers and text are shown in the table too, and mappings of them; lists are not."""
    targets: list[Target] = field(default_factory=list)
    tables: list[Table] = field(default_factory=list)
    """What the bench shows above its targets; where there is none, the plain figures are shown."""

    @classmethod
    def begin(cls, bench: str, options: argparse.Namespace) -> "Report":
        """:param options: of a parser that `add_arguments` was given."""
        return cls(
            bench=bench,
            # Where files are on this machine is nobody else's business, and changes no figure.
            options={name: plain(value) for name, value in vars(options).items() if not isinstance(value, Path)},
            is_quick=options.quick,
            machine=Machine.here(),
            began=datetime.now(UTC),
            json_file=options.json,
            pictures=options.pictures,
        )

    def judged(self, target: Target) -> bool:
        return not (self.is_quick and target.needs_full_run)

    @property
    def status(self) -> int:
        """The exit status: 0 if no target is missed of those that this run can judge."""
        missed = any(self.judged(target) and not target.is_met for target in self.targets)
        return TARGET_MISSED_STATUS if missed else 0

    def document(self) -> dict[str, Any]:
        return {
            "bench": self.bench,
            "began": self.began.isoformat(timespec="seconds"),
            "machine": asdict(self.machine),
            "options": self.options,
            "figures": self.figures,
            "targets": [
                {**asdict(target), "met": target.is_met if self.judged(target) else None} for target in self.targets
            ],
        }

    def finish(self) -> int:
        """Print the tables, write the JSON. What to exit with."""
        console = Console()
        console.print(f"{self.bench} on {self.machine}", highlight=False)
        for table in self.tables or [figures_table(self.figures)]:
            console.print(table)
        if self.targets:
            console.print(self._targets_table())
        if self.json_file is not None:
            self.json_file.parent.mkdir(parents=True, exist_ok=True)
            self.json_file.write_text(json.dumps(self.document(), indent=1) + "\n")
        return self.status

    def _targets_table(self) -> Table:
        table = Table("target", "measured", "wanted", "", title="targets", title_justify="left")
        for target in self.targets:
            measured = f"{written(target.value)} {target.unit}".strip()
            wanted = f"{target.relation} {written(target.bound)} {target.unit}".strip()
            table.add_row(target.name, measured, wanted, self._judgement(target))
        return table

    def _judgement(self, target: Target) -> Text:
        if not self.judged(target):
            return Text("not judged: --quick", style="dim")
        if target.is_met:
            return Text("met", style="green")
        return Text(f"missed: {target.why_missed}" if target.why_missed else "missed", style="bold red")


def add_arguments(parser: argparse.ArgumentParser, *, quick: str) -> None:
    """``--quick``, ``--json FILE`` and ``--pictures FOLDER``.

    :param quick: what is left out then.
    """
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    parser.add_argument("--pictures", type=Path, metavar="FOLDER", help="draw pictures there (needs matplotlib)")


def figures_table(figures: Mapping[str, Any]) -> Table:
    table = Table(show_header=False)
    for name, value in figures.items():
        if is_plain(value):
            table.add_row(name, written(value))
        elif isinstance(value, Mapping) and all(map(is_plain, value.values())):
            table.add_row(name, "\n".join(f"{written(number)} {what}" for what, number in value.items()))
    return table


def is_plain(value: object) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))


def written(value: Value) -> str:
    """As it stands in a table: three or four digits that count, thousands apart."""
    match value:
        case None:
            return "-"
        case bool() | str():
            return str(value)
        case int():
            return f"{value:,}"
        case _ if math.isfinite(value) and abs(value) >= 1000:
            return f"{value:,.0f}"
    return f"{value:.4g}"


def percentile(values: list[float], percent: float) -> float | None:
    """The nearest rank: the smallest value that at least ``percent`` of all do not exceed. None of no values."""
    if not values:
        return None
    rank = math.ceil(len(values) * percent / 100)
    return sorted(values)[max(rank, 1) - 1]


@contextmanager
def picture(
    path: Path,
    title: str,
    *,
    x: str,
    y: str,
    width_inches: float = 9.0,
    height_inches: float = 5.0,
) -> Iterator["Axes"]:
    """Axes to draw on; afterwards they are written to ``path`` as a PNG, with a legend if anything has a label.

    :param x: and :param y: what the axes show, with the unit.
    """
    with pictures(path, title, x=x, y=[y], width_inches=width_inches, height_inches=height_inches) as [axes]:
        yield axes


@contextmanager
def pictures(
    path: Path,
    title: str,
    *,
    x: str,
    y: list[str],
    names: list[str] | None = None,
    width_inches: float = 9.0,
    height_inches: float = 5.0,
) -> Iterator[list["Axes"]]:
    """One above the other, with one x axis: as `picture`, with axes for each of ``y``.

    :param names: of each, above it.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_inches, height_inches), layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    every = list(figure.subplots(len(y), 1, sharex=True, squeeze=False)[:, 0])
    for axes, label, name in zip(every, y, names or [""] * len(y), strict=True):
        dress(axes, label, name)
    every[-1].set_xlabel(x)
    figure.suptitle(title, fontsize=13, fontweight="bold", x=0.01, ha="left")
    yield every
    for axes in every:
        if axes.get_legend_handles_labels()[0] and axes.get_legend() is None:
            axes.legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def dress(axes: "Axes", label: str, name: str) -> None:
    axes.set_prop_cycle(color=PALETTE)
    axes.set_ylabel(label)
    axes.set_title(name, fontsize=10, loc="left")
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or "an unknown processor"


def installed(names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for name in names:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            continue


def plain(value: Any) -> Value | list[Any]:
    """An option as JSON has it."""
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value if is_plain(value) else str(value)
