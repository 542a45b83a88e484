"""The server on real sockets: real clients, binding and the stop."""

import asyncio

import aiohttp
import httpx
import hypercorn.trio.run
import hypercorn.trio.tcp_server
import hypercorn.utils
import pytest
import trio
from http_peer import GET, answer
from quart_trio import QuartTrio
from served import make_app, serving

from gymserve.http.limits import DEFAULT_LIMITS
from gymserve.http.serving import serve

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
