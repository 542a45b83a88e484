"""GridSim: its days, its physics, its tools, its optimum, and how scripted policies fare."""

import json
import time
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from statistics import fmean, median
from typing import Any

import pytest
import trio
from environment_peer import connect, error_of
from hypothesis import given, settings
from hypothesis import strategies as st

from gymserve.gridsim.day import DAYS, EVALUATION_DAYS, HOURS, TRAINING_DAYS, Hour, hours_of
from gymserve.gridsim.grid import DayOver, GridSim
from gymserve.gridsim.manual import TASK
from gymserve.gridsim.optimum import cheapest, idle_cents, optimum
from gymserve.gridsim.plant import IDLE, Dispatch, Plant, running_cents, start_cents
from gymserve.gridsim.policies import Policy, follow, greedy, idle, optimal
from gymserve.gridsim.server import EnvironmentServer
from gymserve.gridsim.tools import InvalidArguments, ToolResult

FIRST_STATUS = {
    "hour": 0,
    "hours_left": 24,
    "demand_mw": 12.9,
    "solar_mw": 0.0,
    "wind_mw": 0.6,
    "import_price": 57.0,
    "export_price": 28.5,
    "battery": {"soc_mwh": 6, "capacity_mwh": 16, "min_mw": -4, "max_mw": 4},
    "generator": {"output_mw": 0, "min_mw": 0, "max_mw": 2},
    "cost_eur": 0.0,
}
"""As day 1000 begins."""


def grid(day: int = 0) -> GridSim:
    environment = GridSim()
    environment.reset(day=day)
    return environment


def play(environment: GridSim, policy: Policy) -> list[ToolResult]:
    """The results of all calls of ``policy``."""
    results: list[ToolResult] = []
    result = None
    while True:
        try:
            name, arguments = policy.send(result)
        except StopIteration:
            return results
        results.append(environment.call(name, arguments))
        result = results[-1].data


def reward(day: int, policy: Policy) -> float:
    return play(grid(day), policy)[-1].reward


def dispatch(environment: GridSim, battery_mw: Any = 0, generator_mw: Any = 0) -> Any:
    return environment.call("dispatch", {"battery_mw": battery_mw, "generator_mw": generator_mw}).data


# -- the days --------------------------------------------------------------------------------------------------------


def test_training_and_evaluation_share_no_day() -> None:
    assert (len(TRAINING_DAYS), len(EVALUATION_DAYS)) == (1000, 200)
    assert [*TRAINING_DAYS, *EVALUATION_DAYS] == list(DAYS)


def test_all_days_are_the_same_everywhere_and_for_ever() -> None:
    """Scores of different releases, machines and Pythons can be compared only as long as this holds."""
    days = [
        [(hour.demand_kw, hour.solar_kw, hour.wind_kw, hour.import_cents_per_mwh) for hour in hours_of(day)]
        for day in DAYS
    ]
    digest = "3bf1f856636005b69952588d3ab349f931fff62975ed6968a72b34507714289d"
    assert sha256(repr(days).encode()).hexdigest() == digest


@pytest.mark.parametrize(
    ("day", "noon", "idle_cost", "least_cost"),
    [
        (0, Hour(20300, 4400, 7500, 4500), 1904120, 1527280),
        (999, Hour(19100, 8400, 6800, 3900), 1381400, 982900),
        (1199, Hour(20600, 9500, 3700, 3400), 1288860, 1118200),
    ],
)
def test_known_days(day: int, noon: Hour, idle_cost: int, least_cost: int) -> None:
    assert (hours_of(day)[12], idle_cents(day), optimum(day).cost_cents) == (noon, idle_cost, least_cost)


def test_every_hour_is_in_its_units() -> None:
    """Multiples that make every cost a whole number of cents, and no more than the grid can have."""
    for hour in (hour for day in DAYS for hour in hours_of(day)):
        assert [kw % 100 for kw in (hour.demand_kw, hour.solar_kw, hour.wind_kw)] == [0, 0, 0]
        assert hour.import_cents_per_mwh % 100 == 0
        assert hour.demand_kw > 0 and 0 <= hour.solar_kw <= 13_000 and 0 <= hour.wind_kw <= 10_000
        assert 0 < hour.export_cents_per_mwh < hour.import_cents_per_mwh


