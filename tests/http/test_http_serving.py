"""The server on real sockets: what arrives from the network, real clients, binding and the stop."""

import asyncio
import socket
import struct
from contextlib import asynccontextmanager
from functools import partial
from time import perf_counter

import aiohttp
import httpx
import hypercorn.trio.run
import hypercorn.trio.tcp_server
import hypercorn.utils
import pytest
import trio
from http_peer import GET, POST, Peer, answer
from quart import Response, request
from quart_trio import QuartTrio

from gymserve.http.limits import DEFAULT_LIMITS
from gymserve.http.serving import serve


class Server:
    """A served app and the clients connected to it."""

    def __init__(self, url, stop_asked, grace):
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
            server = Server(url, stop_asked, grace)
            task_status.started(server)
        server.returned.set()

    async with trio.open_nursery() as nursery:
        server = await nursery.start(run)
        yield server
        nursery.cancel_scope.cancel()
    for peer in server.peers:
        await trio.aclose_forcefully(peer.stream)


@pytest.fixture
async def server():
    async with serving(make_app()) as server:
        yield server


def make_app():
    """A Quart app with what the tests need, which answers refusals as it is told."""
    app = QuartTrio("app")

    @app.before_request
    async def refuse():
        refusal = request.scope["extensions"].get("gymserve.refusal")
        return refusal and (refusal, refusal["status"])

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


# What arrives from the network

