"""What one request asks of a route of the rollouts, and what becomes of it when its client does not stay."""

from collections.abc import Callable
from typing import Any

from gymserve.http.crowd import is_late
from gymserve.traceparent import traceparent_in


class Asked:
    """A request that was read to its end.

    Its handler is cancelled where the client hangs up; but what ``lasts``, a seed or a close that has arrived
    whole, not before it has taken effect: its client may have a name to come back with.
    """

    def __init__(
        self, scope: Any, body: bytes, session_id: str | None, cancel: Callable[[], None], *, lasts: bool
    ) -> None:
        """:param session_id: that of its cookie. An answer hands out the cookie of what it is in the end.
        :param cancel: ends its handler.
        """
        self.path: str = scope["path"]
        self.body = body
        self.session_id = session_id
        self.seeded: str | None = None
        """The session that nothing but the cookie of this request's answer will name."""
        self._cancel = cancel
        self._scope = scope
        self._effective = not lasts
        self._hung_up = False

    @property
    def is_late(self) -> bool:
        """Whether it must not wait for anybody else's."""
        return is_late(self._scope)

    def header(self, name: bytes) -> str | None:
        """The last header of that name, in lower case, as ASGI has it: Latin-1."""
        return next((value.decode("latin-1") for key, value in reversed(self._scope["headers"]) if key == name), None)

    @property
    def traceparent(self) -> str | None:
        """As `traceparent_in` has it."""
        return traceparent_in(self._scope["headers"])

    def take_effect(self) -> None:
        """What it asks for goes on, or is done: its client may leave."""
        self._effective = True
        if self._hung_up:
            self._cancel()

    def hang_up(self) -> None:
        """Its client has left."""
        self._hung_up = True
        if self._effective:
            self._cancel()
