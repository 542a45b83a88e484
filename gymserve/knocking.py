"""A handshake with an environment server: waited for as long as it may come, given up only where it is lost.

A second handshake beside an unanswered one would make things worse: a server that stalls accepts each of them
later, gives it a slot and an environment, and turns away whoever waits. So an unanswered handshake is kept, and the
server asked whether it is alive (``GET /health``): one that answers twice, a connect timeout apart, while the
handshake stays silent has lost it; one that does not answer is frozen, and may yet come to it.
"""

from collections.abc import Awaitable, Callable

import trio

from gymserve.alarms import Alarms

_ANSWERS_OF_A_SERVER_THAT_LOST_IT = 2


class HandshakeUnanswered(Exception):
    """The server has not answered a handshake yet."""


class HandshakeLost(Exception):
    """The server is alive and will not answer this handshake any more."""


class Health:
    """Whether a server is alive; askers at one time share one request."""

    def __init__(self, ask: Callable[[], Awaitable[bool]]) -> None:
        self._ask = ask
        self._asking = trio.Lock()
        self._asked_at: float | None = None
        self._alive = False

    async def is_alive(self) -> bool:
        arrived = trio.current_time()
        async with self._asking:
            if self._asked_at is None or self._asked_at < arrived:
                self._asked_at = trio.current_time()
                self._alive = await self._ask()
            return self._alive


class Handshake:
    """One that is not answered yet, and who watches over it: an alarm, and a task only once the connect timeout has
    passed in silence, as it hardly ever does.
    """

    def __init__(
        self,
        nursery: trio.Nursery,
        alarms: Alarms,
        health: Health,
        *,
        connect_timeout_seconds: float,
        on_silence: Callable[[], None],
        give_up: Callable[[], None],
    ) -> None:
        """:param on_silence: told, each time before the server is asked whether it is alive.
        :param give_up: told when the server is alive and has lost the handshake.
        """
        self.is_lost = False
        self._nursery = nursery
        self._health = health
        self._connect_timeout_seconds = connect_timeout_seconds
        self._on_silence = on_silence
        self._give_up = give_up
        self._watching: trio.CancelScope | None = None
        self._alarm = alarms.alarm(self._begin_to_watch)
        self._alarm.set(trio.current_time() + connect_timeout_seconds)

    def end(self) -> None:
        """It was answered, or has failed."""
        self._alarm.stop()
        if self._watching is not None:
            self._watching.cancel()

    def _begin_to_watch(self) -> None:
        self._watching = trio.CancelScope()
        self._nursery.start_soon(self._watch, self._watching)

    async def _watch(self, watching: trio.CancelScope) -> None:
        answers = 0
        spacing_seconds = self._connect_timeout_seconds
        with watching:
            while True:
                self._on_silence()
                if await self._health.is_alive():
                    answers, spacing_seconds = answers + 1, self._connect_timeout_seconds
                else:
                    answers, spacing_seconds = 0, 2 * spacing_seconds
                if answers == _ANSWERS_OF_A_SERVER_THAT_LOST_IT:
                    break
                await trio.sleep(spacing_seconds)
        if not watching.cancel_called:
            self.is_lost = True
            self._give_up()
