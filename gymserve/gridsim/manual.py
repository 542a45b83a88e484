"""What a language model is told about the grid: the task, and each tool's description and schema."""

from collections.abc import Mapping, Sequence
from typing import Any

from gymserve.gridsim.day import HOURS
from gymserve.gridsim.plant import (
    BATTERY_LOSS_PERCENT,
    BATTERY_MW,
    BATTERY_MWH,
    BATTERY_START_MWH,
    FUEL_CENTS_PER_MW_SQUARED,
    FUEL_CENTS_PER_MWH,
    GENERATOR_MW,
    RAMP_MW,
    START_CENTS,
)

DEFAULT_FORECAST_HOURS = 6

_FUEL_EUR = FUEL_CENTS_PER_MWH // 100
_FUEL_EUR_SQUARED = FUEL_CENTS_PER_MW_SQUARED // 100
_FUEL = f"{_FUEL_EUR} * g + {_FUEL_EUR_SQUARED} * g^2 EUR at g MW"
_START_EUR = START_CENTS // 100
_LOSS = BATTERY_LOSS_PERCENT / 100

TASK = (
    f"You run a small power grid for one day of {HOURS} hours. Dispatch the battery and the generator once an hour so "
    "that the day costs as little as possible. Demand is always met: the market sells what is missing and buys what is "
    f"left over. The battery begins with {BATTERY_START_MWH} of {BATTERY_MWH} MWh, and what is left in it after the "
    "last hour is worth nothing; the generator begins switched off. Use `forecast` and `status` to look, which is free "
    "and takes no time, and `dispatch` to act: each call is one hour. The score is given after the last hour: 0 if the "
    "day costs as much as leaving everything to the market, 1 if it costs as little as possible."
)

_POWER = {
    "demand_mw": "MW that the grid uses",
    "solar_mw": "MW from the sun",
    "wind_mw": "MW from the wind",
    "import_price": "EUR paid for each MWh bought from the market",
    "export_price": "EUR received for each MWh sold to the market, half of import_price",
}
_EACH_HOUR = "; ".join(f"{key}: {meaning}" for key, meaning in _POWER.items())


def _tool(name: str, description: str, properties: Mapping[str, Any], required: Sequence[str] = ()) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}
    return {"name": name, "description": description, "input_schema": schema}


def _integer(low: int, high: int, description: str, **more: Any) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": high, "description": description, **more}


TOOLS: Sequence[Mapping[str, Any]] = (
    _tool(
        "forecast",
        "Look ahead, free of charge: what the present hour, which is still to be dispatched, and those after it bring. "
        f"The forecast is exact. For each hour: {_EACH_HOUR}. Near the end of the day the list is shorter.",
        {"hours": _integer(1, HOURS, "How many, the present one included.", default=DEFAULT_FORECAST_HOURS)},
    ),
    _tool(
        "status",
        f"Look at the present hour, free of charge. {_EACH_HOUR}; battery.soc_mwh: energy stored, of "
        "battery.capacity_mwh; battery.min_mw to battery.max_mw: what this hour's dispatch may set battery_mw to; "
        "generator.output_mw: its output in the last hour; generator.min_mw to generator.max_mw: what this hour's "
        "dispatch may set generator_mw to; cost_eur: what the day has cost so far, in EUR; hours_left: dispatches "
        "still to come.",
        {},
    ),
    _tool(
        "dispatch",
        "Set battery and generator for the present hour and go on to the next. The market balances the rest: it sells "
        "what is missing at import_price and buys a surplus at export_price. An hour costs the market's bill (negative "
        f"for a sale), the generator's fuel ({_FUEL}) and {_START_EUR} EUR when the generator starts, that is goes "
        "from 0 MW to more. Tells what the hour cost (outcome; its market_mw > 0 was bought, < 0 sold) and the status "
        "of the next one. Values out of bounds are refused and take no time.",
        {
            "battery_mw": _integer(
                -BATTERY_MW,
                BATTERY_MW,
                "Whole MW, measured in the battery: > 0 discharges, < 0 charges, 0 rests. Losses are "
                f"{BATTERY_LOSS_PERCENT} % each way: discharging 1 MWh brings {1 - _LOSS:g} MWh to the grid, charging "
                f"1 MWh takes {1 + _LOSS:g} MWh from it. The charge stays between 0 and {BATTERY_MWH} MWh: see "
                "battery.min_mw and battery.max_mw in `status`.",
            ),
            "generator_mw": _integer(
                0,
                GENERATOR_MW,
                f"Whole MW of output. It may differ from the hour before by at most {RAMP_MW} MW: see generator.min_mw "
                "and generator.max_mw in `status`.",
            ),
        },
        required=("battery_mw", "generator_mw"),
    ),
)
