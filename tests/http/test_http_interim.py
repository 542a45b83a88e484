"""Interim answers, in virtual time: when a client that waits hears of it, and when it must not."""

import gc
import math

import pytest
import trio
from http_peer import GET, POST, Peer, Recorder, answer, connect
from trio.testing import lockstep_stream_pair, wait_all_tasks_blocked

from gymserve.http.exchange import Exchange
from gymserve.http.limits import Limits

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


async def heard(peer: Peer) -> tuple[list[float], bytes]:
    """When interim answers came, and what came after them."""
    times = []
    while (packet := await peer.stream.receive_some(65536)) == CONTINUE:
        times.append(trio.current_time())
    return times, packet


@pytest.mark.parametrize("headers", [(), ("Connection: close",), ("Connection: Upgrade", "Upgrade: h2c")])
async def test_a_request_that_waits_is_told_so_every_15_seconds(autojump_clock, nursery, logged, headers):
    peer = connect(nursery, Recorder())
    await peer.send(GET("/", "X-Seconds: 50", *headers))
    with trio.move_on_after(14.9) as silence:
        await peer.stream.receive_some()
    assert silence.cancelled_caught
    times, packet = await heard(peer)
    assert (times, trio.current_time()) == ([15, 30, 45], 50)
    assert packet.startswith(b"HTTP/1.1 200 OK\r\n") and packet.endswith(b"\r\n\r\n/ ")
    assert logged == []


async def test_the_interval_can_be_set(autojump_clock, nursery):
    peer = connect(nursery, Recorder(), limits=Limits(interim_seconds=0.5))
    await peer.send(GET("/", "X-Seconds: 1.75"))
    assert (await heard(peer))[0] == [0.5, 1, 1.5]


async def test_they_can_be_turned_off(autojump_clock, nursery):
    peer = connect(nursery, Recorder(), limits=Limits(interim_seconds=math.inf))
    await peer.send(GET("/", "X-Seconds: 600"))
    assert (await peer.stream.receive_some()).startswith(b"HTTP/1.1 200 OK\r\n")
    assert trio.current_time() == 600


async def test_http_1_0_knows_none(autojump_clock, nursery):
    peer = connect(nursery, Recorder())
    await peer.send(GET("/", "X-Seconds: 50").replace(b"1.1", b"1.0"))
    assert (await peer.rest()).startswith(b"HTTP/1.1 200 OK\r\n")
    assert trio.current_time() == 50


async def test_head_is_told_too(autojump_clock, nursery):
    peer = connect(nursery, Recorder())
    for starts_at in (0, 20):
        await peer.send(GET("/", "X-Seconds: 20").replace(b"GET", b"HEAD"))
        times, packet = await heard(peer)
        assert (times, packet[-4:]) == ([starts_at + 15], b"\r\n\r\n")


async def test_nothing_comes_between_the_parts_of_an_answer(autojump_clock, nursery):
    async def app(scope, receive, send):
        await trio.sleep(20)
        await answer(send, b"one ", headers=[], more=True)
        await trio.sleep(80)
        await send({"type": "http.response.body", "body": b"two"})

    peer = connect(nursery, app)
    await peer.send(GET("/", "Connection: close"))
    times, packet = await heard(peer)
    assert (times, trio.current_time()) == ([15], 20)
    assert (packet + await peer.rest()).partition(b"\r\n\r\n")[2] == b"4\r\none \r\n3\r\ntwo\r\n0\r\n\r\n"
    assert trio.current_time() == 100


async def test_a_head_that_the_app_has_given_and_we_hold_back_has_not_begun(autojump_clock, nursery):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await trio.sleep(40)
        await send({"type": "http.response.body", "body": b"late"})

    peer = connect(nursery, app)
    await peer.send(GET())
    times, packet = await heard(peer)
    assert (times, packet[:15], trio.current_time()) == ([15, 30], b"HTTP/1.1 200 OK", 40)


async def test_a_client_that_expects_a_continue_gets_that_one_first(autojump_clock, nursery):
    peer = connect(nursery, Recorder())
    request = POST("/", b"body", "Expect: 100-continue", "X-Seconds: 40")
    await peer.send(request[:-4])
    assert (await peer.stream.receive_some(), trio.current_time()) == (CONTINUE, 0)
    await trio.sleep(5)
    await peer.send(request[-4:])
    times, packet = await heard(peer)
    assert (times, packet[-6:], trio.current_time()) == ([20, 35], b"/ body", 45)


async def test_a_pipelined_request_waits_from_the_answer_before(autojump_clock, nursery):
    peer = connect(nursery, Recorder())
    await peer.send(GET("/1", "X-Seconds: 20") + GET("/2", "X-Seconds: 20"))
    first, second = await heard(peer), await heard(peer)
    assert [(times, packet[-3:]) for times, packet in (first, second)] == [([15], b"/1 "), ([35], b"/2 ")]


@pytest.mark.parametrize("starts_at", [0, 1, 14, 16, 29, 31, 50])
async def test_each_request_has_its_own_15_seconds(autojump_clock, nursery, starts_at):
    peer = connect(nursery, Recorder())
    for _ in range(2 * starts_at):
        await peer.send(GET())
        assert (await heard(peer))[0] == []
        await trio.sleep(0.5)
    await peer.send(GET("/", "X-Seconds: 40"))
    assert (await heard(peer))[0] == [starts_at + 15, starts_at + 30]


