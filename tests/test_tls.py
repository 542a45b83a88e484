"""HTTPS to our clients, and TLS to environment servers whose certificates are verified."""

import asyncio
import socket
import ssl
import struct
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import httpx
import pytest
import trio
from certificates import Authority, Pair
from counting import Counting
from http_peer import GET, POST, Peer, Recorder, answer, connect
from processes import ANSWER_SECONDS, command, environ, running
from structlog.testing import capture_logs
from trio.testing import memory_stream_pair

from gymserve.address import parse_address
from gymserve.cli.entrance import read_entrance
from gymserve.gridsim.server import EnvironmentServer
from gymserve.http.limits import Limits
from gymserve.http.serving import serve
from gymserve.network import TcpNetwork
from gymserve.settings import ServeSettings
from gymserve.verdict import Verdict, sentence, verdict


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.issue("localhost", "127.0.0.1")


def tls_of(pair: Pair) -> ssl.SSLContext:
    """The context that gymserve makes of the files."""
    context = read_entrance(ServeSettings(tls_cert=pair.certificate, tls_key=pair.key)).tls
    assert context is not None
    return context


class Waiting:
    """An app that answers a body with its length, and to ``/wait`` only when its client has hung up."""

    def __init__(self) -> None:
        self.waiting = trio.Event()
        self.hung_up = trio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            while True:
                event = (await receive())["type"]
                await send({"type": f"{event}.complete"})
        refusal = scope["extensions"].get("gymserve.refusal")
        body = (await receive())["body"]
        if refusal is not None:
            return await answer(send, refusal["error"].encode(), refusal["status"])
        if scope["path"] == "/wait":
            self.waiting.set()
            assert (await receive())["type"] == "http.disconnect"
            self.hung_up.set()
        await answer(send, b"%s %d" % (scope["scheme"].encode(), len(body)))


class Server:
    """An app served over TLS on a real socket."""

    def __init__(self, url: str, authority: Authority, stop_asked: trio.Event) -> None:
        self.url = url
        self.port = urlsplit(url).port or 0
        self.stop_asked = stop_asked
        self.returned = trio.Event()
        self.clients: list[trio.SocketStream] = []
        self._authority = authority

    async def tcp(self) -> trio.SocketStream:
        self.clients.append(await trio.open_tcp_stream("127.0.0.1", self.port))
        return self.clients[-1]

    async def peer(self, context: ssl.SSLContext | None = None) -> Peer:
        context = context or self._authority.client_context
        stream = trio.SSLStream(await self.tcp(), context, server_hostname="localhost", https_compatible=True)
        await stream.do_handshake()
        return Peer(stream)


@asynccontextmanager
async def serving(app: Any, authority: Authority, pair: Pair, limits: Limits | None = None) -> AsyncIterator[Server]:
    stop_asked = trio.Event()

    async def stop() -> float:
        await stop_asked.wait()
        return 1.0

    async def run(*, task_status: trio.TaskStatus[Server]) -> None:
        async with trio.open_nursery() as inner:
            bound = partial(
                serve, app, host="127.0.0.1", port=0, stop=stop, tls=tls_of(pair), limits=limits or Limits()
            )
            [url] = await inner.start(bound)
            server = Server(url, authority, stop_asked)
            task_status.started(server)
        server.returned.set()

    with trio.fail_after(ANSWER_SECONDS):
        async with trio.open_nursery() as nursery:
            server = await nursery.start(run)
            yield server
            nursery.cancel_scope.cancel()
        for client in server.clients:
            await trio.aclose_forcefully(client)


# -- HTTPS to our clients --------------------------------------------------------------------------------------------


