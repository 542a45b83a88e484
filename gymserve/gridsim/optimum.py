"""The best that can be done with a day: exact, by dynamic programming backwards over (generator, battery).

Fuel and market depend on where the generator goes, not on where it was, so an hour is taken in two halves: first the
best move of the battery for each output, then the best output within each ramp. That is a third of the work of trying
all pairs: some 20 ms a day.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import add

from gymserve.gridsim.day import DAYS, Hour, hours_of
from gymserve.gridsim.plant import (
    BATTERY_MW,
    BATTERY_MWH,
    GENERATOR_MW,
    IDLE,
    Dispatch,
    Plant,
    running_cents,
    start_cents,
)

Values = list[list[int]]
"""The least cost of the hours that remain, in cents: ``values[generator_mw][battery_mwh]``."""

_NEVER = 10**12
"""Cents for a charge that the battery cannot have: more than any day costs."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A schedule and what it costs."""

    cost_cents: int
    dispatches: tuple[Dispatch, ...]


@lru_cache(maxsize=len(DAYS))
def optimum(day: int) -> Plan:
    """The cheapest schedule of ``day``, one of `DAYS`; found once (some 20 ms), then remembered."""
    return cheapest(hours_of(day))


def idle_cents(day: int) -> int:
    """What ``day`` costs if all is left to the market."""
    return sum(running_cents(hour, IDLE) for hour in hours_of(day))


def reward_for(day: int, cost_cents: int) -> float:
    """What a day's dispatches deserve: 0 for the cost of leaving ``day`` to the market or more, 1 for the optimum's."""
    idle = idle_cents(day)
    # Above zero on every day: the battery does not begin empty, and there is no hour in which its energy is worthless.
    most_saved = idle - optimum(day).cost_cents
    return max(0.0, (idle - cost_cents) / most_saved)


def cheapest(hours: Sequence[Hour], plant: Plant | None = None) -> Plan:
    """The cheapest schedule of ``hours`` from ``plant`` on (at first: as a day begins)."""
    plant = plant or Plant()
    values = [_nothing_remains()]
    for hour in reversed(hours):
        values.append(_values(hour, values[-1]))
    cost = values.pop()[plant.generator_mw][plant.battery_mwh]
    dispatches = []
    for hour in hours:
        dispatches.append(_best_dispatch(hour, plant, values.pop()))
        plant = plant.after(dispatches[-1])
    return Plan(cost, tuple(dispatches))


def _nothing_remains() -> Values:
    """After the last hour: what is left in the battery is worth nothing."""
    return [[0] * (BATTERY_MWH + 1) for _ in range(GENERATOR_MW + 1)]


def _values(hour: Hour, later: Values) -> Values:
    moved = [_battery_moved(hour, output_mw, later[output_mw]) for output_mw in range(GENERATOR_MW + 1)]
    return [_generator_moved(before_mw, moved) for before_mw in range(GENERATOR_MW + 1)]


def _generator_moved(before_mw: int, moved: Values) -> list[int]:
    """For each charge the least of ``moved`` within the ramp from ``before_mw``, the start included if it is one."""
    choices = []
    for output_mw in Plant(generator_mw=before_mw).generator_range:
        start = start_cents(before_mw, output_mw)
        choices.append([cost + start for cost in moved[output_mw]])
    return list(map(min, *choices))


def _battery_moved(hour: Hour, generator_mw: int, later: Sequence[int]) -> list[int]:
    """For each charge of the battery the least cost of this hour at ``generator_mw`` and of those that remain."""
    # Moves are ordered by the charge that they lead to, so that they stand beside a window of later values.
    moves = [running_cents(hour, Dispatch(mw, generator_mw)) for mw in range(BATTERY_MW, -BATTERY_MW - 1, -1)]
    walled = [_NEVER] * BATTERY_MW + list(later) + [_NEVER] * BATTERY_MW
    return [min(map(add, moves, walled[charge_mwh : charge_mwh + len(moves)])) for charge_mwh in range(len(later))]


def _best_dispatch(hour: Hour, plant: Plant, later: Values) -> Dispatch:
    def total_cents(choice: Dispatch) -> int:
        after = plant.after(choice)
        start = start_cents(plant.generator_mw, choice.generator_mw)
        return running_cents(hour, choice) + start + later[after.generator_mw][after.battery_mwh]

    return min((Dispatch(b, g) for g in plant.generator_range for b in plant.battery_range), key=total_cents)
