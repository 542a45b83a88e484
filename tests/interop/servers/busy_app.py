"""The server of step_app whose ledger also tells when an environment is built, and what becomes of every handshake."""

import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from ledger import enter
from openenv.core.env_server.http_server import create_app
from step_app import CONCURRENCY, ScriptedAction, ScriptedEnvironment, ScriptedObservation

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Message, Receive, Send], Awaitable[None]]


class SlowlyClosed(ScriptedEnvironment):
    """``reset(close_seconds=...)`` says how long its close takes, at whose end it is in the ledger."""

    def __init__(self) -> None:
        super().__init__()
        self._close_seconds = 0.0
        self._ledger.enter("build")

    def reset(self, close_seconds: float = 0.0, **kwargs: Any) -> ScriptedObservation:
        self._close_seconds = close_seconds
        return super().reset(**kwargs)

    def close(self) -> None:
        time.sleep(self._close_seconds)
        super().close()


def recorded(app: AsgiApp) -> AsgiApp:
    """``app``, with each WebSocket handshake that it takes (its client's ``port``) and each refusal in the ledger."""

    async def record(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await app(scope, receive, send)
            return
        port = scope["client"][1]
        enter("handshake", port=port)

        async def heard(message: Message) -> None:
            if '"CAPACITY_REACHED"' in (message.get("text") or ""):
                enter("refusal", port=port)
            await send(message)

        await app(scope, receive, heard)

    return record


app = recorded(
    create_app(
        SlowlyClosed, ScriptedAction, ScriptedObservation, env_name="slowly-closed", concurrency_config=CONCURRENCY
    )
)
