"""What is compared, and how long a round of it is."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from comparing.loads import Work

RATES = (50, 200, 500)
"""Calls a second at which the latency is measured."""

_SLEEP_SECONDS = 0.2
_LATENCY_SECONDS = 6.0
_LATENCY_CLIENTS = (
    8  # as few as do: their goodbyes, all at the end, meet less than a hundredth of the calls at 200 a second
)


@dataclass(frozen=True, slots=True)
class Scenario:
    """The work of a round, by the arm that plays it."""

    name: str
    title: str
    env: str
    work: Mapping[str, Work]

    def quickly(self) -> "Scenario":
        """A quarter of it, with a quarter of the clients."""
        return self._each(_quarter)

    def warm_up(self) -> "Scenario":
        """A little of each arm's: imports, caches, the servers' threads."""
        return self._each(_taste)

    def _each(self, change: Callable[[Work], Work]) -> "Scenario":
        return replace(self, work={arm: change(work) for arm, work in self.work.items()})


def _quarter(work: Work) -> Work:
    if work.rate is not None:
        return replace(work, calls=work.calls // 4)
    return replace(work, rollouts=work.rollouts // 4, at_once=work.at_once // 4)


def _taste(work: Work) -> Work:
    return replace(work, rollouts=8, at_once=8, calls=1, rate=None)


def scenarios() -> list[Scenario]:
    """All of them. An arm that is faster plays more rollouts, so that the rounds of all take some seconds."""
    step = Work(rollouts=64)
    echo = replace(step, tool="echo_message", arguments='{"message": "Hello, environment."}')
    slow = replace(step, arguments=f'{{"direction": 1, "sleep_seconds": {_SLEEP_SECONDS}}}')
    new = replace(step, closes=True)
    return [
        Scenario(
            "step",
            "step environment",
            "move",
            {
                "adapter": step,
                "gymserve": replace(step, rollouts=192),
                "bare": replace(step, rollouts=192),
            },
        ),
        Scenario(
            "mcp",
            "MCP echo environment",
            "echo",
            {"adapter": echo, "gymserve": echo, "direct": echo},
        ),
        Scenario(
            "sleep",
            f"a step that sleeps {_SLEEP_SECONDS:g} s",
            "move",
            # The adapter takes one step after the other, in whatever rollouts they come: with eight calls in each, its
            # round would take 102 s for the same rate (less the seeds' and the verifies' share, 3 % with one).
            {"adapter": replace(slow, calls=1), "gymserve": replace(slow, rollouts=256)},
        ),
        Scenario(
            "connect",
            "a new connection for each request",
            "move",
            {"adapter": new, "gymserve": replace(new, rollouts=192)},
        ),
        *(
            Scenario(
                f"latency-{rate}",
                f"latency at {rate} calls/s",
                "move",
                {arm: _steadily(rate) for arm in ("direct", "bare", "gymserve")},
            )
            for rate in RATES
        ),
    ]


def _steadily(rate: int) -> Work:
    calls = round(rate * _LATENCY_SECONDS / _LATENCY_CLIENTS)
    return Work(rollouts=_LATENCY_CLIENTS, calls=calls, at_once=_LATENCY_CLIENTS, rate=rate)
