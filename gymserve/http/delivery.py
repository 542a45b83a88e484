"""Seeds whose answer did not reach the client: nobody has their cookie, so their sessions are released at once."""

from typing import Any

from gymserve.gateway import Gateway
from gymserve.http.prefix import AsgiApp

_SEEDED = "gymserve.seeded"


def note_seeded(scope: Any, session_id: str) -> None:
    """The answer to this request will hand out that session, by nothing else than its cookie."""
    scope[_SEEDED] = session_id


def release_undelivered(app: AsgiApp, gateway: Gateway) -> AsgiApp:
    """``app``, whose seeds are undone where their answer was not sent to its end."""

    async def delivering(scope: Any, receive: Any, send: Any) -> None:
        delivered = False

        async def sending(message: Any) -> None:
            nonlocal delivered
            await send(message)  # a client that is gone cancels it
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                delivered = True

        try:
            await app(scope, receive, sending)
        finally:
            if not delivered and _SEEDED in scope:
                gateway.close(scope[_SEEDED], "the answer to its seed could not be delivered")

    return delivering
