"""gymserve as its users have it: processes, real sockets, real clients, signals. What is told here in fractions of a
second is told exactly, in virtual time, by the tests of the parts.
"""

import asyncio
import json
import signal
import socket
import struct
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import aiohttp
import h11
import pytest
import trio
from counting import Counting
from http_peer import GET, POST, Peer, Reply
from processes import (
    ANSWER_SECONDS,
    STRANGERS,
    Rollout,
    Server,
    command,
    dialled,
    environ,
    episodes,
    get,
    running,
    sessions,
    until,
)
from trio_websocket import ConnectionClosed, wrap_server_stream

from gymserve.gridsim.environment import Environment
from gymserve.gridsim.faults import Fault
from gymserve.gridsim.policies import optimal
from gymserve.gridsim.server import EnvironmentServer
from gymserve.wire import METHOD_NOT_FOUND, Mcp, McpAnswer, Observation, decode_question

SECRET = "a secret of the tests"
DAY = 3
DISPATCHES = [arguments for _, arguments in optimal(DAY)]  # with which a day of the embedded environment earns 1.0
INTERPRETER_SECONDS = 2.0  # Python's own way out, with everything that is imported, on a busy machine


@pytest.fixture(scope="module")
def env() -> Iterator[Server]:
    """An environment server for all who do not harm it."""
    with running("env", "--capacity", "16") as server:
        yield server


@pytest.fixture(scope="module")
def server(env: Server) -> Iterator[Server]:
    """A gymserve for all who do not harm it."""
    with running("serve", "--env", env.url) as server:
        yield server


@pytest.fixture(scope="module")
def strict(env: Server) -> Iterator[Server]:
    """One that is soon tired of waiting and answers a masked verify with an error."""
    with running("serve", "--env", env.url, "--idle-timeout", "0.5", "--masked-as-error", "always") as server:
        yield server


@asynccontextmanager
async def environment_server(
    make: Callable[[], Environment] = Counting, *, capacity: int = 8, fault: Fault | None = None
) -> AsyncIterator[tuple[EnvironmentServer, str]]:
    """An environment server in our own process, and its address."""
    hosted = EnvironmentServer(make, capacity=capacity, faults=[fault] if fault else [])
    async with trio.open_nursery() as nursery:
        port = await nursery.start(hosted.listen, "127.0.0.1", 0)
        yield hosted, f"127.0.0.1:{port}"
        nursery.cancel_scope.cancel()


async def is_in_state(server: Server, state: str) -> bool:
    """Whether a session is."""
    return state in [session["state"] for session in (await sessions(server.url))["sessions"]]


# Whole rollouts


async def test_a_rollout_as_verifiers_plays_it(env: Server, server: Server) -> None:
    before = await episodes(env.url)
    client = Rollout(server.url)
    assert [*(await client.seed(day=DAY)).json()] == ["mcp"]
    assert (await client.post("observation")).json()["result"]["day"] == DAY
    assert [(await client.post("fly")).status_code, (await client.post("status", [1])).status_code] == [404, 422]
    assert (await episodes(env.url))["active"] == before["active"] + 1
    for hour, arguments in enumerate(DISPATCHES):
        assert (await client.post("dispatch", arguments)).json()["result"]["outcome"]["hour"] == hour
    assert (await client.post("status")).status_code == 409
    verified = await client.verify(task="a")
    assert (verified.status_code, verified.json()["reward"], verified.json()["task"]) == (200, 1.0, "a")
    assert "mask_sample" not in verified.json()
    after = await episodes(env.url)
    assert (after["active"], after["opened"]) == (before["active"], before["opened"] + 1)
    # The seed's, on every answer, and errors are answers too.
    assert client.handed_out == [client.cookie] * (1 + 3 + len(DISPATCHES) + 2)


class Gym:
    """NeMo Gym's `ServerClient` and the way its simple_agent keeps cookies: each answer's replace those before."""

    def __init__(self, url: str, http: aiohttp.ClientSession) -> None:
        self._url = url
        self._http = http
        self.cookies: Mapping[str, Any] = {}

    async def post(self, path: str, value: Any) -> tuple[int, Any]:
        data, kind = (b"", "application/octet-stream") if value is None else (json.dumps(value), "application/json")
        strangers = dict(pair.split("=", 1) for pair in STRANGERS.split("; "))
        async with self._http.post(
            f"{self._url}/{path}", data=data, headers={"Content-Type": kind}, cookies={**self.cookies, **strangers}
        ) as response:
            self.cookies = response.cookies
            return response.status, await response.json()


