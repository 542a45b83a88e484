"""A client's WebSocket, frame by frame, over memory streams."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from trio.testing import memory_stream_pair, wait_all_tasks_blocked
from wsproto.connection import Connection, ConnectionType
from wsproto.events import BytesMessage, CloseConnection, Event, Ping, Pong, TextMessage
from wsproto.utilities import generate_accept_token

from gymserve.address import parse_address
from gymserve.websocket import HandshakeFailed, MessageTooLarge, WebSocket, WebSocketEnded, open_websocket

ADDRESS = parse_address("environment:8000")


class Server:
    """The other end, which sends what it is told."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._frames = Connection(ConnectionType.SERVER)

    async def shake_hands(self, behind: bytes = b"", *, in_pieces_of: int = 10_000) -> None:
        head = bytes(await self.stream.receive_some())
        key = head.split(b"Sec-WebSocket-Key: ")[1].split(b"\r\n")[0]
        answer = (
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: " + generate_accept_token(key) + b"\r\n\r\n" + behind
        )
        for start in range(0, len(answer), in_pieces_of):
            await self.stream.send_all(answer[start : start + in_pieces_of])
            await wait_all_tasks_blocked()

    async def send(self, *events: Event) -> None:
        await self.stream.send_all(b"".join(self._frames.send(event) for event in events))

    async def heard(self) -> list[Event]:
        self._frames.receive_data(bytes(await self.stream.receive_some()))
        return list(self._frames.events())


@asynccontextmanager
async def opened(**options: int) -> AsyncIterator[tuple[WebSocket, Server]]:
    ours, theirs = memory_stream_pair()
    server = Server(theirs)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.shake_hands)
        websocket = await open_websocket(ours, ADDRESS, [], **options)
    yield websocket, server


async def test_a_message_in_parts_is_one():
    async with opened() as (websocket, server):
        await server.send(TextMessage("a", message_finished=False), TextMessage("ü", message_finished=True))
        assert await websocket.receive() == "aü"
        await server.send(BytesMessage(b"a", message_finished=False), Ping(b"7"), BytesMessage(b"b"))
        assert await websocket.receive() == b"ab"
        assert await server.heard() == [Pong(b"7")]


async def test_several_messages_that_come_together_are_received_one_by_one():
    async with opened() as (websocket, server):
        await server.send(TextMessage("a"), TextMessage("b"), CloseConnection(1012, "restart"))
        assert [await websocket.receive() for _ in range(2)] == ["a", "b"]
        with pytest.raises(WebSocketEnded) as caught:
            await websocket.receive()
        assert (caught.value.code, caught.value.reason) == (1012, "restart")
        assert await server.heard() == [CloseConnection(1012, "restart")]


@pytest.mark.parametrize("piece_bytes", [1, 100])
async def test_an_answer_to_the_upgrade_may_come_in_pieces_with_a_frame_behind_it(autojump_clock, piece_bytes):
    ours, theirs = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(Server(theirs).shake_hands, b"\x81\x02hi", in_pieces_of=piece_bytes))
        websocket = await open_websocket(ours, ADDRESS, [])
        assert await websocket.receive() == "hi"


async def test_what_is_too_large_counts_over_all_parts():
    async with opened(max_message_bytes=3) as (websocket, server):
        await server.send(TextMessage("üüü"))
        assert await websocket.receive() == "üüü"
        await server.send(TextMessage("ab", message_finished=False), TextMessage("cd", message_finished=False))
        with pytest.raises(MessageTooLarge):
            await websocket.receive()
        said = await server.heard()
        assert [event.code for event in said if isinstance(event, CloseConnection)] == [1009]


async def test_a_ping_after_our_close_is_not_answered_and_the_servers_close_ends_it():
    async with opened() as (websocket, server):
        await websocket.close()
        await websocket.close()
        await websocket.send("too late")
        assert await server.heard() == [CloseConnection(1000, "")]
        await server.stream.send_all(b"\x89\x00\x88\x02\x03\xe8")  # a ping, and CLOSE 1000
        with pytest.raises(WebSocketEnded) as caught:
            await websocket.receive()
        assert caught.value.code == 1000


@pytest.mark.parametrize(("frame", "code"), [(b"\x83\x00", 1002), (b"\x81\x80\0\0\0\0", 1002), (b"\x81\x01\xff", 1007)])
async def test_what_is_no_frame_ends_it(frame, code):
    async with opened() as (websocket, server):
        await server.stream.send_all(frame)
        with pytest.raises(WebSocketEnded) as caught:
            await websocket.receive()
        assert caught.value.code == code


async def test_a_server_that_takes_nothing_is_waited_for_until_then(autojump_clock):
    """And what another task says meanwhile comes behind it, whole."""
    ours, theirs = memory_stream_pair()
    server = Server(theirs)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(server.shake_hands)
        websocket = await open_websocket(ours, ADDRESS, [])
        free, deliver = trio.Event(), ours.send_stream.send_all_hook

        async def hold() -> None:
            await free.wait()
            await deliver()

        ours.send_stream.send_all_hook = hold
        nursery.start_soon(websocket.send, "a")
        await wait_all_tasks_blocked()
        await websocket.send("b", until=5)
        assert trio.current_time() == 5
        nursery.start_soon(websocket.send, "c")
        await wait_all_tasks_blocked()
        free.set()
    assert [event.data for event in await server.heard() if isinstance(event, TextMessage)] == ["a", "c"]


async def test_an_answer_that_is_no_101_is_told_by_its_status():
    ours, theirs = memory_stream_pair()

    async def answer() -> None:
        await theirs.receive_some()
        await theirs.send_all(b"HTTP/1.1 100 Continue\r\n\r\n")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        with pytest.raises(HandshakeFailed, match=r"^the server answered HTTP 100 to the WebSocket upgrade$") as caught:
            await open_websocket(ours, ADDRESS, [])
    assert caught.value.status == 100
