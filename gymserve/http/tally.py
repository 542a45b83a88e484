"""Who is told what becomes of requests, to count it."""

from typing import Protocol


class Tally(Protocol):
    """It must only take note. ``route`` is what the request is for, of few words."""

    def answered(self, route: str, seconds: float) -> None:
        """A whole answer went out, so long after the whole request had come."""

    def reminded(self, route: str) -> None:
        """An interim answer was sent."""

    def hung_up(self, route: str) -> None:
        """The client left before its answer was out."""


class _Uncounted:
    def answered(self, route: str, seconds: float) -> None: ...

    def reminded(self, route: str) -> None: ...

    def hung_up(self, route: str) -> None: ...


UNCOUNTED = _Uncounted()
