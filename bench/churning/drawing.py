"""The picture of a churn: its slots over time."""

from pathlib import Path

from reporting import PALETTE, pictures

from churning.figures import spans
from churning.records import Churn

_BLUE, _ORANGE = PALETTE[:2]


def draw_occupancy(churn: Churn, path: Path, title: str, *, most_seconds: float) -> None:
    """The first ``most_seconds``: slots with a live rollout and with one that was left, and below the line before
    them; pauses are grey.
    """
    shown = [span for span in spans(churn) if span.began_at < churn.began_at + most_seconds]
    seconds = [span.began_at - churn.began_at for span in shown]
    with pictures(path, title, x="time (s)", y=["slots", "seeds"], names=["", "waiting for a slot"]) as [above, below]:
        above.stackplot(
            seconds,
            [span.live for span in shown],
            [span.busy - span.live for span in shown],
            labels=["with a live rollout", "left without a word, until the idle timeout"],
            colors=[_BLUE, _ORANGE],
            step="post",
        )
        above.axhline(churn.slots, color="#333333", linewidth=1, label=f"all {churn.slots} slots")
        above.set_ylim(0, churn.slots * 1.35)
        above.legend(frameon=False, loc="upper left", ncols=3)
        below.step(seconds, [span.waiting for span in shown], where="post", color=_BLUE)
        below.set_ylim(0)
        for axes in (above, below):
            axes.set_xlim(0, seconds[-1])
            for began, ended in churn.pauses:
                if began - churn.began_at < most_seconds:
                    axes.axvspan(began - churn.began_at, ended - churn.began_at, color="#888888", alpha=0.25, lw=0)