async def test_requests_one_after_the_other_on_one_connection(authority, pair):
    async with serving(Waiting(), authority, pair) as server:
        assert server.url.startswith("https://127.0.0.1:")
        peer = await server.peer()
        for size in (0, 200_000, 3):
            assert (await peer.ask(POST("/", b"x" * size))).body == b"https %d" % size
        assert (await peer.ask(GET("/", "Connection: close"))).body == b"https 0"
        assert await peer.rest() == b""


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_tls_1_2_and_1_3(authority, pair, version):
    context = authority.client_context
    context.minimum_version = context.maximum_version = version
    async with serving(Waiting(), authority, pair) as server:
        peer = await server.peer(context)
        assert peer.stream.version() == version.name.replace("_", ".")
        assert (await peer.ask(GET())).body == b"https 0"


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
async def test_nothing_older(authority, pair):
    assert tls_of(pair).minimum_version is ssl.TLSVersion.TLSv1_2
    context = authority.client_context
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    async with serving(Waiting(), authority, pair) as server:
        with pytest.raises(trio.BrokenResourceError):
            await server.peer(context)
        assert (await (await server.peer()).ask(GET())).status == 200


async def test_http_1_1_is_what_is_agreed_on(authority, pair):
    context = authority.client_context
    context.set_alpn_protocols(["h2", "http/1.1"])
    async with serving(Waiting(), authority, pair) as server:
        assert (await server.peer(context)).stream.selected_alpn_protocol() == "http/1.1"


async def test_who_keeps_silent_keeps_nobody_waiting(authority, pair):
    async with serving(Waiting(), authority, pair) as server:
        silent = [await server.tcp() for _ in range(20)]
        half = await server.tcp()
        await half.send_all(b"\x16\x03\x01\x02\x00")  # the beginning of a handshake
        assert (await (await server.peer()).ask(GET())).status == 200
        for stream in (*silent, half):
            await stream.aclose()


@pytest.mark.parametrize("said", [b"", b"\x16\x03\x01\x02\x00"])
async def test_a_handshake_has_ten_seconds(autojump_clock, nursery, pair, said):
    client, server = memory_stream_pair()
    tls = trio.SSLStream(server, tls_of(pair), server_side=True, https_compatible=True)
    peer = connect(nursery, Recorder(), pair=(client, tls))
    if said:
        await peer.send(said)
    assert (await peer.rest(), trio.current_time()) == (b"", 10)


async def test_the_stop_does_not_wait_for_a_handshake(autojump_clock, nursery, pair):
    client, server = memory_stream_pair()
    tls = trio.SSLStream(server, tls_of(pair), server_side=True, https_compatible=True)
    peer = connect(nursery, Recorder(), pair=(client, tls))
    await trio.sleep(2)
    await peer.context.terminated.set()
    assert (await peer.rest(), trio.current_time()) == (b"", 2)


@pytest.mark.parametrize("said", [GET(), b"\x00" * 100, b"SSH-2.0-x\r\n"])
async def test_what_is_no_tls_is_dropped_without_a_word_in_the_log(authority, pair, said):
    with capture_logs() as logged:
        async with serving(Waiting(), authority, pair) as server:
            stream = await server.tcp()
            await stream.send_all(said)
            received = b""
            with suppress(trio.BrokenResourceError):
                while data := await stream.receive_some():
                    received += data
            assert b"HTTP" not in received
            await stream.aclose()
            assert (await (await server.peer()).ask(GET())).status == 200
    assert logged == []


def reset(stream: trio.SocketStream) -> None:
    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.socket.close()


@pytest.mark.parametrize("more", [b"", b"\r\n", GET()])
@pytest.mark.parametrize("way", ["TLS says so", "TCP says so", "TCP says so, one way", "a reset"])
async def test_a_hang_up_is_seen_while_a_request_waits(authority, pair, way, more):
    app = Waiting()
    async with serving(app, authority, pair) as server:
        peer = await server.peer()
        await peer.send(GET("/wait") + more)
        await app.waiting.wait()
        await trio.sleep(0.05)
        assert not app.hung_up.is_set()
        match way:
            case "TLS says so":
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(say_goodbye, peer)
                    await app.hung_up.wait()
                    nursery.cancel_scope.cancel()
            case "TCP says so":
                await peer.stream.transport_stream.aclose()
            case "TCP says so, one way":
                await peer.stream.transport_stream.send_eof()
            case "a reset":
                reset(peer.stream.transport_stream)
        await app.hung_up.wait()
        await trio.aclose_forcefully(peer.stream)


