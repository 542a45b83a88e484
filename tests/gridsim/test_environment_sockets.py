"""The environment server where its users meet it: on a port, over HTTP and WebSocket, as a process that is stopped."""

import errno
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
import pytest
import trio
from counting import Counting
from trio_websocket import ConnectionClosed, WebSocketConnection, wrap_client_stream

from gymserve import __version__
from gymserve.gridsim.environment import Environment
from gymserve.gridsim.faults import parse_fault
from gymserve.gridsim.server import EnvironmentServer

RESET = '{"type":"reset"}'
STEP = '{"type":"step","data":{"by":1}}'


@asynccontextmanager
async def listening(server: EnvironmentServer, host: str = "127.0.0.1") -> AsyncIterator[int]:
    async with trio.open_nursery() as nursery:
        yield await nursery.start(server.listen, host, 0)
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def websocket(port: int, host: str = "127.0.0.1") -> AsyncIterator[WebSocketConnection]:
    # Not open_websocket: it leaves the socket open where the server closes first.
    async with await trio.open_tcp_stream(host, port) as stream, trio.open_nursery() as nursery:
        yield await wrap_client_stream(nursery, stream, host, "/ws")
        nursery.cancel_scope.cancel()


async def closing_code(ws: WebSocketConnection) -> int:
    with pytest.raises(ConnectionClosed) as raised:
        await ws.get_message()
    assert raised.value.reason is not None
    return raised.value.reason.code


# -- HTTP ------------------------------------------------------------------------------------------------------------