def test_doing_something_pays_on_every_day() -> None:
    """What the battery begins with, sold in the two dearest hours: the optimum saves at least as much."""
    saved = []
    for hours in map(hours_of, DAYS):
        dearest = sorted(hours, key=lambda hour: hour.import_cents_per_mwh)[-2:]
        moves = [Dispatch(2, 0), Dispatch(4, 0)]
        saved.append(
            sum(running_cents(h, IDLE) - running_cents(h, move) for h, move in zip(dearest, moves, strict=True))
        )
    assert min(saved) == 356_40


# -- the optimum -----------------------------------------------------------------------------------------------------


@cache
def exhaustive(hours: tuple[Hour, ...], plant: Plant) -> int:
    """The least cost by trying every dispatch of every hour."""
    if not hours:
        return 0
    return min(
        running_cents(hours[0], choice)
        + start_cents(plant.generator_mw, choice.generator_mw)
        + exhaustive(hours[1:], plant.after(choice))
        for choice in (Dispatch(b, g) for b in plant.battery_range for g in plant.generator_range)
    )


@pytest.mark.parametrize(
    ("day", "first_hour", "plant"),
    [
        (0, 17, Plant()),
        (7, 5, Plant(battery_mwh=0, generator_mw=1)),
        (500, 10, Plant(battery_mwh=16, generator_mw=12)),
        (1100, 20, Plant(battery_mwh=9, generator_mw=5)),
    ],
)
def test_no_schedule_is_cheaper_than_the_optimum(day: int, first_hour: int, plant: Plant) -> None:
    hours = hours_of(day)[first_hour : first_hour + 4]
    assert cheapest(hours, plant).cost_cents == exhaustive(hours, plant)


@pytest.mark.parametrize("day", [0, 321, 999, 1000, 1199])
def test_the_optimum_played_through_the_tools_is_one(day: int) -> None:
    results = play(grid(day), optimal(day))
    assert results[-1].reward == 1.0
    assert results[-1].data["status"]["cost_eur"] == optimum(day).cost_cents / 100


def test_an_optimum_is_found_in_a_moment() -> None:
    """Under 0.1 s where nothing else runs, and the last dispatch of a day takes as long; five times that under load."""
    seconds = []
    for day in (3, 400, 801, 1002, 1103):
        hours, start = hours_of(day), time.perf_counter()
        cheapest(hours)
        seconds.append(time.perf_counter() - start)
    assert median(seconds) < 0.5


def test_an_optimum_is_found_once() -> None:
    assert optimum(42) is optimum(42)


# -- the reward ------------------------------------------------------------------------------------------------------


def test_the_policies_on_the_evaluation_days() -> None:
    """Mean rewards, as the README tells them."""
    rewards = [[reward(day, policy) for policy in (idle(), greedy(), optimal(day))] for day in EVALUATION_DAYS]
    means = [round(fmean(of_policy), 3) for of_policy in zip(*rewards, strict=True)]
    assert means == [0.0, 0.6, 1.0]


def test_worse_than_idle_is_zero() -> None:
    starts_every_other_hour = [Dispatch(0, hour % 2) for hour in range(HOURS)]
    results = play(grid(), follow(starts_every_other_hour))
    assert results[-1].data["status"]["cost_eur"] > idle_cents(0) / 100
    assert results[-1].reward == 0.0


def test_the_only_reward_is_the_last() -> None:
    results = play(grid(), idle())
    assert [(result.reward, result.done) for result in results] == [(None, False)] * 23 + [(0.0, True)]


fractions = st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=HOURS, max_size=HOURS)


def pick(limits: Any, fraction: float) -> int:
    return round(limits["min_mw"] + fraction * (limits["max_mw"] - limits["min_mw"]))


@settings(max_examples=60, deadline=None)
@given(day=st.sampled_from(range(0, len(DAYS), 150)), choices=fractions)
def test_whatever_is_allowed_is_no_better_than_the_optimum(day: int, choices: Sequence[tuple[float, float]]) -> None:
    environment, bill = grid(day), 0.0
    for battery, generator in choices:
        status = environment.call("status", {}).data
        arguments = {
            "battery_mw": pick(status["battery"], battery),
            "generator_mw": pick(status["generator"], generator),
        }
        result = environment.call("dispatch", arguments)
        bill += result.data["outcome"]["cost_eur"]
    assert result.done and 0.0 <= result.reward <= 1.0
    assert round(100 * bill) >= optimum(day).cost_cents
    assert result.data["status"]["cost_eur"] == pytest.approx(bill)


