"""Answers, failures of apps, hang-ups, time limits and the server's stop, in virtual time."""

import json

import pytest
import trio
from http_peer import GET, POST, Recorder, answer, connect
from quart import Response, request
from quart_trio import QuartTrio
from trio.testing import lockstep_stream_pair, memory_stream_pair, wait_all_tasks_blocked

from gymserve.http.connection import Connection
from gymserve.http.limits import Limits


async def test_an_answer_is_one_packet_with_a_date(autojump_clock, nursery):
    peer = connect(nursery, Recorder())
    await peer.send(GET("/x"))
    packet = await peer.stream.receive_some()
    assert packet.startswith(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ndate: ")
    assert packet.endswith(b" GMT\r\n\r\n/x ")


async def test_an_app_may_stream(autojump_clock, nursery):
    async def app(scope, receive, send):
        await answer(send, b"one ", headers=[], more=True)
        await trio.sleep(40)
        await send({"type": "http.response.body", "body": b"two", "more_body": True})
        await send({"type": "http.response.body"})

    peer = connect(nursery, app)
    reply = await peer.ask(GET())
    assert (reply.body, reply.headers[b"transfer-encoding"], trio.current_time()) == (b"one two", b"chunked", 40)
    assert (await peer.ask(GET())).body == b"one two"


@pytest.mark.parametrize(("method", "status"), [(b"HEAD", 200), (b"GET", 204), (b"GET", 304)])
async def test_some_answers_have_no_body(autojump_clock, nursery, logged, method, status):
    async def app(scope, receive, send):
        await answer(send, b"not for ", status, headers=[(b"content-length", b"11")], more=True)
        await send({"type": "http.response.body", "body": b"you"})

    peer = connect(nursery, app)
    for _ in range(2):
        reply = await peer.ask(GET().replace(b"GET", method), method)
        assert (reply.status, reply.body) == (status, b"")
        assert (b"content-length" in reply.headers) == (status != 204)
    assert logged == []


async def test_a_stream_asked_for_by_head_ends_with_its_head(autojump_clock, nursery, logged):
    app = QuartTrio("app")

    @app.get("/")
    async def stream():
        async def ticks():
            while True:
                yield b"tick"
                await trio.sleep(1)

        return Response(ticks())

    peer = connect(nursery, app)
    for _ in range(2):
        assert (await peer.ask(GET().replace(b"GET", b"HEAD"), b"HEAD")).status == 200
    assert (trio.current_time(), logged) == (0, [])


async def test_connection_close_is_honoured(autojump_clock, nursery):
    peer = connect(nursery, Recorder())
    reply = await peer.ask(GET("/", "Connection: close") + GET("/never"))
    assert (reply.headers[b"connection"], reply.body) == (b"close", b"/ ")
    assert await peer.rest() == b""


# Failures of apps


async def fails_before(scope, receive, send):
    raise ValueError("before")


async def fails_with_a_head_in_hand(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    raise ValueError("head in hand")


async def returns_without_a_word(scope, receive, send):
    pass


async def sends_a_body_first(scope, receive, send):
    await send({"type": "http.response.body", "body": b"x"})


async def sends_a_split_header(scope, receive, send):
    await answer(send, headers=[(b"x", b"a\r\nb")])


async def sends_what_nobody_offered(scope, receive, send):
    await send({"type": "http.response.trailers"})


@pytest.mark.parametrize(
    "app",
    [
        fails_before,
        fails_with_a_head_in_hand,
        returns_without_a_word,
        sends_a_split_header,
        sends_what_nobody_offered,
    ],
)
async def test_an_app_that_fails_before_its_answer_is_answered_for(autojump_clock, nursery, logged, app):
    peer = connect(nursery, app)
    reply = await peer.ask(GET("/broken"))
    assert (reply.status, reply.headers[b"connection"]) == (500, b"close")
    assert json.loads(reply.body) == {
        "error": "internal_error",
        "detail": "gymserve failed to answer this request; its log says why",
        "done": False,
    }
    assert await peer.rest() == b""
    assert {event["path"] for event in logged} == {"/broken"}


async def fails_in_the_middle(scope, receive, send):
    await answer(send, b"abc", headers=[(b"content-length", b"10")], more=True)
    raise ValueError("in the middle")


async def stops_in_the_middle(scope, receive, send):
    await answer(send, b"abc", headers=[(b"content-length", b"10")], more=True)


async def says_too_little(scope, receive, send):
    await answer(send, b"abc", headers=[(b"content-length", b"10")])


async def says_too_much(scope, receive, send):
    await answer(send, b"abc", headers=[(b"content-length", b"1")])


@pytest.mark.parametrize("app", [fails_in_the_middle, stops_in_the_middle, says_too_little, says_too_much])
async def test_an_app_that_fails_in_its_answer_loses_the_connection(autojump_clock, nursery, logged, app):
    peer = connect(nursery, app)
    await peer.send(GET("/broken"))
    assert not (await peer.rest()).endswith(b"0\r\n\r\n")
    assert logged[-1]["event"] == "an answer was cut off; the client sees a broken one"
    assert (trio.current_time(), logged[-1]["path"]) == (0, "/broken")


async def test_no_error_leaves_the_connection(autojump_clock, logged):
    class Broken(trio.abc.ReceiveStream):
        async def receive_some(self, max_bytes=None):
            raise RuntimeError("a bug of ours")

        async def aclose(self):
            pass

    client, server = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        peer = connect(nursery, Recorder(), pair=(client, trio.StapledStream(server.send_stream, Broken())))
        assert await peer.rest() == b""
    assert [event["event"] for event in logged] == ["an HTTP connection failed"]


# Clients that hang up


@pytest.mark.parametrize("extra", [b"", b"\r\n", GET("/pipelined")])
@pytest.mark.parametrize("goodbye", ["aclose", "send_eof"])
async def test_a_hang_up_cancels_the_handler(autojump_clock, nursery, logged, extra, goodbye):
    app = Recorder()
    peer = connect(nursery, app)
    await peer.send(GET("/", "X-Seconds: 600") + extra)
    await trio.sleep(5)
    if goodbye == "aclose":
        await peer.stream.aclose()
    else:
        await peer.stream.send_eof()
    await trio.sleep(1)
    assert (app.disconnected_at, len(app.scopes), logged) == ([5], 1, [])


async def test_a_hang_up_cancels_a_quart_handler(autojump_clock, nursery, logged):
    app, cancelled_at = QuartTrio("app"), []

    @app.get("/")
    async def slow():
        try:
            await trio.sleep(600)
        finally:
            cancelled_at.append(trio.current_time())

    peer = connect(nursery, app)
    await peer.send(GET() + b"x")
    await trio.sleep(5)
    await peer.stream.aclose()
    await trio.sleep(1)
    assert (cancelled_at, logged) == ([5], [])


async def test_a_hang_up_does_not_cancel_the_last_send(autojump_clock, nursery, logged):
    app = QuartTrio("app")

    @app.post("/echo")
    async def echo():
        return Response(await request.get_data(), headers={"Content-Type": "text/plain"})

    peer = connect(nursery, app, pair=lockstep_stream_pair())
    body = b"x" * 300_000
    await peer.send(POST("/echo", body))
    await trio.sleep(1)  # the server sits in its send: lockstep streams buffer nothing
    await peer.stream.send_eof()
    await trio.sleep(1)
    assert (await peer.rest()).endswith(b"\r\n\r\n" + body)
    assert logged == []


async def test_after_its_answer_an_app_that_still_listens_is_told_to_go(autojump_clock, nursery):
    heard = []

    async def app(scope, receive, send):
        await receive()
        await answer(send)
        heard.append((await receive())["type"])

    peer = connect(nursery, app)
    assert [(await peer.ask(GET())).body, (await peer.ask(GET())).body] == [b"ok", b"ok"]
    await wait_all_tasks_blocked()
    assert heard == ["http.disconnect"] * 2


async def test_an_endless_stream_ends_with_its_client(autojump_clock, nursery, logged):
    ended_at = []

    async def app(scope, receive, send):
        try:
            await answer(send, b"0", headers=[], more=True)
            while True:
                await trio.sleep(10)
                await send({"type": "http.response.body", "body": b"1", "more_body": True})
        finally:
            ended_at.append(trio.current_time())

    peer = connect(nursery, app)
    await peer.send(GET())
    await trio.sleep(25)
    await peer.stream.aclose()
    await trio.sleep(10)
    assert (ended_at, logged) == ([30], [])


# Time limits


async def test_an_idle_connection_closes_after_75_seconds(autojump_clock, nursery):
    never_used, used = (connect(nursery, Recorder()) for _ in range(2))
    await trio.sleep(10)
    assert (await used.ask(GET("/", "X-Seconds: 100"))).body == b"/ "
    assert await used.rest() == b""
    assert trio.current_time() == 10 + 100 + 75
    assert await never_used.rest() == b""


async def test_idle_connections_close_on_time(autojump_clock, nursery):
    closed_at = []

    async def use(head):
        peer = connect(nursery, Recorder())
        await peer.send(head)
        assert await peer.rest() == b""
        closed_at.append(trio.current_time())

    async with trio.open_nursery() as clients:
        for head in (b"", b"\r\n"):
            clients.start_soon(use, head)
    assert closed_at == [75, 75]


async def test_a_slow_head_is_refused_on_time(autojump_clock, nursery):
    peer = connect(nursery, Recorder())
    await trio.sleep(70)
    for byte in GET("/", "X: 1234567890")[:20]:  # a byte now and then is no progress
        await peer.send(bytes([byte]))
        await trio.sleep(3)
    reply = await peer.reply()
    assert (trio.current_time(), reply.status, reply.headers[b"connection"]) == (70 + 60, 408, b"close")
    assert json.loads(reply.body) == {
        "error": "head_stalled",
        "detail": "the request line and headers came too slowly: not the next 65536 bytes, or the rest, in 60 s",
        "done": False,
    }


async def test_a_head_that_begins_at_the_end_of_the_idle_time_is_served(autojump_clock, nursery):
    peer = connect(nursery, Recorder())
    await trio.sleep(74)
    await peer.send(GET()[:10])
    await trio.sleep(59)
    assert (await peer.ask(GET()[10:])).body == b"/ "


async def test_a_reader_that_stops_is_dropped_on_time(autojump_clock, nursery, logged):
    left_at = []

    async def app(scope, receive, send):
        try:
            await answer(send, b"x" * 1_000_000)
        finally:
            left_at.append(trio.current_time())

    peer = connect(nursery, app, pair=lockstep_stream_pair())
    await peer.send(GET())
    await trio.sleep(59)
    await peer.stream.receive_some(65536)  # one slice
    await trio.sleep(61)
    assert (left_at, logged) == ([59 + 60], [])


async def test_a_slow_reader_is_served(autojump_clock, nursery):
    async def app(scope, receive, send):
        await answer(send, b"x" * 1_000_000)

    peer = connect(nursery, app, pair=lockstep_stream_pair())
    await peer.send(GET())
    received = 0
    while received < 1_000_000:
        await trio.sleep(20)
        received += len(await peer.stream.receive_some(65536))
    assert trio.current_time() == 16 * 20


async def test_a_refused_client_may_finish_its_sending(autojump_clock, nursery):
    peer = connect(nursery, Recorder(), limits=Limits(body_bytes=10, linger_bytes=1_000_000))
    await peer.send(POST("/", b"x" * 500_000))
    await trio.sleep(4)
    await peer.send(b"x" * 10)
    assert (await peer.reply()).status == 413
    await trio.sleep(1)
    await assert_closed(peer)


async def test_a_client_whose_head_was_refused_may_finish_its_sending(autojump_clock, nursery):
    peer = connect(nursery, Recorder())
    await peer.send(b"not HTTP\r\n\r\n")
    await trio.sleep(4)
    await peer.send(b"x" * 500_000)
    assert (await peer.reply()).status == 400
    await trio.sleep(1)
    await assert_closed(peer)


async def test_lingering_is_bounded_in_bytes(autojump_clock, nursery):
    peer = connect(nursery, Recorder(), limits=Limits(body_bytes=10, linger_bytes=1_000_000))
    await peer.send(POST("/", b"x" * 1_500_000))
    await assert_closed(peer)
    assert (await peer.reply()).status == 413
    assert trio.current_time() == 0


async def assert_closed(peer):
    await wait_all_tasks_blocked()
    with pytest.raises(trio.BrokenResourceError):
        await peer.send(b"x")


# The server's stop


async def test_a_stop_closes_what_serves_no_request_at_once(autojump_clock, nursery):
    never_used, half_a_head, used, lingering = (connect(nursery, Recorder()) for _ in range(4))
    await half_a_head.send(GET()[:10])
    assert (await used.ask(GET())).status == 200
    assert (await lingering.ask(GET("/", "Connection: close"))).status == 200
    for peer in (never_used, half_a_head, used, lingering):
        await trio.sleep(1)
        await peer.context.terminated.set()
        assert await peer.rest() == b""
        await assert_closed(peer)
    assert trio.current_time() == 4


async def test_who_connects_as_the_server_stops_is_answered_yet(autojump_clock, nursery):
    late, mute, slow = (connect(nursery, Recorder()) for _ in range(3))
    await trio.sleep(0.1)
    for peer in (late, mute, slow):
        await peer.context.terminated.set()
    await slow.send(GET()[:10])
    await trio.sleep(0.1)
    reply = await late.ask(GET("/asked"))
    assert (reply.body, reply.headers[b"connection"], trio.current_time()) == (b"/asked ", b"close", 0.2)
    for peer in (mute, slow):
        assert await peer.rest() == b""
        assert trio.current_time() == 0.5


async def test_a_stop_lets_a_request_finish(autojump_clock, nursery):
    peer = connect(nursery, Recorder())
    await peer.send(POST("/", b"body", "X-Seconds: 20")[:-2])
    await trio.sleep(5)
    await peer.context.terminated.set()
    await trio.sleep(5)
    reply = await peer.ask(b"dy" + GET("/pipelined"))
    assert (reply.body, reply.headers[b"connection"], trio.current_time()) == (b"/ body", b"close", 30)
    assert await peer.rest() == b""
    await assert_closed(peer)
    assert trio.current_time() == 30


async def test_cancelling_a_connection_closes_it(autojump_clock, nursery, logged):
    async with trio.open_nursery() as server:
        peer = connect(server, Recorder())
        await peer.send(GET("/", "X-Seconds: 600"))
        await trio.sleep(3)
        server.cancel_scope.cancel()
    assert (await peer.rest(), logged, trio.current_time()) == (b"", [], 3)


async def test_hypercorn_awaits_the_connection_itself(autojump_clock, nursery):
    client, server = memory_stream_pair()
    peer = connect(nursery, Recorder())
    await peer.context.terminated.set()
    await Connection(Recorder(), None, peer.context, {}, server)
    assert await client.receive_some() == b""
