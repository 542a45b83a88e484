"""A policy of few parameters for GridSim, and how it learns: GRPO on whole days, by hand, in numpy.

Every hour it takes two decisions out of three each: the battery charges, rests or discharges, as much as the hour
allows; the generator goes down, stays or goes up. Each choice has a score that is linear in what the hour and the
forecast show; a softmax of the three scores is the chance of each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gymserve.gridsim.plant import (
    BATTERY_MWH,
    FUEL_CENTS_PER_MW_SQUARED,
    FUEL_CENTS_PER_MWH,
    GENERATOR_MW,
    Dispatch,
    Plant,
)

Array = NDArray[np.float64]

CHOICES = 3
FEATURES = 6
MAKERS = 2
"""Who decides each hour: the battery's part of the policy, and the generator's."""

_CENTRE_EUR, _SPREAD_EUR = 60.0, 25.0
_NEAR_HOURS, _FAR_HOURS = 4, 12


@dataclass(slots=True)
class Trajectory:
    """What a policy saw and did on one day, decision by decision, and what it was worth.

    ``features`` are of shape (hours, `MAKERS`, `FEATURES`); ``chances`` are those with which the choices were made.
    """

    version: int
    features: list[Array] = field(default_factory=list)
    choices: list[tuple[int, int]] = field(default_factory=list)
    chances: list[tuple[float, float]] = field(default_factory=list)
    reward: float = 0.0


class Policy:
    """Weights of shape (`MAKERS`, `CHOICES`, `FEATURES`). ``version`` counts the steps that it learned by."""

    def __init__(self, weights: Array | None = None, version: int = 0) -> None:
        self.weights = beginner() if weights is None else weights
        self.version = version

    def chances(self, features: Array) -> Array:
        """Of every choice, for features of shape (..., `MAKERS`, `FEATURES`)."""
        scores = np.einsum("mcf,...mf->...mc", self.weights, features)
        raised = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return np.asarray(raised / raised.sum(axis=-1, keepdims=True))

    def decide(
        self, plant: Plant, hours: Sequence[Mapping[str, Any]], chance: np.random.Generator, day: Trajectory
    ) -> Dispatch:
        """The dispatch of an hour, which is put down in ``day``.

        :param hours: the forecast, this hour first.
        """
        features = seen(plant, hours)
        chances = self.chances(features)
        battery, generator = (draw(each, chance) for each in chances)
        day.features.append(features)
        day.choices.append((battery, generator))
        day.chances.append((float(chances[0, battery]), float(chances[1, generator])))
        return carried_out(plant, battery, generator)


def draw(chances: Array, chance: np.random.Generator) -> int:
    return min(int(np.searchsorted(np.cumsum(chances), chance.random())), CHOICES - 1)


def carried_out(plant: Plant, battery: int, generator: int) -> Dispatch:
    """What the choices mean: as far as the hour allows."""
    battery_mw = (plant.battery_range[0], 0, plant.battery_range[-1])[battery]
    generator_mw = (plant.generator_range[0], plant.generator_mw, plant.generator_range[-1])[generator]
    return Dispatch(battery_mw, generator_mw)


def beginner() -> Array:
    """Cautious: it moves the battery at random and rarely starts the generator; so most days are worth a little."""
    weights = np.zeros((MAKERS, CHOICES, FEATURES))
    weights[0, :, 0] = (-1.0, 0.5, -0.5)
    weights[1, :, 0] = (0.0, 1.0, -3.0)
    return weights


def seen(plant: Plant, hours: Sequence[Mapping[str, Any]]) -> Array:
    """What the two parts of the policy look at, all of it around 0 and of size 1."""
    prices = [float(hour["import_price"]) for hour in hours[:_FAR_HOURS]]
    price, near, far = prices[0], fmean(prices[:_NEAR_HOURS]), fmean(prices)
    marginal = (FUEL_CENTS_PER_MWH + 2 * FUEL_CENTS_PER_MW_SQUARED * plant.generator_mw) / 100
    ending = max(0.0, 1 - len(hours) / _NEAR_HOURS)
    battery = (price - near, price - far, _SPREAD_EUR * (2 * plant.battery_mwh / BATTERY_MWH - 1), price - _CENTRE_EUR)
    generator = (
        price - marginal,
        near - marginal,
        far - _CENTRE_EUR,
        _SPREAD_EUR * (2 * plant.generator_mw / GENERATOR_MW - 1),
    )
    return np.array([[1.0, ending, *(each / _SPREAD_EUR for each in part)] for part in (battery, generator)])
