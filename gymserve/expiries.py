"""Sessions that their idle timeout ends, and what to change where they are many."""

import math
from collections import Counter, deque
from dataclasses import dataclass

import structlog
import trio

from gymserve.score import Ending
from gymserve.telemetry import Ended, Fact, ReclaimedAlive

_log = structlog.get_logger()

_WINDOW_SECONDS = 600.0
_MANY = 10
_ONE_IN = 5  # of all that ended
_REMEMBERED = 10_000  # sessions: where more have ended within the window, the last of them
_SHOWN_LABELS = 3
_SHOWN_CHARACTERS = 100

_CLOSE = (
    "a trainer abandons rollouts: have it close them (POST /close_session), or close its run by the label "
    "(gymserve close, gymserve hold)"
)
_LOWER = ", or have their slots back sooner by a lower --idle-timeout (README: Choosing the idle timeout)"


@dataclass(slots=True)
class _Expired:
    """``silent_seconds``: when its client came back, how long it had been silent."""

    label: str
    silent_seconds: float | None = None


class Expiries:
    """The sessions that ended within a while. Where at least ten of them, and a fifth, were reclaimed by the idle
    timeout, one warning says what to change, and again after a while as long as it stays so.
    """

    def __init__(self) -> None:
        self._ended: deque[tuple[float, str | None]] = deque()  # when, and the session, where it was reclaimed
        self._expired: dict[str, _Expired] = {}
        self._quiet_until = -math.inf

    def hear(self, fact: Fact) -> None:
        """A listener of the telemetry."""
        match fact:
            case Ended():
                self._count(fact, trio.current_time())
            case ReclaimedAlive() if fact.session in self._expired:
                self._expired[fact.session].silent_seconds = fact.silent_seconds

    def _count(self, fact: Ended, now: float) -> None:
        is_expired = fact.ending == Ending.EXPIRED.value
        self._ended.append((now, fact.session if is_expired else None))
        if is_expired:
            self._expired[fact.session] = _Expired(fact.label or "")
        self._forget(now)
        if is_expired and now >= self._quiet_until and self._are_many:
            self._quiet_until = now + _WINDOW_SECONDS
            self._warn()

    def _forget(self, now: float) -> None:
        while self._ended[0][0] <= now - _WINDOW_SECONDS or len(self._ended) > _REMEMBERED:
            _, expired = self._ended.popleft()
            if expired is not None:
                self._expired.pop(expired, None)

    @property
    def _are_many(self) -> bool:
        return len(self._expired) >= _MANY and _ONE_IN * len(self._expired) >= len(self._ended)

    def _warn(self) -> None:
        labels = Counter(expired.label[:_SHOWN_CHARACTERS] for expired in self._expired.values())
        silences = [each.silent_seconds for each in self._expired.values() if each.silent_seconds is not None]
        _log.warning(
            "many sessions are reclaimed by their idle timeout",
            reclaimed=len(self._expired),
            ended=len(self._ended),
            within_seconds=_WINDOW_SECONDS,
            labels=dict(labels.most_common(_SHOWN_LABELS)),
            came_back=len(silences),
            advice=_advice(silences, not_back=len(self._expired) - len(silences)),
        )


def _advice(silences: list[float], *, not_back: int) -> str:
    """:param silences: of the clients that came back; ``not_back`` may yet, a few of them."""
    if not silences:
        return _CLOSE + _LOWER
    higher = f"clients came back: raise --idle-timeout above {math.ceil(max(silences))}, their longest silence"
    return f"{higher}; of the others, {_CLOSE}" if not_back >= _MANY else higher