async def test_a_connection_that_was_idle_has_them_too(autojump_clock, nursery):
    peer = connect(nursery, Recorder())
    assert (await peer.ask(GET("/"))).status == 200
    await trio.sleep(50)
    await peer.send(GET("/", "X-Seconds: 20"))
    assert (await heard(peer))[0] == [65]


@pytest.fixture
def no_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def test_an_answered_request_leaves_nothing_behind(autojump_clock, nursery, no_collector):
    async def app(scope, receive, send):  # a Recorder keeps the scope, and so the exchange
        await receive()
        await trio.sleep(float(dict(scope["headers"])[b"x-seconds"]))
        await answer(send)

    peer = connect(nursery, app)
    for seconds in (0, 20):
        assert (await peer.ask(GET("/", f"X-Seconds: {seconds}"))).status == 200
        await wait_all_tasks_blocked()
        assert [thing for thing in gc.get_objects() if type(thing) is Exchange] == []


async def test_an_app_that_fails_late_is_answered_for(autojump_clock, nursery, logged):
    async def app(scope, receive, send):
        await trio.sleep(20)
        raise ValueError("late")

    peer = connect(nursery, app)
    await peer.send(GET())
    times, packet = await heard(peer)
    assert (times, packet[:12], len(logged)) == ([15], b"HTTP/1.1 500", 2)


# Clients that do not read, and clients that are gone; lockstep streams buffer nothing, so a send waits for its reader


async def test_an_answer_waits_for_the_end_of_an_interim_one(autojump_clock, nursery):
    peer = connect(nursery, Recorder(), pair=lockstep_stream_pair())
    await peer.send(GET("/", "X-Seconds: 16", "Connection: close"))
    await trio.sleep(17)
    received = b""
    while len(received) < len(CONTINUE):
        received += await peer.stream.receive_some(1)
        await trio.sleep(1)
    assert received == CONTINUE
    assert (await peer.rest()).startswith(b"HTTP/1.1 200 OK\r\n")


@pytest.mark.parametrize("answered_after_seconds", [16, 70, 600])
async def test_a_client_that_does_not_read_is_dropped_on_time(autojump_clock, nursery, logged, answered_after_seconds):
    left_at = []

    async def app(scope, receive, send):
        try:
            await trio.sleep(answered_after_seconds)
            await answer(send)
        finally:
            left_at.append(trio.current_time())

    async with trio.open_nursery() as server:
        peer = connect(server, app, pair=lockstep_stream_pair())
        await peer.send(GET())
    assert (left_at, trio.current_time(), logged) == ([15 + 60], 15 + 60, [])


async def test_a_client_found_gone_has_hung_up(autojump_clock, logged):
    app = Recorder()
    async with trio.open_nursery() as server:
        peer = connect(server, app)
        await peer.send(GET("/", "X-Seconds: 600"))
        await trio.sleep(5)
        await peer.send(b"x" * 200_000)  # so much that came too early that its end of file goes unread
        await trio.sleep(1)
        await peer.stream.aclose()
    assert (trio.current_time(), len(app.scopes), logged) == (15, 1, [])


async def test_a_client_that_closed_its_side_is_told_nothing(autojump_clock, nursery):
    async def app(scope, receive, send):
        await trio.sleep(50)  # and listens to no disconnect
        await answer(send)

    peer = connect(nursery, app)
    await peer.send(GET())
    await trio.sleep(5)
    await peer.stream.send_eof()
    assert (await peer.stream.receive_some()).startswith(b"HTTP/1.1 200 OK\r\n")
    assert trio.current_time() == 50


# The server's stop


async def test_a_request_under_way_is_told_so_through_the_stop(autojump_clock, nursery):
    peer = connect(nursery, Recorder())
    await peer.send(GET("/", "X-Seconds: 50"))
    await trio.sleep(20)
    await peer.context.terminated.set()
    times, packet = await heard(peer)
    assert (times, b"connection: close" in packet, trio.current_time()) == ([20, 30, 45], True, 50)
    assert await peer.rest() == b""
    assert trio.current_time() == 50


@pytest.mark.parametrize("seconds", [1, 20])
async def test_the_stop_is_noticed_after_them(autojump_clock, seconds):
    async with trio.open_nursery() as server:
        peer = connect(server, Recorder())
        assert (await peer.ask(GET("/", f"X-Seconds: {seconds}"))).status == 200
        await trio.sleep(5)
        await peer.context.terminated.set()
    assert trio.current_time() == seconds + 5


async def test_one_that_nobody_reads_does_not_hold_up_the_end(autojump_clock, logged):
    async with trio.open_nursery() as server:
        peer = connect(server, Recorder(), pair=lockstep_stream_pair())
        await peer.send(GET("/", "X-Seconds: 600"))
        await trio.sleep(20)
        await peer.context.terminated.set()
        server.cancel_scope.deadline = 23
    assert (trio.current_time(), logged) == (23, [])
