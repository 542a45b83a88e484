"""One start for a whole group: a seed for a reset whose row has none."""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import structlog

from gymserve.errors import BadArguments

_log = structlog.get_logger()

_SEED_BITS = 31  # environments take a signed or an unsigned 32-bit number, and OpenEnv's `reset` none below 0
_REMEMBERED_ROWS = 10_000


def derived_seed(row: Mapping[str, Any]) -> int:
    """A number made from the row, the same in every process: of its content without what differs within a group
    (NeMo Gym's ``_ng_...`` keys and ``agent_ref``). :raises BadArguments: as `digest`.
    """
    return int.from_bytes(digest(_content(row))[:4], "big") >> (32 - _SEED_BITS)


def digest(value: Mapping[str, Any]) -> bytes:
    """What tells a JSON object from another, whatever the order of their keys, in every process.

    :raises BadArguments: it is nested too deep.
    """
    try:
        return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).digest()
    except RecursionError:
        raise BadArguments.because("json_invalid", "the body is nested too deep") from None


def _content(row: Mapping[str, Any]) -> Mapping[str, Any]:
    return {key: value for key, value in row.items() if not key.startswith("_ng_") and key != "agent_ref"}


class Seeding:
    """What becomes of a reset without a seed: it gets a derived one, or is left as it is, which is told once when
    rows repeat, since the rollouts of a group then start from different states.
    """

    def __init__(self, reset_kwargs: Mapping[str, Any], *, derives: bool, warns: bool) -> None:
        """:param reset_kwargs: what every reset gets beside its row's own arguments."""
        self._has_seed = reset_kwargs.get("seed") is not None
        self._derives = derives
        self._warns = warns
        self._seen: OrderedDict[bytes, str | None] = OrderedDict()

    def kwargs(self, row: Mapping[str, Any], own: Mapping[str, Any], name: str | None = None) -> Mapping[str, Any]:
        """The reset's arguments of a row that has ``own``.

        :param name: of the session, where it has one: the same row under the same name is the same rollout's.
        :raises BadArguments: as `digest`.
        """
        if self._has_seed or own.get("seed") is not None:
            return own
        if self._derives:
            return {**own, "seed": derived_seed(row)}
        if self._warns:
            self._watch(digest(_content(row)), name)
        return own

    def _watch(self, row: bytes, name: str | None) -> None:
        if row in self._seen and (name is None or self._seen[row] != name):
            self._warns = False
            self._seen.clear()
            _log.warning(
                "rows repeat and have no seed: rollouts of one group may start from different states; "
                "give rows a seed in their reset_kwargs, or set --derive-seed (said once)"
            )
            return
        self._seen[row] = name
        if len(self._seen) > _REMEMBERED_ROWS:
            self._seen.popitem(last=False)
