"""The pictures: whose each slot was, over time, and how the reward grew."""

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import reporting
from matplotlib.patches import Patch

from training.figures import PHASES, Figures
from training.incident import SLOTS
from training.record import ARMS

_COLOURS = ("#f0c48a", "#1f5fa8", "#b3202c", "#c9ccd1")
_POINTS = 500


def draw_occupancy(arms: Sequence[Figures], path: Path) -> None:
    """A panel for each arm."""
    names = [ARMS[one.record.arm].title for one in arms]
    title = "The environment server's slots"
    with reporting.pictures(
        path,
        title,
        x="minutes, as they were",
        y=["slots"] * len(arms),
        names=names,
        height_inches=2.6 * len(arms) + 0.6,
    ) as panels:
        for axes, one in zip(panels, arms, strict=True):
            minutes, phases = one.occupancy(_POINTS)
            axes.stackplot(minutes, phases, colors=_COLOURS, step="post", linewidth=0)
            axes.margins(x=0)
            axes.set_ylim(0, SLOTS * 1.15)
            for step, minute in evaluations(one):
                axes.axvline(minute, color="black", linewidth=0.8, linestyle=":")
                axes.text(minute, SLOTS * 1.05, f" evaluation at {step}", fontsize=8)
            if one.record.aborted:
                axes.text(minutes[-1], SLOTS / 2, " the run was aborted", fontsize=9)
        keys = [Patch(color=colour, label=phase) for phase, colour in zip(PHASES, _COLOURS, strict=True)]
        panels[0].figure.legend(handles=keys, loc="outside lower center", ncols=len(keys), frameon=False, fontsize=9)


def draw_rewards(arms: Sequence[Figures], path: Path) -> None:
    """Training rewards as lines, evaluations as points with their standard errors."""
    with reporting.picture(path, "What the policy learned", x="step", y="reward") as axes:
        for number, one in enumerate(arms):
            colour = reporting.PALETTE[number]
            rewards = [fmean(batch.rewards) for batch in one.record.batches]
            axes.plot(range(1, len(rewards) + 1), rewards, color=colour, alpha=0.7, label=ARMS[one.record.arm].title)
            found = [(step, one.evaluation_reward(step)) for step in one.record.plan.evaluated_steps]
            shown = [(step + 0.25 * number, mean) for step, mean in found if mean is not None]
            if shown:
                axes.errorbar(
                    [step for step, _ in shown],
                    [mean.mean for _, mean in shown],
                    [mean.error for _, mean in shown],
                    fmt="o",
                    color=colour,
                    capsize=3,
                )


def evaluations(one: Figures) -> list[tuple[int, float]]:
    """The steps after which one began, and when, in minutes as they were."""
    record = one.record
    began = {
        step: min(r.dispatched_at for r in one.evaluation(step))
        for step in record.plan.evaluated_steps
        if one.evaluation(step)
    }
    return [(step, record.pace.as_it_were(at - record.began_at) / 60) for step, at in began.items()]
