"""Sessions that are overdue and live on until their slot is wanted."""

import math
from collections.abc import Callable, Collection

import trio

from gymserve.line import Line
from gymserve.opening import Place
from gymserve.session import Session


class Reclaiming:
    """Ends the most overdue sessions when somebody waits for a slot and there is none."""

    def __init__(self, line: Line, sessions: Callable[[], Collection[Session]]) -> None:
        self._line = line
        self._sessions = sessions
        self._looked = trio.Event()
        line.on_want = self._look

    def _look(self) -> None:
        self._looked.set()

    async def run(self) -> None:
        """A task, for ever: it sleeps until somebody begins to wait, or the next session is overdue while they do."""
        while True:
            self._looked = trio.Event()
            with trio.CancelScope(deadline=self._reclaim()):
                await self._looked.wait()

    def _reclaim(self) -> float:
        """End as many as are wanted; the moment to look again, if nothing happens before."""
        if self._line.waiting == 0:
            return math.inf
        given_back = [place.ticket for place in self._given_back_soon()]
        for session in sorted(self._sessions(), key=lambda session: session.overdue_at):
            if session.place is None or session.is_leaving_its_place:
                continue
            ticket = session.place.ticket
            if not self._line.serves_one_more(ticket, given_back):
                continue
            if session.overdue_at > trio.current_time():
                return session.overdue_at
            given_back.append(ticket)
            session.reclaim()
        return math.inf

    def _given_back_soon(self) -> list[Place]:
        places = [session.place for session in self._sessions() if session.is_leaving_its_place]
        return [place for place in places if place is not None]
