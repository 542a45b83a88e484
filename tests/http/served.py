"""A served app on a real socket, and the clients connected to it."""

import socket
import struct
from contextlib import asynccontextmanager
from functools import partial
from time import perf_counter

import trio
from http_peer import Peer
from quart import Response, request
from quart_trio import QuartTrio

from gymserve.http.serving import serve


class Server:
    """A served app and the clients connected to it."""

    def __init__(self, app, url, stop_asked, grace):
        self.app = app
        self.url = url
        self.host, _, port = url.removeprefix("http://").rpartition(":")
        self.port = int(port)
        self.returned = trio.Event()
        self.peers = []
        self._stop_asked, self._grace = stop_asked, grace

    async def peer(self):
        self.peers.append(Peer(await trio.open_tcp_stream(self.host.strip("[]"), self.port)))
        return self.peers[-1]

    async def stop(self, seconds=3.0):
        """Stop with so many seconds for answers under way; how long it took in all."""
        started = perf_counter()
        self._grace.append(seconds)
        self._stop_asked.set()
        await self.returned.wait()
        return perf_counter() - started


@asynccontextmanager
async def serving(app, *, host="127.0.0.1"):
    stop_asked, grace = trio.Event(), []

    async def stop():
        await stop_asked.wait()
        return grace[0]

    async def run(*, task_status):
        async with trio.open_nursery() as inner:
            [url] = await inner.start(partial(serve, app, host=host, port=0, stop=stop))
            server = Server(app, url, stop_asked, grace)
            task_status.started(server)
        server.returned.set()

    async with trio.open_nursery() as nursery:
        server = await nursery.start(run)
        yield server
        nursery.cancel_scope.cancel()
    for peer in server.peers:
        await trio.aclose_forcefully(peer.stream)


def make_app():
    """A Quart app with what the tests need, which answers refusals as it is told; `seen`: the paths of its requests."""
    app = QuartTrio("app")
    app.seen = []

    @app.before_request
    async def refuse():
        app.seen.append(request.path)
        refusal = request.scope["extensions"].get("gymserve.refusal")
        return refusal and ({**refusal, "done": False}, refusal["status"])

    @app.get("/")
    async def live():
        return {"port": request.scope["client"][1]}

    @app.post("/echo")
    async def echo():
        return Response(await request.get_data(), headers={"X-Port": str(request.scope["client"][1])})

    @app.get("/slow/<float:seconds>")
    async def slow(seconds):
        await trio.sleep(seconds)
        return {"slept": seconds}

    @app.get("/stream")
    async def stream():
        async def ticks():
            while True:
                yield b"tick"
                await trio.sleep(0.01)

        return Response(ticks())

    @app.get("/large")
    async def large():
        return Response(b"x" * 50_000_000)

    return app


def reset(peer):
    """Close so that the server sees a reset."""
    peer.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.stream.socket.close()
