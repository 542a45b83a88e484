"""What is read and answered in one step, held against h11, which reads and answers all else."""

import re
from collections.abc import Iterator
from itertools import pairwise

import h11
import pytest
import trio
from http_peer import POST, Recorder, answer, connect
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from test_http_packets import CASES

from gymserve.http.answer import Answer
from gymserve.http.plain import read_plain
from gymserve.http.quick import QuickAnswer

HEAD_BYTES, BODY_BYTES = 64 * 1024, 1024
MANY = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])

NAMES = st.sampled_from(
    ["Host", "host", "Content-Length", "Connection", "Transfer-Encoding", "Expect", "Upgrade", "Cookie", "X", "X Y", ""]
) | st.text(st.characters(max_codepoint=255), max_size=3)
VALUES = st.sampled_from(
    [
        "x",
        "",
        "5",
        "0",
        "05",
        "5, 5",
        "+5",
        "5 ",
        "99999",
        "9" * 30,
        "chunked",
        "close",
        "keep-alive",
        "Close, x",
        "a b",
    ]
) | st.text(st.characters(max_codepoint=255), max_size=5)
SEPARATORS = st.sampled_from([":", ": ", ":\t", " :", ":  ", ""])
ENDS = st.sampled_from(["\r\n"] * 9 + ["\n", "\r", " \r\n", "\r\n "])
LINES = st.builds(lambda *parts: "".join(parts), NAMES, SEPARATORS, VALUES, ENDS)
REQUEST_LINES = st.sampled_from(["POST /step HTTP/1.1\r\n"] * 6) | st.builds(
    lambda *parts: "".join(parts),
    st.sampled_from(["POST", "GET", "post", "PO ST", "CONNECT", ""]),
    st.sampled_from([" ", "  ", ""]),
    st.sampled_from(["/", "/a%20b?c", "*", "http://x/", "/\x7f", "/\xe4", ""]),
    st.sampled_from([" HTTP/1.1", " HTTP/1.0", " HTTP/2.0", " http/1.1", ""]),
    ENDS,
)
HEADS = st.builds(
    lambda line, lines, end: (line + "".join(lines) + end).encode("latin-1"),
    REQUEST_LINES,
    st.lists(LINES | st.just("Host: x\r\n") | st.just("Content-Length: 5\r\n"), max_size=5),
    ENDS,
)


def by_h11(data: bytes) -> tuple[bytes, bytes, list[tuple[bytes, bytes]], bytes, bytes, bool] | None:
    """Method, target, headers, body, what follows, and whether the connection ends; None where h11 refuses or waits."""
    protocol = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
    protocol.receive_data(data)
    try:
        request, body = protocol.next_event(), b""
        if not isinstance(request, h11.Request):
            return None
        while isinstance(event := protocol.next_event(), h11.Data):
            body += event.data
    except h11.RemoteProtocolError:
        return None
    if not isinstance(event, h11.EndOfMessage):
        return None
    closes = protocol.their_state is not h11.DONE
    return request.method, request.target, list(request.headers), body, protocol.trailing_data[0], closes


def held_together(data: bytes) -> bool:
    """Whether it is plain; what is must be to h11 what it is to us."""
    plain = read_plain(data, head_bytes=HEAD_BYTES, body_bytes=BODY_BYTES)
    if plain is None:
        return False
    end = plain.head_bytes + plain.body_bytes
    data += bytes(max(0, end - len(data)))  # the rest of its body is yet to come
    read = (
        plain.head.method,
        plain.head.target,
        plain.head.headers,
        data[plain.head_bytes : end],
        data[end:],
        plain.closes,
    )
    assert by_h11(data) == read
    return True


@MANY
@given(HEADS, st.binary(max_size=12))
@example(POST("/step", b"{}")[:-2], b"{}")
@example(b"POST / HTTP/1.1\r\nHost: x\r\nHost: x\r\n\r\n", b"")
@example(b"POST / HTTP/1.1\r\nHost:\r\nX:  a \t b\t \r\nCONTENT-length:1\r\n\r\n", b"ab")
@example(b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"")
def test_what_is_plain_is_read_as_by_h11(head, rest):
    held_together(head + rest)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_may_arrive_is_no_less_strictly_read(case):
    held_together(b"".join(case.packets))


