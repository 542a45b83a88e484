"""One connection to an environment server: questions, refusals, losses and goodbyes, in virtual time."""

import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from counting import Counting
from trio.testing import memory_stream_pair, wait_all_tasks_blocked
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_server_stream

from gymserve import wire
from gymserve.address import EnvironmentAddress, parse_address
from gymserve.episode import AnswerTimedOut, Episode, EpisodeLost, Refused
from gymserve.gridsim.faults import Fault
from gymserve.gridsim.server import EnvironmentServer
from gymserve.network import TcpNetwork
from gymserve.verdict import Verdict, verdict
from gymserve.websocket import MAX_MESSAGE_BYTES, HandshakeDropped, HandshakeFailed

ADDRESS = parse_address("environment:8000")
OBSERVATION = wire.Observation({"count": 1}, 0.5).encode()
BY_TWO = wire.Step('{"by":2}')

Serve = Callable[[trio.abc.Stream], Awaitable[None]]


class Wire:
    """A network of one server; every connection is a pair of memory streams."""

    def __init__(self, nursery: trio.Nursery, serve: Serve) -> None:
        self._nursery = nursery
        self._serve = serve

    async def open_stream(self, address: EnvironmentAddress) -> trio.abc.Stream:
        ours, theirs = memory_stream_pair()
        self._nursery.start_soon(self._serve, theirs)
        return ours

    async def fetch_schema(self, address: EnvironmentAddress, headers: Sequence[tuple[str, str]]) -> Mapping[str, Any]:
        raise AssertionError("an episode does not ask for the schema")

    async def is_alive(self, address: EnvironmentAddress, headers: Sequence[tuple[str, str]]) -> bool:
        raise AssertionError("an episode does not ask for the server's health")