# -- the tools -------------------------------------------------------------------------------------------------------


def test_a_day_begins_with_the_task_and_the_first_hour() -> None:
    assert GridSim().reset(day=1000).fields == {
        "metadata": {},
        "task": TASK,
        "day": 1000,
        "status": FIRST_STATUS,
    }


def test_status_says_where_things_stand() -> None:
    assert grid(1000).call("status", {}).data == FIRST_STATUS


def test_an_hour_is_billed_as_the_manual_says() -> None:
    environment = grid(1000)
    data = dispatch(environment, battery_mw=-4, generator_mw=2)
    # 12.9 - 0.6 MW are missing, the battery takes 4.4 MW and the generator gives 2 MW: 14.7 MW at 57 EUR.
    bill = {"market_mw": 14.7, "market_eur": 837.9, "fuel_eur": 114.0, "start_eur": 400.0, "cost_eur": 1351.9}
    assert data["outcome"] == {"hour": 0, "battery_mw": -4, "generator_mw": 2} | bill
    assert data["status"] == environment.call("status", {}).data
    assert data["status"]["hour"] == 1 and data["status"]["cost_eur"] == 1351.9
    assert data["status"]["battery"] == {"soc_mwh": 10, "capacity_mwh": 16, "min_mw": -4, "max_mw": 4}
    assert data["status"]["generator"] == {"output_mw": 2, "min_mw": 0, "max_mw": 4}
    # 8.2 MW are missing and the generator runs already; the battery brings 3.6 MW, the generator 4 MW.
    bill = {"market_mw": 0.6, "market_eur": 26.4, "fuel_eur": 236.0, "start_eur": 0.0, "cost_eur": 262.4}
    assert dispatch(environment, 4, 4)["outcome"] == {"hour": 1, "battery_mw": 4, "generator_mw": 4} | bill


def test_a_surplus_is_sold_at_half_the_price() -> None:
    environment = grid(31)
    dispatch(environment)
    hour = environment.call("status", {}).data
    assert (hour["demand_mw"], hour["wind_mw"], hour["import_price"], hour["export_price"]) == (6.7, 10.0, 12.0, 6.0)
    outcome = dispatch(environment)["outcome"]
    assert (outcome["market_mw"], outcome["cost_eur"]) == (-3.3, -19.8)


def test_the_limits_follow_the_battery_and_the_generator() -> None:
    environment = grid()
    limits = [dispatch(environment, *choice)["status"] for choice in ((4, 2), (2, 4), (0, 5), (-4, 3), (-3, 1))]
    batteries = [(at["battery"]["soc_mwh"], at["battery"]["min_mw"], at["battery"]["max_mw"]) for at in limits]
    assert batteries == [(2, -4, 2), (0, -4, 0), (0, -4, 0), (4, -4, 4), (7, -4, 4)]
    generators = [(at["generator"]["min_mw"], at["generator"]["max_mw"]) for at in limits]
    assert generators == [(0, 4), (2, 6), (3, 7), (1, 5), (0, 3)]


def test_a_battery_nearly_full_and_a_generator_nearly_at_its_top() -> None:
    environment = grid()
    for charge, output in ((-4, 2), (-4, 4), (0, 6), (0, 8), (0, 10), (0, 11)):
        status = dispatch(environment, charge, output)["status"]
    assert status["battery"] == {"soc_mwh": 14, "capacity_mwh": 16, "min_mw": -2, "max_mw": 4}
    assert status["generator"] == {"output_mw": 11, "min_mw": 9, "max_mw": 12}


def test_the_forecast_is_what_comes() -> None:
    environment = grid(1000)
    foretold = environment.call("forecast", {"hours": 24}).data["hours"]
    assert [hour["hour"] for hour in foretold] == list(range(HOURS))
    for hour in foretold:
        assert hour.items() <= environment.call("status", {}).data.items()
        dispatch(environment)


def test_a_forecast_is_of_six_hours_unless_told_and_ends_with_the_day() -> None:
    environment = grid()
    for hour in range(HOURS):
        usual = environment.call("forecast", {}).data["hours"]
        assert [entry["hour"] for entry in usual] == list(range(hour, min(hour + 6, HOURS)))
        assert environment.call("forecast", {"hours": 1.0}).data["hours"] == usual[:1]
        dispatch(environment)


