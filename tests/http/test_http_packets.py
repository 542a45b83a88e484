"""What may arrive from the network, as one table: the bytes, what is answered, and whether the connection lives on.

Among them is all that a search for what ends hypercorn's own worker came to (its issues 203, 225, 228 and 329).
"""

import json
from typing import NamedTuple

import pytest
import trio
from http_peer import GET, POST
from served import reset

OPEN, CLOSED = "another request may follow", "the server closes"

UPGRADE = GET(
    "/nope",
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)
CHUNKED = b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
CLOSE = GET("/slow/0.1", "Connection: close")
H2C = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c")


class Case(NamedTuple):
    """What is sent, packet by packet; the status of each answer; the word that the last one, a refusal, has; how many
    requests the app saw, where it did not see all that were answered or saw more.
    """

    packets: list[bytes]
    statuses: list[int]
    then: str = OPEN
    word: str | None = None
    seen: int | None = None


def taken(*packets: bytes, status: int = 200, then: str = OPEN) -> Case:
    """One request, answered by the app."""
    return Case([*packets], [status], then)


def no_head(*packets: bytes, status: int = 400, word: str = "bad_request") -> Case:
    """A head that the app never sees."""
    return Case([*packets], [status], CLOSED, word, 0)


def no_websocket(*packets: bytes) -> Case:
    return no_head(*packets, word="websocket_unsupported")


def no_body(*packets: bytes, status: int = 400, word: str = "bad_request") -> Case:
    """A good head with a body that cannot be read: the app answers."""
    return Case([*packets], [status], CLOSED, word)


