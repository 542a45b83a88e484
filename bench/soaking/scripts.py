"""What a rollout does and what it must hear: days of GridSim, played beforehand without a server."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

from gymserve.gridsim.grid import GridSim
from gymserve.gridsim.policies import Policy, greedy, optimal

DAYS = range(40)  # few: the optimum of each costs the environment server some time once


@dataclass(frozen=True, slots=True)
class Turn:
    """A tool call, and the result that the environment gives it."""

    tool: str
    arguments: dict[str, Any]
    result: Any


@dataclass(frozen=True, slots=True)
class Script:
    """A whole day, and the reward that it earns."""

    day: int
    turns: tuple[Turn, ...]
    reward: float


def any_script(chance: random.Random) -> Script:
    day = chance.choice(DAYS)
    return _optimal_day(day) if chance.random() < 0.5 else _greedy_day(day)


@cache
def _optimal_day(day: int) -> Script:
    return _played(day, lambda: optimal(day))


@cache
def _greedy_day(day: int) -> Script:
    return _played(day, greedy)


def _played(day: int, make_policy: Callable[[], Policy]) -> Script:
    environment, policy = GridSim(), make_policy()
    environment.reset(day=day)
    turns: list[Turn] = []
    result: Any = None
    while True:
        tool, arguments = policy.send(result)
        called = environment.call(tool, arguments)
        result = called.data
        turns.append(Turn(tool, arguments, result))
        if called.done:
            assert called.reward is not None
            return Script(day, tuple(turns), called.reward)