UPGRADE = GET(
    "/nope",
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)
CHUNKED = b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
CLOSE = GET("/slow/0.1", "Connection: close")
H2C = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c")
PACKETS = {
    "upgrade": ([UPGRADE], 400),
    "upgrade and a byte": ([UPGRADE + b"x"], 400),
    "upgrade, then a byte": ([UPGRADE, b"x"], 400),
    "upgrade and a frame": ([UPGRADE + b"\x81\x05hello"], 400),
    "upgrade and a request": ([UPGRADE + GET()], 400),
    "upgrade and a body": ([UPGRADE[:-2] + b"Content-Length: 5\r\n\r\nhello"], 400),
    "upgrade of a POST": ([UPGRADE.replace(b"GET", b"POST")], 400),
    "upgrade to a version": ([UPGRADE.replace(b"13", b"99")], 400),
    "upgrade without a key": ([UPGRADE.replace(b"Sec-WebSocket-Key", b"X")], 400),
    "h2c": ([GET("/", *H2C, "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA")], 200),
    "h2c, junk settings": ([GET("/", *H2C, "HTTP2-Settings: !!!")], 200),
    "h2c, no settings": ([GET("/", *H2C)], 200),
    "h2 preface": ([b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\xff"], 505),
    "garbage": ([b"\x00\x01\x02\r\n\r\n"], 400),
    "TLS": ([bytes.fromhex("16030100c8010000c40303") + bytes(190)], 400),
    "path not ASCII": ([b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n"], 400),
    "path not UTF-8": ([GET("/%ff%fe?a=%ff")], 404),
    "absolute form": ([GET("http://other.example/")], 200),
    "authority form": ([b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n"], 400),
    "asterisk form": ([b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n"], 404),
    "only a query": ([GET("?a")], 400),
    "two slashes": ([GET("//")], 200),
    "bad Host": ([b"GET / HTTP/1.1\r\nHost: [::1\r\n\r\n"], 200),
    "no Host": ([b"GET / HTTP/1.1\r\n\r\n"], 400),
    "two Hosts": ([GET("/", "Host: y")], 400),
    "two lengths": ([POST("/echo", b"ab", "Content-Length: 3")], 400),
    "length and chunks": ([POST("/echo", b"ab", "Transfer-Encoding: chunked")], 400),
    "huge length": ([POST("/echo", b"").replace(b": 0", b": 9999999999")], 413),
    "absurd length": ([POST("/echo", b"").replace(b": 0", b": " + b"9" * 5000)], 400),
    "bad chunk": ([CHUNKED, b"zz\r\nab"], 400),
    "unknown coding": ([GET("/", "Transfer-Encoding: gzip")], 501),
    "head of 20 KiB": ([GET("/", "X: " + "a" * 20_000)], 200),
    "head of 70 KiB": ([GET("/", "X: " + "a" * 70_000)], 431),
    "head without end": ([b"GET / HTTP/1.1\r\nX: " + b"a" * 70_000], 431),
    "close and more": ([CLOSE + b"extra"], 200),
    "close, then more": ([CLOSE, b"extra"], 200),
    "1.0 and more": ([CLOSE.replace(b"1.1", b"1.0") + b"extra"], 200),
    "1.0": ([b"GET / HTTP/1.0\r\n\r\n"], 200),
    "expect": ([POST("/echo", b"{}", "Expect: 100-continue")[:-2], b"{}"], 200),
    "empty lines": ([b"\r\n\r\n" + GET()], 200),
    "garbage after": ([GET("/slow/0.1") + b"\x00garbage"], 200),
    "large and refused": ([POST("/echo", b"x" * 65 * 2**20)], 413),
    "large and served": ([POST("/echo", b"x" * 5 * 2**20)], 200),
    "large and not found": ([POST("/nope", b"x" * 5 * 2**20)], 404),
}


@pytest.mark.parametrize(("packets", "status"), PACKETS.values(), ids=PACKETS)
async def test_every_packet_has_its_answer(server, logged, packets, status):
    peer = await server.peer()
    for packet in packets:
        await peer.send(packet)
        await trio.sleep(0.01)
    with trio.fail_after(5):
        assert (await peer.reply()).status == status
        assert (await (await server.peer()).ask(GET())).status == 200
    assert logged == []


BURSTS = {
    "nothing": b"",
    "upgrade": UPGRADE,
    "slow": GET("/slow/5.0"),
    "stream": GET("/stream"),
    "close and more": CLOSE + b"extra\r\n\r\n",
    "pipelined": GET() * 50,
    "half a body": POST("/echo", b"x" * 100_000)[:-1],
    "large answer": GET("/large"),
}


@pytest.mark.parametrize("leave", [reset, lambda peer: peer.stream.socket.close()], ids=["reset", "close"])
@pytest.mark.parametrize("data", BURSTS.values(), ids=BURSTS)
async def test_clients_that_leave_harm_nobody(server, logged, data, leave):
    for pause_seconds in (0, 0.03) * 3:
        peer = await server.peer()
        await peer.send(data)
        await trio.sleep(pause_seconds)
        leave(peer)
    with trio.fail_after(5):
        assert (await (await server.peer()).ask(GET())).status == 200
        assert await server.stop() < 0.5
    assert logged == []


# Real clients


async def test_httpx_keeps_its_connection(server):
    async with httpx.AsyncClient(base_url=server.url) as client:
        ports = {(await client.get("/")).json()["port"] for _ in range(20)}
        for size in (0, 200_000):
            assert (await client.post("/nope", content=b"x" * size)).status_code == 404
            echo = await client.post("/echo", content=b"x" * size)
            assert echo.content == b"x" * size
            ports.add(int(echo.headers["X-Port"]))
        assert (await client.head("/")).status_code == 200
        assert (await client.post("/echo", content=b"x" * 65 * 2**20)).status_code == 413
    assert len(ports) == 1


async def test_aiohttp_keeps_its_connection(server):
    async def use():
        ports = set()
        async with aiohttp.ClientSession(server.url) as client:
            for size in (0, 10, 200_000) * 5:
                async with client.post("/nope", data=b"x" * size) as nope:
                    assert nope.status == 404
                async with client.post("/echo", data=b"x" * size, expect100=size == 10) as echo:
                    assert await echo.read() == b"x" * size
                    ports.add(echo.headers["X-Port"])
        return ports

    assert len(await trio.to_thread.run_sync(asyncio.run, use())) == 1


async def test_a_plain_asgi_app_is_served():
    async def app(scope, receive, send):
        if scope["type"] == "lifespan":
            await receive()
            scope["state"]["from"] = "lifespan"
            await send({"type": "lifespan.startup.complete"})
            await receive()
            return await send({"type": "lifespan.shutdown.complete"})
        assert scope["client"][0] == scope["server"][0] == "127.0.0.1"
        await answer(send, scope["state"]["from"].encode())

    async with serving(app) as server, httpx.AsyncClient() as client:
        assert (await client.get(server.url)).text == "lifespan"
        assert await server.stop() < 0.5


# Binding and stopping


@pytest.mark.parametrize("host", ["::1", "[::1]"])
async def test_ipv6_with_and_without_brackets(host):
    async with serving(make_app(), host=host) as server:
        assert server.url == f"http://[::1]:{server.port}"
        assert (await (await server.peer()).ask(GET())).status == 200


async def never():
    await trio.sleep_forever()


async def test_a_busy_port_is_an_os_error(server):
    with pytest.raises(OSError, match="in use"):
        await serve(make_app(), host="127.0.0.1", port=server.port, stop=never)


async def test_a_bad_host_is_an_os_error():
    with pytest.raises(OSError):
        await serve(make_app(), host="192.0.2.1", port=0, stop=never)


async def test_an_app_that_cannot_start_says_so():
    app = QuartTrio("app")

    @app.before_serving
    async def fail():
        raise ValueError("no environment")

    with pytest.raises(hypercorn.utils.LifespanFailureError, match="no environment"):
        await serve(app, host="127.0.0.1", port=0, stop=never)


async def test_hypercorn_itself_stays_as_it_was(server):
    assert hypercorn.trio.run.TCPServer is hypercorn.trio.tcp_server.TCPServer


async def test_idle_clients_do_not_hold_up_the_stop(server):
    never_used, used, half_a_head = [await server.peer() for _ in range(3)]
    assert (await used.ask(GET())).status == 200
    await half_a_head.send(GET()[:10])
    await trio.sleep(DEFAULT_LIMITS.arrival_seconds)
    assert await server.stop() < 0.5
    for peer in (never_used, used, half_a_head):
        assert await peer.rest() == b""


async def test_a_request_in_flight_may_finish(server):
    peer = await server.peer()
    await peer.send(GET("/slow/0.5"))
    await trio.sleep(0.1)
    assert 0.3 < await server.stop() < 1
    reply = await peer.reply()
    assert (reply.status, reply.headers[b"connection"]) == (200, b"close")


async def test_a_request_that_takes_too_long_is_cut_off(server):
    peer = await server.peer()
    await peer.send(GET("/slow/60.0"))
    await trio.sleep(0.1)
    assert 0.3 <= await server.stop(0.3) < 1
    assert await peer.rest() == b""


async def test_a_client_that_never_reads_does_not_hold_up_the_stop(server):
    peer = await server.peer()
    await peer.send(GET("/large"))
    await trio.sleep(0.1)
    assert 0.3 <= await server.stop(0.3) < 1