def test_a_rollout_as_nemo_gym_plays_it(server: Server) -> None:
    async def play() -> None:
        connector = aiohttp.TCPConnector(limit=1024, limit_per_host=1024)
        async with (
            asyncio.timeout(ANSWER_SECONDS),
            aiohttp.ClientSession(
                connector=connector, timeout=aiohttp.ClientTimeout(), cookie_jar=aiohttp.DummyCookieJar()
            ) as http,
        ):
            gym = Gym(server.url, http)
            status, seeded = await gym.post("seed_session", {"verifier_metadata": {"reset_kwargs": {"day": DAY}}})
            assert (status, [*seeded]) == (200, ["mcp"])
            [name] = gym.cookies
            calls: list[tuple[str, Any, int]] = [
                ("observation", None, 200),
                ("status", None, 200),
                ("status", {}, 200),
                ("status", [], 422),
                ("fly", {}, 404),
                *(("dispatch", arguments, 200) for arguments in DISPATCHES),
                ("status", {}, 409),
            ]
            for tool, value, status in calls:
                assert (await gym.post(tool, value))[0] == status
                assert [*gym.cookies] == [name]
            status, body = await gym.post("verify", {"responses_create_params": {}, "response": {"id": 1}})
            assert (status, body["reward"], body["response"]) == (200, 1.0, {"id": 1})

    asyncio.run(play())


async def test_without_an_environment_server_there_is_the_embedded_one_and_an_idle_server_stops_at_once() -> None:
    with running("serve") as server:
        client = Rollout(server.url)
        await client.seed(day=DAY)
        for arguments in DISPATCHES:
            assert (await client.post("dispatch", arguments)).status_code == 200
        assert (await client.verify()).json()["reward"] == 1.0
        assert (await Rollout(server.url).seed()).status_code == 200  # an open session is no reason to stay
        server.send(signal.SIGTERM)
        assert await server.exit_status(within_seconds=1.0 + INTERPRETER_SECONDS) == 0  # and not the grace, 3 s


# Slots


async def test_six_clients_share_two_slots() -> None:
    async with environment_server(capacity=2) as (hosted, address):
        with running("serve", "--env", address) as server:
            verdicts: list[Any] = []
            held: list[int] = []

            async def play() -> None:
                client = Rollout(server.url)
                assert (await client.seed(target=3)).status_code == 200
                for _ in range(3):
                    await trio.sleep(0.05)
                    assert (await client.step(1)).status_code == 200
                verdicts.append((await client.verify()).json())

            async def watch() -> None:
                while True:
                    listing = await sessions(server.url)
                    if listing["servers"][0]["capacity"] == 2:  # before it said so, all may knock at once
                        held.append(listing["servers"][0]["held"])
                    assert hosted.episodes["active"] <= 2
                    await trio.sleep(0.005)

            async def knows_the_capacity() -> bool:
                [line] = (await sessions(server.url))["servers"]
                return bool(line["capacity"] == 2 and line["held"] == 2)

            with trio.fail_after(ANSWER_SECONDS):
                async with trio.open_nursery() as watching:
                    async with trio.open_nursery() as playing:
                        for _ in range(3):
                            playing.start_soon(play)
                        await until(knows_the_capacity, within_seconds=2.0)
                        watching.start_soon(watch)
                        for _ in range(3):
                            playing.start_soon(play)
                    watching.cancel_scope.cancel()
            assert [(verdict["reward"], verdict.get("mask_sample")) for verdict in verdicts] == [(1.0, None)] * 6
            assert max(held) == 2
            assert hosted.episodes == {"active": 0, "max": 2, "opened": 6, "closed": 6}


async def test_an_abandoned_session_gives_its_slot_back_in_time(env: Server, strict: Server) -> None:
    before = await episodes(env.url)

    async def is_back() -> bool:
        return bool((await episodes(env.url))["closed"] == before["closed"] + 1)

    client = Rollout(strict.url)
    await client.seed()
    asked_at = trio.current_time()
    assert (await client.post("status")).status_code == 200
    await until(is_back, within_seconds=0.5 + 0.2)
    assert trio.current_time() - asked_at >= 0.5
    gone = await client.post("status")
    assert (gone.status_code, gone.json()["error"]) == (410, "session_expired")


