"""What the clients do."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plan:
    """``at_once`` clients play rollouts (a seed, ``calls`` calls of ``tool``, a verify), one after the other, until
    ``rollouts`` are over or ``seconds`` have passed. ``warm_up`` rollouts before them are not counted.

    With a ``rate`` so many calls a second begin, at even distances, whether the ones before are answered or not.
    """

    url: str
    at_once: int = 16
    calls: int = 8
    tool: str = "step"
    seed: bytes = b"{}"
    body: bytes = b"{}"
    verify: bytes = b"{}"
    rollouts: int | None = None
    seconds: float | None = None
    warm_up: int = 0
    rate: float | None = None
    closes: bool = False
