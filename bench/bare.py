"""The reference for what gymserve costs: the same proxying on Trio, h11 and trio-websocket with nothing else.

A seed opens an episode on the OpenEnv server and resets it, a tool's name is a step (``step`` an action, any other a
call of an MCP environment's tool), ``/verify`` ends it and answers the sum of its rewards. No deadline, no patience, no
signature, no limit, no log; who sends anything else gets a traceback.
"""

import argparse
import json
import re
import secrets
import sys
from typing import Any
from urllib.parse import urlsplit

import h11
import trio
import trio_websocket

_RECEIVE_BYTES = 64 * 1024
_COOKIE = re.compile(rb"session=(\w+)")


class Episode:
    """An episode on the environment server."""

    def __init__(self, websocket: trio_websocket.WebSocketConnection) -> None:
        self._websocket = websocket
        self.reward = 0.0

    async def ask(self, question: str) -> dict[str, Any]:
        """The observation with its reward and whether it is the last."""
        await self._websocket.send_message(question)
        data: dict[str, Any] = json.loads(await self._websocket.get_message())["data"]
        self.reward += data["reward"] or 0.0
        return {**data["observation"], "reward": data["reward"], "done": data["done"]}

    async def end(self) -> None:
        await self._websocket.send_message('{"type":"close"}')
        await self._websocket.aclose()


class Bare:
    """The episodes, by their cookie."""

    def __init__(self, env: str, nursery: trio.Nursery) -> None:
        address = urlsplit(env)
        self._host, self._port = address.hostname or "", address.port or 80
        self._nursery = nursery
        self._episodes: dict[bytes, Episode] = {}

    async def answer(self, path: str, cookie: bytes, body: bytes) -> tuple[dict[str, Any], bytes]:
        """The body of the answer, and the cookie of the session."""
        arguments = json.loads(body or b"{}")
        if path == "/seed_session":
            return {}, await self._seed(arguments)
        if path == "/verify":
            episode = self._episodes.pop(cookie)
            self._nursery.start_soon(episode.end)
            return {**arguments, "reward": episode.reward}, cookie
        action = body.decode("utf-8")
        if path != "/step":
            action = f'{{"type":"call_tool","tool_name":{json.dumps(path[1:])},"arguments":{action}}}'
        return await self._episodes[cookie].ask(f'{{"type":"step","data":{action}}}'), cookie

    async def _seed(self, row: dict[str, Any]) -> bytes:
        websocket = await trio_websocket.connect_websocket(
            self._nursery, self._host, self._port, "/ws", use_ssl=False, receive_buffer_size=_RECEIVE_BYTES
        )
        episode = Episode(websocket)
        await episode.ask(json.dumps({"type": "reset", "data": row.get("reset_kwargs", {})}))
        cookie = secrets.token_hex(16).encode("ascii")
        self._episodes[cookie] = episode
        return cookie

    async def serve(self, stream: trio.SocketStream) -> None:
        """One connection, request after request."""
        async with stream:
            protocol = h11.Connection(h11.SERVER)
            while True:
                request, body = await _read(protocol, stream)
                if request is None:
                    return
                cookie = _COOKIE.search(dict(request.headers).get(b"cookie", b""))
                answer, session = await self.answer(request.target.decode(), cookie[1] if cookie else b"", body)
                await stream.send_all(_rendered(protocol, json.dumps(answer).encode(), session))
                if protocol.our_state is h11.MUST_CLOSE:
                    return
                protocol.start_next_cycle()


async def _read(protocol: h11.Connection, stream: trio.SocketStream) -> tuple[h11.Request | None, bytes]:
    request, body = None, b""
    while not isinstance(event := protocol.next_event(), h11.EndOfMessage | h11.ConnectionClosed):
        if event is h11.NEED_DATA:
            protocol.receive_data(await stream.receive_some(_RECEIVE_BYTES))
        elif isinstance(event, h11.Request):
            request = event
        elif isinstance(event, h11.Data):
            body += event.data
    return request, body


def _rendered(protocol: h11.Connection, body: bytes, session: bytes) -> bytes:
    headers = [
        (b"Content-Type", b"application/json"),
        (b"Content-Length", b"%d" % len(body)),
        (b"Set-Cookie", b"session=" + session),
    ]
    events = (h11.Response(status_code=200, headers=headers), h11.Data(data=body), h11.EndOfMessage())
    return b"".join(protocol.send(event) or b"" for event in events)


async def _serve(env: str, port: int) -> None:
    async with trio.open_nursery() as nursery:
        bare = Bare(env, nursery)
        listeners = await nursery.start(trio.serve_tcp, bare.serve, port)
        sys.stderr.write(f"listening on http://127.0.0.1:{listeners[0].socket.getsockname()[1]}\n")
        sys.stderr.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("env", help="the OpenEnv server's URL")
    parser.add_argument("--port", type=int, default=0)
    options = parser.parse_args()
    trio.run(_serve, options.env, options.port)


if __name__ == "__main__":
    main()