async def say_goodbye(peer: Peer) -> None:
    """Send close_notify, and wait for that of the server, which closes without."""
    with suppress(trio.BrokenResourceError):
        await peer.stream.unwrap()


async def test_the_refusal_of_a_body_arrives_while_the_client_still_sends(authority, pair):
    """A close on unread input would be a reset, which may overtake the answer; TCP is closed on our side only."""
    async with serving(Waiting(), authority, pair, Limits(body_bytes=1000)) as server:
        peer = await server.peer()

        async def send() -> None:
            await peer.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 30000000\r\n\r\n")
            with suppress(trio.BrokenResourceError):  # trio's client sends no more once it has seen our end of file
                for _ in range(300):
                    await peer.send(b"x" * 100_000)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            reply = await peer.reply()
            assert (reply.status, reply.body, reply.headers[b"connection"]) == (413, b"body_too_large", b"close")
            assert await peer.rest() == b""


async def test_a_client_that_waits_is_reminded(authority, pair):
    app = Waiting()
    async with serving(app, authority, pair, Limits(interim_seconds=0.02)) as server:
        peer = await server.peer()
        await peer.send(GET("/wait"))
        received = b""
        while received.count(b"HTTP/1.1 100 Continue") < 3:
            received += await peer.stream.receive_some()
        await trio.aclose_forcefully(peer.stream)
        await app.hung_up.wait()


async def test_the_stop_closes_connections_that_are_idle(authority, pair):
    async with serving(Waiting(), authority, pair) as server:
        used, unused = await server.peer(), await server.peer()
        await used.ask(GET())
        server.stop_asked.set()
        with trio.fail_after(0.9):  # less than the answers under way may take
            assert (await used.rest(), await unused.rest()) == (b"", b"")
            await server.returned.wait()


async def test_a_rollout_over_https(authority, pair):
    with running("serve", "--tls-cert", pair.certificate, "--tls-key", pair.key) as server:
        assert server.url.startswith("https://127.0.0.1:")
        async with httpx.AsyncClient(verify=authority.client_context, trust_env=False, base_url=server.url) as client:
            assert (await client.post("/seed_session", json={"reset_kwargs": {"day": 1}})).status_code == 200
            assert (await client.post("/status", json={})).json()["result"]["hour"] == 0
            verified = await client.post("/verify", json={"responses_create_params": {}, "response": {}})
            assert (verified.status_code, verified.json()["steps"]) == (200, 1)


def test_the_same_by_aiohttp(authority, pair):
    """Whose cookies come back over TLS too, as NeMo Gym's agents need it."""

    async def play(url: str) -> int:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=authority.client_context)) as session:
            async with session.post(f"{url}/seed_session", json={}) as seeded:
                cookies = {name: morsel.value for name, morsel in seeded.cookies.items()}
            async with session.post(f"{url}/status", json={}, cookies=cookies) as answered:
                return answered.status

    with running("serve", "--tls-cert", pair.certificate, "--tls-key", pair.key) as server:
        # By name: aiohttp keeps no cookies of addresses.
        assert asyncio.run(play(server.url.replace("127.0.0.1", "localhost"))) == 200


# -- files -----------------------------------------------------------------------------------------------------------


