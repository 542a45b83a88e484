"""Too many connections: who is closed, who is late, who is served; and descriptors that run out."""

import errno
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest
import trio
from http_peer import GET, POST, Recorder, answer, connect
from processes import with_descriptors_left
from trio.testing import wait_all_tasks_blocked

from gymserve.descriptors import Descriptors
from gymserve.http.accepting import serve_listeners
from gymserve.http.crowd import LATE_EXTENSION, Crowd, is_late
from gymserve.partition import notice_partition

PLENTY = Descriptors(1_000_000)


@contextmanager
def taken(count: int) -> Iterator[None]:
    """So many descriptors are taken by others."""
    with ExitStack() as stack:
        for _ in range(count):
            stack.callback(os.close, os.dup(0))
        yield


# -- in virtual time -------------------------------------------------------------------------------------------------


async def test_a_connection_too_many_closes_the_one_that_was_idle_for_longest(autojump_clock, nursery, logged):
    crowd = Crowd(most=3, descriptors=PLENTY)
    first, second, busy = (connect(nursery, Recorder(), crowd=crowd) for _ in range(3))
    await busy.send(GET("/busy", "X-Seconds: 100"))
    await trio.sleep(1)
    assert (await first.ask(GET("/first"))).status == 200  # so that the second is idle for longer
    await trio.sleep(1)
    late = connect(nursery, Recorder(), crowd=crowd)
    assert await second.rest() == b""
    assert (await late.ask(GET("/late"))).body == b"/late "
    assert (await first.ask(GET("/first"))).body == b"/first "
    assert (await busy.reply()).body == b"/busy "
    assert [event["connections"] for event in logged] == [4]


async def test_whoever_has_just_come_is_spared(autojump_clock, nursery):
    crowd = Crowd(most=2, descriptors=PLENTY)
    peers = [connect(nursery, Recorder(), crowd=crowd) for _ in range(50)]
    await trio.sleep(0.9)
    for peer in peers:
        assert (await peer.ask(GET())).status == 200


async def test_a_head_that_does_not_come_to_its_end_makes_room_too(autojump_clock, nursery):
    crowd = Crowd(most=1, descriptors=PLENTY)
    slow = connect(nursery, Recorder(), crowd=crowd)
    await slow.send(GET()[:-2])
    await trio.sleep(2)
    assert (await connect(nursery, Recorder(), crowd=crowd).ask(GET())).status == 200
    assert await slow.rest() == b""


async def test_a_request_under_way_never_makes_room(autojump_clock, nursery):
    crowd = Crowd(most=1, descriptors=PLENTY)
    sending, waiting = (connect(nursery, Recorder(), crowd=crowd) for _ in range(2))
    await sending.send(POST("/", b"body")[:-1])
    await waiting.send(GET("/", "X-Seconds: 50"))
    await trio.sleep(30)
    for _ in range(5):
        connect(nursery, Recorder(), crowd=crowd)
    await trio.sleep(20)
    assert (await waiting.reply()).status == (await sending.ask(b"y")).status == 200


async def test_a_late_connections_requests_are_told_apart_and_its_last(autojump_clock, nursery):
    app = Recorder()
    crowd = Crowd(most=1, descriptors=PLENTY)
    early = connect(nursery, app, crowd=crowd)
    await early.send(GET("/", "X-Seconds: 100"))
    await wait_all_tasks_blocked()
    late = connect(nursery, app, crowd=crowd)
    assert (await late.ask(GET())).headers[b"connection"] == b"close"
    assert [is_late(scope) for scope in app.scopes] == [False, True]
    assert LATE_EXTENSION in app.scopes[1]["extensions"]
    assert await late.rest() == b""
    assert b"connection" not in (await early.reply()).headers


async def test_a_late_connection_is_no_longer_late_when_others_have_left(autojump_clock, nursery):
    app = Recorder()
    crowd = Crowd(most=1, descriptors=PLENTY)
    early = connect(nursery, app, crowd=crowd)
    await wait_all_tasks_blocked()
    late = connect(nursery, app, crowd=crowd)
    await wait_all_tasks_blocked()
    await early.stream.aclose()
    await wait_all_tasks_blocked()
    assert b"connection" not in (await late.ask(GET())).headers
    connect(nursery, app, crowd=crowd)
    await wait_all_tasks_blocked()
    assert b"connection" not in (await late.ask(GET())).headers, "whoever was let in stays in"
    assert [is_late(scope) for scope in app.scopes] == [False, False]


async def test_every_connection_is_counted_until_it_has_ended(autojump_clock, nursery):
    crowd = Crowd(most=10, descriptors=PLENTY)
    peers = [connect(nursery, Recorder(), crowd=crowd) for _ in range(5)]
    await peers[0].send(b"not HTTP\r\n\r\n")
    await peers[1].stream.aclose()
    await wait_all_tasks_blocked()
    assert crowd.connections == 4  # the one that was refused may finish its sending
    await trio.sleep(76)
    assert crowd.connections == 0


async def test_a_crowd_is_told_of_once_a_minute(autojump_clock, nursery, logged):
    crowd = Crowd(most=1, descriptors=PLENTY)
    for _ in range(4):
        connect(nursery, Recorder(), crowd=crowd)
        await trio.sleep(31)
    assert [(event["log_level"], event["connections"], event["max_connections"]) for event in logged] == [
        ("warning", 2, 1),
        ("warning", 2, 1),
    ]