class Server:
    """A hand-written server of one WebSocket: it keeps what it hears and how that ended; `script` says what it does."""

    def __init__(self, script: Callable[["Server"], Awaitable[None]]) -> None:
        self.heard: list[str] = []
        self.ended_with: int | None = None
        self.headers: dict[bytes, bytes] = {}
        self.ws: WebSocketConnection
        self.stream: trio.abc.Stream
        self._script = script

    async def serve(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        async with trio.open_nursery() as nursery:
            request = await wrap_server_stream(nursery, stream)
            self.headers = dict(request.headers)
            self.ws = await request.accept()
            try:
                await self._script(self)
                await self.listen()
            except ConnectionClosed as exc:
                self.ended_with = exc.reason.code
            nursery.cancel_scope.cancel()

    async def listen(self) -> None:
        while True:
            await self.hear()

    async def hear(self) -> str:
        self.heard.append(await self.ws.get_message())
        return self.heard[-1]

    async def answer(self, text: str, *, after_seconds: float = 0) -> None:
        await self.hear()
        await trio.sleep(after_seconds)
        await self.ws.send_message(text)


async def only_listens(server: Server) -> None:
    await server.listen()


async def cut(server: Server) -> None:
    await server.stream.aclose()


@asynccontextmanager
async def playing(serve: Serve, *headers: tuple[str, str]) -> AsyncIterator[Episode]:
    """An episode, open; dropped afterwards."""
    async with trio.open_nursery() as nursery:
        episode = Episode(Wire(nursery, serve), ADDRESS, headers)
        await nursery.start(episode.connect)
        nursery.start_soon(episode.read)
        yield episode
        nursery.cancel_scope.cancel()


async def reset(episode: Episode) -> wire.Answer:
    return await episode.ask(wire.Reset())


def counting(*faults: Fault, capacity: int = 1, **pings: float) -> EnvironmentServer:
    return EnvironmentServer(Counting, capacity=capacity, faults=faults, **pings)


# -- questions -------------------------------------------------------------------------------------------------------


async def test_an_episode_is_asked_in_order(autojump_clock):
    server = counting(Fault("slow-step", 2))
    async with playing(server.serve_stream) as episode:
        assert await episode.ask(wire.Reset({"target": 4})) == wire.Observation(
            {"count": 0, "target": 4, "metadata": {}}, None, False
        )
        assert (await episode.ask(BY_TWO)).fields["count"] == 2
        await episode.stay_alive(timeout_seconds=1)
        last = await episode.ask(BY_TWO, timeout_seconds=2.5)
        assert (last.fields["count"], last.reward, last.done) == (4, 0.5, True)
        assert (trio.current_time(), episode.lost) == (4, None)


async def test_the_headers_are_sent(autojump_clock):
    server = Server(only_listens)
    async with playing(server.serve, ("Authorization", "Bearer ü"), ("X-Run", "7")):
        assert server.headers[b"authorization"] == "Bearer ü".encode("latin-1")
        assert server.headers[b"x-run"] == b"7"


async def test_the_websocket_is_asked_for_beneath_the_prefix(autojump_clock, nursery):
    asked: list[bytes] = []

    async def note(stream: trio.abc.Stream) -> None:
        asked.append(bytes(await stream.receive_some()))
        await stream.aclose()

    with pytest.raises(HandshakeDropped):
        await nursery.start(Episode(Wire(nursery, note), parse_address("https://environment/a/b/")).connect)
    assert asked[0].startswith(b"GET /a/b/ws HTTP/1.1\r\nHost: environment\r\n")


@pytest.mark.parametrize("asks_at_once", [True, False])
async def test_a_full_servers_refusal_comes_unasked(autojump_clock, asks_at_once):
    server = counting(Fault("full"))
    async with playing(server.serve_stream) as episode:
        if not asks_at_once:
            await wait_all_tasks_blocked()
        with pytest.raises(Refused, match=r"^CAPACITY_REACHED: Server at capacity: 1/1") as caught:
            await reset(episode)
        assert (caught.value.refusal.max_sessions, caught.value.refusal.ends_the_episode) == (1, True)
        await wait_all_tasks_blocked()
        with pytest.raises(EpisodeLost, match="with code 1000"):
            await reset(episode)


async def test_a_refused_action_leaves_the_episode_as_it_was(autojump_clock):
    async with playing(counting().serve_stream) as episode:
        await reset(episode)
        with pytest.raises(Refused) as caught:
            await episode.ask(wire.Step('{"by":9}'))
        assert caught.value.refusal.errors[0]["loc"] == ["by"]
        assert (await episode.ask(BY_TWO)).fields["count"] == 2


async def test_a_refusal_that_ends_the_episode_ends_it(autojump_clock):
    async def refuse(server: Server) -> None:
        await server.answer(OBSERVATION)
        await server.answer(wire.Refusal(wire.SESSION_ERROR, "Unable to serialize").encode())

    async with playing(Server(refuse).serve) as episode:
        await reset(episode)
        with pytest.raises(Refused, match="SESSION_ERROR: Unable to serialize"):
            await episode.ask(BY_TWO)
        with pytest.raises(wire.OutOfTurn):
            await episode.ask(BY_TWO)


# -- losses ----------------------------------------------------------------------------------------------------------


async def test_an_answer_that_does_not_come_in_time_loses_the_episode(autojump_clock):
    async with playing(counting(Fault("slow-step", 5)).serve_stream) as episode:
        await reset(episode)
        with pytest.raises(AnswerTimedOut, match=r"^no answer within 4.5 s$"):
            await episode.ask(BY_TWO, timeout_seconds=4.5)
        assert trio.current_time() == 4.5
        with pytest.raises(wire.OutOfTurn):
            await episode.ask(BY_TWO)


async def test_a_cancelled_question_loses_the_episode(autojump_clock):
    async with playing(counting(Fault("slow-step", 5)).serve_stream) as episode:
        await reset(episode)
        with trio.move_on_after(1):
            await episode.ask(BY_TWO)
        with pytest.raises(wire.OutOfTurn):
            await episode.ask(BY_TWO)
        await trio.sleep(10)  # the late answer belongs to nobody
        with pytest.raises(EpisodeLost, match="broke the protocol: an answer to nothing we asked"):
            await episode.ask(BY_TWO)


@pytest.mark.parametrize("text", ["<html>", "[]", "{}", wire.StateAnswer({}).encode(), b"\0"])
async def test_an_answer_that_is_none_loses_the_episode(autojump_clock, text):
    async with playing(Server(lambda server: server.answer(text)).serve) as episode:
        with pytest.raises(EpisodeLost, match=r"^the server broke the protocol: ") as caught:
            await reset(episode)
        assert caught.value.close_code == 1002


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (1012, r"^the server closed the connection with code 1012$"),
        (1009, r"^the server closed the connection with code 1009 \(frame with 17000037 bytes\)$"),
        (1011, r"^the server closed the connection with code 1011 \(keepalive ping timeout\)$"),
    ],
)
async def test_the_servers_close_code_is_told(autojump_clock, code, sentence):
    reasons = {1009: "frame with 17000037 bytes", 1011: "keepalive ping timeout"}

    async def close(server: Server) -> None:
        await server.hear()
        await server.ws.aclose(code, reasons.get(code))

    async with playing(Server(close).serve) as episode:
        with pytest.raises(EpisodeLost, match=sentence) as caught:
            await reset(episode)
        assert caught.value.close_code == code