def test_a_file_that_will_not_do_is_one_line_at_the_start(authority, pair):
    done = subprocess.run(
        command("serve", "--port", "0", "--tls-cert", pair.key, "--tls-key", pair.key),
        env=environ(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"gymserve: --tls-cert and --tls-key: {pair.key} holds no certificate, or {pair.key} no private key without a "
        "passphrase (both in PEM)\n"
    )


# -- environment servers ---------------------------------------------------------------------------------------------


@asynccontextmanager
async def environment_server(pair: Pair) -> AsyncIterator[int]:
    """The port of an environment server over TLS."""
    server = EnvironmentServer(Counting, capacity=2)
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    tls = trio.SSLListener(listener, pair.server_context, https_compatible=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, server.serve_stream, [tls])
        yield listener.socket.getsockname()[1]
        nursery.cancel_scope.cancel()


async def seeded(url: str) -> httpx.Response:
    async with httpx.AsyncClient(verify=False, trust_env=False, timeout=ANSWER_SECONDS) as client:
        return await client.post(f"{url}/seed_session", json={})


async def test_an_authority_that_ssl_cert_file_names_is_trusted(authority, pair):
    async with environment_server(pair) as port:
        with running("serve", "--env", f"wss://localhost:{port}/ws", SSL_CERT_FILE=authority.file) as server:
            assert (await seeded(server.url)).status_code == 200


async def test_no_other_is_and_the_refusal_says_what_to_do(authority, pair):
    async with environment_server(pair) as port:
        with running("serve", "--env", f"wss://localhost:{port}/ws") as server:
            refused = await seeded(server.url)
    assert refused.status_code == 502
    assert refused.json()["detail"] == (
        f"the environment server at https://localhost:{port} cannot be used: its certificate is not trusted (unable to "
        "get local issuer certificate); if it should be, have the variable SSL_CERT_FILE name a file with the "
        "certificate of its authority (PEM); check that --env is right and that an OpenEnv server is running there"
    )


EXPIRED = datetime(2021, 1, 1, tzinfo=UTC)


async def fault(port: int, *, host: str = "localhost") -> tuple[Verdict, str, str]:
    """What is made of an environment server, asked for its schema and for a connection."""
    network, address = TcpNetwork(connect_timeout_seconds=5), parse_address(f"https://{host}:{port}")
    with pytest.raises(httpx.ConnectError) as asked:
        await network.fetch_schema(address, [])
    with pytest.raises(ssl.SSLError) as connected:
        await network.open_stream(address)
    assert verdict(asked.value) is verdict(connected.value)
    return verdict(asked.value), sentence(asked.value), sentence(connected.value)


@pytest.mark.parametrize(
    ("names", "not_after", "words"),
    [
        (["elsewhere.example"], None, ["is for another name", "give --env the name that stands in it"]),
        (["localhost"], EXPIRED, ["is not valid now (certificate has expired)", "renew it"]),
    ],
)
async def test_a_certificate_that_is_not_this_servers(monkeypatch, authority, names, not_after, words):
    monkeypatch.setenv("SSL_CERT_FILE", authority.file)
    async with environment_server(authority.issue(*names, not_after=not_after)) as port:
        said = await fault(port)
    assert said[0] is Verdict.HOPELESS
    for word in words:
        assert word in said[1] and word in said[2]


async def test_an_address_needs_a_certificate_too(monkeypatch, authority):
    monkeypatch.setenv("SSL_CERT_FILE", authority.file)
    async with environment_server(authority.issue("localhost")) as port:
        said, asked, _ = await fault(port, host="127.0.0.1")
    assert said is Verdict.HOPELESS
    assert "IP address mismatch" in asked


async def test_a_server_without_tls(monkeypatch):
    server = EnvironmentServer(Counting, capacity=2)
    async with trio.open_nursery() as nursery:
        port = await nursery.start(server.listen, "127.0.0.1", 0)
        said, *sentences = await fault(port)
        nursery.cancel_scope.cancel()
    assert said is Verdict.HOPELESS
    assert all(each.startswith("it does not speak TLS (") and "http://" in each for each in sentences)
