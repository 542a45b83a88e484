"""Sessions that their client names, so that a seed or a close can be repeated when its answer was lost.

NeMo Gym's Environment Server makes up a ``resources_session_id`` before it seeds
(``nemo_gym/base_resources_server.py``): the same seed again finds the same session, a close needs no cookie and may
come twice or first, and what was closed is never opened again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gymserve.errors import SeedConflict
from gymserve.memory import Memory
from gymserve.seeds import digest


@dataclass(frozen=True, slots=True)
class _Seeded:
    session_id: str
    payload: bytes


_CLOSED = "closed"


class Names:
    """Which name is whose. Names of ended sessions are remembered for a while."""

    def __init__(self, *, kept_seconds: float) -> None:
        self._open: dict[str, _Seeded] = {}
        self._by_session: dict[str, str] = {}
        self._ended: Memory[_Seeded] = Memory(kept_seconds=kept_seconds)
        self._closed: Memory[str] = Memory(kept_seconds=kept_seconds)

    def find(self, name: str, payload: Mapping[str, Any]) -> str | None:
        """The id of the session that was seeded by that name, be it open or ended; None where there was none.

        :raises SeedConflict: the name was closed, or was seeded with another payload.
        :raises BadArguments: the payload is nested too deep.
        """
        told = digest(payload)
        if self._closed.get(name) is not None:
            raise SeedConflict("this resources_session_id has been closed; a new session needs a new one")
        seeded = self._open.get(name) or self._ended.get(name)
        if seeded is None:
            return None
        if seeded.payload != told:
            raise SeedConflict(
                "this resources_session_id was seeded with another payload; another episode needs another id"
            )
        return seeded.session_id

    def put(self, name: str, session_id: str, payload: Mapping[str, Any]) -> None:
        self._open[name] = _Seeded(session_id, digest(payload))
        self._by_session[session_id] = name

    def close(self, name: str) -> str | None:
        """From now on the name cannot be seeded. The id of its session, if that is not over yet."""
        self._closed.put(name, _CLOSED)
        seeded = self._open.get(name)
        return None if seeded is None else seeded.session_id

    def end(self, session_id: str, *, may_be_seeded_again: bool) -> None:
        """A session ended; one that was never opened may be tried again under its name."""
        name = self._by_session.pop(session_id, None)
        if name is None:
            return
        seeded = self._open.pop(name)
        if not may_be_seeded_again:
            self._ended.put(name, seeded)
