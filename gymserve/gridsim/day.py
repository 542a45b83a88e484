"""The days of the grid: demand, sun, wind and prices, hour by hour, out of the day's number alone.

Only ``random.Random(int).random()`` and the four operations are used: their results are the same on every platform and
in every Python from 3.2 on, which ``randrange``, ``gauss`` or a sine do not promise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from random import Random

HOURS = 24
TRAINING_DAYS = range(1000)
EVALUATION_DAYS = range(1000, 1200)
DAYS = range(TRAINING_DAYS.start, EVALUATION_DAYS.stop)

# By hour of the day, from 0:00 on.
_DEMAND_MW = (11, 10, 10, 10, 10, 11, 13, 16, 18, 18, 17, 17, 18, 17, 16, 16, 17, 19, 21, 22, 21, 18, 15, 12)
_SUN_PERCENT = (0, 0, 0, 0, 0, 0, 4, 15, 34, 55, 74, 88, 96, 98, 90, 76, 56, 35, 16, 4, 0, 0, 0, 0)
_PRICE_EUR = (38, 34, 32, 31, 32, 37, 48, 62, 68, 60, 52, 47, 44, 42, 43, 48, 57, 72, 88, 92, 80, 64, 52, 44)

_SOLAR_PEAK_MW = 13
_WIND_PEAK_MW = 10
_EUR_PER_SCARCE_MW = 2
"""What every megawatt that sun and wind leave uncovered, above the usual 10, adds to the price."""
_USUAL_MW = 10
_LOWEST_EUR, _HIGHEST_EUR = 12, 240


@dataclass(frozen=True, slots=True)
class Hour:
    """What an hour brings. Powers are multiples of 100 kW and the price of 100 cents, so that every cost is a whole
    number of cents.
    """

    demand_kw: int
    solar_kw: int
    wind_kw: int
    import_cents_per_mwh: int

    @property
    def export_cents_per_mwh(self) -> int:
        """What the market pays: half of what it takes."""
        return self.import_cents_per_mwh // 2

    @property
    def uncovered_kw(self) -> int:
        """Demand that neither sun nor wind covers; negative in a surplus."""
        return self.demand_kw - self.solar_kw - self.wind_kw


@lru_cache(maxsize=len(DAYS))
def hours_of(day: int) -> tuple[Hour, ...]:
    """The `HOURS` hours of ``day``, one of `DAYS`."""
    draw = _Draw(day)
    demand = _demand_mw(draw)
    solar = _solar_mw(draw)
    wind = _wind_mw(draw)
    uncovered = [d - s - w for d, s, w in zip(demand, solar, wind, strict=True)]
    prices = _prices_eur(draw, uncovered)
    return tuple(
        Hour(_kw(d), _kw(s), _kw(w), price * 100) for d, s, w, price in zip(demand, solar, wind, prices, strict=True)
    )


class _Draw:
    """Chance, the same for the same day everywhere."""

    def __init__(self, day: int) -> None:
        self._random = Random(day)

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * self._random.random()

    def wander(self, reach: float) -> list[float]:
        """A value an hour, within ``reach`` of zero, each near the one before."""
        values = [self.between(-reach, reach)]
        while len(values) < HOURS:
            values.append(0.7 * values[-1] + 0.3 * self.between(-reach, reach))
        return values


def _demand_mw(draw: _Draw) -> list[float]:
    scale = draw.between(0.85, 1.15)
    return [scale * usual + drift for usual, drift in zip(_DEMAND_MW, draw.wander(3), strict=True)]


def _solar_mw(draw: _Draw) -> list[float]:
    sky = draw.between(0.2, 1)
    clouds = draw.wander(0.4)
    return [
        _SOLAR_PEAK_MW * percent / 100 * max(0.1, min(1.0, sky + cloud))
        for percent, cloud in zip(_SUN_PERCENT, clouds, strict=True)
    ]


def _wind_mw(draw: _Draw) -> list[float]:
    breeze = draw.between(0.5, 7)
    return [max(0.0, min(float(_WIND_PEAK_MW), breeze + gust)) for gust in draw.wander(5)]


def _prices_eur(draw: _Draw, uncovered_mw: Sequence[float]) -> list[int]:
    level = draw.between(0.75, 1.25)
    drift = draw.wander(25)
    peak_hour, peak_eur = int(draw.between(16, 22)), draw.between(0, 150)
    prices = [
        level * usual + _EUR_PER_SCARCE_MW * (mw - _USUAL_MW) + move
        for usual, mw, move in zip(_PRICE_EUR, uncovered_mw, drift, strict=True)
    ]
    prices[peak_hour] += peak_eur
    return [max(_LOWEST_EUR, min(_HIGHEST_EUR, round(price))) for price in prices]


def _kw(mw: float) -> int:
    return round(mw * 10) * 100
