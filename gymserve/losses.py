"""Lines of trajectories that were lost, and what is said of it."""

import structlog
import trio

from gymserve.trajectories import Written

_log = structlog.get_logger()

_SUMMARY_SECONDS = 10.0
_OVER_SECONDS = 10.0  # without a loss


class Losses:
    """What was dropped is told at once, and then every so often for all meanwhile; a disk's trouble once, and when it
    is over.
    """

    def __init__(self) -> None:
        self._dropped = 0
        self._told_at = float("-inf")
        self._reasons: set[str] = set()  # of the trouble there is
        self._troubled_at = 0.0
        self._unwritten = 0

    def drop(self) -> None:
        """There was no room for a line while others waited for the disk."""
        self._dropped += 1
        if trio.current_time() >= self._told_at + _SUMMARY_SECONDS:
            self._tell_dropped()

    def note(self, written: Written) -> None:
        """What became of a batch."""
        now = trio.current_time()
        self._unwritten += written.lost
        if written.reason is not None:
            self._troubled_at = now
            if written.reason not in self._reasons:
                self._reasons.add(written.reason)
                _log.warning("trajectories cannot be written", reason=written.reason, lines_lost=written.lost)
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
        _log.warning("trajectories have gaps: lines come faster than they can be written", lines_dropped=self._dropped)
        self._dropped, self._told_at = 0, trio.current_time()
