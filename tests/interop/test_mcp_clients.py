"""The official SDK's clients of MCP, whichever is installed, and gymserve's embedded environment.

To run them: a virtual environment with ``mcp>=1.24,<2 pytest httpx``, the variable GYMSERVE_PYTHON naming the
interpreter that has gymserve, and ``python -m pytest -c /dev/null --rootdir . --confcutdir tests/interop
tests/interop/test_mcp_*``. They pass with ``mcp`` 1.30, 2.0 and 2.3; 2.3's own ways are in
tests/test_mcp_sockets.py.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from openenv_processes import GYMSERVE_PYTHON, Server

OVER = "The episode is over; no further call can succeed."
TOOLS = ["forecast", "status", "dispatch", "observation"]


class Embedded(Server):
    """``gymserve serve`` before its embedded environment."""

    def __init__(self, log: Path, *flags: str) -> None:
        command = [GYMSERVE_PYTHON, "-m", "gymserve", "serve", "--port", "0", *flags]
        super().__init__(command, log, r"listening on (http://\S+)", {})

    def seed(self, **reset_kwargs: Any) -> "Rollout":
        with httpx.Client(trust_env=False) as http:
            response = http.post(f"{self.url}/seed_session", json={"reset_kwargs": reset_kwargs})
        assert response.status_code == 200
        return Rollout(self.url, response.json()["mcp"], dict(response.cookies))


class Rollout:
    """One that has been seeded. Only its verify is no MCP."""

    def __init__(self, url: str, offer: Any, cookies: dict[str, str]) -> None:
        self.offer = offer
        self._url = url
        self._cookies = cookies

    def verify(self) -> Any:
        with httpx.Client(trust_env=False, cookies=self._cookies) as http:
            return http.post(f"{self._url}/verify", json={"responses_create_params": {}, "response": {}}).json()

    @asynccontextmanager
    async def session(self) -> AsyncIterator[ClientSession]:
        """A client that has said hello, set up from the offer alone."""
        async with (
            create_mcp_http_client(headers=self.offer["headers"]) as http,
            streamable_http_client(self._url + self.offer["url_path"], http_client=http) as streams,
            ClientSession(*streams[:2]) as session,
        ):
            hello = dumped(await session.initialize())
            assert (hello["protocolVersion"], hello["serverInfo"]["name"]) == ("2025-11-25", self.offer["server_name"])
            yield session

    async def call(self, tool: str, **arguments: Any) -> tuple[bool, str]:
        """By a client of its own, as verifiers calls: whether it failed, and the text."""
        async with self.session() as session:
            return await call(session, tool, **arguments)


async def call(session: ClientSession, tool: str, **arguments: Any) -> tuple[bool, str]:
    result = dumped(await session.call_tool(tool, arguments))
    [content] = result["content"]
    if not result["isError"]:
        assert result["structuredContent"] == json.loads(content["text"])
    return result["isError"], content["text"]


def dumped(model: Any) -> Any:
    """Every version of the SDK calls the attributes something else."""
    return model.model_dump(by_alias=True, mode="json")


@pytest.fixture(scope="module")
def gymserve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    with Embedded(tmp_path_factory.mktemp("gymserve") / "log") as server:
        yield server


@pytest.fixture
def impatient(tmp_path: Path) -> Iterator[Embedded]:
    with Embedded(tmp_path / "log", "--idle-timeout", "0.5") as server:
        yield server


def test_a_rollout(gymserve: Embedded) -> None:
    async def play() -> None:
        async with rollout.session() as session:
            listed = dumped(await session.list_tools())["tools"]
            assert [tool["name"] for tool in listed] == TOOLS
            assert all(tool["inputSchema"]["type"] == "object" and not tool.get("outputSchema") for tool in listed)
            failed, text = await call(session, "status")
            assert not failed and json.loads(text)["result"]["hour"] == 0
            failed, text = await call(session, "forecast", hours="x")
            assert failed and json.loads(text)["error"]["error_type"] == "invalid_args"
            unknown = f"Unknown tool: 'nope'. Available tools: {sorted(TOOLS)}"
            assert await call(session, "nope") == (True, unknown)
            for hour in range(24):
                failed, text = await call(session, "dispatch", battery_mw=0, generator_mw=0)
                assert not failed and json.loads(text)["result"]["outcome"]["hour"] == hour
            assert await call(session, "status") == (True, f"HTTP 409 from POST /status: {OVER}")
        assert await rollout.call("status") == (True, f"HTTP 409 from POST /status: {OVER}")

    rollout = gymserve.seed(day=3)
    asyncio.run(play())
    verified = rollout.verify()
    assert (verified["steps"], verified["done"], "mask_sample" in verified) == (24 + 2, True, False)


def test_clients_side_by_side(gymserve: Embedded) -> None:
    async def play() -> list[Any]:
        answers = await asyncio.gather(*(rollout.call("observation") for rollout in rollouts for _ in range(3)))
        return [json.loads(text)["result"]["day"] for _, text in answers]

    rollouts = [gymserve.seed(day=day) for day in range(5)]
    assert asyncio.run(play()) == [day for day in range(5) for _ in range(3)]
    for rollout in rollouts:
        rollout.verify()


def test_five_megabytes(gymserve: Embedded) -> None:
    rollout = gymserve.seed()
    failed, text = asyncio.run(rollout.call("forecast", hours=1, why="x" * 5_000_000))
    assert failed and json.loads(text)["error"]["error_type"] == "invalid_args"
    rollout.verify()


def test_a_session_that_was_reclaimed(impatient: Embedded) -> None:
    async def play() -> None:
        async with rollout.session() as session:
            await asyncio.sleep(1)
            assert await call(session, "status") == (True, f"HTTP 410 from POST /status: {OVER}")
            assert [tool["name"] for tool in dumped(await session.list_tools())["tools"]] == TOOLS

    rollout = impatient.seed()
    asyncio.run(play())
    assert rollout.verify()["failure_kind"] == "session_expired"


@pytest.mark.parametrize(
    ("headers", "sentence"),
    [
        ({}, "Missing X-NeMo-Gym-Session-Token for Gym MCP tool call."),
        ({"X-NeMo-Gym-Session-Token": "garbage"}, "Invalid Gym MCP session token."),
    ],
)
def test_who_has_no_token_can_look_but_not_call(headers: dict[str, str], sentence: str, gymserve: Embedded) -> None:
    async def play() -> None:
        async with stranger.session() as session:
            assert [tool["name"] for tool in dumped(await session.list_tools())["tools"]] == TOOLS
            assert await call(session, "status") == (True, sentence)

    stranger = gymserve.seed()
    stranger.verify()
    stranger.offer["headers"] = headers
    asyncio.run(play())
