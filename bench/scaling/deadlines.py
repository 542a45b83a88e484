"""When sessions that hear nothing are let go, against when they should be."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import trio
from reporting import percentile

from scaling.opening import Deadlines, open_sessions
from scaling.processes import Pause, Stage, stage

_PROBE_SESSIONS = 64
_LEAD_SECONDS = 3.0
_SETTLE_SECONDS = 1.0
_GIVE_UP_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Plan:
    """``sessions`` whose deadlines are ``apart_seconds`` from one another. The fewer are opened at once, the better is
    it known when each was.
    """

    sessions: int
    apart_seconds: float
    seconds_per_session: float
    probes_per_second: float = 50.0
    opened_at_once: int = 2


@dataclass(slots=True)
class Outcome:
    """What the environment server saw, and the callers of other sessions from the first deadline to the last CLOSE.

    ``late_seconds`` are from a session's deadline, which is counted from when its reset was answered over there (a
    little earlier than gymserve knows of it), to the CLOSE frame's arrival; ``goodbye_late_seconds`` to that of the
    ``close`` message before it, which gives the environment back.
    """

    late_seconds: list[float] = field(default_factory=list)
    goodbye_late_seconds: list[float] = field(default_factory=list)
    lost: int = 0
    last_after_seconds: float = 0.0
    other_calls_seconds: list[float] = field(default_factory=list)
    pauses: list[Pause] = field(default_factory=list)
    cpu_us_per_session: float = 0.0

    def late_ms(self, percent: float) -> float | None:
        return _ms(percentile(self.late_seconds, percent))

    def goodbye_late_ms(self, percent: float) -> float | None:
        return _ms(percentile(self.goodbye_late_seconds, percent))

    def other_calls_ms(self, percent: float) -> float | None:
        return _ms(percentile(self.other_calls_seconds, percent))


def run(plan: Plan) -> Outcome:
    """:raises TooSlow: the sessions could not be opened in the time that the plan has for it."""
    with stage("--log-format", "json", "--max-connections", "1000") as on:
        return _reclaim(on, plan)


def _reclaim(on: Stage, plan: Plan) -> Outcome:
    outcome = Outcome()
    names = [f"session-{number}" for number in range(plan.sessions)]
    with on.probed(rate=plan.probes_per_second, sessions=_PROBE_SESSIONS) as calls:
        deadlines = Deadlines(
            time.monotonic() + plan.sessions * plan.seconds_per_session + _LEAD_SECONDS, plan.apart_seconds
        )
        trio.run(open_sessions, on.port, names, deadlines.choose, plan.opened_at_once)
        time.sleep(max(0.0, deadlines.begin - _SETTLE_SECONDS - time.monotonic()))
        cpu_seconds = on.server.cpu_seconds()
        last = deadlines.begin + (plan.sessions - 1) * plan.apart_seconds
        time.sleep(max(0.0, last + _SETTLE_SECONDS - time.monotonic()))
        ended = _wait_for_the_last(on, names)
    outcome.cpu_us_per_session = 1e6 * (on.server.cpu_seconds() - cpu_seconds) / plan.sessions
    outcome.pauses = [pause for pause in on.pauses() if pause.at > deadlines.begin - _SETTLE_SECONDS]
    outcome.other_calls_seconds = [seconds for due, seconds in calls if deadlines.begin <= due <= ended]
    _judge(on, names, deadlines, outcome)
    return outcome


def _wait_for_the_last(on: Stage, names: Sequence[str]) -> float:
    """The moment of the last CLOSE."""
    give_up_at = time.monotonic() + _GIVE_UP_SECONDS
    while time.monotonic() < give_up_at and not on.open_episodes().isdisjoint(names):
        time.sleep(1)
    moments = on.moments()
    closed = [moments[name].closed for name in names]
    return max((moment for moment in closed if moment is not None), default=time.monotonic())


def _judge(on: Stage, names: Sequence[str], deadlines: Deadlines, outcome: Outcome) -> None:
    moments = on.moments()
    for name, idle_timeout_seconds in zip(names, deadlines.idle_timeout_seconds, strict=True):
        seen = moments[name]
        deadline = seen.answered + idle_timeout_seconds
        if seen.closed is None or seen.goodbye is None:
            outcome.lost += 1
            continue
        outcome.late_seconds.append(seen.closed - deadline)
        outcome.goodbye_late_seconds.append(seen.goodbye - deadline)
    outcome.last_after_seconds = max((m.closed or 0.0) for m in moments.values()) - deadlines.begin


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1000 * seconds, 2)
