"""How many connections there are, and who makes room when they are too many."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice, takewhile
from typing import Any

import structlog
import trio

from gymserve.descriptors import Descriptors

LATE_EXTENSION = "gymserve.late"

_SPARED_SECONDS = 1.0
_WARNING_SECONDS = 60.0  # between two warnings

_log = structlog.get_logger()


def is_late(scope: Any) -> bool:
    """Whether this request came by a connection too many, and must not wait for anybody else's."""
    return LATE_EXTENSION in (scope.get("extensions") or {})


class Crowd:
    """The connections of one server.

    It is too large with more than ``most`` of them. Then each that joins has the one closed that has served no request
    for longest, and is late: it may not wait for an episode, while what it asks of sessions that are open is done.
    """

    def __init__(self, *, most: int | None = None, descriptors: Descriptors | None = None) -> None:
        """:param most: not more than the clients' share of ``descriptors``, which are this process's by default."""
        self._descriptors = descriptors or Descriptors()
        self._most = min(most or self._descriptors.clients, self._descriptors.clients)
        self._idle: dict[trio.CancelScope, float] = {}  # since when, the oldest first
        self._warned_at = -math.inf
        self.connections = 0

    @property
    def is_too_large(self) -> bool:
        return self.connections > self._most

    @property
    def is_shut(self) -> bool:
        """Whether there is no descriptor for another connection, not even for one that makes room."""
        return self._descriptors.are_out

    def join(self) -> bool:
        """A connection was accepted, and will `leave`. True if it is late."""
        self.connections += 1
        late = self.is_too_large
        if late:
            self.make_room()
        return late

    def leave(self) -> None:
        self.connections -= 1

    @contextmanager
    def idling(self, scope: trio.CancelScope) -> Iterator[None]:
        """Within the block a connection serves no request, and cancelling ``scope`` closes it."""
        self.begin_idling(scope)
        try:
            yield
        finally:
            self.end_idling(scope)

    def begin_idling(self, scope: trio.CancelScope) -> None:
        """As `idling`, until `end_idling`."""
        self._idle[scope] = trio.current_time()

    def end_idling(self, scope: trio.CancelScope) -> None:
        self._idle.pop(scope, None)

    def make_room(self, most: int = 1) -> None:
        """Close the connections that have been idle for longest, but none whose request may be on its way."""
        self._warn()
        idle_since = trio.current_time() - _SPARED_SECONDS
        longest = takewhile(lambda idle: idle[1] <= idle_since, self._idle.items())
        for scope in islice((scope for scope, _ in longest if not scope.cancel_called), most):
            scope.cancel()

    def _warn(self) -> None:
        now = trio.current_time()
        if now < self._warned_at + _WARNING_SECONDS:
            return
        self._warned_at = now
        _log.warning(
            "too many connections: idle ones are closed and new seeds refused; raise --max-connections, or the limit "
            "on open files (ulimit -n), or have fewer rollouts at once",
            connections=self.connections,
            max_connections=self._most,
            file_descriptors=self._descriptors.limit,
        )
