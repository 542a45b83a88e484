"""Who gets the next slot: labels, their weights, and what is kept for them."""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import structlog

_log = structlog.get_logger()

ACCEPTED_SHARES = "PATTERN=weight:NUMBER,reserve:COUNT,max:COUNT, such as 'eval*=weight:4,reserve:8,max:32'"


@dataclass(frozen=True, slots=True)
class Share:
    """What the labels that match ``pattern`` (with ``*``, ``?`` and ``[...]``) get.

    ``weight`` is each label's own: one with weight 4 gets four slots for each of another's one. ``reserve`` slots are
    kept for all of them together, and together they never hold more than ``most``.
    """

    pattern: str
    weight: float = 1.0
    reserve: int = 0
    most: float = math.inf


EVERYBODY = Share("*")


class Shares:
    """The share of each label: the first whose pattern matches. Sessions without a label have the label ``""`` here."""

    def __init__(self, shares: Iterable[Share] = ()) -> None:
        self._shares = tuple(shares)
        self.are_equal = not self._shares

    def of(self, label: str | None) -> Share:
        return next((share for share in self._shares if fnmatchcase(label or "", share.pattern)), EVERYBODY)

    @property
    def reserves(self) -> tuple[Share, ...]:
        """Those that keep slots."""
        return tuple(share for share in self._shares if share.reserve)


class Reserves:
    """What shares keep of the slots that there are. Where that is more than all, whoever has no reserve never gets one,
    which is warned of once, until it is so no more.
    """

    def __init__(self, shares: Shares) -> None:
        self._by_pattern = {share.pattern: share.reserve for share in shares.reserves}
        self._are_too_large = False

    def compare(self, slots: int) -> None:
        """There are so many slots now."""
        are_too_large = sum(self._by_pattern.values()) > slots
        if are_too_large and not self._are_too_large:
            _log.warning(
                "more slots are reserved than there are: labels without a reserve get none",
                reserved=self._by_pattern,
                slots=slots,
                advice=f"reserve fewer than {slots} in all (--label), or add slots: another --env, a higher slots= or "
                "capacity of the servers",
            )
        self._are_too_large = are_too_large


class Allotment:
    """What each share may take more, as things stand: it is never beyond its ``most``, and leaves the others what is
    kept for them.
    """

    def __init__(self, shares: Shares, held: Mapping[Share, int], free: float) -> None:
        """:param held: slots by share, of those that hold any.
        :param free: slots that nobody holds; infinite where that is not known, and then nothing is kept.
        """
        self._held = held
        self._kept = sum(self._kept_for(share) for share in shares.reserves)
        self._unkept = max(0.0, free - self._kept) if self._kept else math.inf

    def left_for(self, share: Share) -> float:
        """How many slots more its labels may take together."""
        return min(self._below_most(share), self._kept_for(share) + self._unkept)

    def admitted(self, waiting: Mapping[Share, int]) -> float:
        """How many of the waiting may have a slot, if there are any."""
        may = {share: max(0.0, min(count, self._below_most(share))) for share, count in waiting.items()}
        from_kept = sum(min(count, self._kept_for(share)) for share, count in may.items())
        return from_kept + min(sum(may.values()) - from_kept, self._unkept)

    def _below_most(self, share: Share) -> float:
        return share.most - self._held.get(share, 0)

    def _kept_for(self, share: Share) -> int:
        return max(0, share.reserve - self._held.get(share, 0))


def parse_share(text: str) -> Share:
    """``PATTERN=weight:4,reserve:8,max:32``; what is left out is as for everybody.

    :raises ValueError: it is not of that form; the message is a sentence that says what is wrong.
    """
    pattern, separator, terms = text.rpartition("=")
    if not separator or not pattern or not terms:
        raise ValueError(ACCEPTED_SHARES)
    given: dict[str, float] = {}
    for term in terms.split(","):
        name, _, number = (part.strip() for part in term.partition(":"))
        if name not in _READERS or name in given:
            raise ValueError(ACCEPTED_SHARES)
        given[name] = _READERS[name](number)
    share = Share(pattern, given.get("weight", 1.0), int(given.get("reserve", 0)), given.get("max", math.inf))
    if share.reserve > share.most:
        raise ValueError("reserve is more than max: those slots could never be used")
    return share


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not 0 < weight < math.inf:
        raise ValueError("weight must be a number greater than 0")
    return weight


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ValueError("reserve and max must be whole numbers")
    return int(text)


def _most(text: str) -> int:
    if (most := _count(text)) == 0:
        raise ValueError("max must be 1 or more")
    return most


_READERS: dict[str, Callable[[str], float]] = {"weight": _weight, "reserve": _count, "max": _most}
