"""What has ended in each minute of the last half hour, for who comes to look at it only now."""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gymserve.events import Event, Events
from gymserve.telemetry import Ended, Verified

_MINUTE_SECONDS = 60
_KEPT_MINUTES = 31  # those of half an hour, of which the first and the last are parts


@dataclass(slots=True)
class _Minute:
    scored: int = 0
    not_scored: int = 0
    verified: int = 0
    masked: Counter[str] = field(default_factory=Counter)


class Minutes:
    """Counts of sessions that ended and of verifies, by the minute; only minutes in which there were some."""

    def __init__(self, events: Events) -> None:
        self._since_epoch_seconds = events.now_epoch_seconds
        self._minutes: OrderedDict[int, _Minute] = OrderedDict()
        events.listen(self._note)

    def told(self) -> Mapping[str, Any]:
        """As JSON can say it: since when they are counted, and the minutes by their beginnings."""
        return {
            "since_epoch_seconds": round(self._since_epoch_seconds, 3),
            "minutes": [
                {
                    "at_epoch_seconds": number * _MINUTE_SECONDS,
                    "scored": minute.scored,
                    "not_scored": minute.not_scored,
                    "verified": minute.verified,
                    "masked": dict(minute.masked),
                }
                for number, minute in self._minutes.items()
            ],
        }

    def _note(self, event: Event) -> None:
        match event.fact:
            case Ended(scored=True):
                self._at(event).scored += 1
            case Ended():
                self._at(event).not_scored += 1
            case Verified(masked_kind=masked_kind):
                minute = self._at(event)
                minute.verified += 1
                if masked_kind is not None:
                    minute.masked[masked_kind] += 1

    def _at(self, event: Event) -> _Minute:
        number = int(event.at_epoch_seconds // _MINUTE_SECONDS)
        if number not in self._minutes:
            self._minutes[number] = _Minute()
            while next(iter(self._minutes)) <= number - _KEPT_MINUTES:
                self._minutes.popitem(last=False)
        return self._minutes[number]
