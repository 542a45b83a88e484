"""What a request does when its client does not stay for the answer.

A typed seed or close that has arrived whole takes effect whatever its client does next: it has the name to come back
with. A seed whose session only a cookie names is released at once where that cookie did not reach the client.
"""

from typing import Any

import trio

from gymserve.gateway import Gateway
from gymserve.http.prefix import AsgiApp

_SEEDED = "gymserve.seeded"
_EFFECT = "gymserve.effect"
_LASTING = frozenset({"/seed_session", "/close_session"})


def note_seeded(scope: Any, session_id: str) -> None:
    """The answer to this request will hand out that session, by nothing else than its cookie."""
    scope[_SEEDED] = session_id


def note_effect(scope: Any) -> None:
    """What this request asked for goes on, or is done: its client may leave."""
    if _EFFECT in scope:
        scope[_EFFECT].set()


def see_through(app: AsgiApp, gateway: Gateway) -> AsgiApp:
    """``app``, which hears of a hang-up not before its seed or close has taken effect, and whose seeds are undone where
    their answer was not sent to its end.
    """

    async def seeing(scope: Any, receive: Any, send: Any) -> None:
        delivered = False
        lasting = scope["type"] == "http" and scope["path"] in _LASTING
        if lasting:
            scope[_EFFECT] = trio.Event()

        async def receiving() -> Any:
            message = await receive()
            if lasting and message["type"] == "http.disconnect":
                await scope[_EFFECT].wait()
            return message

        async def sending(message: Any) -> None:
            nonlocal delivered
            note_effect(scope)
            await send(message)  # a client that is gone cancels it
            if message["type"] == "http.response.body" and not message.get("more_body", False):
                delivered = True

        try:
            await app(scope, receiving, sending)
        finally:
            if not delivered and _SEEDED in scope:
                gateway.close(scope[_SEEDED], "the answer to its seed could not be delivered")

    return seeing
