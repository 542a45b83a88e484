"""What is sent at once, on real sockets: mostly all; what is not is left to the stream."""

import trio
from trio.testing import memory_stream_pair

from gymserve.sending import send_at_once


async def socket_pair() -> tuple[trio.SocketStream, trio.SocketStream]:
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        ours = await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1])
        return ours, await listener.accept()


async def test_a_little_is_sent_whole():
    ours, theirs = await socket_pair()
    async with ours, theirs:
        assert send_at_once(ours, memoryview(b"question")) == 8
        assert await theirs.receive_some() == b"question"


async def test_much_is_sent_in_part_and_then_not_at_all():
    ours, theirs = await socket_pair()
    much = bytes(range(256)) * 100_000
    async with ours, theirs:
        sent = send_at_once(ours, much)
        assert 0 < sent < len(much)
        while (more := send_at_once(ours, much[sent:])) > 0:
            sent += more
        received = b""
        while len(received) < sent:
            received += await theirs.receive_some()
        assert received == much[:sent]


async def test_a_stream_that_is_closed_or_no_socket_is_left_to_tell():
    ours, theirs = await socket_pair()
    await theirs.aclose()
    await ours.aclose()
    assert send_at_once(ours, b"late") == 0
    assert send_at_once(memory_stream_pair()[0], b"question") == 0
