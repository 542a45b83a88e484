"""Runs that were closed: what is left of their clients may go on to seed for a while."""

import trio

from gymserve.errors import LabelClosed


class Strays:
    """Labels that get no new sessions, each until its time is over."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def refuse(self, label: str, *, seconds: float) -> None:
        """0 takes it back."""
        now = trio.current_time()
        self._until = {each: until for each, until in self._until.items() if until > now}
        self._until[label] = now + seconds

    def check(self, label: str | None) -> None:
        """:raises LabelClosed: sessions of that label are refused."""
        left = self._until.get(label or "", 0.0) - trio.current_time()
        if label is not None and left > 0:
            raise LabelClosed(label, left)
