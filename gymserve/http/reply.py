"""What a route of the rollouts answers."""

from dataclasses import dataclass
from typing import Any

from gymserve.errors import GymserveError
from gymserve.http.bodies import encoded
from gymserve.http.refusal import Headers

_JSON = (b"content-type", b"application/json")


@dataclass(slots=True)
class Reply:
    """A status, a body, and headers beside those that every answer has."""

    status: int
    body: bytes
    headers: Headers

    def head(self, *more: tuple[bytes, bytes]) -> Headers:
        """All of its headers."""
        return [_JSON, (b"content-length", b"%d" % len(self.body)), *self.headers, *more]


def replied(value: Any, status: int = 200, *headers: tuple[bytes, bytes]) -> Reply:
    """``value`` as JSON."""
    return Reply(status, encoded(value), [*headers])


def refused(error: GymserveError) -> Reply:
    """What a client is told of ``error``."""
    reply = replied(error.body(), error.status)
    if error.retry_after_seconds is not None:
        reply.headers.append((b"retry-after", b"%d" % error.retry_after_seconds))
    return reply
