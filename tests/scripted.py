"""An environment server that says exactly what a test wants, and writes down what it hears and when."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_server_stream

from gymserve.gridsim.http import HttpConnection

Script = Callable[[dict[str, Any]], Awaitable[dict[str, Any] | str | int | None]]
Upgrade = Callable[[HttpConnection, trio.abc.Stream], Awaitable[bool]]


def observed(reward: Any = None, *, done: bool = False, **fields: Any) -> dict[str, Any]:
    return {"type": "observation", "data": {"observation": fields, "reward": reward, "done": done}}


def refused(code: str, message: str = "", **more: Any) -> dict[str, Any]:
    return {"type": "error", "data": {"code": code, "message": message, **more}}


async def agreeable(message: dict[str, Any]) -> dict[str, Any] | None:
    """Answers whatever is asked."""
    match message["type"]:
        case "reset":
            return observed(text="ready")
        case "step":
            return observed(1.0, text="ok")
        case "mcp":
            error = {"code": -32601, "message": "Method not found", "data": None}
            return {"type": "mcp", "data": {"jsonrpc": "2.0", "id": message["data"]["id"], "error": error}}
    return None


async def welcome(connection: HttpConnection, stream: trio.abc.Stream) -> bool:
    """Every handshake is answered, at once."""
    return True


def is_ping(message: dict[str, Any]) -> bool:
    return message["type"] == "mcp" and message["data"]["method"] == "ping"


class ScriptedServer:
    """`script` answers each message: an object, text that is not JSON, a number for a CLOSE with that code (1006: the
    connection is cut), or None for silence; ``close`` gets a CLOSE. `upgrade` comes before: False where it has answered
    otherwise. A connection's first question, whether there is room, is answered with yes beside all that, if
    ``welcomes``.
    """

    def __init__(
        self,
        script: Script = agreeable,
        *,
        action: str = "Action",
        upgrade: Upgrade = welcome,
        welcomes: bool = True,
    ) -> None:
        self.script = script
        self.welcomes = welcomes
        self.upgrade = upgrade
        self.knocked: list[float] = []
        self.asked: list[tuple[float, str]] = []
        self.unanswered = 0
        self.most_unanswered = 0
        self.heard: list[tuple[float, str]] = []
        self.closed_at: list[tuple[float, int]] = []
        self.sockets: list[WebSocketConnection] = []
        self._action = action
        self._running = trio.Event()
        self._running.set()

    def freeze(self) -> None:
        """As SIGSTOP does: what comes is kept, nothing is answered until `thaw`."""
        self._running = trio.Event()

    def thaw(self) -> None:
        self._running.set()

    def times(self, kind: str) -> list[float]:
        return [at for at, heard in self.heard if heard == kind]

    async def serve_stream(self, stream: trio.abc.Stream) -> None:
        try:
            await self._serve(stream)
        except* (trio.BrokenResourceError, trio.ClosedResourceError, ConnectionClosed):
            pass  # the peer is gone

    async def _serve(self, stream: trio.abc.Stream) -> None:
        connection = HttpConnection(stream)
        head = await connection.read_head()
        if head is None:
            return
        if head.path != "/ws":
            self.asked.append((trio.current_time(), head.path))
            await self._running.wait()
            await connection.answer(200, {"action": {"title": self._action}, "observation": {}, "state": {}})
            return
        if await self._lets_in(connection, stream):
            await self._serve_websocket(connection)
            await trio.aclose_forcefully(stream)

    async def _lets_in(self, connection: HttpConnection, stream: trio.abc.Stream) -> bool:
        self.knocked.append(round(trio.current_time(), 6))
        self.unanswered += 1
        self.most_unanswered = max(self.most_unanswered, self.unanswered)
        try:
            await self._running.wait()
            return await self.upgrade(connection, stream)
        finally:
            self.unanswered -= 1

    async def _serve_websocket(self, connection: HttpConnection) -> None:
        async with trio.open_nursery() as nursery:
            rewound = connection.rewound()
            request = await wrap_server_stream(nursery, rewound)
            websocket = await request.accept()
            rewound.accepted()
            self.sockets.append(websocket)
            try:
                await self._converse(websocket)
            except ConnectionClosed as exc:
                self.closed_at.append((trio.current_time(), exc.reason.code))
            nursery.cancel_scope.cancel()

    async def _converse(self, websocket: WebSocketConnection) -> None:
        greeted = False
        while True:
            message = json.loads(await websocket.get_message())
            if not greeted and is_ping(message) and self.welcomes:
                greeted = True  # the question whether there is room: no matter of the script's
                await websocket.send_message(json.dumps(await agreeable(message)))
                continue
            greeted = True
            self.heard.append((trio.current_time(), message["type"]))
            if message["type"] == "close":
                await websocket.aclose()
                return
            answer = await self.script(message)
            if answer == 1006:
                return
            if isinstance(answer, int):
                await websocket.aclose(answer)
            elif answer is not None:
                await websocket.send_message(answer if isinstance(answer, str) else json.dumps(answer))