def test_the_results_are_short() -> None:
    """They are read by a model, many times a day: 24 hours of forecast take less than 3 kB."""
    environment = grid()
    forecast = environment.call("forecast", {"hours": 24}).data
    assert len(json.dumps(forecast, separators=(",", ":"))) < 3000
    assert len(json.dumps(dispatch(environment), separators=(",", ":"))) < 500


BATTERY = "battery_mw must be a whole number from -4 to 2 (the battery holds 2 of 16 MWh and moves at most 4 MW)"
GENERATOR = (
    "generator_mw must be a whole number from 0 to 3 (the generator was at 1 MW and changes by at most 2 MW an hour)"
)


@pytest.mark.parametrize(
    ("name", "arguments", "sentence"),
    [
        ("dispatch", {"battery_mw": 3, "generator_mw": 0}, f"{BATTERY}, not 3"),
        ("dispatch", {"battery_mw": -5, "generator_mw": 0}, f"{BATTERY}, not -5"),
        ("dispatch", {"battery_mw": 0.5, "generator_mw": 0}, f"{BATTERY}, not 0.5"),
        ("dispatch", {"battery_mw": float("nan"), "generator_mw": 0}, f"{BATTERY}, not nan"),
        ("dispatch", {"battery_mw": "1", "generator_mw": 0}, f"{BATTERY}, not '1'"),
        ("dispatch", {"battery_mw": 0, "generator_mw": 4}, f"{GENERATOR}, not 4"),
        ("dispatch", {"battery_mw": 0, "generator_mw": True}, f"{GENERATOR}, not True"),
        ("dispatch", {"battery_mw": 0, "generator_mw": None}, f"{GENERATOR}, not None"),
        ("dispatch", {"battery_mw": 9, "generator_mw": float("inf")}, f"{BATTERY}, not 9; {GENERATOR}, not inf"),
        ("dispatch", {}, f"{BATTERY}, and is missing; {GENERATOR}, and is missing"),
        (
            "dispatch",
            {"battery_mw": 0, "generator_mw": 0, "hour": 3},
            "there is no argument 'hour' (known: battery_mw, generator_mw)",
        ),
        ("forecast", {"hours": 0}, "hours must be a whole number from 1 to 24, not 0"),
        ("forecast", {"hours": 25}, "hours must be a whole number from 1 to 24, not 25"),
        ("forecast", {"hours": [6]}, "hours must be a whole number from 1 to 24, not [6]"),
        ("status", {"verbose": 1}, "there is no argument 'verbose' (known: none)"),
    ],
)
def test_what_does_not_fit_is_told_and_takes_no_time(name: str, arguments: dict[str, Any], sentence: str) -> None:
    environment = grid()
    before = dispatch(environment, battery_mw=4, generator_mw=1)["status"]
    with pytest.raises(InvalidArguments) as caught:
        environment.call(name, arguments)
    assert str(caught.value) == f"{sentence}; nothing has changed"
    assert environment.call("status", {}).data == before


def test_whole_floats_are_whole_numbers() -> None:
    outcome = dispatch(grid(), battery_mw=-2.0, generator_mw=1.0)["outcome"]
    assert json.dumps([outcome["battery_mw"], outcome["generator_mw"]]) == "[-2, 1]"


def test_a_day_that_is_over_is_over() -> None:
    environment = grid()
    cost = play(environment, idle())[-1].data["status"]["cost_eur"]
    assert environment.call("status", {}).data == {"hour": 24, "hours_left": 0, "cost_eur": cost}
    for name, arguments in (("forecast", {}), ("dispatch", {"battery_mw": 0, "generator_mw": 0})):
        with pytest.raises(DayOver, match=r"^the day is over, all 24 hours are dispatched: reset to begin another$"):
            environment.call(name, arguments)
    assert environment.reset(day=1000).fields["status"] == FIRST_STATUS


def test_the_schemas_bound_what_the_limits_bound() -> None:
    """The widest that the state can allow is what a model reads in the schema."""
    schemas = {tool["name"]: tool["input_schema"]["properties"] for tool in GridSim.tools}
    plants = [Plant(charge, output) for charge in range(17) for output in range(13)]
    for name, ranges in (
        ("battery_mw", [plant.battery_range for plant in plants]),
        ("generator_mw", [plant.generator_range for plant in plants]),
    ):
        bounds = schemas["dispatch"][name]
        assert bounds["type"] == "integer"
        assert (bounds["minimum"], bounds["maximum"]) == (min(r[0] for r in ranges), max(r[-1] for r in ranges))
    assert schemas["status"] == {}
    assert schemas["forecast"]["hours"].items() >= {"minimum": 1, "maximum": 24, "default": 6}.items()


