"""What a running gymserve tells of itself: its sessions, its line, its servers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from pydantic import BaseModel, ConfigDict, ValidationError

from gymserve.cli.refusals import masked, printable
from gymserve.cli.remote import Failed, Remote


class _Told(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False)


class Session(_Told):
    """``env`` is its environment server; no ``idle_deadline_in_seconds`` while nothing ends it."""

    id: str
    label: str | None
    state: str
    env: str | None
    steps: int
    reward: float
    age_seconds: float
    idle_deadline_in_seconds: float | None


class Server(_Told):
    """An environment server, and how many of its slots are held, for what; its ``capacity`` may be unknown."""

    url: str
    held: int
    capacity: int | None
    state: str
    slots: Mapping[str, int]


class Queue(_Told):
    """Those of one label that wait in the line."""

    label: str | None
    waiting: int
    oldest_wait_seconds: float


class Listing(_Told):
    """``counts`` are of all sessions by state, ``matching`` of those that were asked for, ``sessions`` the first of
    these.
    """

    instance: str
    sessions: tuple[Session, ...]
    matching: int
    counts: Mapping[str, int]
    waiting: int
    oldest_wait_seconds: float
    expected_wait_seconds: float | None
    line: tuple[Queue, ...]
    holds_seeds: bool
    reclaimed_alive: int
    servers: tuple[Server, ...]


@dataclass(frozen=True, slots=True)
class Filters:
    """Which sessions are asked for; None: all."""

    label: str | None = None
    state: str | None = None


async def ask(remote: Remote, filters: Filters, order: str, *, limit: int | None = None) -> dict[str, Any]:
    """What is told of gymserve and of those sessions, of which so many in that order. :raises Failed: nothing is."""
    asked = {"label": filters.label, "state": filters.state, "sort": order, "slots": "true", "limit": limit}
    query = urlencode({name: value for name, value in asked.items() if value is not None})
    told: dict[str, Any] = await remote.get(f"/gymserve/sessions?{query}")
    return told


def read(remote: Remote, told: Mapping[str, Any]) -> Listing:
    """:raises Failed: it is something else."""
    try:
        return Listing.model_validate(told)
    except ValidationError:
        shown = printable(masked(remote.url))
        raise Failed(
            f"{shown} tells its sessions in another way; check that it is a gymserve, and of this version"
        ) from None
