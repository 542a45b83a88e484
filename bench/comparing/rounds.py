"""Figures of alternating rounds: what others do on the machine meanwhile meets all arms alike."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median

from comparing.fleet import Arm
from comparing.loads import Outcome, measured
from comparing.scenarios import Scenario

Rounds = Sequence[Mapping[str, Outcome]]
"""The outcomes of each round, by arm."""


def played(scenario: Scenario, arms: Mapping[str, Arm], rounds: int) -> Iterator[dict[str, Outcome]]:
    """Every round has all arms, each time beginning with another one. :raises LoadFailed"""
    names = list(scenario.work)
    for number in range(rounds):
        first = number % len(names)
        order = names[first:] + names[:first]
        yield {name: measured(arms[f"{scenario.env}/{name}"], scenario.work[name]) for name in order}


def middle(rounds: Rounds, arm: str, figure: Callable[[Outcome], float | None]) -> float | None:
    """The median of a figure; None where there is none."""
    values = [value for outcomes in rounds if (value := figure(outcomes[arm])) is not None]
    return median(values) if values else None


def ratio(rounds: Rounds, one: str, other: str, figure: Callable[[Outcome], float]) -> float:
    """The median of what a figure of ``one`` is to that of ``other`` in the same round."""
    return median(figure(outcomes[one]) / figure(outcomes[other]) for outcomes in rounds)


def difference(rounds: Rounds, one: str, other: str, figure: Callable[[Outcome], float]) -> float:
    """The median of how much more a figure of ``one`` is than that of ``other`` in the same round."""
    return median(figure(outcomes[one]) - figure(outcomes[other]) for outcomes in rounds)