# -- choosing a day --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kwargs", "day"),
    [
        ({}, 0),
        ({"day": 1199}, 1199),
        ({"day": 0, "seed": 5}, 0),
        ({"seed": 5}, 5),
        ({"seed": 1_002_003}, 3),
        ({"seed": -1}, 999),
        ({"day": None, "seed": None}, 0),
    ],
)
def test_the_day_is_chosen_or_follows_from_the_seed(kwargs: dict[str, Any], day: int) -> None:
    observation = GridSim().reset(**kwargs)
    assert observation.fields["day"] == day
    assert observation.fields["status"]["demand_mw"] == hours_of(day)[0].demand_kw / 1000


DAY = "day must be an integer from 0 to 1199 (0 to 999 for training, 1000 to 1199 for evaluation)"


@pytest.mark.parametrize(
    ("kwargs", "sentence"),
    [
        ({"day": 1200}, f"{DAY}, not 1200"),
        ({"day": -1}, f"{DAY}, not -1"),
        ({"day": 3.0}, f"{DAY}, not 3.0"),
        ({"day": True}, f"{DAY}, not True"),
        ({"day": "3"}, f"{DAY}, not '3'"),
        ({"seed": "x"}, "seed must be an integer, not 'x'"),
    ],
)
async def test_a_bad_day_is_refused_and_the_one_before_goes_on(
    autojump_clock: Any, nursery: trio.Nursery, kwargs: dict[str, Any], sentence: str
) -> None:
    peer = await connect(nursery, EnvironmentServer(GridSim, capacity=1))
    await peer.reset(day=1000)
    refused = await peer.reset(**kwargs)
    assert error_of(refused) == ("VALIDATION_ERROR", "Invalid message")
    assert [error["msg"] for error in refused["data"]["errors"]] == [sentence]
    answer = await peer.step({"tool_name": "status", "arguments": {}})
    assert answer["data"]["observation"]["result"]["data"] == FIRST_STATUS


# -- over the wire ---------------------------------------------------------------------------------------------------


async def test_a_day_over_the_wire(autojump_clock: Any, nursery: trio.Nursery) -> None:
    peer = await connect(nursery, EnvironmentServer(GridSim, capacity=1))
    begun = await peer.reset(day=1000, unknown=1)
    assert begun["data"]["observation"]["status"] == FIRST_STATUS
    rewards, policy, result = [], greedy(), None
    while True:
        try:
            name, arguments = policy.send(result)
        except StopIteration:
            break
        data = (await peer.step({"type": "call_tool", "tool_name": name, "arguments": arguments}))["data"]
        rewards.append((data["reward"], data["done"]))
        result = data["observation"]["result"]["data"]
    assert rewards == [(None, False)] * 25 + [(reward(1000, greedy()), True)]


async def test_failures_are_observations(autojump_clock: Any, nursery: trio.Nursery) -> None:
    peer = await connect(nursery, EnvironmentServer(GridSim, capacity=1))
    await peer.reset()
    act = {"tool_name": "dispatch", "arguments": {"battery_mw": 0, "generator_mw": 0}}
    refused = (await peer.step({"tool_name": "dispatch", "arguments": {"battery_mw": 0}}))["data"]
    assert refused["observation"]["error"]["error_type"] == "invalid_args"
    assert (refused["reward"], refused["done"]) == (None, False)
    done = [(await peer.step(act))["data"]["done"] for _ in range(HOURS)]
    assert done == [False] * 23 + [True]
    error = (await peer.step(act))["data"]["observation"]["error"]
    assert error["error_type"] == "execution_error"
    assert error["message"].endswith("the day is over, all 24 hours are dispatched: reset to begin another")


async def test_the_tools_are_listed(autojump_clock: Any, nursery: trio.Nursery) -> None:
    peer = await connect(nursery, EnvironmentServer(GridSim, capacity=1))
    tools = (await peer.step({"type": "list_tools"}))["data"]["observation"]["tools"]
    assert [tool["name"] for tool in tools] == ["forecast", "status", "dispatch"]
    assert all(tool["description"] and tool["input_schema"]["type"] == "object" for tool in tools)
