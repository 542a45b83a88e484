"""The verdict on a failed opening: on what real peers make happen, over sockets, and on every kind of error."""

import errno
import math
import signal
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable

import httpx
import pytest
import trio
from processes import Server, running

from gymserve import wire
from gymserve.address import EnvironmentAddress, parse_address
from gymserve.episode import AnswerTimedOut, Episode, EpisodeLost, Refused
from gymserve.network import NotAnEnvironmentServer, TcpNetwork
from gymserve.verdict import Verdict, causes, verdict
from gymserve.websocket import HandshakeDropped, HandshakeFailed

FULL, BUSY, HOPELESS = Verdict.FULL, Verdict.BUSY, Verdict.HOPELESS
AT_ONCE_SECONDS = 1.0
SILENT_SECONDS = 0.3

Handler = Callable[[trio.SocketStream], Awaitable[None]]


async def listen(nursery: trio.Nursery, handler: Handler) -> EnvironmentAddress:
    """A server on loopback; each connection is ``handler``'s."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(trio.serve_listeners, handler, listeners)
    return parse_address(f"127.0.0.1:{listeners[0].socket.getsockname()[1]}")


def answering(data: bytes, ending: str) -> Handler:
    """Hear the request, say ``data``, then: ``fin``, ``rst`` or ``stay``."""

    async def handle(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(data)
        if ending == "stay":
            await trio.sleep_forever()
        if ending == "rst":
            reset_on_close(stream)
        await stream.aclose()

    return handle


def reset_on_close(stream: trio.SocketStream) -> None:
    stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def network(connect_timeout_seconds: float = 10.0) -> TcpNetwork:
    return TcpNetwork(connect_timeout_seconds=connect_timeout_seconds)


class LateNetwork(TcpNetwork):
    """Hands a connection over only when what the peer does at once has arrived."""

    async def open_stream(self, address: EnvironmentAddress) -> trio.abc.Stream:
        stream = await super().open_stream(address)
        await trio.sleep(0.05)
        return stream


async def failed_upgrade(address: EnvironmentAddress, over: TcpNetwork | None = None) -> Exception:
    """What opening an episode fails with, at once."""
    with trio.fail_after(AT_ONCE_SECONDS):
        async with trio.open_nursery() as nursery:
            try:
                await nursery.start(Episode(over or network(), address).connect)
            except Exception as exc:
                return exc
    raise AssertionError("the episode opened")


async def failed_schema(address: EnvironmentAddress, connect_timeout_seconds: float = 10.0) -> Exception:
    """What asking for the schema fails with, at once."""
    with trio.fail_after(AT_ONCE_SECONDS):
        try:
            await network(connect_timeout_seconds).fetch_schema(address, ())
        except Exception as exc:
            return exc
    raise AssertionError("there is a schema")


def http(status: int, *headers: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status} Something", *headers, "", ""]).encode()


STATUSES = {200: HOPELESS, 403: HOPELESS, 404: HOPELESS, 500: HOPELESS, 502: BUSY, 503: FULL, 504: BUSY, 429: FULL}


@pytest.mark.parametrize(("status", "said"), STATUSES.items())
@pytest.mark.parametrize(
    ("headers", "body", "ending"),
    [
        (["Content-Length: 4"], b"body", "stay"),
        (["Content-Length: 4"], b"", "stay"),
        ([], b"body", "fin"),
        ([], b"body", "stay"),
        (["Transfer-Encoding: chunked"], b"4\r\nbody\r\n", "stay"),
        (["Content-Length: 0"], b"", "fin"),
    ],
)
async def test_a_status_instead_of_a_websocket(nursery, status, said, headers, body, ending):
    address = await listen(nursery, answering(http(status, *headers) + body, ending))
    failure = await failed_upgrade(address)
    assert verdict(failure) is said
    assert isinstance(failure, HandshakeFailed) and failure.status == status
    assert str(failure) == f"the server answered HTTP {status} to the WebSocket upgrade"


@pytest.mark.parametrize(
    ("data", "ending", "said"),
    [
        (b"", "fin", BUSY),
        (b"", "rst", BUSY),
        (b"HTTP/1.1 50", "fin", BUSY),
        (b"HTTP/1.1 50", "rst", BUSY),
        (b"HTTP/1.1 503", "fin", FULL),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "stay", HOPELESS),
        (b"\x15\x03\x01\x00\x02\x02\x0a", "fin", HOPELESS),  # TLS: an alert
        (b"garbage\r\n\r\n", "stay", HOPELESS),
        (b"HTTP/1.1 garbage\r\n\r\n", "stay", HOPELESS),
        (http(101), "stay", HOPELESS),
        (http(101, "Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Accept: AAAA"), "stay", HOPELESS),
    ],
)
async def test_no_answer_or_none_of_http(nursery, data, ending, said):
    failure = await failed_upgrade(await listen(nursery, answering(data, ending)))
    assert verdict(failure) is said, repr(failure)
    assert isinstance(failure, HandshakeFailed)


async def test_a_connection_reset_before_we_speak(nursery):
    async def reset(stream: trio.SocketStream) -> None:
        reset_on_close(stream)
        await stream.aclose()

    failure = await failed_upgrade(await listen(nursery, reset), LateNetwork(connect_timeout_seconds=10))
    assert (type(failure), verdict(failure)) == (HandshakeDropped, BUSY)


async def test_a_closed_port(nursery):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = parse_address(f"127.0.0.1:{unused.getsockname()[1]}")
        for failure in (await failed_upgrade(address), await failed_schema(address)):
            assert isinstance(failure, OSError | httpx.ConnectError)
            assert verdict(failure) is HOPELESS


async def test_an_unknown_host():
    address = parse_address("no-such-host.invalid:80")  # RFC 6761 section 6.4
    with trio.move_on_after(AT_ONCE_SECONDS / 2) as scope:
        try:
            await network().open_stream(address)
        except OSError as exc:
            temporary = isinstance(exc, socket.gaierror) and exc.errno == socket.EAI_AGAIN
            assert verdict(exc) is (BUSY if temporary else HOPELESS)
    if scope.cancelled_caught:
        pytest.skip("the resolver here takes its time")


async def test_a_silent_server_is_waited_for_as_long_as_we_like(nursery, autojump_clock):
    address = await listen(nursery, answering(b"", "stay"))
    with trio.move_on_after(30) as patience:
        await nursery.start(Episode(network(math.inf), address).connect)
    assert patience.cancelled_caught
    assert trio.current_time() == 30


@pytest.mark.parametrize(
    ("data", "ending", "said"),
    [
        (b"", "fin", BUSY),
        (b"", "rst", BUSY),
        (b"", "stay", BUSY),
        (http(200, "Content-Length: 9") + b"{", "fin", BUSY),
        (http(502, "Content-Length: 0"), "stay", BUSY),
        (http(503, "Content-Length: 0"), "stay", FULL),
        (http(404, "Content-Length: 0"), "stay", HOPELESS),
        (http(200, "Content-Length: 2") + b"{}", "stay", HOPELESS),
        (http(200, "Content-Length: 3") + b"\xff\xff\xff", "stay", HOPELESS),
    ],
)
async def test_a_server_without_a_schema(nursery, data, ending, said):
    failure = await failed_schema(await listen(nursery, answering(data, ending)), connect_timeout_seconds=0.2)
    assert verdict(failure) is said, repr(failure)


@pytest.mark.parametrize(
    ("data", "ending", "said"),
    [(b"", "rst", BUSY), (b"", "fin", BUSY), (b"HTTP/1.1 400 Bad Request\r\n\r\n", "stay", HOPELESS)],
)
async def test_a_server_that_fails_at_tls(nursery, data, ending, said):
    plain = await listen(nursery, answering(data, ending))
    address = parse_address(f"https://127.0.0.1:{plain.port}")
    stream_failure, schema_failure = await failed_upgrade(address), await failed_schema(address)
    assert isinstance(stream_failure, OSError)
    assert (verdict(stream_failure), verdict(schema_failure)) == (said, said)


async def kill_later(server: Server) -> None:
    await trio.sleep(SILENT_SECONDS)
    server.send(signal.SIGKILL)


async def test_a_stopped_process_is_silent_until_it_goes_on(nursery):
    with running("env") as server:
        address = parse_address(server.url)
        server.send(signal.SIGSTOP)
        failure = await failed_schema(address, connect_timeout_seconds=SILENT_SECONDS)
        assert (type(failure), verdict(failure)) == (httpx.ReadTimeout, BUSY)
        assert not await network(SILENT_SECONDS).is_alive(address, ())
        with trio.move_on_after(SILENT_SECONDS) as patience:
            await nursery.start(Episode(network(), address).connect)
        assert patience.cancelled_caught

        server.send(signal.SIGCONT)
        with trio.fail_after(AT_ONCE_SECONDS):
            assert await network().is_alive(address, ())
            await nursery.start(Episode(network(), address).connect)


@pytest.mark.parametrize(
    ("flags", "stopped", "how"),
    [
        pytest.param(("--fault", "slow-handshake:60"), False, "closed", id="having read the request"),
        pytest.param((), True, "reset", id="before reading it"),
    ],
)
async def test_a_process_killed_mid_handshake(nursery, flags, stopped, how):
    with running("env", *flags) as server:
        if stopped:
            server.send(signal.SIGSTOP)
        started = trio.current_time()
        nursery.start_soon(kill_later, server)
        failure = await failed_upgrade(parse_address(server.url))
        assert trio.current_time() - started >= SILENT_SECONDS
    assert (type(failure), verdict(failure)) == (HandshakeDropped, BUSY)
    assert str(failure) == f"the server {how} the connection before it answered the WebSocket upgrade"


# -- what errors say -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("exc", "said"),
    [
        (Refused(wire.Refusal(wire.CAPACITY_REACHED, "full")), FULL),
        (Refused(wire.Refusal(wire.FACTORY_ERROR, "no")), HOPELESS),
        (Refused(wire.Refusal(wire.EXECUTION_ERROR, "no")), HOPELESS),
        (Refused(wire.Refusal(wire.VALIDATION_ERROR, "no")), HOPELESS),
        (HandshakeDropped("gone"), BUSY),
        (HandshakeFailed("garbage"), HOPELESS),
        (NotAnEnvironmentServer("busy", 503), FULL),
        (NotAnEnvironmentServer("no schema", 200), HOPELESS),
        (EpisodeLost("dropped"), BUSY),
        *[(EpisodeLost("closed", code), BUSY) for code in (1006, 1011, 1012, 1013)],
        *[(EpisodeLost("closed", code), HOPELESS) for code in (1000, 1002, 1008, 1009)],
        (trio.TooSlowError(), BUSY),
        (httpx.ConnectTimeout("slow"), BUSY),
        (httpx.ReadTimeout("slow"), BUSY),
        (httpx.PoolTimeout("slow"), BUSY),
        (httpx.ReadError("reset"), BUSY),
        (httpx.RemoteProtocolError("disconnected"), BUSY),
        (httpx.ConnectError("refused"), HOPELESS),
        (ConnectionRefusedError(errno.ECONNREFUSED, "refused"), HOPELESS),
        (TimeoutError(errno.ETIMEDOUT, "timed out"), BUSY),
        (ConnectionResetError(errno.ECONNRESET, "reset"), BUSY),
        (ConnectionAbortedError(errno.ECONNABORTED, "aborted"), BUSY),
        (BrokenPipeError(errno.EPIPE, "broken"), BUSY),
        (OSError(errno.EMFILE, "too many open files"), BUSY),
        (OSError(errno.ENFILE, "too many open files"), BUSY),
        (OSError(errno.ENETUNREACH, "unreachable"), HOPELESS),
        (PermissionError(errno.EACCES, "denied"), HOPELESS),
        (socket.gaierror(socket.EAI_AGAIN, "try again"), BUSY),
        (socket.gaierror(socket.EAI_NONAME, "unknown"), HOPELESS),
        (ssl.SSLCertVerificationError(1, "self-signed"), HOPELESS),
        (ssl.SSLEOFError(8, "EOF"), BUSY),
        (AnswerTimedOut("no answer"), BUSY),
        (ValueError("a bug of ours"), HOPELESS),
        (OSError("all attempts to connect failed"), HOPELESS),
    ],
    ids=repr,
)
def test_an_errors_verdict(exc, said):
    assert verdict(exc) is said


def chained(outer: BaseException, *, cause: BaseException | None = None, context: BaseException | None = None):
    if cause is not None:
        outer.__cause__ = cause
    outer.__context__ = context
    return outer


RESET, REFUSED = ConnectionResetError(errno.ECONNRESET, "reset"), ConnectionRefusedError(errno.ECONNREFUSED, "refused")


def test_the_first_cause_that_says_something_counts():
    assert verdict(chained(RuntimeError(), cause=RESET)) is BUSY
    assert verdict(chained(RuntimeError(), context=RESET)) is BUSY
    assert verdict(chained(RuntimeError(), cause=REFUSED, context=RESET)) is HOPELESS
    assert verdict(chained(RuntimeError(), cause=chained(ValueError(), context=RESET))) is BUSY
    assert verdict(chained(HandshakeFailed("garbage"), cause=RESET)) is HOPELESS
    suppressed = chained(RuntimeError(), context=RESET)
    suppressed.__suppress_context__ = True
    assert verdict(suppressed) is HOPELESS


def test_a_groups_members_stand_in_its_place():
    assert verdict(ExceptionGroup("", [RuntimeError(), RESET, REFUSED])) is BUSY
    assert verdict(ExceptionGroup("", [ExceptionGroup("", [REFUSED]), RESET])) is HOPELESS
    assert verdict(chained(OSError("all attempts failed"), cause=ExceptionGroup("", [RESET]))) is BUSY
    assert verdict(chained(ExceptionGroup("", [RuntimeError()]), cause=RESET)) is BUSY


def test_an_error_kept_as_an_argument_is_a_cause():
    """httpcore says ``raise exc from None`` and keeps what it is about in its arguments."""
    cut = Exception(chained(trio.BrokenResourceError("broken"), cause=RESET))
    cut.__suppress_context__ = True
    assert verdict(chained(httpx.ConnectError("broken"), cause=cut)) is BUSY


def test_a_cycle_of_causes_ends():
    first, second = RuntimeError("first"), RuntimeError("second")
    first.__context__, second.__context__ = second, first
    assert verdict(first) is HOPELESS
    assert list(causes(first)) == [first, second]