async def test_masked_as_error_changes_the_status_and_nothing_else(server: Server, strict: Server) -> None:
    # httpx is verifiers' client
    error, always = [await Rollout(each.url).verify(task="a") for each in (server, strict)]
    row = {"responses_create_params": {}, "response": {}, "task": "a"}
    flag = await Rollout(server.url).post("verify", row, headers={"X-Gymserve-Masked": "flag"})
    assert (error.status_code, always.status_code, flag.status_code) == (503, 503, 200)
    assert error.json() == always.json() == flag.json()
    assert (error.json()["mask_sample"], error.json()["task"], error.json()["failure_kind"]) == (
        True,
        "a",
        "session_lost",
    )


async def test_who_hangs_up_while_waiting_leaves_the_line() -> None:
    async with environment_server(capacity=1) as (hosted, address):
        with running("serve", "--env", address) as server:

            async def is_waiting(number: int) -> bool:
                return bool((await sessions(server.url))["waiting"] == number)

            first = Rollout(server.url)
            await first.seed(target=1)
            for leave in ("aclose", "send_eof"):
                async with dialled(server.url) as peer:
                    await peer.send(Rollout(server.url).request("seed_session", b"{}"))
                    await until(partial(is_waiting, 1), within_seconds=2.0)
                    await getattr(peer.stream, leave)()
                    await until(partial(is_waiting, 0), within_seconds=0.2)
                    if leave == "send_eof":  # half a goodbye is one: whoever closes its side waits for nothing
                        assert await peer.rest() == b""
            assert (await first.step()).json()["done"] is True
            assert (await Rollout(server.url).seed()).status_code == 200
            assert hosted.episodes["opened"] == 2


# Environment servers that fail


async def test_a_closed_port_is_told_at_once() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # ours, and nobody listens
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        with running("serve", "--env", address) as server:
            with trio.fail_after(0.5):
                refused = await Rollout(server.url).seed()
            assert (refused.status_code, refused.json()["error"]) == (502, "environment_error")
            assert address in refused.json()["detail"]
            assert "refused" in refused.json()["detail"]


async def test_a_killed_environment_server_masks_its_rollouts() -> None:
    answers: list[Any] = []

    async def step() -> None:
        answers.append(await busy.post("status"))

    with running("env", "--fault", "slow-step:30") as env, running("serve", "--env", env.url) as server:
        idle, busy = Rollout(server.url), Rollout(server.url)
        await idle.seed()
        await busy.seed()

        async def are_gone() -> bool:
            return not (await sessions(server.url))["sessions"]

        async with trio.open_nursery() as nursery:
            nursery.start_soon(step)
            await until(partial(is_in_state, server, "busy"), within_seconds=2.0)
            env.send(signal.SIGKILL)
            await until(are_gone, within_seconds=0.5)
        for answer, status, error in (
            (answers[0], 502, "environment_error"),
            (await busy.post("status"), 410, "session_lost"),
            (await idle.post("status"), 410, "session_lost"),
        ):
            assert (answer.status_code, answer.json()["error"], answer.json()["done"]) == (status, error, True)
        for client in (idle, busy):
            verified = await client.verify()
            assert (verified.status_code, verified.json()["reward"]) == (503, 0.0)
            assert (verified.json()["mask_sample"], verified.json()["failure_kind"]) == (True, "session_lost")


# Clients that misbehave

UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
KILLERS = [  # of hypercorn as it is: https://github.com/pgjones/hypercorn/issues/225
    UPGRADE + b"\r\nx",
    UPGRADE + b"Content-Length: 4\r\n\r\nbody",
    UPGRADE.replace(b"GET / ", b"GET /ws ") + b"\r\n" + GET(),
]
GARBAGE = [
    b"",
    b"\x00" * 1000,
    bytes(range(256)) * 400,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),  # a TLS client
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET / HTTP/9.9\r\nHost: x\r\n\r\n",
    GET()[:20],
    GET("/", "X: " + "x" * 100_000),
    POST("/verify", b"x" * 1000)[:-1],
    POST("/verify", b"{").replace(b"Content-Length: 1", b"Content-Length: -1"),
    POST("/seed_session", b"[" * 100_000),
    GET() * 50,
]


def reset_on_close(peer: Peer) -> None:
    peer.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def errors(server: Server) -> list[str]:
    return [line for line in server.log.splitlines() if "[error" in line]


async def test_a_client_that_closes_its_side_with_its_request_is_no_error(server: Server) -> None:
    for _ in range(50):  # its end is seen before, during or after the handler, which has nothing to wait for
        async with dialled(server.url) as peer:
            await peer.send(POST("/seed_session", b"[1]"))
            await peer.stream.send_eof()
            await peer.rest()
    assert errors(server) == []