CASES = {
    # -- WebSocket and HTTP/2, which are not spoken here
    "upgrade": no_websocket(UPGRADE),
    "upgrade and a byte": no_websocket(UPGRADE + b"x"),
    "upgrade, then a byte": no_websocket(UPGRADE, b"x"),
    "upgrade and a frame": no_websocket(UPGRADE + b"\x81\x05hello"),
    "upgrade and a request": no_websocket(UPGRADE + GET()),
    "upgrade and a body": no_websocket(UPGRADE[:-2] + b"Content-Length: 5\r\n\r\nhello"),
    "upgrade of a POST": no_websocket(UPGRADE.replace(b"GET", b"POST")),
    "upgrade to a version": no_websocket(UPGRADE.replace(b"13", b"99")),
    "upgrade without a key": no_websocket(UPGRADE.replace(b"Sec-WebSocket-Key", b"X")),
    "upgrade among others": no_websocket(GET("/", "Upgrade: h2c, WebSocket")),
    "upgrade in 1.0": taken(UPGRADE.replace(b"/nope HTTP/1.1", b"/ HTTP/1.0"), then=CLOSED),
    "h2c": taken(GET("/", *H2C, "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA")),
    "h2c, junk settings": taken(GET("/", *H2C, "HTTP2-Settings: !!!")),
    "h2c, no settings": taken(GET("/", *H2C)),
    "h2 preface": no_head(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\xff", status=505, word="http_version_unsupported"),
    # -- what is not HTTP
    "garbage": no_head(b"\x00\x01\x02\r\n\r\n"),
    "TLS": no_head(bytes.fromhex("16030100c8010000c40303") + bytes(190)),
    "0.9": no_head(b"GET / HTTP/0.9\r\n\r\n", status=505, word="http_version_unsupported"),
    "0.9 without a version": no_head(b"GET /\r\n\r\n"),
    "an answer": no_head(b"HTTP/1.1 200 OK\r\n\r\n"),
    "a word": no_head(b"quit\n\n"),
    # -- targets
    "path not ASCII": no_head(b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n"),
    "path not UTF-8": taken(GET("/%ff%fe?a=%ff"), status=404),
    "path with NUL": taken(GET("/%00"), status=404),
    "absolute form": taken(GET("http://other.example/")),
    "authority form": no_head(b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n"),
    "CONNECT to a path": no_head(GET("/").replace(b"GET", b"CONNECT")),
    "asterisk form": taken(b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", status=404),
    "only a query": no_head(GET("?a")),
    "two slashes": taken(GET("//")),
    "a space in the path": no_head(GET("/a b")),
    # -- headers
    "no colon": no_head(b"GET / HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n"),
    "no colon, at length": no_head(GET("/", "no colon" * 1000)),
    "a space before the colon": no_head(GET("/", "X : y")),
    "no name": no_head(GET("/", ": y")),
    "NUL in a value": no_head(GET("/", "X: a\0b")),
    "a lone CR in a value": no_head(GET("/", "X: a\rb")),
    "a folded value": taken(GET("/", "X: a", " b")),
    "lines end in LF": taken(GET().replace(b"\r\n", b"\n")),
    "bad Host": taken(b"GET / HTTP/1.1\r\nHost: [::1\r\n\r\n"),
    "no Host": no_head(b"GET / HTTP/1.1\r\n\r\n"),
    "two Hosts": no_head(GET("/", "Host: y")),
    "head of 20 KiB": taken(GET("/", "X: " + "a" * 20_000)),
    "head of 10,000 lines": taken(GET("/", *["a:"] * 10_000)),
    "head of 70 KiB": no_head(GET("/", "X: " + "a" * 70_000), status=431, word="head_too_large"),
    "target of 70 KiB": no_head(GET("/" + "a" * 70_000), status=431, word="head_too_large"),
    "head without end": no_head(b"GET / HTTP/1.1\r\nX: " + b"a" * 70_000, status=431, word="head_too_large"),
    # -- framing
    "two lengths": no_head(POST("/echo", b"ab", "Content-Length: 3")),
    "twice the same length": taken(POST("/echo", b"ab", "Content-Length: 2")),
    "length and chunks": no_head(POST("/echo", b"ab", "Transfer-Encoding: chunked")),
    "signed length": no_head(POST("/echo", b"ab").replace(b": 2", b": +2")),
    "hexadecimal length": no_head(POST("/echo", b"ab").replace(b": 2", b": 0x2")),
    "huge length": no_body(POST("/echo", b"").replace(b": 0", b": 9999999999"), status=413, word="body_too_large"),
    "absurd length": no_head(POST("/echo", b"").replace(b": 0", b": " + b"9" * 5000)),
    "bad chunk": no_body(CHUNKED, b"zz\r\nab"),
    "chunk beyond its length": no_body(CHUNKED, b"1\r\nabc\r\n"),
    "absurd chunk": no_body(CHUNKED, b"f" * 5000 + b"\r\n"),
    "endless extension": no_body(CHUNKED, b"1;" + b"a" * 70_000),
    "endless trailer": no_body(CHUNKED, b"0\r\nX: " + b"a" * 70_000),
    "bad chunk and a request": no_body(CHUNKED, b"zz\r\n" + GET()),
    "unknown coding": no_head(GET("/", "Transfer-Encoding: gzip"), status=501),
    "two codings": no_head(GET("/", "Transfer-Encoding: gzip, chunked"), status=501),
    "expect": taken(POST("/echo", b"{}", "Expect: 100-continue")[:-2], b"{}"),
    "expect what is not known": taken(POST("/echo", b"{}", "Expect: 999-miracle")),
    "large and refused": no_body(POST("/echo", b"x" * 65 * 2**20), status=413, word="body_too_large"),
    "large and served": taken(POST("/echo", b"x" * 5 * 2**20)),
    "large and not found": taken(POST("/nope", b"x" * 5 * 2**20), status=404),
    # -- one after the other
    "pipelined": Case([GET() * 3], [200] * 3),
    "a body of a GET": Case([GET("/", "Content-Length: 5") + b"hello" + GET()], [200] * 2),
    "a request in a body": Case([POST("/echo", GET()) + GET()], [200] * 2),
    "a request in a chunk": Case([CHUNKED + b"%x\r\n%s\r\n0\r\n\r\n" % (len(GET()), GET())], [200]),
    "close and more": taken(CLOSE + b"extra", then=CLOSED),
    "close, then more": taken(CLOSE, b"extra", then=CLOSED),
    "close and a request": taken(CLOSE + GET(), then=CLOSED),
    "1.0 and more": taken(CLOSE.replace(b"1.1", b"1.0") + b"extra", then=CLOSED),
    "1.0": taken(b"GET / HTTP/1.0\r\n\r\n", then=CLOSED),
    "1.0, kept alive": taken(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", then=CLOSED),
    "1.2": taken(GET().replace(b"1.1", b"1.2")),
    "empty lines": taken(b"\r\n\r\n" + GET()),
    "garbage after": Case([GET("/slow/0.1") + b"\x00garbage\r\n\r\n"], [200, 400], CLOSED, "bad_request", 1),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_every_packet_has_its_answer(server, logged, case):
    peer = await server.peer()
    for packet in case.packets:
        await peer.send(packet)
        await trio.sleep(0.01)
    with trio.fail_after(5):
        replies = [await peer.reply() for _ in case.statuses]
        assert [reply.status for reply in replies] == case.statuses
        if case.word is not None:
            said = json.loads(replies[-1].body)
            assert (said["error"], said["done"], len(said["detail"]) <= 200) == (case.word, False, True)
        assert len(server.app.seen) == (len(replies) if case.seen is None else case.seen)
        assert (replies[-1].headers.get(b"connection") == b"close") is (case.then is CLOSED)
        if case.then is CLOSED:
            assert await peer.rest() == b""
        else:
            assert (await peer.ask(GET())).status == 200
        assert (await (await server.peer()).ask(GET())).status == 200
    assert logged == []


async def test_what_comes_in_the_middle_of_a_stream_is_let_lie(server, logged):
    for connection in ("close", "keep-alive"):
        peer = await server.peer()
        await peer.send(GET("/stream", f"Connection: {connection}"))
        with trio.fail_after(5):
            received = b""
            while b"tick" not in received:
                received += await peer.stream.receive_some()
            await peer.send(b"\x00garbage\r\n\r\n")
            for _ in range(3):
                assert b"tick" in await peer.stream.receive_some()
    assert logged == []


BURSTS = {
    "nothing": b"",
    "upgrade": UPGRADE,
    "slow": GET("/slow/5.0"),
    "stream": GET("/stream"),
    "close and more": CLOSE + b"extra\r\n\r\n",
    "pipelined": GET() * 50,
    "half a head": GET()[:-2],
    "half a body": POST("/echo", b"x" * 100_000)[:-1],
    "half a chunk": CHUNKED + b"5\r\nab",
    "large and refused": POST("/echo", b"").replace(b": 0", b": 9999999999") + b"x" * 5_000_000,
    "large answer": GET("/large"),
}


@pytest.mark.parametrize("leave", [reset, lambda peer: peer.stream.socket.close()], ids=["reset", "close"])
@pytest.mark.parametrize("data", BURSTS.values(), ids=BURSTS)
async def test_clients_that_leave_harm_nobody(server, logged, data, leave):
    for pause_seconds in (0, 0.03) * 3:
        peer = await server.peer()
        await peer.send(data)
        await trio.sleep(pause_seconds)
        leave(peer)
    with trio.fail_after(5):
        assert (await (await server.peer()).ask(GET())).status == 200
        assert await server.stop() < 0.5
    assert logged == []