# -- descriptors -----------------------------------------------------------------------------------------------------


def test_the_shares_leave_some_to_others():
    for limit in (64, 256, 1024, 4096, 20_000, 1_048_576):
        descriptors = Descriptors(limit)
        assert descriptors.clients + descriptors.episodes == limit * 7 // 8
    assert (descriptors.clients, descriptors.episodes) == (524_288, 393_216)


def test_they_are_out_when_only_the_last_are_left():
    descriptors = with_descriptors_left(5)
    with taken(4):
        assert not descriptors.are_out
    with taken(5):
        assert descriptors.are_out
    assert not descriptors.are_out


@pytest.mark.parametrize(("most", "told"), [(None, 8), (100, 8), (3, 3)])
async def test_the_clients_share_is_the_most_that_there_may_be(autojump_clock, nursery, logged, most, told):
    app = Recorder()
    crowd = Crowd(most=most, descriptors=Descriptors(16))
    for _ in range(told + 1):
        await connect(nursery, app, crowd=crowd).ask(GET())
    assert [is_late(scope) for scope in app.scopes] == [False] * told + [True]
    assert [event["max_connections"] for event in logged] == [told]


# -- accepting, on real sockets --------------------------------------------------------------------------------------


class Listening:
    """A listener, served; what it accepted is held until it is let go."""

    def __init__(self, nursery: trio.Nursery, crowd: Crowd, listener: trio.SocketListener) -> None:
        self.accepted: list[trio.SocketStream] = []
        self.port = listener.socket.getsockname()[1]
        self._crowd = crowd
        nursery.start_soon(self._serve, listener)

    async def _serve(self, listener: trio.SocketListener) -> None:
        async with trio.open_nursery() as handlers:
            await serve_listeners(self._hold, [listener], handler_nursery=handlers, crowd=self._crowd)

    async def _hold(self, stream: trio.SocketStream) -> None:
        async with stream:
            self.accepted.append(stream)
            await trio.sleep_forever()

    async def dial(self) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", self.port)


async def listener() -> trio.SocketListener:
    return (await trio.open_tcp_listeners(0, host="127.0.0.1"))[0]


async def test_accepting_pauses_at_the_last_descriptors_and_goes_on(nursery, logged):
    socket = await listener()
    crowd = Crowd(descriptors=with_descriptors_left(10))
    served = Listening(nursery, crowd, socket)
    async with await served.dial():
        with taken(10):
            await trio.sleep(0.1)
            waiting = await served.dial()  # the backlog takes it
            refused = await served.dial()
            await trio.sleep(0.5)
            assert len(served.accepted) <= 2  # one may be accepted, for which it was waiting already
        with trio.fail_after(2):
            while len(served.accepted) < 3:  # noqa: ASYNC110 - what is waited for is the kernel's
                await trio.sleep(0.01)
        await waiting.aclose()
        await refused.aclose()
    assert [event["log_level"] for event in logged] == ["warning"]
    nursery.cancel_scope.cancel()


class Flaky(trio.abc.Listener[trio.SocketStream]):
    """A listener whose first accepts fail."""

    def __init__(self, *errors: int) -> None:
        self.failing = list(errors)
        self.asked_at: list[float] = []

    async def accept(self) -> trio.SocketStream:
        self.asked_at.append(trio.current_time())
        await trio.lowlevel.checkpoint()
        if self.failing:
            raise OSError(self.failing.pop(0), "as it happens")
        return await trio.sleep_forever()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def test_an_accept_that_fails_for_want_of_anything_is_tried_again_with_pauses(autojump_clock, nursery, logged):
    flaky = Flaky(errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
    with trio.move_on_after(10):
        await serve_listeners(answer, [flaky], handler_nursery=nursery, crowd=Crowd(descriptors=PLENTY))
    assert flaky.asked_at == pytest.approx([0, 0.1, 0.2, 0.3, 0.4])
    assert len(logged) == 1


async def test_an_accept_that_fails_otherwise_is_an_error(autojump_clock, nursery):
    with pytest.RaisesGroup(pytest.RaisesExc(OSError, match="as it happens")):
        await serve_listeners(answer, [Flaky(errno.EBADF)], handler_nursery=nursery, crowd=Crowd(descriptors=PLENTY))


@pytest.mark.skipif(not hasattr(trio.socket, "TCP_USER_TIMEOUT"), reason="an option of Linux")
async def test_what_is_accepted_notices_a_partition_as_the_listener_was_told(nursery):
    socket = await listener()
    notice_partition(socket.socket, 30)
    served = Listening(nursery, Crowd(descriptors=PLENTY), socket)
    async with await served.dial():
        with trio.fail_after(2):
            while not served.accepted:  # noqa: ASYNC110 - what is waited for is the kernel's
                await trio.sleep(0.01)
        assert options(served.accepted[0].socket) == (1, 15, 5, 3, 30_000)
    nursery.cancel_scope.cancel()


def options(socket: trio.socket.SocketType) -> tuple[int, ...]:
    tcp = trio.socket.IPPROTO_TCP
    names = ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT")
    return (
        socket.getsockopt(trio.socket.SOL_SOCKET, trio.socket.SO_KEEPALIVE),
        *(socket.getsockopt(tcp, getattr(trio.socket, name)) for name in names),
    )