async def test_the_documents() -> None:
    async with (
        listening(EnvironmentServer(Counting, capacity=3)) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        assert (await client.get("/health")).json() == {"status": "healthy"}
        schema = (await client.get("/schema?x=1")).json()
        assert schema["action"] == Counting.action_schema
        assert schema["observation"] == Counting.observation_schema
        assert schema["state"]["title"] == "State"
        metadata = (await client.get("/metadata")).json()
        assert (metadata["name"], metadata["version"]) == ("Counting", __version__)
        assert metadata["description"].startswith("Count to ``target``")
        async with websocket(port):
            assert (await client.get("/gymserve/episodes")).json() == {"active": 1, "max": 3, "opened": 1, "closed": 0}


async def test_what_is_not_there_or_not_allowed() -> None:
    async with (
        listening(EnvironmentServer(Counting, capacity=1)) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        for path in ("/", "/ws", "/mcp", "/health/"):
            missing = await client.get(path)
            assert (missing.status_code, missing.json()) == (404, {"detail": "Not Found"})
        refused = await client.post("/health", content=b"x" * 200_000)
        assert (refused.status_code, refused.json()) == (405, {"detail": "Method Not Allowed"})
        assert refused.headers["allow"] == "GET"
        head = await client.head("/health")
        assert (head.status_code, head.content) == (405, b"")


async def test_a_document_that_needs_an_environment_that_cannot_be_made(caplog: pytest.LogCaptureFixture) -> None:
    def no_gpu() -> Environment:
        raise RuntimeError("no GPU left")

    async with (
        listening(EnvironmentServer(no_gpu, capacity=1)) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        failed = await client.get("/metadata")
        assert (failed.status_code, failed.json()) == (500, {"detail": "Internal Server Error"})
        assert (await client.get("/health")).status_code == 200
    assert "no GPU left" in caplog.text


async def test_ipv6_and_host_names() -> None:
    for host in ("::1", "localhost"):
        async with listening(EnvironmentServer(Counting, capacity=1), host) as port, websocket(port, host) as ws:
            await ws.send_message(RESET)
            assert "observation" in await ws.get_message()


async def test_a_large_message_gets_its_1009_over_tcp() -> None:
    server = EnvironmentServer(Counting, capacity=1)
    async with listening(server) as port, websocket(port) as ws:
        with trio.fail_after(20):
            try:
                await ws.send_message("x" * (2**24 + 2**20))
            except ConnectionClosed:
                pass  # the refusal came while we were still sending
            assert await closing_code(ws) == 1009
    assert server.episodes["active"] == 0


# -- stopping --------------------------------------------------------------------------------------------------------


async def test_stop_says_1012_even_during_a_step() -> None:
    server = EnvironmentServer(Counting, capacity=2, faults=[parse_fault("slow-step:0.3")])
    async with trio.open_nursery() as nursery:
        port = await nursery.start(server.listen, "127.0.0.1", 0)
        async with websocket(port) as idle, websocket(port) as busy:
            await busy.send_message(RESET)
            await busy.get_message()
            await busy.send_message(STEP)
            await trio.sleep(0.05)
            server.stop()
            began = trio.current_time()
            assert await closing_code(idle) == await closing_code(busy) == 1012
            assert trio.current_time() - began < 0.2
    assert server.episodes == {"active": 0, "max": 2, "opened": 2, "closed": 2}
    with pytest.raises(OSError):
        await trio.open_tcp_stream("127.0.0.1", port)


async def test_stop_waits_two_seconds_for_a_step_at_most(autojump_clock: Any) -> None:
    server = EnvironmentServer(Counting, capacity=1, faults=[parse_fault("slow-step:1000")])
    async with trio.open_nursery() as nursery:
        port = await nursery.start(server.listen, "127.0.0.1", 0)
        async with websocket(port) as ws:
            await ws.send_message(RESET)
            await ws.get_message()
            await ws.send_message(STEP)
            await trio.testing.wait_all_tasks_blocked(0.01)
            server.stop()
            began = trio.current_time()
            assert await closing_code(ws) == 1012
    assert trio.current_time() - began == 2
    assert server.episodes == {"active": 0, "max": 1, "opened": 1, "closed": 1}


# -- the command -----------------------------------------------------------------------------------------------------


@dataclass
class Command:
    process: trio.Process
    port: int

    async def ends(self) -> tuple[int, bytes]:
        """Its status and the rest of its stderr."""
        assert self.process.stderr is not None
        rest = b"".join([bytes(data) async for data in self.process.stderr])
        return await self.process.wait(), rest


@asynccontextmanager
async def command(*flags: str) -> AsyncIterator[Command]:
    """``gymserve env`` as a process of its own, once it accepts connections."""
    arguments = [sys.executable, "-m", "gymserve", "env", "--port", "0", *flags]
    async with trio.open_nursery() as nursery:
        process = await nursery.start(partial(trio.run_process, arguments, stderr=subprocess.PIPE, check=False))
        with trio.fail_after(20):
            line = b""
            while not line.endswith(b"\n"):
                line += await process.stderr.receive_some(1)
        assert line.startswith(b"listening on http://127.0.0.1:"), line
        yield Command(process, int(line.rpartition(b":")[2]))
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_the_command(number: signal.Signals) -> None:
    async with command("--fault", "slow-step:0.3") as env, websocket(env.port) as ws:
        await ws.send_message(RESET)
        await ws.get_message()
        await ws.send_message(STEP)
        with trio.fail_after(5):
            env.process.send_signal(number)
            assert await closing_code(ws) == 1012
            assert await env.ends() == (0, b"")


async def test_a_second_signal_kills_the_command() -> None:
    async with command("--fault", "slow-step:100") as env, websocket(env.port) as ws:
        await ws.send_message(STEP)
        env.process.send_signal(signal.SIGINT)
        assert await closing_code(ws) == 1012
        env.process.send_signal(signal.SIGINT)
        with trio.fail_after(1.5):
            assert await env.ends() == (-signal.SIGINT, b"")


async def test_the_command_has_its_capacity() -> None:
    async with command("--capacity", "1") as env, websocket(env.port), websocket(env.port) as turned_away:
        assert "1/1 sessions active" in await turned_away.get_message()


async def run_command(*flags: str) -> tuple[int, str]:
    arguments = [sys.executable, "-m", "gymserve", "env", *flags]
    done = await trio.run_process(arguments, capture_stderr=True, check=False)
    return done.returncode, done.stderr.decode()


async def test_a_busy_port_is_one_line_and_status_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert await run_command("--port", str(port)) == (
            1,
            f"cannot listen on http://127.0.0.1:{port}: {os.strerror(errno.EADDRINUSE)}; "
            "choose another address with --host and --port\n",
        )


async def test_a_fault_given_twice_is_one_line_and_status_two() -> None:
    assert await run_command("--port", "0", "--fault", "full", "--fault", "full") == (
        2,
        "gymserve: --fault: fault 'full' is given twice\n",
    )
