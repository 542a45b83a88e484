"""What can be steered, a battery and a generator: how they may move, and what an hour costs. Whole cents, exact."""

from dataclasses import dataclass

from gymserve.gridsim.day import Hour

BATTERY_MWH = 16
BATTERY_START_MWH = 6
BATTERY_MW = 4
BATTERY_LOSS_PERCENT = 10
"""Each way: discharging 1 MW brings 0.9 MW to the grid, charging 1 MW takes 1.1 MW from it."""

GENERATOR_MW = 12
RAMP_MW = 2
FUEL_CENTS_PER_MWH = 5500
FUEL_CENTS_PER_MW_SQUARED = 100
"""An hour at g MW takes fuel for ``55 g + g^2`` EUR."""
START_CENTS = 40000
"""What it takes to go from 0 MW to any other output."""


@dataclass(frozen=True, slots=True)
class Dispatch:
    """What an operator decides for an hour, in whole MW: steps so coarse that the best day can be found exactly."""

    battery_mw: int
    """Measured in the battery: positive discharges, negative charges."""
    generator_mw: int


@dataclass(frozen=True, slots=True)
class Plant:
    """The battery's charge and the generator's output at the beginning of an hour."""

    battery_mwh: int = BATTERY_START_MWH
    generator_mw: int = 0

    @property
    def battery_range(self) -> range:
        """The ``battery_mw`` that this hour allows, in steps of 1 MW."""
        return range(-min(BATTERY_MW, BATTERY_MWH - self.battery_mwh), min(BATTERY_MW, self.battery_mwh) + 1)

    @property
    def generator_range(self) -> range:
        """The ``generator_mw`` that this hour allows, in steps of 1 MW."""
        return range(max(0, self.generator_mw - RAMP_MW), min(GENERATOR_MW, self.generator_mw + RAMP_MW) + 1)

    def after(self, dispatch: Dispatch) -> "Plant":
        """The plant an hour later; ``dispatch`` is within both ranges."""
        return Plant(self.battery_mwh - dispatch.battery_mw, dispatch.generator_mw)


IDLE = Dispatch(battery_mw=0, generator_mw=0)


def market_kw(hour: Hour, dispatch: Dispatch) -> int:
    """What the market has to balance: positive is bought, negative is sold."""
    return hour.uncovered_kw - battery_grid_kw(dispatch.battery_mw) - 1000 * dispatch.generator_mw


def battery_grid_kw(battery_mw: int) -> int:
    """What the grid gets from the battery, losses taken off; negative when it charges."""
    loss_kw = 10 * BATTERY_LOSS_PERCENT * abs(battery_mw)
    return 1000 * battery_mw - loss_kw


def market_cents(hour: Hour, dispatch: Dispatch) -> int:
    kw = market_kw(hour, dispatch)
    price = hour.import_cents_per_mwh if kw > 0 else hour.export_cents_per_mwh
    return kw * price // 1000  # without a remainder: see Hour


def fuel_cents(generator_mw: int) -> int:
    return FUEL_CENTS_PER_MWH * generator_mw + FUEL_CENTS_PER_MW_SQUARED * generator_mw**2


def start_cents(before_mw: int, generator_mw: int) -> int:
    return START_CENTS if before_mw == 0 and generator_mw > 0 else 0


def running_cents(hour: Hour, dispatch: Dispatch) -> int:
    """What the hour costs, a start apart; negative if the market pays more than the fuel took."""
    return market_cents(hour, dispatch) + fuel_cents(dispatch.generator_mw)
