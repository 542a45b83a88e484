"""Which rollouts are under way, by prime-rl's rules (``orchestrator/dispatcher.py``, August 2026).

- One permit for each rollout, training and evaluation from the same stock.
- A group's rollouts are dispatched one by one; none is dispatched again.
- The number in flight grows by at most `GROUP_SIZE` in a window of 5 s. A rollout that ends, failed or not, gives
    its admission back at once; one that is cancelled does not.
- An evaluation goes before training until all of it is dispatched.
- At a new policy, groups that are more than `MAX_STALENESS` versions behind are cancelled; at the end, all of training.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import trio

from training.incident import ADMISSION_WINDOW_SECONDS, GROUP_SIZE, IN_FLIGHT, SET_UP_SECONDS, Pace
from training.playing import OpenTools, RolloutFailed, Seat, play
from training.policy import Policy, Trajectory

Kind = Literal["train", "eval"]

MAX_STALENESS = 8
CANCELLED = "cancelled"


@dataclass(slots=True)
class Group:
    """Rollouts of one day. ``failed`` counts those that failed or were cancelled; ``to_dispatch`` those to come."""

    number: int
    kind: Kind
    day: int
    policy: Policy
    step: int
    size: int
    to_dispatch: int
    done: list[Trajectory] = field(default_factory=list)
    failed: int = 0

    @property
    def is_complete(self) -> bool:
        return len(self.done) + self.failed >= self.size


@dataclass(slots=True)
class Flight:
    """A rollout that was dispatched. Moments are of CLOCK_MONOTONIC; ``outcome`` is empty where it was scored."""

    name: str
    group: Group
    seat: Seat
    dispatched_at: float
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    ended_at: float = 0.0
    outcome: str = ""
    reward: float = 0.0

    @property
    def is_abandoned(self) -> bool:
        """It was cancelled while it had an episode, to which nobody has said goodbye."""
        return self.outcome == CANCELLED and self.seat.holds_a_slot


class Dispatcher:
    """Keeps rollouts in flight. Each rollout's chances follow from its number."""

    def __init__(self, open_tools: OpenTools, pace: Pace, *, seed: int, next_group: Callable[[int], Group]) -> None:
        """:param next_group: the next group to train on, by its number."""
        self.flights: list[Flight] = []
        self.on_complete: Callable[[Group], None] = _nobody_waits
        self._open_tools = open_tools
        self._pace = pace
        self._seed = seed
        self._next_group = next_group
        self._in_flight: dict[str, Flight] = {}
        self._training: Group | None = None
        self._is_training = True
        self._evaluation: deque[Group] = deque()
        self._groups: dict[int, Group] = {}
        self._numbers = 0
        self._admitted = 0
        self._window_began = trio.current_time()
        self._changed = trio.Event()

    # -- what is asked of it ---------------------------------------------------------------------------------------

    def evaluate(self, step: int, policy: Policy, days: range) -> None:
        """A rollout of each day, before any more training."""
        for day in days:
            self._numbers += 1
            self._evaluation.append(Group(self._numbers, "eval", day, policy, step, 1, 1))
        self._changed.set()

    def drop_stale(self, version: int) -> None:
        """At a new policy."""
        for group in [group for group in self._groups.values() if group.kind == "train"]:
            if version - group.policy.version > MAX_STALENESS:
                self._drop(group)

    def stop_training(self) -> None:
        """Cancel all rollouts of training, without a word to anybody; evaluations go on."""
        self._is_training = False
        for flight in [flight for flight in self._in_flight.values() if flight.group.kind == "train"]:
            self._cancel(flight)
        self._groups = {number: group for number, group in self._groups.items() if group.kind == "eval"}
        self._changed.set()

    async def run(self) -> None:
        """Until training is stopped and nothing is in flight."""
        window_seconds = self._pace.seconds(ADMISSION_WINDOW_SECONDS)
        async with trio.open_nursery() as nursery:
            while self._is_training or self._in_flight or self._evaluation:
                self._changed = trio.Event()
                self._fill(nursery)
                with trio.move_on_at(self._window_began + window_seconds):
                    await self._changed.wait()
                if trio.current_time() >= self._window_began + window_seconds:
                    self._window_began, self._admitted = trio.current_time(), 0

    # -- dispatching -----------------------------------------------------------------------------------------------

    def _fill(self, nursery: trio.Nursery) -> None:
        while len(self._in_flight) < IN_FLIGHT and self._admitted < max(GROUP_SIZE, IN_FLIGHT // 10):
            group = self._due()
            if group is None:
                return
            group.to_dispatch -= 1
            self._admitted += 1
            name = f"r{len(self.flights)}"
            flight = Flight(name, group, Seat(name, group.day), time.monotonic())
            self.flights.append(flight)
            self._in_flight[name] = flight
            nursery.start_soon(self._fly, flight, len(self.flights))

    def _due(self) -> Group | None:
        """The group of which a rollout is dispatched next."""
        if self._evaluation:
            group = self._evaluation.popleft()
        elif not self._is_training:
            return None
        elif self._training is not None and self._training.to_dispatch:
            return self._training
        else:
            self._numbers += 1
            group = self._training = self._next_group(self._numbers)
        self._groups[group.number] = group
        return group

    async def _fly(self, flight: Flight, number: int) -> None:
        group = flight.group
        trajectory = Trajectory(group.policy.version)
        with flight.scope:
            try:
                await trio.sleep(self._pace.seconds(SET_UP_SECONDS))
                async with self._open_tools(flight.seat) as tools:
                    await play(tools, group.policy, trajectory, seed=(self._seed, number), pace=self._pace)
            except RolloutFailed as exc:
                flight.outcome = exc.why
        if flight.outcome == CANCELLED:
            return
        flight.ended_at = time.monotonic()
        del self._in_flight[flight.name]
        self._admitted = max(0, self._admitted - 1)
        if flight.outcome:
            group.failed += 1
        else:
            flight.reward = trajectory.reward
            group.done.append(trajectory)
        self._completed(group)

    # -- cancelling ------------------------------------------------------------------------------------------------

    def _cancel(self, flight: Flight) -> None:
        del self._in_flight[flight.name]
        flight.outcome, flight.ended_at = CANCELLED, time.monotonic()
        flight.scope.cancel()

    def _drop(self, group: Group) -> None:
        for flight in [flight for flight in self._in_flight.values() if flight.group is group]:
            self._cancel(flight)
        group.to_dispatch = 0
        group.failed = group.size - len(group.done)
        self._completed(group)

    def _completed(self, group: Group) -> None:
        self._changed.set()
        if group.is_complete and self._groups.pop(group.number, None) is not None:
            self.on_complete(group)


def _nobody_waits(group: Group) -> None:
    """The default of `Dispatcher.on_complete`."""
