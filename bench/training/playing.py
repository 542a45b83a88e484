"""A rollout: a policy in a model's place, which thinks, calls tools and is scored; and what can go wrong."""

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import trio

from gymserve.gridsim.day import HOURS
from gymserve.gridsim.plant import Plant
from training.incident import TURNS, Pace
from training.policy import Policy, Trajectory


class RolloutFailed(Exception):
    """``why`` is a word or two that are counted."""

    def __init__(self, why: str, detail: str = "") -> None:
        super().__init__(f"{why}: {detail}")
        self.why = why


@dataclass(slots=True)
class Seat:
    """How far a rollout has come with its episode. ``answered_at``: the last answer, by CLOCK_MONOTONIC."""

    rollout: str
    day: int
    has_episode: bool = False
    is_over: bool = False
    answered_at: float | None = None
    waited_seconds: float = 0.0

    def note(self, tool: str, result: Mapping[str, Any]) -> None:
        """A tool answered: the day's last hour ends the episode."""
        if tool == "schedule" and not result["status"]["hours_left"]:
            self.is_over = True

    @property
    def holds_a_slot(self) -> bool:
        return self.has_episode and not self.is_over


class Tools(Protocol):
    """An episode, as a rollout has it."""

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """What tool ``name`` says. :raises RolloutFailed"""

    async def score(self) -> float:
        """What the episode was worth; it is over then. :raises RolloutFailed"""


OpenTools = Callable[[Seat], AbstractAsyncContextManager[Tools]]
"""An episode of the seat's day, for a block; raises `RolloutFailed`."""


async def play(tools: Tools, policy: Policy, day: Trajectory, *, seed: tuple[int, ...], pace: Pace) -> None:
    """The whole day, in `TURNS` turns of thought. :raises RolloutFailed"""
    acting, thinking = np.random.default_rng((*seed, 0)), np.random.default_rng((*seed, 1))
    plant = Plant()
    hours: list[Mapping[str, Any]] = []
    for turn in range(TURNS):
        await trio.sleep(pace.think_seconds(thinking))
        if not hours:
            hours = (await tools.call("forecast", {"hours": HOURS}))["hours"]
        plan = []
        for hour in range(turn * HOURS // TURNS, (turn + 1) * HOURS // TURNS):
            dispatch = policy.decide(plant, hours[hour:], acting, day)
            plan.append((dispatch.battery_mw, dispatch.generator_mw))
            plant = plant.after(dispatch)
        await tools.call("schedule", {"dispatches": plan})
    day.reward = await tools.score()
