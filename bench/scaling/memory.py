"""What an open session holds of gymserve's memory, and what the collector makes of so many."""

import time
from dataclasses import dataclass

import trio

from scaling.opening import open_sessions
from scaling.processes import FullCollection, Pause, stage

_WARM_UP_SESSIONS = 50
_SETTLE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Outcome:
    """``pauses`` of the collector are those while the sessions were opened; ``full`` is forced afterwards."""

    kib_per_session: float
    objects_per_session: float
    seconds: float
    pauses: list[Pause]
    full: FullCollection


def run(sessions: int) -> Outcome:
    """As many as that, all open at the same time."""
    with stage("--log-format", "json", "--max-connections", "1000") as on:
        trio.run(open_sessions, on.port, [f"warm-up-{number}" for number in range(_WARM_UP_SESSIONS)])
        objects = on.full_collection().objects
        before_kib, began = on.server.memory_kib(), time.monotonic()
        trio.run(open_sessions, on.port, [f"session-{number}" for number in range(sessions)])
        seconds = time.monotonic() - began
        time.sleep(_SETTLE_SECONDS)
        grown_kib = on.server.memory_kib() - before_kib
        pauses = [pause for pause in on.pauses() if pause.at > began]
        full = on.full_collection()
        return Outcome(
            kib_per_session=grown_kib / sessions,
            objects_per_session=(full.objects - objects) / sessions,
            seconds=seconds,
            pauses=pauses,
            full=full,
        )