async def test_a_connection_dropped_during_a_question_is_told_to_the_asker_alone(autojump_clock):
    told: list[EpisodeLost] = []
    async with playing(counting(Fault("drop-mid-step", 1)).serve_stream) as episode:
        episode.on_lost = told.append
        await reset(episode)
        with pytest.raises(EpisodeLost, match=r"^the server dropped the connection$") as caught:
            await episode.ask(BY_TWO)
        await trio.sleep(1)
        assert (caught.value.close_code, told) == (1006, [])


@pytest.mark.parametrize(("end", "code"), [(cut, 1006), (lambda server: server.ws.aclose(1012), 1012)])
async def test_a_loss_while_nothing_is_asked_is_told_once(autojump_clock, end, code):
    async def end_after_a_while(server: Server) -> None:
        await server.answer(OBSERVATION)
        await trio.sleep(20)
        await end(server)

    told: list[tuple[float, EpisodeLost]] = []
    async with playing(Server(end_after_a_while).serve) as episode:
        episode.on_lost = lambda lost: told.append((trio.current_time(), lost))
        await reset(episode)
        await trio.sleep(60)
        assert [(at, lost.close_code) for at, lost in told] == [(20, code)]
        assert episode.lost is told[0][1]
        with pytest.raises(EpisodeLost):
            await episode.ask(BY_TWO)
        await part(episode, timeout_seconds=10)
        assert (len(told), trio.current_time()) == (1, 60)


def test_the_largest_message_is_what_openenvs_own_client_takes():
    assert MAX_MESSAGE_BYTES == 104_857_600


async def test_a_message_beyond_the_limit_loses_the_episode(autojump_clock):
    server = Server(lambda server: server.answer("x" * (MAX_MESSAGE_BYTES + 1)))
    async with playing(server.serve) as episode:
        with pytest.raises(EpisodeLost, match=r"^the server's message was larger than --max-obs") as caught:
            await reset(episode)
        assert verdict(caught.value) is Verdict.HOPELESS  # the next one would be no smaller
        await wait_all_tasks_blocked()
        assert server.ended_with == 1009


# -- openings that fail ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "failure", "status"),
    [
        (b"", HandshakeDropped, None),
        (b"HTTP/1.1 403 Forbidden\r\n\r\n", HandshakeFailed, 403),
        (b"x", HandshakeFailed, None),
    ],
)
async def test_a_failed_opening_is_raised_to_whoever_starts_it(autojump_clock, nursery, said, failure, status):
    async def answer(stream: trio.abc.Stream) -> None:
        await stream.receive_some()
        await stream.send_all(said or b"HTTP")
        await stream.aclose()

    episode = Episode(Wire(nursery, answer), ADDRESS)
    with pytest.raises(HandshakeFailed) as caught:
        await nursery.start(episode.connect)
    assert (type(caught.value), caught.value.status, trio.current_time()) == (failure, status, 0)


async def test_an_open_connection_outlasts_whoever_asked_for_it_and_keeps_what_comes_until_it_is_read(
    autojump_clock, nursery
):
    server = counting(Fault("full"))
    episode = Episode(Wire(nursery, server.serve_stream), ADDRESS)
    await nursery.start(episode.connect)
    await trio.sleep(100)
    async with trio.open_nursery() as session:
        session.start_soon(episode.read)
        with pytest.raises(Refused, match=r"^CAPACITY_REACHED"):
            await reset(episode)


async def test_a_connection_ends_with_its_reader(autojump_clock, nursery):
    server = Server(only_listens)
    episode = Episode(Wire(nursery, server.serve), ADDRESS)
    await nursery.start(episode.connect)
    async with trio.open_nursery() as session:
        session.start_soon(episode.read)
        await wait_all_tasks_blocked()
        session.cancel_scope.cancel()
    await wait_all_tasks_blocked()
    assert server.ended_with == 1006


# -- keepalive -------------------------------------------------------------------------------------------------------


