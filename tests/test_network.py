"""Asking an environment server over sockets: whether it is alive, and its schema, whatever it answers."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
import trio
from processes import with_descriptors_left
from trio.testing import wait_all_tasks_blocked

from gymserve.address import EnvironmentAddress, parse_address
from gymserve.descriptors import Descriptors, OutOfDescriptors
from gymserve.episode import Episode
from gymserve.network import NotAnEnvironmentServer, TcpNetwork
from gymserve.verdict import Verdict, verdict
from gymserve.websocket import HandshakeFailed

NETWORK = TcpNetwork(connect_timeout_seconds=1)
NOT_GZIP = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnone"


async def answering(nursery: trio.Nursery, data: bytes | None) -> EnvironmentAddress:
    """A server on loopback that says ``data`` to every request; None: it stays silent."""

    async def handle(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        if data is None:
            await trio.sleep_forever()
        await stream.send_all(data)
        await stream.aclose()

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(trio.serve_listeners, handle, listeners)
    return parse_address(f"127.0.0.1:{listeners[0].socket.getsockname()[1]}")


@pytest.mark.parametrize(
    ("data", "alive"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", True),
        (b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n", True),
        (NOT_GZIP, True),
        (b"", False),
        (b"nonsense\r\n\r\n", False),
        (None, False),
    ],
)
async def test_a_server_is_alive_that_answers_http_in_time(nursery, data, alive):
    with trio.fail_after(5):
        assert await NETWORK.is_alive(await answering(nursery, data), []) is alive


async def test_nobody_is_alive_at_a_closed_port():
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    port = listener.socket.getsockname()[1]
    await listener.aclose()
    assert not await NETWORK.is_alive(parse_address(f"127.0.0.1:{port}"), [])


# -- nobody else is asked, and nobody else gets the token ------------------------------------------------------------

HEADERS = [("Authorization", "Bearer a-token-of-the-tests")]


class Bystander:
    """A server that nobody should call."""

    def __init__(self) -> None:
        self.heard = b""
        self.url = ""

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        async def handle(stream: trio.SocketStream) -> None:
            self.heard += b"a connection: " + await stream.receive_some()
            await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
            await stream.aclose()

        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        task_status.started()
        await trio.serve_listeners(handle, [listener])


@pytest.fixture
async def bystander(nursery):
    bystander = Bystander()
    await nursery.start(bystander.run)
    return bystander


def redirect(status: int, url: str) -> bytes:
    return f"HTTP/1.1 {status} x\r\nLocation: {url}/schema\r\nContent-Length: 0\r\n\r\n".encode()


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_is_a_wrong_answer_and_is_not_followed(nursery, bystander, status):
    address = await answering(nursery, redirect(status, bystander.url))
    with pytest.raises(NotAnEnvironmentServer) as caught:
        await NETWORK.fetch_schema(address, HEADERS)
    assert str(caught.value) == (
        f"the server answered HTTP {status} to GET /schema, and redirects are not followed: give its own address"
    )
    assert verdict(caught.value) is Verdict.HOPELESS
    assert await NETWORK.is_alive(address, HEADERS)  # it did answer
    assert bystander.heard == b""


async def test_a_redirect_of_the_websocket_is_not_followed_either(nursery, bystander):
    address = await answering(nursery, redirect(302, bystander.url))
    with pytest.raises(HandshakeFailed) as caught:
        await nursery.start(Episode(NETWORK, address, HEADERS).connect)
    assert (caught.value.status, verdict(caught.value)) == (302, Verdict.HOPELESS)
    assert bystander.heard == b""


async def test_no_proxy_is_asked(monkeypatch, nursery, bystander):
    """It would get the token."""
    for variable in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(variable, bystander.url)
    schema = b'{"action": {}}'
    address = await answering(nursery, b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(schema), schema))
    assert await NETWORK.fetch_schema(address, HEADERS) == {"action": {}}
    assert await NETWORK.is_alive(address, HEADERS)
    assert bystander.heard == b""


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # httpx leaves a generator open
async def test_a_schema_in_no_encoding_is_hopeless(nursery):
    with pytest.raises(httpx.DecodingError) as caught:
        await NETWORK.fetch_schema(await answering(nursery, NOT_GZIP), [])
    assert verdict(caught.value) is Verdict.HOPELESS


async def test_a_schema_too_deep_to_read_is_none(nursery):
    deep = b"[" * 200_000
    address = await answering(nursery, b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(deep), deep))
    with pytest.raises(NotAnEnvironmentServer, match="is no OpenEnv schema"):
        await NETWORK.fetch_schema(address, [])


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # httpx leaves generators open
async def test_a_schema_without_end_is_none(nursery):
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

    async def handle(stream: trio.SocketStream) -> None:
        await stream.send_all(head)
        try:
            while True:
                await stream.send_all(b"100000\r\n%s\r\n" % (b" " * 2**20))
        except trio.BrokenResourceError:
            ended.set()

    ended = trio.Event()
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(trio.serve_listeners, handle, listeners)
    address = parse_address(f"127.0.0.1:{listeners[0].socket.getsockname()[1]}")
    with pytest.raises(NotAnEnvironmentServer, match=r"GET /schema is larger than 16777216 bytes$") as caught:
        await NETWORK.fetch_schema(address, [])
    assert verdict(caught.value) is Verdict.HOPELESS
    with trio.fail_after(2):
        await ended.wait()


# -- a peer that is cut off ------------------------------------------------------------------------------------------


def options(stream: trio.abc.Stream) -> tuple[int, ...]:
    assert isinstance(stream, trio.SocketStream)
    tcp, names = trio.socket.IPPROTO_TCP, ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
    return (
        stream.socket.getsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_KEEPALIVE),
        *(stream.socket.getsockopt(tcp, getattr(trio.socket, name)) for name in names),
    )


@pytest.mark.skipif(not hasattr(trio.socket, "TCP_USER_TIMEOUT"), reason="an option of Linux")
@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (60, (1, 30, 10, 3, 60_000)),
        (0.1, (1, 1, 1, 3, 100)),
        (3600, (1, 1800, 600, 3, 3_600_000)),
    ],
)
async def test_an_opened_connection_notices_a_partition(nursery, seconds, expected):
    network = TcpNetwork(connect_timeout_seconds=5, partition_seconds=seconds)
    async with await network.open_stream(await answering(nursery, b"")) as stream:
        assert options(stream) == expected


@pytest.mark.skipif(not hasattr(trio.socket, "TCP_USER_TIMEOUT"), reason="an option of Linux")
async def test_partitions_need_not_be_noticed(nursery):
    network = TcpNetwork(connect_timeout_seconds=5, partition_seconds=0)
    async with await network.open_stream(await answering(nursery, b"")) as stream:
        assert (options(stream)[0], options(stream)[-1]) == (0, 0)


# -- descriptors -----------------------------------------------------------------------------------------------------


@contextmanager
def no_descriptors() -> Iterator[None]:
    """This process may open nothing more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_without_a_descriptor_it_is_no_fault_of_the_servers(nursery, host):
    port = (await answering(nursery, b"")).port
    address = parse_address(f"{host}:{port}")
    network = TcpNetwork(connect_timeout_seconds=5, descriptors=Descriptors(1024))
    with no_descriptors():
        for failing in (network.open_stream(address), network.fetch_schema(address, [])):
            with pytest.raises(OutOfDescriptors) as caught:
                await failing
            assert str(caught.value) == "gymserve is out of file descriptors (its limit is 1024)"
            assert verdict(caught.value) is Verdict.BUSY
        assert not await network.is_alive(address, [])
    async with await network.open_stream(address):
        pass


async def test_the_last_descriptors_are_left_to_others(nursery):
    address = await answering(nursery, b"")
    network = TcpNetwork(connect_timeout_seconds=5, descriptors=with_descriptors_left(1))
    async with await network.open_stream(address):
        await wait_all_tasks_blocked()  # the server's end is a descriptor of this process too
        with pytest.raises(OutOfDescriptors):
            await network.open_stream(address)
    async with await network.open_stream(address):
        pass


def test_what_clients_leave_of_their_half_of_the_descriptors_is_for_episodes():
    shares = [Descriptors(1600, max_clients=most) for most in (None, 200, 5000)]
    assert [(share.clients, share.episodes) for share in shares] == [(800, 600), (200, 1200), (800, 600)]
