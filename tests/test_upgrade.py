"""The switch to a WebSocket: answers that are read in one step, held beside h11, which reads all others."""

import h11
import pytest
from wsproto.utilities import generate_accept_token

from gymserve.upgrade import NotSwitched, Upgrade, check_switch, rest_of_switch

KEY = b"dGhlIHNhbXBsZSBub25jZQ=="
ACCEPT = generate_accept_token(KEY)
UPGRADE = Upgrade("environment:8000", "/ws", [("Authorization", "Bearer ü")])


def answer(*lines: bytes, first: bytes = b"HTTP/1.1 101 Switching Protocols") -> bytes:
    return b"\r\n".join([first, *lines, b"", b""])


PLAIN = (b"Upgrade: websocket", b"Connection: Upgrade", b"Sec-WebSocket-Accept: " + ACCEPT)


def by_h11(data: bytes) -> bytes | str | None:
    protocol = UPGRADE.asked_by_h11(KEY)
    protocol.receive_data(data)
    try:
        event = protocol.next_event()
        if event is h11.NEED_DATA:
            return None
        assert isinstance(event, h11.InformationalResponse) and event.status_code == 101
        check_switch(list(event.headers), KEY)
    except (NotSwitched, h11.RemoteProtocolError) as exc:
        return str(exc)
    return protocol.trailing_data[0]


def at_once(data: bytes) -> bytes | str | None:
    try:
        return rest_of_switch(data, KEY)
    except NotSwitched as exc:
        return str(exc)


def test_a_request_is_what_h11_would_send() -> None:
    sent = h11.Connection(h11.SERVER)
    sent.receive_data(UPGRADE.request(KEY))
    request = sent.next_event()
    assert isinstance(request, h11.Request)
    assert (request.method, request.target) == (b"GET", b"/ws")
    assert list(request.headers) == [
        (b"host", b"environment:8000"),
        (b"upgrade", b"websocket"),
        (b"connection", b"Upgrade"),
        (b"sec-websocket-version", b"13"),
        (b"authorization", "Bearer ü".encode("latin-1")),
        (b"sec-websocket-key", KEY),
    ]


def test_a_header_that_cannot_be_sent_is_refused() -> None:
    with pytest.raises(h11.LocalProtocolError):
        Upgrade("environment", "/ws", [("X-Run", "7\r\nX-Other: 8")])


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(answer(*PLAIN), id="as uvicorn answers"),
        pytest.param(answer(*PLAIN) + b"\x81\x02hi", id="with a frame behind it"),
        pytest.param(answer(*PLAIN, b"Date: Sun, 06 Nov 1994 08:49:37 GMT"), id="with more headers"),
        pytest.param(answer(*PLAIN, first=b"HTTP/1.1 101 "), id="without a reason"),
        pytest.param(answer(*(line.lower() for line in PLAIN[:2]), PLAIN[2]), id="in lower case"),
        pytest.param(answer(PLAIN[0], b"Connection: keep-alive, Upgrade", PLAIN[2]), id="of several tokens"),
    ],
)
def test_a_plain_answer_is_read_as_h11_reads_it(data) -> None:
    assert at_once(data) == by_h11(data)
    assert isinstance(at_once(data), bytes)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (PLAIN[1:], "Missing header, 'Upgrade: websocket'"),
        ((PLAIN[0], b"Connection: close", PLAIN[2]), "Missing header, 'Connection: Upgrade'"),
        ((*PLAIN[:2], b"Sec-WebSocket-Accept: AAAA"), "Bad accept token"),
        (PLAIN[:2], "Bad accept token"),
        ((*PLAIN, b"Sec-WebSocket-Extensions: permessage-deflate"), "it has a sec-websocket-extensions that nobody a"),
        ((*PLAIN, b"Sec-WebSocket-Protocol: mcp"), "it has a sec-websocket-protocol that nobody asked for"),
    ],
)
def test_an_answer_that_opens_no_websocket_is_none_for_either(lines, reason) -> None:
    said = at_once(answer(*lines))
    assert isinstance(said, str) and said.startswith(reason)
    assert by_h11(answer(*lines)) == said


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(answer(*PLAIN)[:-1], id="not whole"),
        pytest.param(answer(*PLAIN).replace(b"\r\n", b"\n"), id="bare line feeds"),
        pytest.param(answer(b"Upgrade:websocket", *PLAIN[1:]), id="without a space"),
        pytest.param(answer(*PLAIN, b"X-Folded: a\r\n b"), id="folded"),
        pytest.param(answer(*PLAIN, b"X-Empty: "), id="an empty header"),
        pytest.param(answer(*PLAIN, b"X-Name: \xe4"), id="not ASCII"),
        pytest.param(answer(*PLAIN, first=b"HTTP/1.0 101 Switching Protocols"), id="HTTP/1.0"),
        pytest.param(answer(first=b"HTTP/1.1 100 Continue"), id="another status"),
    ],
)
def test_all_else_is_h11s_to_read(data) -> None:
    assert rest_of_switch(data, KEY) is None
