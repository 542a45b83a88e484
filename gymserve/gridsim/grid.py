"""GridSim, the embedded environment: one day of a small power grid, played through three tools."""

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from gymserve.gridsim.arguments import Whole, read_arguments
from gymserve.gridsim.day import DAYS, EVALUATION_DAYS, HOURS, TRAINING_DAYS, Hour, hours_of
from gymserve.gridsim.environment import InvalidAction
from gymserve.gridsim.manual import DEFAULT_FORECAST_HOURS, TASK, TOOLS
from gymserve.gridsim.optimum import reward_for
from gymserve.gridsim.plant import (
    BATTERY_MW,
    BATTERY_MWH,
    RAMP_MW,
    Dispatch,
    Plant,
    fuel_cents,
    market_cents,
    market_kw,
    start_cents,
)
from gymserve.gridsim.tools import ToolEnvironment, ToolResult
from gymserve.wire import Observation


class DayOver(Exception):
    """All hours of the day are dispatched; only a reset goes on from here."""

    def __init__(self) -> None:
        super().__init__(f"the day is over, all {HOURS} hours are dispatched: reset to begin another")


class GridSim(ToolEnvironment):
    """Run a small power grid for a day, hour by hour, with a battery, a generator and a market.

    The tools are ``forecast``, ``status`` and ``dispatch``. The 24th dispatch ends the episode with its only reward:
    0 for a day that costs as much as leaving everything to the market (or more), 1 for the cheapest day there is.
    """

    tools: Sequence[Mapping[str, Any]] = TOOLS

    def __init__(self) -> None:
        self._begin(DAYS[0])

    def reset(self, day: Any = None, seed: Any = None) -> Observation:
        """Begin ``day``; without it day ``seed % 1000``, a training day; without both day 0.

        :raises InvalidAction: ``day`` is not one of the days, or ``seed`` is not an integer.
        """
        self._begin(_chosen_day(day, seed))
        return Observation({"metadata": {}, "task": TASK, "day": self._day, "status": self._status()})

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        """:raises DayOver: there is no hour left to look at or to dispatch; ``status`` still tells the cost."""
        match name:
            case "status":
                read_arguments(arguments)
                return ToolResult(self._status())
            case "forecast":
                return self._forecast(arguments)
            case _:
                return self._dispatch(arguments)

    def _begin(self, day: int) -> None:
        self._day = day
        self._hours = hours_of(day)
        self._hour = 0
        self._plant = Plant()
        self._cost_cents = 0

    def _status(self) -> dict[str, Any]:
        progress = {"hour": self._hour, "hours_left": HOURS - self._hour}
        present = {} if self._is_over else _told(self._hours[self._hour]) | self._limits()
        return progress | present | {"cost_eur": self._cost_cents / 100}

    def _limits(self) -> dict[str, Any]:
        battery, generator = self._plant.battery_range, self._plant.generator_range
        return {
            "battery": {
                "soc_mwh": self._plant.battery_mwh,
                "capacity_mwh": BATTERY_MWH,
                "min_mw": battery[0],
                "max_mw": battery[-1],
            },
            "generator": {
                "output_mw": self._plant.generator_mw,
                "min_mw": generator[0],
                "max_mw": generator[-1],
            },
        }

    def _forecast(self, arguments: Mapping[str, Any]) -> ToolResult:
        self._check_not_over()
        wanted = Whole("hours", range(1, HOURS + 1), default=DEFAULT_FORECAST_HOURS)
        end = self._hour + read_arguments(arguments, wanted)["hours"]
        coming = enumerate(self._hours[self._hour : end], self._hour)
        return ToolResult({"hours": [{"hour": number} | _told(hour) for number, hour in coming]})

    def _dispatch(self, arguments: Mapping[str, Any]) -> ToolResult:
        self._check_not_over()
        dispatch = Dispatch(**read_arguments(arguments, *self._choices()))
        outcome = self._carry_out(dispatch)
        reward = reward_for(self._day, self._cost_cents) if self._is_over else None
        return ToolResult({"outcome": outcome, "status": self._status()}, reward, done=self._is_over)

    def _choices(self) -> tuple[Whole, Whole]:
        plant = self._plant
        stored = f"the battery holds {plant.battery_mwh} of {BATTERY_MWH} MWh and moves at most {BATTERY_MW} MW"
        ramp = f"the generator was at {plant.generator_mw} MW and changes by at most {RAMP_MW} MW an hour"
        return (
            Whole("battery_mw", plant.battery_range, stored),
            Whole("generator_mw", plant.generator_range, ramp),
        )

    def _carry_out(self, dispatch: Dispatch) -> dict[str, Any]:
        number, hour = self._hour, self._hours[self._hour]
        market, fuel = market_cents(hour, dispatch), fuel_cents(dispatch.generator_mw)
        start = start_cents(self._plant.generator_mw, dispatch.generator_mw)
        self._plant = self._plant.after(dispatch)
        self._cost_cents += market + fuel + start
        self._hour += 1
        return {
            "hour": number,
            "battery_mw": dispatch.battery_mw,
            "generator_mw": dispatch.generator_mw,
            "market_mw": market_kw(hour, dispatch) / 1000,
            "market_eur": market / 100,
            "fuel_eur": fuel / 100,
            "start_eur": start / 100,
            "cost_eur": (market + fuel + start) / 100,
        }

    @property
    def _is_over(self) -> bool:
        return self._hour == HOURS

    def _check_not_over(self) -> None:
        if self._is_over:
            raise DayOver


def _told(hour: Hour) -> dict[str, float]:
    return {
        "demand_mw": hour.demand_kw / 1000,
        "solar_mw": hour.solar_kw / 1000,
        "wind_mw": hour.wind_kw / 1000,
        "import_price": hour.import_cents_per_mwh / 100,
        "export_price": hour.export_cents_per_mwh / 100,
    }


def _chosen_day(day: Any, seed: Any) -> int:
    if day is None and seed is None:
        return DAYS[0]
    if day is None:
        return TRAINING_DAYS[_integer("seed", seed, "") % len(TRAINING_DAYS)]
    bounds = (
        f" from {DAYS[0]} to {DAYS[-1]} ({TRAINING_DAYS[0]} to {TRAINING_DAYS[-1]} for training, "
        f"{EVALUATION_DAYS[0]} to {EVALUATION_DAYS[-1]} for evaluation)"
    )
    number = _integer("day", day, bounds)
    if number not in DAYS:
        raise _refused("day", day, bounds)
    return number


def _integer(name: str, value: Any, bounds: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise _refused(name, value, bounds)
    return value


def _refused(name: str, value: Any, bounds: str) -> InvalidAction:
    sentence = f"{name} must be an integer{bounds}, not {reprlib.repr(value)}"
    return InvalidAction([{"type": "value_error", "loc": [name], "msg": sentence}])
