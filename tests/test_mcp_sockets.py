"""MCP as its users have it: a process of gymserve, real sockets, and the official SDK's own client in both of its ways:
with a handshake, as all of them up to 2025, and without.
"""

import json
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
import trio
from counting import Counting
from http_peer import POST
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from mcp_types import CallToolResult, TextContent
from processes import Rollout, Server, dialled, running

from gymserve.gridsim.faults import Fault
from gymserve.gridsim.policies import optimal
from gymserve.gridsim.server import EnvironmentServer

HEADER = "X-NeMo-Gym-Session-Token"
OVER = "The episode is over; no further call can succeed."
WAYS = {"legacy": "2025-11-25", "auto": "2026-07-28"}
SCHEDULING_SECONDS = 0.5  # on a busy machine
STOP_SECONDS = 10.0
DISPATCHES = [arguments for _, arguments in optimal(3)]  # with which that day earns 1.0


def post(body: bytes, *headers: str) -> bytes:
    request: bytes = POST("/mcp", body, "Content-Type: application/json", "Accept: application/json", *headers)
    return request


PING = post(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}')


@pytest.fixture(scope="module")
def env() -> Iterator[Server]:
    with running("env", "--capacity", "32") as server:
        yield server


@pytest.fixture(scope="module")
def server(env: Server) -> Iterator[Server]:
    with running("serve", "--env", env.url, "--name", "grid") as server:
        yield server


@pytest.fixture(params=list(WAYS))
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@asynccontextmanager
async def counting(*arguments: str, fault: Fault | None = None) -> AsyncIterator[Server]:
    """A process of gymserve before an environment server in ours."""
    async with trio.open_nursery() as nursery:
        environments = EnvironmentServer(Counting, capacity=8, faults=[fault] if fault else [])
        port = await nursery.start(environments.listen, "127.0.0.1", 0)
        with running("serve", "--env", f"127.0.0.1:{port}", *arguments) as server:
            yield server
        nursery.cancel_scope.cancel()


async def offered(rollout: Rollout, **reset_kwargs: Any) -> Any:
    """The offer in the seed's answer."""
    return (await rollout.seed(**reset_kwargs)).json()["mcp"]


@asynccontextmanager
async def connected(server: Server, offer: Any, way: str, *, read_timeout_seconds: float = 30) -> AsyncIterator[Client]:
    """The SDK's client, set up from the offer alone."""
    http = httpx2.AsyncClient(headers=offer["headers"], timeout=read_timeout_seconds, verify=False, trust_env=False)
    url = server.url + offer["url_path"]
    async with http, Client(streamable_http_client(url, http_client=http), mode=way) as client:
        assert client.protocol_version == WAYS[way]
        yield client


def text_of(result: CallToolResult) -> str:
    [content] = result.content
    assert isinstance(content, TextContent)
    return content.text


async def test_a_rollout(server: Server, way: str) -> None:
    rollout = Rollout(server.url)
    offer = await offered(rollout, day=3)
    assert (offer["server_name"], offer["transport"], set(offer["headers"])) == ("grid", "http", {HEADER})
    async with connected(server, offer, way) as client:
        assert client.server_info is not None and client.server_info.name == "grid"
        names = [tool.name for tool in (await client.list_tools()).tools]
        assert names == ["forecast", "status", "dispatch", "observation"]
        status = await client.call_tool("status")
        assert (status.is_error, status.structured_content) == (False, json.loads(text_of(status)))
        assert (await rollout.post("status")).text == text_of(status)
        failed = await client.call_tool("forecast", {"hours": "x"})
        assert failed.is_error and json.loads(text_of(failed))["error"]["error_type"] == "invalid_args"
        unknown = await client.call_tool("nope", {})
        known = ["dispatch", "forecast", "observation", "status"]
        assert (unknown.is_error, text_of(unknown)) == (True, f"Unknown tool: 'nope'. Available tools: {known}")
        for arguments in DISPATCHES:
            assert not (await client.call_tool("dispatch", arguments)).is_error
        over = await client.call_tool("status")
        assert (over.is_error, text_of(over)) == (True, f"HTTP 409 from POST /status: {OVER}")
    assert (await rollout.verify()).json()["reward"] == 1.0


