"""Asking an environment server over sockets: whether it is alive, and its schema, whatever it answers."""

import httpx
import pytest
import trio

from gymserve.address import EnvironmentAddress, parse_address
from gymserve.network import NotAnEnvironmentServer, TcpNetwork
from gymserve.verdict import Verdict, verdict

NETWORK = TcpNetwork(connect_timeout_seconds=0.3)
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
    with trio.fail_after(2):
        assert await NETWORK.is_alive(await answering(nursery, data), []) is alive


async def test_nobody_is_alive_at_a_closed_port():
    listener = (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]
    port = listener.socket.getsockname()[1]
    await listener.aclose()
    assert not await NETWORK.is_alive(parse_address(f"127.0.0.1:{port}"), [])


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
