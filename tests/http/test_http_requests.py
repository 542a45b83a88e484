"""Heads, bodies and framing, in virtual time: what clients send, what apps see, what comes back."""

import tracemalloc
from itertools import pairwise

import pytest
import trio
from http_peer import GET, POST, Recorder, answer, connect
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from gymserve.http.limits import Limits

CHUNKED = b"POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


async def test_the_scope_says_what_asgi_wants(autojump_clock, nursery):
    app = Recorder()
    peer = connect(nursery, app)
    reply = await peer.ask(POST("/a%20b%C3%A4?x=%20&y", b"{}", "X-Label: Run"))
    assert (reply.status, reply.body) == (200, "/a bä {}".encode())
    assert app.scopes == [
        {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": "POST",
            "scheme": "http",
            "path": "/a bä",
            "raw_path": b"/a%20b%C3%A4",
            "query_string": b"x=%20&y",
            "root_path": "",
            "headers": [(b"host", b"x"), (b"content-length", b"2"), (b"x-label", b"Run")],
            "client": None,
            "server": None,
            "state": {"from": "lifespan"},
            "extensions": app.scopes[0]["extensions"],
        }
    ]
    extensions = app.scopes[0]["extensions"]
    assert set(extensions) == {"gymserve.stopped", "gymserve.exchange"}
    assert extensions["gymserve.stopped"] == peer.context.terminated.wait


async def test_requests_do_not_share_their_state(autojump_clock, nursery):
    async def app(scope, receive, send):
        seen = scope["state"].pop("from", "nothing")
        await answer(send, seen.encode())

    peer = connect(nursery, app)
    assert [(await peer.ask(GET())).body for _ in range(2)] == [b"lifespan"] * 2


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        ("http://other.example/x/y?z", "/x/y", b"z"),
        ("http://other.example", "/", b""),
        ("http://other.example?z", "/", b"z"),
        ("//", "//", b""),
        ("/%ff", "/\ufffd", b""),
        ("*", "*", b""),
    ],
)
async def test_every_form_of_target_has_a_path(autojump_clock, nursery, target, path, query):
    app = Recorder()
    await connect(nursery, app).send(GET(target))
    await wait_all_tasks_blocked()
    assert (app.scopes[0]["path"], app.scopes[0]["query_string"]) == (path, query)


@pytest.mark.parametrize(
    "head", [GET("?a"), GET("/", "Connection: Upgrade", "Upgrade: websocket"), GET("/", "X: " + "a" * 65536)]
)
async def test_a_refused_HEAD_gets_no_body(autojump_clock, nursery, logged, head):
    peer = connect(nursery, Recorder())
    reply = await peer.ask(head.replace(b"GET", b"HEAD", 1), b"HEAD")
    assert (reply.status, reply.body) in ((400, b""), (431, b""))
    assert (await peer.rest(), logged) == (b"", [])


async def test_a_head_of_64_kib_is_read(autojump_clock, nursery):
    reply = await connect(nursery, Recorder()).ask(GET("/", "X: " + "a" * 65000))
    assert reply.status == 200


async def test_http_1_0_is_answered_up_to_the_close(autojump_clock, nursery):
    async def app(scope, receive, send):
        assert scope["http_version"] == "1.0"
        await answer(send, b"old", headers=[])

    peer = connect(nursery, app)
    await peer.send(b"GET / HTTP/1.0\r\nUpgrade: websocket\r\n\r\n")
    head, _, body = (await peer.rest()).partition(b"\r\n\r\n")
    assert (head[:15], body) == (b"HTTP/1.1 200 OK", b"old")
    assert b"Connection: close" in head
    assert b"ransfer-" not in head


async def test_a_declared_body_beyond_the_limit_is_refused_by_the_app(autojump_clock, nursery):
    app = Recorder()
    peer = connect(nursery, app, limits=Limits(body_bytes=10))
    await peer.send(POST("/", b"", "Expect: 100-continue").replace(b"Length: 0", b"Length: 11"))
    head = await peer.stream.receive_some(12)
    assert head == b"HTTP/1.1 413", "no 100 Continue comes before a refusal"
    assert b"connection: close" in (await peer.rest())
    assert app.scopes[0]["extensions"]["gymserve.refusal"] == {
        "status": 413,
        "error": "body_too_large",
        "detail": "the request body is larger than 10 bytes",
    }
    assert app.bodies == [b""]


async def test_a_chunked_body_is_counted_as_it_arrives(autojump_clock, nursery):
    app = Recorder()
    peer = connect(nursery, app, limits=Limits(body_bytes=10))
    reply = await peer.ask(CHUNKED + b"6\r\nabcdef\r\n5\r\nghijk\r\n")
    assert (reply.status, reply.headers[b"connection"]) == (413, b"close")
    assert app.bodies == [b""]


async def test_a_body_of_exactly_the_limit_is_served(autojump_clock, nursery):
    peer = connect(nursery, Recorder(), limits=Limits(body_bytes=10))
    assert (await peer.ask(POST("/", b"0123456789"))).body == b"/ 0123456789"
    assert (await peer.ask(CHUNKED + b"a\r\n0123456789\r\n0\r\n\r\n")).body == b"/c 0123456789"


async def test_a_body_of_small_chunks_takes_no_more_memory_than_it_has_bytes(autojump_clock, nursery):
    async def app(scope, receive, send):
        await answer(send, b"%d" % len((await receive())["body"]))

    peer = connect(nursery, app)
    body = b"1\r\na\r\n" * 100_000 + b"0\r\n\r\n"
    tracemalloc.start()
    try:
        for start in range(0, len(body), 50_000):
            await peer.send((CHUNKED if start == 0 else b"") + body[start : start + 50_000])
            await wait_all_tasks_blocked()
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (await peer.reply()).body == b"100000"
    assert most_bytes < 2_000_000


