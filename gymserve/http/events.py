"""Server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html): what happens to sessions, as it
happens.

An answer that goes on until its client leaves or gymserve stops. Nobody waits for its client: who reads too slowly is
told that something was missed, and who does not read at all is cut by the connection, as with any other answer.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

import trio
from quart.wrappers.response import ResponseBody

from gymserve.errors import GymserveError
from gymserve.events import Event, Events, Missed
from gymserve.gateway import Gateway
from gymserve.http.models import Model
from gymserve.http.standing import standing
from gymserve.strict_json import written

EVENT_STREAM = "text/event-stream"

_MOST_CLIENTS = 64
_STANDING_SECONDS = 1.0
_GATHERING_SECONDS = 0.1  # so that a thousand calls a second are not a thousand packets
_SENT_AT_ONCE = 100
_RETRY_MILLISECONDS = 2000


class EventsWanted(Model):
    """Which events: those after that one, as ``Last-Event-ID`` names it too."""

    after: str | None = None


class TooManyWatchers(GymserveError):
    """As many clients read the events as may."""

    status = 503
    kind = "too_many_watchers"
    retry_after_seconds = 10

    def __init__(self) -> None:
        super().__init__(f"{_MOST_CLIENTS} clients read gymserve's events already, as many as may; close one of them")


class EventClients:
    """Those that read the events."""

    def __init__(self, gateway: Gateway, events: Events) -> None:
        self._gateway = gateway
        self._events = events
        self._reading = 0

    def stream(self, after: str | None) -> "_Stream":
        """:param after: the id of the last event that the client has; None for one that has none.
        :raises TooManyWatchers: there are as many as may be.
        """
        if self._reading >= _MOST_CLIENTS:
            raise TooManyWatchers
        return _Stream(self, after)

    def join(self) -> None:
        self._reading += 1

    def leave(self) -> None:
        self._reading -= 1

    async def told(self, after: str | None) -> AsyncGenerator[bytes]:
        """What is sent to one of them."""
        number, was_missed = self._beginning(after)
        yield b"retry: %d\n\n" % _RETRY_MILLISECONDS + (_nameless("missed", {}) if was_missed else b"")
        while True:
            yield _nameless("standing", standing(self._gateway))
            stands_until = trio.current_time() + _STANDING_SECONDS
            while trio.current_time() < stands_until:
                number, text = self._next(number)
                if text:
                    yield text
                    await trio.lowlevel.checkpoint()  # who catches up lets others have their turn
                elif self._gateway.is_over:
                    yield _nameless("standing", standing(self._gateway))
                    return
                else:
                    await self._something_to_tell(number, stands_until)

    async def _something_to_tell(self, number: int, stands_until: float) -> None:
        with trio.move_on_at(stands_until):
            await self._events.more(number)
            if not self._gateway.is_over:
                await trio.sleep(_GATHERING_SECONDS)

    def _beginning(self, after: str | None) -> tuple[int, bool]:
        """The number of the last event that is not to be sent, and whether some are not remembered."""
        latest = self._events.number(self._events.latest)
        if after is None:
            return latest, False
        try:
            number = self._events.number(after)
            self._events.after(number)
        except Missed:
            return latest, True
        return number, False

    def _next(self, number: int) -> tuple[int, bytes]:
        try:
            events = self._events.after(number)[:_SENT_AT_ONCE]
        except Missed:
            return self._events.number(self._events.latest), _nameless("missed", {})
        return (events[-1].number if events else number), b"".join(map(self._numbered, events))

    def _numbered(self, event: Event) -> bytes:
        return b"id: %s\n" % self._events.id(event.number).encode() + _nameless(event.name, event.data())


def _nameless(name: str, data: Any) -> bytes:
    return f"event: {name}\ndata: {written(data)}\n\n".encode()


class _Stream(ResponseBody):
    """The answer to one of them."""

    def __init__(self, clients: EventClients, after: str | None) -> None:
        self._clients = clients
        self._told = clients.told(after)

    async def __aenter__(self) -> AsyncIterator[bytes]:
        self._clients.join()
        return self._told

    async def __aexit__(self, *raised: Any) -> None:
        self._clients.leave()
        await self._told.aclose()  # where its client left in the middle
