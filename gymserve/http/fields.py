"""What a log line says of the request that it concerns."""

from typing import Any

from gymserve.identity import session_fields
from gymserve.traceparent import traceparent_in

_SHOWN_CHARACTERS = 100


def request_fields(scope: Any, session_id: str | None = None) -> dict[str, str]:
    """Of the request with that ASGI scope; ``session_id`` is that of its cookie."""
    return {
        "method": scope["method"],
        "path": scope["path"][:_SHOWN_CHARACTERS],
        **session_fields(session_id, None, traceparent_in(scope["headers"])),
    }