async def test_many_clients_at_once(server: Server, way: str) -> None:
    days: list[int] = []

    async def roll_out(day: int) -> None:
        rollout = Rollout(server.url)
        offer = await offered(rollout, day=day)
        for _ in range(2):  # verifiers has a client for each call
            async with connected(server, offer, way) as client:
                seen = await client.call_tool("observation")
                days.append(json.loads(text_of(seen))["result"]["day"])
        await rollout.verify()

    async with trio.open_nursery() as nursery:
        for day in range(8):
            nursery.start_soon(roll_out, day)
    assert sorted(days) == sorted([*range(8), *range(8)])


async def test_an_argument_of_five_megabytes(server: Server, way: str) -> None:
    offer = await offered(Rollout(server.url))
    async with connected(server, offer, way) as client:
        answer = await client.call_tool("forecast", {"hours": 1, "why": "x" * 5_000_000})
        assert answer.is_error and json.loads(text_of(answer))["error"]["error_type"] == "invalid_args"
        assert not (await client.call_tool("forecast", {"hours": 1})).is_error


async def test_a_session_that_was_reclaimed() -> None:
    async with counting("--idle-timeout", "0.5") as server:
        for way in WAYS:
            rollout = Rollout(server.url)
            async with connected(server, await offered(rollout), way) as client:
                await trio.sleep(0.5 + SCHEDULING_SECONDS)
                assert [tool.name for tool in (await client.list_tools()).tools] == ["step", "observation"]
                gone = await client.call_tool("step", {"by": 1})
                assert (gone.is_error, text_of(gone)) == (True, f"HTTP 410 from POST /step: {OVER}")
            assert (await rollout.verify()).json()["failure_kind"] == "session_expired"


async def test_a_short_read_timeout_survives_a_long_call() -> None:
    async with counting("--interim", "0.5", fault=Fault("slow-step", 3)) as server:
        counts: list[int] = []

        async def call(way: str) -> None:
            offer = await offered(Rollout(server.url))
            async with connected(server, offer, way, read_timeout_seconds=2) as client:
                counts.append(json.loads(text_of(await client.call_tool("step", {"by": 1})))["count"])

        async with trio.open_nursery() as nursery:
            for way in WAYS:
                nursery.start_soon(call, way)
        assert counts == [1, 1]


async def test_loading_holds_up_nobody() -> None:
    """The first request has the SDK loaded, which takes a second or more."""
    async with counting() as server:
        rollout = Rollout(server.url)
        await rollout.seed()
        order: list[str] = []

        async def ask() -> None:
            async with dialled(server.url) as peer:
                assert (await peer.ask(PING)).status == 200
            order.append("MCP")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(0.1)
            for _ in range(3):
                assert (await rollout.step()).status_code == 200
                order.append("step")
        assert order == ["step", "step", "step", "MCP"]


async def test_a_stop_does_not_wait_for_the_loading() -> None:
    async with counting() as server, dialled(server.url) as peer:
        await peer.send(PING)
        await trio.sleep(0.1)
        server.send(signal.SIGTERM)
        assert await server.exit_status(within_seconds=STOP_SECONDS) == 0
        assert "Traceback" not in server.log


async def test_clients_garbage_is_no_matter_for_the_log(server: Server) -> None:
    def lines() -> list[str]:
        return [line for line in server.log.splitlines() if " session " not in line]

    before = lines()
    modern = "Mcp-Protocol-Version: 2026-07-28"
    for body in (b"", b"{", b"[]", b"\xff", b'{"jsonrpc": "2.0", "method": "notifications/progress", "params": {}}'):
        for headers in ([], [modern]):
            async with dialled(server.url) as peer:
                assert (await peer.ask(post(body, *headers))).status in (202, 400)
    async with dialled(server.url) as peer:
        await peer.send(PING[:-1])  # and hangs up in the middle of it
    assert lines() == before


async def test_never_is_never() -> None:
    async with counting("--mcp", "never") as server:
        rollout = Rollout(server.url)
        assert (await rollout.seed()).json() == {}
        async with dialled(server.url) as peer:
            assert (await peer.ask(PING)).status == 404
