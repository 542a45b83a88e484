"""Sessions as they are shown: pages of them, and one with all that happened to it."""

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from gymserve.address import EnvironmentAddress
from gymserve.errors import NoSession
from gymserve.gateway import Gateway
from gymserve.http.models import Model
from gymserve.http.standing import standing
from gymserve.identity import short
from gymserve.instruments import Instruments
from gymserve.score import Tombstone
from gymserve.session import Session, State

_Order = Literal["id", "expires", "age", "steps", "label"]


class Wanted(Model):
    """Which sessions a page shows: of a label, in a state, with an id after that one; and of these so many, the first
    in an order. Only in that of their ids further pages follow. ``slots``: of each server also what they are held for;
    ``ended``: also what has ended in each minute of the last half hour.
    """

    label: str | None = None
    state: State | None = None
    limit: Annotated[int, Field(ge=1)] | None = None
    after: str = ""
    sort: _Order = "id"
    slots: bool = False
    ended: bool = False

    @model_validator(mode="after")
    def _only_pages_go_on(self) -> "Wanted":
        if self.after and self.sort != "id":
            raise ValueError("pages follow one another in the order of ids only: leave sort out, or after")
        return self

    def has(self, session: Session) -> bool:
        """Those that wait are shown where they are asked for, and else only counted."""
        if self.label is not None and session.label != self.label:
            return False
        return session.state is self.state if self.state is not None else session.state is not State.WAITING


def listing(gateway: Gateway, wanted: Wanted, instruments: Instruments) -> dict[str, Any]:
    sessions = gateway.all_sessions()
    counts = Counter(session.state for session in sessions)
    page = _page([session for session in sessions if wanted.has(session)], wanted)
    stands = standing(gateway)
    if wanted.slots:
        held_for = _held_for(sessions)
        for server, door in zip(stands["servers"], gateway.pool.doors, strict=True):
            server["slots"] = _slots(door.gate.held, held_for[door.address])
    return {
        "instance": gateway.instance,
        "sessions": [_shown(session) for session in page.sessions],
        "next": page.next,
        "matching": page.matching,
        "counts": {state.value: counts[state] for state in State},
        **stands,
        **({"ended": instruments.minutes.told()} if wanted.ended else {}),
        "event": instruments.events.latest,
    }


def story(gateway: Gateway, instruments: Instruments, short_id: str) -> dict[str, Any]:
    """One session, also one that has ended. :raises NoSession: nothing is known of it."""
    session = next((session for session in gateway.all_sessions() if short(session.id) == short_id), None)
    stone = gateway.tombstone(short_id) if session is None else session.tombstone
    timeline = instruments.timelines.get(short_id)
    if session is None and stone is None and timeline is None:
        raise NoSession("gymserve has no session of that id, and remembers none")
    return {
        "session": None if session is None else _shown(session),
        "tombstone": None if stone is None else _tombstone(stone),
        "timeline": [] if timeline is None else timeline.entries(),
        "left_out": 0 if timeline is None else timeline.left_out,
    }


def _expires(session: Session) -> float:
    """When it gives a slot back without being asked."""
    left = session.idle_seconds_left
    return math.inf if left is None or session.place is None else left


_FIRST: Mapping[_Order, Callable[[Session], Any]] = {
    "id": lambda session: session.id,
    "expires": lambda session: (_expires(session), -session.age_seconds, session.id),
    "age": lambda session: (-session.age_seconds, session.id),
    "steps": lambda session: (-session.steps, -session.age_seconds, session.id),
    "label": lambda session: (session.label is None, session.label or "", -session.age_seconds, session.id),
}


def _held_for(sessions: Iterable[Session]) -> Mapping[EnvironmentAddress | None, Counter[State]]:
    """By server, what the sessions there hold their slots for."""
    held_for: dict[EnvironmentAddress | None, Counter[State]] = defaultdict(Counter)
    for session in sessions:
        if session.place is not None:
            held_for[session.env][State.CLOSING if session.is_leaving_its_place else session.state] += 1
    return held_for


def _slots(held: int, held_for: Counter[State]) -> Mapping[str, int]:
    """What all slots of a server are held for. A session that opens has no server yet, so these are all the others."""
    known = {state.value: held_for[state] for state in (State.IDLE, State.BUSY, State.CLOSING)}
    return {"opening": max(0, held - held_for.total()), **known}


@dataclass(frozen=True, slots=True)
class _Page:
    sessions: Iterable[Session]
    next: str | None
    matching: int


def _page(matching: list[Session], wanted: Wanted) -> _Page:
    following = [session for session in matching if short(session.id) > wanted.after]
    limit = len(following) if wanted.limit is None else wanted.limit
    sessions = heapq.nsmallest(limit, following, key=_FIRST[wanted.sort])
    last = short(sessions[-1].id) if wanted.sort == "id" and len(sessions) < len(following) else None
    return _Page(sessions, last, len(matching))


def _shown(session: Session) -> dict[str, Any]:
    left = session.idle_seconds_left
    return {
        "id": short(session.id),
        "label": session.label,
        "state": session.state,
        "env": None if session.env is None else str(session.env),
        "holds_slot": session.place is not None,
        "steps": session.steps,
        "reward": session.reward,
        "age_seconds": round(session.age_seconds, 3),
        "idle_deadline_in_seconds": None if left is None else round(left, 3),
    }


def _tombstone(stone: Tombstone) -> Mapping[str, Any]:
    return {
        "ending": stone.ending.value,
        "reason": stone.reason,
        "at_epoch_seconds": round(stone.at_epoch_seconds, 6),
        "scored": stone.scored,
        **stone.score.fields(),
    }