async def test_garbage_on_other_connections_touches_no_rollout(server: Server) -> None:
    async def storm(packet: bytes, *, reset: bool) -> None:
        async with dialled(server.url) as peer:
            if reset:
                reset_on_close(peer)
            try:
                await peer.send(packet)
                await trio.sleep(0.05)
            except trio.BrokenResourceError:
                pass  # refused before all of it was out

    async def kill(packet: bytes) -> None:
        async with dialled(server.url) as peer:
            assert (await peer.ask(packet)).status == 400

    client = Rollout(server.url)
    await client.seed(day=DAY)
    async with trio.open_nursery() as nursery:
        for number, arguments in enumerate(DISPATCHES):
            for packet in GARBAGE:
                nursery.start_soon(partial(storm, packet, reset=number % 2 == 0))
            nursery.start_soon(kill, KILLERS[number % len(KILLERS)])
            assert (await client.post("dispatch", arguments)).json()["result"]["outcome"]["hour"] == number
    assert (await client.verify()).json()["reward"] == 1.0
    assert await get(f"{server.url}/gymserve/health") == {"status": "ok"}
    assert errors(server) == []


def forecast(client: Rollout, number: int) -> tuple[bytes, int]:
    """A request, and the hours that its answer has."""
    hours = number % 24 + 1
    return client.request("forecast", b'{"hours":%d}' % hours), hours


def hours_in(reply: Reply) -> int:
    return len(json.loads(reply.body)["result"]["hours"])


async def test_one_connection_serves_two_hundred_requests(server: Server) -> None:
    client = Rollout(server.url)
    await client.seed()
    async with dialled(server.url) as peer:
        for number in range(200):
            request, hours = forecast(client, number)
            assert hours_in(await peer.ask(request)) == hours
    assert (await client.verify()).json()["steps"] == 200


async def test_a_hundred_pipelined_requests_are_answered_in_order(server: Server) -> None:
    client = Rollout(server.url)
    await client.seed()
    requests = [forecast(client, number) for number in range(100)]
    async with dialled(server.url) as peer:
        await peer.send(b"".join(request for request, _ in requests))
        assert [hours_in(await peer.reply()) for _ in requests] == [hours for _, hours in requests]
    assert (await client.verify()).json()["steps"] == 100


# Stopping


class Verbose(Counting):
    """Says 50 MB a step."""

    def step(self, action: Mapping[str, Any]) -> Observation:
        return Observation({"text": "x" * 50_000_000})


async def test_a_client_that_does_not_read_delays_no_stop() -> None:
    async with environment_server(Verbose) as (_, address):
        with running("serve", "--env", address, "--grace", "1") as server:
            client = Rollout(server.url)
            await client.seed()
            async with dialled(server.url) as peer:
                await peer.send(client.request("step", b'{"by":1}'))
                assert (await peer.stream.receive_some(12)) == b"HTTP/1.1 200"  # and not a byte more
                server.send(signal.SIGTERM)
                assert await server.exit_status(within_seconds=1.0 + 0.5 + INTERPRETER_SECONDS) == 0


async def test_a_call_in_flight_is_answered_before_the_stop() -> None:
    async with environment_server(fault=Fault("slow-step", 1)) as (hosted, address):
        with running("serve", "--env", address) as server:
            client = Rollout(server.url)
            await client.seed()
            answers: list[Any] = []

            async def step() -> None:
                answers.append(await client.step(2))

            async with trio.open_nursery() as nursery:
                nursery.start_soon(step)
                await until(partial(is_in_state, server, "busy"), within_seconds=1.0)
                server.send(signal.SIGTERM)
            assert (answers[0].status_code, answers[0].json()["count"]) == (200, 2)
            assert await server.exit_status(within_seconds=0.5 + INTERPRETER_SECONDS) == 0
            assert hosted.episodes == {"active": 0, "max": 8, "opened": 1, "closed": 1}


