"""Many seeds at a time: whether they are served in the order in which they come, and what others notice of it."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import trio
from reporting import percentile

from scaling.client import Client
from scaling.processes import Stage, stage

_PROBES_PER_SECOND = 50.0
_PROBE_SESSIONS = 64
TIE_SECONDS = 0.05
"""Of two seeds that were sent so shortly after one another either may be the first: they may come to gymserve in one
turn of its loop, and in one turn there is no order."""


@dataclass(slots=True)
class Outcome:
    """``overtaken``: seeds that had their reset after one that was sent more than `TIE_SECONDS` later;
    ``overtaken_by_seconds``: how much later, of all that were served out of order.
    """

    refused: int = 0
    overtaken: int = 0
    overtaken_by_seconds: list[float] = field(default_factory=list)
    served_in_seconds: float = 0.0
    other_calls_seconds: list[float] = field(default_factory=list)

    def other_calls_ms(self, percent: float) -> float | None:
        seconds = percentile(self.other_calls_seconds, percent)
        return None if seconds is None else round(1000 * seconds, 2)


def run(seeds: int, over_seconds: float) -> Outcome:
    """``seeds`` by as many clients, at even distances within that time."""
    with stage("--log-format", "json", "--max-connections", str(seeds + 1000)) as on:
        return _flood(on, seeds, over_seconds)


def _flood(on: Stage, seeds: int, over_seconds: float) -> Outcome:
    outcome = Outcome()
    with on.probed(rate=_PROBES_PER_SECOND, sessions=_PROBE_SESSIONS) as calls:
        time.sleep(0.5)
        began = time.monotonic()
        sent = trio.run(_seed_all, on.port, seeds, over_seconds)
        ended = time.monotonic()
    moments = on.moments()
    reset = [moments[f"seed-{number}"].reset if f"seed-{number}" in moments else None for number in range(seeds)]
    outcome.refused = reset.count(None)
    outcome.served_in_seconds = ended - began
    outcome.other_calls_seconds = [seconds for due, seconds in calls if began <= due <= ended]
    pairs = [(at, sent_at) for at, sent_at in zip(reset, sent, strict=True) if at is not None]
    outcome.overtaken_by_seconds = [by for by in overtaken_by(pairs) if by > 0]
    outcome.overtaken = sum(by > TIE_SECONDS for by in outcome.overtaken_by_seconds)
    return outcome


def overtaken_by(served: Sequence[tuple[float, float]]) -> list[float]:
    """Of (served, sent) moments: how much later the last of those was sent that were served before each; 0 for none."""
    latest, by = 0.0, []
    for _, sent_at in sorted(served):
        by.append(max(0.0, latest - sent_at))
        latest = max(latest, sent_at)
    return by


async def _seed_all(port: int, seeds: int, over_seconds: float) -> list[float]:
    """When each was sent."""
    sent = [0.0] * seeds
    begin = trio.current_time()

    async def seed(number: int) -> None:
        async with await Client.connect(port) as client:
            sent[number] = time.monotonic()
            await client.seed(f"seed-{number}")

    async with trio.open_nursery() as nursery:
        for number in range(seeds):
            await trio.sleep_until(begin + number * over_seconds / seeds)
            nursery.start_soon(seed, number)
    return sent
