"""The end of a serving gymserve, as its log tells of it."""

from collections.abc import Awaitable, Callable

import structlog
import trio

from gymserve.cli.process import first_of
from gymserve.gateway import Gateway
from gymserve.score import Ending
from gymserve.telemetry import Ended, Fact

_log = structlog.get_logger()


class Stopping:
    """One line when it begins, one when all is over."""

    def __init__(self, gateway: Gateway, *, grace_seconds: float) -> None:
        self._gateway = gateway
        self._grace_seconds = grace_seconds
        self._began_at: float | None = None
        self._cut_short = 0
        gateway.telemetry.listen(self._hear)

    async def begun(self, until: Callable[[], Awaitable[str]]) -> None:
        """Wait for ``until``, which tells why, or for the end of a drain."""
        why = await first_of(until, self._drained)
        self._began_at = trio.current_time()
        sessions = sum(session.tombstone is None for session in self._gateway.all_sessions())
        _log.info("gymserve stops", reason=why, sessions=sessions, grace_seconds=self._grace_seconds)

    def tell_end(self) -> None:
        """The last goodbye is over, if any had begun."""
        if self._began_at is not None:
            took_seconds = round(trio.current_time() - self._began_at, 3)
            _log.info("gymserve has stopped", cut_short=self._cut_short, took_seconds=took_seconds)

    async def _drained(self) -> str:
        await self._gateway.seeds_held_to_the_end()
        return "drained"

    def _hear(self, fact: Fact) -> None:
        if isinstance(fact, Ended) and fact.ending == Ending.SHUTDOWN.value:
            self._cut_short += 1
