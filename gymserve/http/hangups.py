"""Quart's word for a client that hung up, which is no error."""

from typing import Any

import quart.wrappers

from gymserve.http.prefix import AsgiApp

# Quart 0.23 raises it out of the app where earlier ones only cancelled the handler.
_HUNG_UP: type[Exception] | None = getattr(quart.wrappers, "ClientDisconnectedError", None)


def quiet_hang_ups(app: AsgiApp) -> AsgiApp:
    """``app``, which ends without a word when its client has hung up."""
    if _HUNG_UP is None:
        return app
    hung_up = _HUNG_UP

    async def quiet(scope: Any, receive: Any, send: Any) -> None:
        try:
            await app(scope, receive, send)
        except* hung_up:
            pass

    return quiet
