"""What happened lately, in order and numbered, so that whoever watches can go on where it left off."""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from typing import Any

import trio

from gymserve.telemetry import (
    Called,
    Ended,
    Fact,
    ReclaimedAlive,
    SessionOpened,
    SlotFreed,
    Stepped,
    Stopping,
    Telemetry,
    Touched,
    Verified,
    Waiting,
)

_NAMES: Mapping[type[Fact], str] = {
    Waiting: "waiting",
    SessionOpened: "opened",
    Called: "called",
    Stepped: "stepped",
    Touched: "touched",
    Ended: "ended",
    SlotFreed: "freed",
    ReclaimedAlive: "reclaimed_alive",
    Verified: "verified",
    Stopping: "stopping",
}
_FIELDS = {fact: tuple(field.name for field in fields(fact)) for fact in _NAMES}
_SHOWN = {"idle_seconds_left": "idle_deadline_in_seconds"}  # as listings have it
_DIGITS = 6


@dataclass(frozen=True, slots=True)
class Event:
    """A fact, and when it was told (seconds since the epoch)."""

    number: int
    at_epoch_seconds: float
    fact: Fact

    @property
    def name(self) -> str:
        return _NAMES[type(self.fact)]

    def data(self) -> dict[str, Any]:
        """As JSON can say it."""
        return {
            "at_epoch_seconds": round(self.at_epoch_seconds, _DIGITS),
            **{_SHOWN.get(name, name): _shown(getattr(self.fact, name)) for name in _FIELDS[type(self.fact)]},
        }


def _shown(value: Any) -> Any:
    return round(value, _DIGITS) if isinstance(value, float) else value


class Missed(Exception):
    """Events that were asked for are not remembered, or were never ours."""


class Events:
    """The last events of this process. Who reads them too slowly misses some; nobody waits for a reader."""

    def __init__(
        self,
        instance: str,
        telemetry: Telemetry,
        *,
        most: int = 8192,
        epoch_seconds: Callable[[], float] = time.time,
    ) -> None:
        """:param instance: this process's own, which the ids of events name. :param most: how many are remembered.
        :param epoch_seconds: the time of day.
        """
        self._instance = instance
        self._latest = 0
        self._kept: deque[Event] = deque(maxlen=most)
        self._readers = trio.lowlevel.ParkingLot()
        self._listeners: list[Callable[[Event], None]] = []
        # The clock of this machine may be set back; that of the events is not.
        self._epoch = epoch_seconds() - trio.current_time()
        telemetry.listen(self._note)

    @property
    def now_epoch_seconds(self) -> float:
        """By the clock of the events."""
        return self._epoch + trio.current_time()

    def listen(self, listener: Callable[[Event], None]) -> None:
        """A listener must only take note."""
        self._listeners.append(listener)

    @property
    def latest(self) -> str:
        """The id of the last one."""
        return self.id(self._latest)

    def id(self, number: int) -> str:
        return f"{self._instance}-{number}"

    def number(self, event_id: str) -> int:
        """:raises Missed: it is no id of this process's events."""
        instance, _, digits = event_id.rpartition("-")
        if instance != self._instance or not (digits.isascii() and digits.isdigit()) or len(digits) > len(self.latest):
            raise Missed
        return int(digits)

    def after(self, number: int) -> Sequence[Event]:
        """All after that one. :raises Missed: some are not remembered, or that one is none of ours."""
        missing = self._latest - number
        if not 0 <= missing <= len(self._kept):
            raise Missed
        return list(islice(self._kept, len(self._kept) - missing, None))

    async def more(self, number: int) -> None:
        """Wait until there is one after that."""
        while self._latest <= number:
            await self._readers.park()

    def _note(self, fact: Fact) -> None:
        if type(fact) not in _NAMES:
            return
        self._latest += 1
        event = Event(self._latest, self.now_epoch_seconds, fact)
        self._kept.append(event)
        for listener in self._listeners:
            listener(event)
        if self._readers:
            self._readers.unpark_all()