async def test_pings_are_answered_while_nothing_is_asked(autojump_clock):
    server = counting(ping_interval_seconds=20, ping_timeout_seconds=0.001)
    async with playing(server.serve_stream) as episode:
        await reset(episode)
        await trio.sleep(1000)
        assert episode.lost is None
        assert (await episode.ask(BY_TWO)).fields["count"] == 2


@pytest.mark.parametrize(
    "refusal",
    [wire.Refusal(wire.UNKNOWN_TYPE, "Unknown message type: mcp"), wire.Refusal(wire.EXECUTION_ERROR, "no")],
)
async def test_a_keepalive_answered_with_an_error_counts(autojump_clock, refusal):
    async def serve(server: Server) -> None:
        await server.answer(refusal.encode())
        await server.answer(OBSERVATION)

    server = Server(serve)
    async with playing(server.serve) as episode:
        await episode.stay_alive(timeout_seconds=1)
        assert (await episode.ask(BY_TWO)).fields == {"count": 1}
        assert server.heard[0] == '{"type":"mcp","data":{"jsonrpc":"2.0","method":"ping","id":1}}'


async def test_a_keepalive_that_ends_the_episode_says_so(autojump_clock):
    refusal = wire.Refusal(wire.SESSION_ERROR, "gone").encode()
    async with playing(Server(lambda server: server.answer(refusal)).serve) as episode:
        with pytest.raises(Refused, match="SESSION_ERROR"):
            await episode.stay_alive(timeout_seconds=1)


async def test_a_slow_keepalive_is_no_loss_within_its_time(autojump_clock):
    answers = [wire.McpAnswer(number, error={"code": -32601, "message": "Method not found: ping"}) for number in (1, 2)]

    async def answer_late(server: Server) -> None:
        for answer in answers:
            await server.answer(answer.encode(), after_seconds=45)

    async with playing(Server(answer_late).serve) as episode:
        await episode.stay_alive(timeout_seconds=60)
        assert (trio.current_time(), episode.lost) == (45, None)
        with pytest.raises(AnswerTimedOut):
            await episode.stay_alive(timeout_seconds=44)
        assert trio.current_time() == 89


# -- goodbyes --------------------------------------------------------------------------------------------------------


async def part(episode: Episode, *, timeout_seconds: float) -> float:
    """Say goodbye and leave; the seconds that the goodbye took."""
    started = trio.current_time()
    await episode.goodbye(timeout_seconds=timeout_seconds)
    seconds = trio.current_time() - started
    await episode.leave()
    return seconds


async def test_a_goodbye_asks_for_the_environments_end(autojump_clock):
    server = counting(Fault("slow-close", 7))
    async with playing(server.serve_stream) as episode:
        await reset(episode)
        await episode.goodbye(timeout_seconds=60)
        assert (trio.current_time(), server.episodes["active"]) == (7, 0)


async def test_a_goodbye_with_nothing_outstanding_is_a_message(autojump_clock):
    async def close_when_told(server: Server) -> None:
        await server.hear()
        await server.ws.aclose()

    server = Server(close_when_told)
    told: list[EpisodeLost] = []
    async with playing(server.serve) as episode:
        episode.on_lost = told.append
        assert await part(episode, timeout_seconds=10) == 0
        assert (server.heard, trio.current_time(), told) == (['{"type":"close"}'], 0, [])


@pytest.mark.parametrize("how", ["cancelled", "timed out"])
async def test_a_goodbye_with_an_answer_outstanding_is_only_a_close_frame(autojump_clock, how):
    server = Server(only_listens)
    async with playing(server.serve) as episode:
        if how == "cancelled":
            with trio.move_on_after(3):
                await episode.ask(BY_TWO)
        else:
            with pytest.raises(AnswerTimedOut):
                await episode.ask(BY_TWO, timeout_seconds=3)
        assert await part(episode, timeout_seconds=10) == 0
        await wait_all_tasks_blocked()
        assert (server.heard, server.ended_with, trio.current_time()) == ([BY_TWO.encode()], 1000, 3)


async def test_a_server_that_ignores_the_message_gets_a_close_frame_too(autojump_clock):
    server = Server(only_listens)
    async with playing(server.serve) as episode:
        assert await part(episode, timeout_seconds=10) == 10
        await wait_all_tasks_blocked()
        assert (server.heard, server.ended_with, trio.current_time()) == (['{"type":"close"}'], 1000, 10)