@pytest.mark.parametrize("junk", [b"zz\r\nab", b"1\r\nabc\r\n", b"1;" + b"a" * 70_000])
async def test_a_malformed_body_is_refused_by_the_app(autojump_clock, nursery, junk):
    peer = connect(nursery, Recorder())
    reply = await peer.ask(CHUNKED + junk)
    assert (reply.status, reply.headers[b"connection"]) == (400, b"close")
    assert reply.body.startswith(b"bad_request: not HTTP/1.1: ")


async def test_a_stalled_body_is_refused_by_the_app_on_time(autojump_clock, nursery):
    peer = connect(nursery, Recorder())
    await peer.send(POST("/", b"abc")[:-2])
    await trio.sleep(59)
    await peer.send(b"b")  # a byte now and then is no progress
    reply = await peer.reply()
    assert (trio.current_time(), reply.status, reply.headers[b"connection"]) == (60, 408, b"close")
    assert reply.body == (
        b"body_stalled: the request body came too slowly: not the next 65536 bytes, or the rest, in 60 s"
    )


async def test_a_slow_body_is_read_as_long_as_it_progresses(autojump_clock, nursery):
    peer = connect(nursery, Recorder())
    request = POST("/", b"x" * 200_000)
    for start in range(0, len(request), 65536):
        await peer.send(request[start : start + 65536])
        await trio.sleep(59)
    assert (await peer.reply()).status == 200


async def test_the_time_for_a_slow_client_can_be_set(autojump_clock, nursery):
    peer = connect(nursery, Recorder(), limits=Limits(stall_seconds=5))
    await peer.send(POST("/", b"abc")[:-2])
    assert (await peer.reply()).status == 408
    assert trio.current_time() == 5


async def test_a_client_that_leaves_in_its_body_calls_nobody(autojump_clock, nursery, logged):
    app = Recorder()
    peer = connect(nursery, app)
    await peer.send(POST("/", b"abc")[:-2])
    await peer.stream.send_eof()
    assert await peer.rest() == b""
    assert (app.scopes, logged) == ([], [])


async def test_a_client_that_expects_a_continue_gets_it(autojump_clock, nursery):
    peer = connect(nursery, Recorder())
    request = POST("/", b"body", "Expect: 100-continue")
    await peer.send(request[:-4])
    assert await peer.stream.receive_some() == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert (await peer.ask(b"body")).body == b"/ body"


async def test_the_body_is_read_before_anything_answers(autojump_clock, nursery):
    async def not_found(scope, receive, send):
        await answer(send, b"no such tool", 404)

    peer = connect(nursery, not_found)
    request = POST("/tool", b"x" * 200_000)
    await peer.send(request[:100_000])
    with trio.move_on_after(59) as silence:
        await peer.stream.receive_some()
    assert silence.cancelled_caught
    assert (await peer.ask(request[100_000:])).status == 404
    assert (await peer.ask(GET())).status == 404


async def test_requests_are_answered_in_order(autojump_clock, nursery):
    peer = connect(nursery, Recorder())
    await peer.send(GET("/1", "X-Seconds: 3") + POST("/2", b"two") + b"\r\n" + CHUNKED + b"0\r\n\r\n" + GET("/3"))
    assert [(await peer.reply()).body for _ in range(4)] == [b"/1 ", b"/2 two", b"/c ", b"/3 "]
    assert trio.current_time() == 3


async def test_a_client_that_pipelines_too_much_waits(autojump_clock, nursery):
    peer = connect(nursery, Recorder(), pair=trio.testing.lockstep_stream_pair())
    flood = GET("/", "X: " + "a" * 50_000) * 4
    sent_at = []

    async def send():
        await peer.send(GET("/first", "X-Seconds: 100"))
        await peer.send(flood)
        sent_at.append(trio.current_time())

    nursery.start_soon(send)
    assert (await peer.reply()).body == b"/first "
    assert [(await peer.reply()).body for _ in range(4)] == [b"/ "] * 4
    assert sent_at == [100]


async def test_empty_lines_between_requests_are_ignored(autojump_clock, nursery):
    peer = connect(nursery, Recorder())
    assert (await peer.ask(b"\r\n\r\n" + GET("/a") + b"\r\n")).body == b"/a "
    await peer.send(b"\r")
    await trio.sleep(1)
    assert (await peer.ask(b"\n" + GET("/b"))).body == b"/b "


SCRIPT = (
    POST("/a", b"{}")
    + b"\r\n"
    + CHUNKED
    + b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nTrailer: t\r\n\r\n"
    + GET("/last", "Connection: close")
)


async def replay(pieces):
    async def app(scope, receive, send):
        body = (await receive())["body"]
        await answer(send, scope["path"].encode() + body, headers=[(b"date", b"today")])

    async with trio.open_nursery() as nursery:
        peer = connect(nursery, app)
        for piece in pieces:
            await peer.send(piece)
            await wait_all_tasks_blocked()
        received = await peer.rest()
        await peer.stream.aclose()
    return received


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, len(SCRIPT) - 1), max_size=6, unique=True).map(sorted))
def test_no_split_of_the_bytes_changes_the_answers(cuts):
    edges = [0, *cuts, len(SCRIPT)]
    pieces = [SCRIPT[start:end] for start, end in pairwise(edges)]
    received = trio.run(replay, pieces, clock=MockClock(autojump_threshold=0))
    assert received.count(b"HTTP/1.1 200") == 3
    assert received == trio.run(replay, [SCRIPT], clock=MockClock(autojump_threshold=0))