class Mute:
    """An environment server that answers a reset and no step, and remembers with which code its clients closed."""

    def __init__(self) -> None:
        self.asked = trio.Event()
        self.closed_with: list[int | None] = []

    async def listen(self, *, task_status: trio.TaskStatus[str]) -> None:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        task_status.started(f"127.0.0.1:{listener.socket.getsockname()[1]}")
        await trio.serve_listeners(self._serve, [listener])

    async def _serve(self, stream: trio.SocketStream) -> None:
        head = await stream.socket.recv(4096, socket.MSG_PEEK)
        if head.startswith(b"GET /schema "):
            body = json.dumps({"action": Counting.action_schema}).encode()
            await stream.send_all(
                b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
            )
            await stream.receive_some()  # else the close would reset what was sent, as the request is unread
        else:
            await self._converse(stream)

    async def _converse(self, stream: trio.abc.Stream) -> None:
        async with trio.open_nursery() as nursery:
            websocket = await (await wrap_server_stream(nursery, stream)).accept()
            asked_for_room = decode_question(await websocket.get_message())
            assert isinstance(asked_for_room, Mcp)
            await websocket.send_message(McpAnswer(asked_for_room.id, error={"code": METHOD_NOT_FOUND}).encode())
            await websocket.get_message()
            await websocket.send_message(Observation({"count": 0}).encode())
            await websocket.get_message()
            self.asked.set()
            try:
                await websocket.get_message()
            except ConnectionClosed as exc:
                self.closed_with.append(exc.reason.code if exc.reason else None)
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def stuck_in_a_step(*flags: str) -> AsyncIterator[tuple[Server, Mute, list[Any]]]:
    """A gymserve whose only session waits for an answer that never comes; what its client gets goes to the list."""
    mute = Mute()
    answers: list[Any] = []

    async def step() -> None:
        async with dialled(server.url) as peer:
            await peer.send(client.request("step", b'{"by":1}'))
            with suppress(h11.RemoteProtocolError, trio.BrokenResourceError):  # the server was killed
                reply = await peer.reply()
                answers.append((trio.current_time(), reply))

    async with trio.open_nursery() as nursery:
        address = await nursery.start(mute.listen)
        with running("serve", "--env", address, *flags) as server:
            client = Rollout(server.url)
            await client.seed()
            async with trio.open_nursery() as asking:
                asking.start_soon(step)
                await mute.asked.wait()
                yield server, mute, answers
        nursery.cancel_scope.cancel()


async def test_a_call_longer_than_the_grace_is_told_at_its_end() -> None:
    async with stuck_in_a_step("--grace", "1") as (server, mute, answers):
        stopped_at = trio.current_time()
        server.send(signal.SIGTERM)
        await trio.sleep(0.3)
        refused = await Rollout(server.url).post("seed_session")  # on a new connection
        assert (refused.status_code, refused.json()["error"]) == (503, "shutting_down")
        assert refused.headers["retry-after"] == "5"
        assert await server.exit_status(within_seconds=ANSWER_SECONDS) == 0
        exited_at = trio.current_time()
        [(answered_at, reply)] = answers
        body = json.loads(reply.body)
        assert (reply.status, body["error"], body["done"]) == (410, "session_closed", True)
        assert 1.0 <= answered_at - stopped_at <= 1.5
        assert exited_at - stopped_at <= 1.0 + 0.5 + INTERPRETER_SECONDS
        assert mute.closed_with == [1000]


async def test_a_second_signal_kills() -> None:
    async with stuck_in_a_step("--grace", "30") as (server, _, answers):

        async def is_stopping() -> bool:
            return (await Rollout(server.url).post("seed_session")).status_code == 503

        server.send(signal.SIGTERM)
        await until(is_stopping, within_seconds=2.0)
        server.send(signal.SIGTERM)
        assert await server.exit_status(within_seconds=0.5) == -signal.SIGTERM
    assert answers == []


@pytest.mark.parametrize("server", ["serve", "env"])
def test_a_port_in_use_is_told_in_one_line(server: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        process = subprocess.run(
            command(server, "--port", str(port)), env=environ(), capture_output=True, text=True, timeout=20
        )
    assert (process.returncode, process.stdout, process.stderr.count("\n")) == (1, "", 1)
    assert process.stderr.startswith(f"cannot listen on http://127.0.0.1:{port}: ")
    assert "in use" in process.stderr


async def test_a_secret_kept_over_a_restart_keeps_cookies_known(env: Server) -> None:
    with running("serve", "--env", env.url, GYMSERVE_SECRET=SECRET) as server:
        client = Rollout(server.url)
        await client.seed()
        server.send(signal.SIGTERM)
        assert await server.exit_status(within_seconds=1.0 + INTERPRETER_SECONDS) == 0
    with running("serve", "--env", env.url, GYMSERVE_SECRET=SECRET) as server:
        client = Rollout(server.url, client.cookie)
        gone = await client.post("status")
        assert (gone.status_code, gone.json()["error"]) == (404, "no_session")
        verified = await client.verify()
        assert (verified.status_code, verified.json()["mask_sample"]) == (503, True)
        assert client.handed_out == [client.cookie] * 2  # read, understood and signed again
