"""An environment server that says exactly what a test wants, and writes down what it hears and when."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_server_stream

from gymserve.gridsim.http import HttpConnection

Script = Callable[[dict[str, Any]], Awaitable[dict[str, Any] | str | None]]


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


class ScriptedServer:
    """`script` answers each message: an object, text that is not JSON, or None for silence; ``close`` gets a CLOSE."""

    def __init__(self, script: Script = agreeable, *, action: str = "Action") -> None:
        self.script = script
        self.heard: list[tuple[float, str]] = []
        self.closed_at: list[tuple[float, int]] = []
        self.sockets: list[WebSocketConnection] = []
        self._action = action

    def times(self, kind: str) -> list[float]:
        return [at for at, heard in self.heard if heard == kind]

    async def serve_stream(self, stream: trio.abc.Stream) -> None:
        connection = HttpConnection(stream)
        head = await connection.read_head()
        if head is None:
            return
        if head.path == "/schema":
            await connection.answer(200, {"action": {"title": self._action}, "observation": {}, "state": {}})
            return
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
        while True:
            message = json.loads(await websocket.get_message())
            self.heard.append((trio.current_time(), message["type"]))
            if message["type"] == "close":
                await websocket.aclose()
                return
            answer = await self.script(message)
            if answer is not None:
                await websocket.send_message(answer if isinstance(answer, str) else json.dumps(answer))
