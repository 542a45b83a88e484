"""Scripted policies: what plays GridSim where no model does.

A policy is a script of tool calls: it yields a tool's name and arguments, is sent the tool's result, and ends with the
day. It does no I/O, so whoever has the tools can play it, over HTTP as well as in a test::

    policy, result = greedy(), None
    while True:
        try:
            name, arguments = policy.send(result)
        except StopIteration:
            break
        result = await call_tool(name, arguments)
"""

from collections.abc import Generator, Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from gymserve.gridsim.day import HOURS
from gymserve.gridsim.manual import DEFAULT_FORECAST_HOURS
from gymserve.gridsim.optimum import optimum
from gymserve.gridsim.plant import FUEL_CENTS_PER_MW_SQUARED, FUEL_CENTS_PER_MWH, IDLE, Dispatch

ToolCall = tuple[str, dict[str, Any]]
Policy = Generator[ToolCall, Mapping[str, Any] | None, None]

_SENT = "a policy is sent the result of every call"


def idle() -> Policy:
    """Leave everything to the market: reward 0."""
    return follow([IDLE] * HOURS)


def optimal(day: int) -> Policy:
    """Do the best that can be done on ``day``, known beforehand: reward 1."""
    return follow(optimum(day).dispatches)


def follow(dispatches: Iterable[Dispatch]) -> Policy:
    """Dispatch as written, without looking."""
    for dispatch in dispatches:
        yield "dispatch", {"battery_mw": dispatch.battery_mw, "generator_mw": dispatch.generator_mw}


def greedy() -> Policy:
    """Each hour do what pays at the present price.

    The battery discharges at prices above the mean of the next hours and charges at others; the generator runs as high
    as a megawatt-hour more is cheaper from it than from the market. Nothing is planned, and starts cost what they cost.
    It looks once, at the first status and the whole day's forecast: each dispatch tells the status of the next hour.
    """
    status = yield "status", {}
    forecast = yield "forecast", {"hours": HOURS}
    assert status is not None and forecast is not None, _SENT
    for hour in range(HOURS):
        coming = forecast["hours"][hour : hour + DEFAULT_FORECAST_HOURS]
        told = yield "dispatch", _greedy_arguments(status, coming)
        assert told is not None, _SENT
        status = told["status"]


def _greedy_arguments(status: Mapping[str, Any], hours: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    price = status["import_price"]
    battery, generator = status["battery"], status["generator"]
    mean = fmean(hour["import_price"] for hour in hours)
    battery_mw = battery["max_mw"] if price > mean else battery["min_mw"]
    worth_mw = int((100 * price - FUEL_CENTS_PER_MWH) / (2 * FUEL_CENTS_PER_MW_SQUARED))
    generator_mw = max(generator["min_mw"], min(generator["max_mw"], worth_mw))
    return {"battery_mw": battery_mw, "generator_mw": generator_mw}