@pytest.mark.parametrize(("outstanding", "leaving_seconds"), [(True, 0), (False, 0.5)])
async def test_a_goodbye_to_a_mute_server_ends_at_its_timeout(autojump_clock, outstanding, leaving_seconds):
    """It is there and reads nothing more: neither the message nor the CLOSE is answered."""

    async with playing(accept_and_freeze) as episode:
        if outstanding:
            with trio.move_on_after(1):
                await reset(episode)
        started = trio.current_time()
        assert await part(episode, timeout_seconds=10) == 10
        assert trio.current_time() - started == 10 + leaving_seconds


async def test_a_goodbye_does_not_outlast_a_connection_that_is_dropped_meanwhile(autojump_clock, nursery):
    async with playing(accept_and_freeze) as episode:
        with trio.move_on_after(1):
            await reset(episode)

        async def drop_at_3() -> None:
            await trio.sleep_until(3)
            episode.drop()

        nursery.start_soon(drop_at_3)
        assert await part(episode, timeout_seconds=10) == 2
        assert trio.current_time() == 3


async def accept_and_freeze(stream: trio.abc.Stream) -> None:
    held = HeldOpen(stream)
    async with trio.open_nursery() as nursery:
        await (await wrap_server_stream(nursery, held)).accept()
        nursery.cancel_scope.cancel()
    await trio.sleep_forever()


class HeldOpen(trio.abc.Stream):
    """``stream``, which stays open when whoever read it stops."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        return await self._stream.receive_some(max_bytes)

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


@pytest.mark.parametrize("after_seconds", [0, 4])
async def test_a_goodbye_ends_with_the_connection(autojump_clock, after_seconds):
    async def end(server: Server) -> None:
        await server.hear()
        await trio.sleep(after_seconds)
        await cut(server)

    async with playing(Server(end).serve) as episode:
        assert await part(episode, timeout_seconds=10) == after_seconds
        assert trio.current_time() == after_seconds


async def test_a_ping_between_our_close_and_the_servers_delays_no_goodbye(autojump_clock):
    """wsproto sends no pong there; what follows is read all the same."""

    async def ping_and_close(stream: trio.abc.Stream) -> None:
        async with trio.open_nursery() as nursery:
            await (await wrap_server_stream(nursery, HeldOpen(stream))).accept()
            nursery.cancel_scope.cancel()
        await trio.sleep(2)
        await stream.send_all(b"\x89\x00")
        await trio.sleep(3)
        await stream.send_all(b"\x88\x02\x03\xe8")  # CLOSE 1000
        await stream.aclose()

    async with playing(ping_and_close) as episode:
        with trio.move_on_after(1):
            await reset(episode)
        assert await part(episode, timeout_seconds=10) == 4
        assert trio.current_time() == 5


async def test_leaving_without_a_goodbye_is_a_close_frame(autojump_clock):
    server = Server(only_listens)
    async with playing(server.serve) as episode:
        await episode.leave()
        await wait_all_tasks_blocked()
        assert (server.heard, server.ended_with, trio.current_time()) == ([], 1000, 0)


async def test_a_dropped_episode_says_nothing_more(autojump_clock):
    server = Server(only_listens)
    async with playing(server.serve) as episode:
        episode.drop()
        await wait_all_tasks_blocked()
        assert (server.heard, server.ended_with) == ([], 1006)
        await part(episode, timeout_seconds=10)
        assert trio.current_time() == 0


# -- TLS -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def self_signed(tmp_path) -> ssl.SSLContext:
    """A server's context with a certificate that nobody vouches for."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command to make a certificate")
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    request = ["openssl", "req", "-x509", "-nodes", "-newkey", "rsa:2048", *names]
    subprocess.run([*request, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context


async def test_a_certificate_that_nobody_vouches_for_is_refused(nursery, self_signed):
    async def serve(stream: trio.SocketStream) -> None:
        tls = trio.SSLStream(stream, self_signed, server_side=True)
        with pytest.raises(trio.BrokenResourceError):
            await tls.do_handshake()

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(trio.serve_listeners, serve, listeners)
    address = parse_address(f"https://localhost:{listeners[0].socket.getsockname()[1]}")
    network = TcpNetwork(connect_timeout_seconds=5)
    with trio.fail_after(5), pytest.raises(ssl.SSLCertVerificationError, match="self-signed") as caught:
        await nursery.start(Episode(network, address).connect)
    assert verdict(caught.value) is Verdict.HOPELESS
