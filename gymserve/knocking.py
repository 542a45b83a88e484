"""A handshake with an environment server: waited for as long as it may come, given up only where it is lost.

A second handshake beside an unanswered one would make things worse: a server that stalls accepts each of them
later, gives it a slot and an environment, and turns away whoever waits. So an unanswered handshake is kept, and the
server asked whether it is alive (``GET /health``): one that answers twice, a connect timeout apart, while the
handshake stays silent has lost it; one that does not answer is frozen, and may yet come to it.
"""

from collections.abc import Awaitable, Callable, Sequence

import trio

from gymserve.address import EnvironmentAddress
from gymserve.episode import Episode
from gymserve.network import Network

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


async def shake_hands(
    nursery: trio.Nursery,
    network: Network,
    address: EnvironmentAddress,
    headers: Sequence[tuple[str, str]],
    health: Health,
    *,
    connect_timeout_seconds: float,
    max_message_bytes: int,
    on_silence: Callable[[], None],
) -> Episode:
    """An open connection, held by a task in ``nursery``.

    :param on_silence: told, each time before the server is asked whether it is alive.
    :raises HandshakeLost: the server is alive and lost the handshake. :raises Exception: as `Episode.connect`.
    """
    episode = Episode(network, address, headers, max_message_bytes=max_message_bytes)
    lost, watching = trio.CancelScope(), trio.CancelScope()
    nursery.start_soon(_watch, watching, lost, health, connect_timeout_seconds, on_silence)
    try:
        with lost:
            await nursery.start(episode.connect)
            return episode
    finally:
        watching.cancel()
    raise HandshakeLost("the server is alive, but does not answer the WebSocket upgrade")


async def _watch(
    watching: trio.CancelScope,
    lost: trio.CancelScope,
    health: Health,
    connect_timeout_seconds: float,
    on_silence: Callable[[], None],
) -> None:
    answers, spacing_seconds = 0, connect_timeout_seconds
    with watching:
        while answers < _ANSWERS_OF_A_SERVER_THAT_LOST_IT:
            await trio.sleep(spacing_seconds)
            on_silence()
            if await health.is_alive():
                answers, spacing_seconds = answers + 1, connect_timeout_seconds
            else:
                answers, spacing_seconds = 0, 2 * spacing_seconds
        lost.cancel()