@pytest.mark.parametrize(
    ("is_plain", "data"),
    [
        (True, POST("/step", b"{}")),
        (True, POST("/step", b"{}", "Connection: keep-alive", "Accept: */*", "Cookie: a=b; c=d")),
        (True, POST("/step", b"{}", "Connection: close", "User-Agent: Python/3.11 aiohttp/3.11")),
        (True, POST("/step", b"{}")[:-1]),
        (True, b"POST /verify HTTP/1.1\r\nHost: x\r\n\r\n"),
        (False, POST("/step", b"{}")[:-3]),  # the head is not whole
        (False, POST("/step", b"{}", "Expect: 100-continue")),
        (False, POST("/step", b"{}", "Transfer-Encoding: chunked")),
        (False, POST("/step", b"{}", "Content-Length: 2")),
        (False, POST("/step", b"{}", "Upgrade: websocket")),
        (False, POST("/step", b"{}", "X: a", " folded")),
        (False, POST("/step", b"{}", "X: \xe4")),
        (False, POST("/step", b"x" * (BODY_BYTES + 1))),
        (False, POST("/step", b"{}", "X: " + "a" * 20_000)),
        (False, POST("/step", b"{}").replace(b"\r\n", b"\n")),
        (False, POST("http://x/step", b"{}")),
    ],
)
def test_what_is_plain(is_plain, data):
    assert held_together(data) is is_plain


# -- answers ---------------------------------------------------------------------------------------------------------

HEADERS = st.lists(
    st.tuples(
        st.sampled_from(
            [b"content-type", b"set-cookie", b"date", b"connection", b"X-Upper", b"content-length", b"", b"a b"]
        ),
        st.sampled_from(
            [b"application/json", b"a=b; Path=/", b"close", b"2", b"3", b"", b" x", b"a\r\nb: c", b"\xe4", b"a\0"]
        ),
    ),
    max_size=4,
)


NOW = re.compile(rb"date: ..., \d\d ... \d{4} \d\d:\d\d:\d\d gmt")


def rendered(answer: Answer | QuickAnswer, status: int, headers: list[tuple[bytes, bytes]], data: bytes, closing: bool):
    try:
        answer.start(status, headers)
        packet = answer.part(data, is_last=True, is_closing=closing)
    except (h11.LocalProtocolError, ValueError):
        return None
    head = NOW.sub(b"date: now", packet.lower().partition(b"\r\n\r\n")[0])  # a second may begin between two answers
    return head, data, answer.closes, answer.may_be_followed, answer.is_complete


def answers(request: bytes) -> Iterator[Answer | QuickAnswer]:
    """The same one twice: h11's, and ours."""

    def by_h11() -> Answer:
        protocol = h11.Connection(h11.SERVER)
        protocol.receive_data(request)
        while not isinstance(protocol.next_event(), h11.EndOfMessage):
            pass
        return Answer(protocol, method=b"POST")

    yield by_h11()
    yield QuickAnswer(by_h11, closes=b"close" in request)


@MANY
@given(
    st.sampled_from([b"", b"Connection: close\r\n"]),
    st.sampled_from([200, 204, 304, 404, 422, 503, 599, 100]),
    HEADERS,
    st.sampled_from([b"", b"{}"]),
    st.booleans(),
    st.booleans(),
)
@example(b"", 200, [(b"content-type", b"a\r\nset-cookie: b")], b"{}", False, True)
def test_an_answer_is_as_by_h11(connection, status, headers, data, closing, has_length):
    if has_length:
        headers = [*headers, (b"content-length", b"%d" % len(data))]
    request = b"POST / HTTP/1.1\r\nHost: x\r\n" + connection + b"\r\n"
    theirs, ours = (rendered(each, status, headers, data, closing) for each in answers(request))
    assert theirs == ours


# -- in a connection -------------------------------------------------------------------------------------------------

TWO = POST("/a", b"first", "Cookie: a=b") + POST("/b?c", b"second") + POST("/c", b"", "Connection: close")


@pytest.mark.parametrize("at", range(0, len(TWO), 7))
async def test_however_it_is_cut(autojump_clock, nursery, at):
    app = Recorder()
    peer = connect(nursery, app)
    for start, end in pairwise([0, at, len(TWO)]):
        await peer.send(TWO[start:end])
        await trio.sleep(1)
    assert [(await peer.reply()).body for _ in range(3)] == [b"/a first", b"/b second", b"/c "]
    assert await peer.rest() == b""
    assert [scope["raw_path"] for scope in app.scopes] == [b"/a", b"/b", b"/c"]


async def test_an_app_may_stream_to_a_plain_request(autojump_clock, nursery):
    async def app(scope, receive, send):
        assert (await receive())["body"] == b"body"
        await answer(send, b"part", headers=[], more=True)
        await trio.sleep(1)
        await send({"type": "http.response.body", "body": b" and part"})

    peer = connect(nursery, app)
    for _ in range(2):
        reply = await peer.ask(POST("/", b"body"))
        assert (reply.body, reply.headers[b"transfer-encoding"]) == (b"part and part", b"chunked")
