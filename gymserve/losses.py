"""Lines of trajectories that were lost, and what is said of it."""

from collections.abc import Callable

import structlog
import trio

from gymserve.telemetry import LinesLost
from gymserve.trajectories import Written

_log = structlog.get_logger()

_SUMMARY_SECONDS = 10.0
_AGAIN_SECONDS = 60.0  # of a trouble that lasts
_OVER_SECONDS = 10.0  # without a loss


class Losses:
    """What was dropped is told at once, and then every so often for all meanwhile; a disk's trouble at once, every
    minute
    as long as it lasts, and when it is over.
    """

    def __init__(self, tell: Callable[[LinesLost], None]) -> None:
        """:param tell: for whoever counts them."""
        self._tell = tell
        self._dropped = 0
        self._told_at = float("-inf")
        self._reasons: set[str] = set()  # of the trouble there is
        self._troubled_at = 0.0
        self._told_trouble_at = float("-inf")
        self._unwritten = 0

    def drop(self) -> None:
        """There was no room for a line while others waited for the disk."""
        self._dropped += 1
        self._tell(LinesLost(1, "dropped"))
        if trio.current_time() >= self._told_at + _SUMMARY_SECONDS:
            self._tell_dropped()

    def note(self, written: Written) -> None:
        """What became of a batch."""
        now = trio.current_time()
        if written.lost:
            self._unwritten += written.lost
            self._tell(LinesLost(written.lost, "unwritten"))
        if written.reason is not None:
            self._troubled_at = now
            if written.reason not in self._reasons or now >= self._told_trouble_at + _AGAIN_SECONDS:
                self._reasons.add(written.reason)
                self._told_trouble_at = now
                _log.warning(
                    "trajectories cannot be written",
                    reason=written.reason,
                    lines_lost=self._unwritten,
                    advice="give --record room on its disk; rollouts go on, and their lines are lost until then",
                )
        elif self._reasons and now >= self._troubled_at + _OVER_SECONDS:
            _log.warning("trajectories are written again", lines_lost=self._unwritten)
            self._reasons.clear()
            self._unwritten = 0
        if self._dropped and now >= self._told_at + _SUMMARY_SECONDS:
            self._tell_dropped()

    def tell_last(self, *, unwritten: int) -> None:
        """What was not told yet; ``unwritten`` lines were still waiting when it was over."""
        if self._dropped:
            self._tell_dropped()
        if self._unwritten + unwritten:
            _log.warning("trajectories are not whole", lines_lost=self._unwritten + unwritten)

    def _tell_dropped(self) -> None:
        _log.warning(
            "trajectories have gaps: lines come faster than they can be written",
            lines_dropped=self._dropped,
            advice="put --record on a faster disk, or lower --record-max-bytes",
        )
        self._dropped, self._told_at = 0, trio.current_time()
