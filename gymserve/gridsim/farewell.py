"""The end of a client's WebSocket, whoever brings it about: the episode, a dead client or a server that stops."""

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection

_CLOSE_SECONDS = 10  # uvicorn's patience with a client that does not answer CLOSE

NORMAL = 1000  # RFC 6455 section 7.4.1
KEEPALIVE_FAILED = 1011  # RFC 6455 section 7.4.1: internal error; what uvicorn sends
SERVICE_RESTART = 1012  # IANA's registry of close codes; what uvicorn sends when it stops


class Farewell:
    """One closing handshake per connection: the first to begin it chooses the code, the others wait for its end."""

    def __init__(self, ws: WebSocketConnection) -> None:
        self._ws = ws
        self._lock = trio.Lock()

    async def say(self, code: int = NORMAL, reason: str | None = None) -> None:
        """Send CLOSE and wait for the client's, at most 10 s; then the connection is closed."""
        async with self._lock:
            with trio.move_on_after(_CLOSE_SECONDS):
                await self._ws.aclose(code, reason)

    async def say_when(self, stopping: trio.Event) -> None:
        """Leave when the server does, in the middle of a step too."""
        await stopping.wait()
        await self.say(SERVICE_RESTART)

    async def say_unless_answered(self, interval_seconds: float, timeout_seconds: float) -> None:
        """Ping, and leave a client that does not answer: a host that died without a word would hold its slot for
        ever.
        """
        try:
            while True:
                await trio.sleep(interval_seconds)
                with trio.fail_after(timeout_seconds):
                    await self._ws.ping()
        except trio.TooSlowError:
            await self.say(KEEPALIVE_FAILED, "keepalive ping timeout")
        except ConnectionClosed:
            pass  # nobody is left to ping
