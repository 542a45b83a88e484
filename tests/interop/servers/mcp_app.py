"""An OpenEnv server whose environment is a set of MCP tools."""

import os
from typing import Any

from fastmcp import FastMCP
from ledger import Ledger
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import Action, ConcurrencyConfig, Observation, State


class CalculatorEnvironment(MCPEnvironment):
    """Every call earns 0.25; asking for the verdict ends the episode."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        self._ledger = Ledger()
        self._state = State(step_count=0)
        super().__init__(_tools())

    def reset(self, **kwargs: Any) -> Observation:
        self._ledger.enter("reset", kwargs=kwargs)
        return Observation(metadata={"status": "ready"})

    async def step_async(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        self._ledger.enter("step")
        self._state.step_count += 1
        observation = await super().step_async(action, timeout_s, **kwargs)
        observation.reward = 0.25
        observation.done = isinstance(action, CallToolAction) and action.tool_name == "verdict"
        return observation

    def _step_impl(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        raise NotImplementedError("there are only tools")

    @property
    def state(self) -> State:
        return self._state

    def close(self) -> None:
        self._ledger.enter("close")
        super().close()


def _tools() -> FastMCP:
    mcp = FastMCP("calculator")

    @mcp.tool
    def add(a: int, b: int = 1) -> int:
        return a + b

    @mcp.tool
    def divide(a: int, b: int) -> dict[str, int]:
        return {"quotient": a // b, "remainder": a % b}

    @mcp.tool
    def describe(topic: str):  # without a return type the answer is text only
        return f"about {topic}"

    @mcp.tool
    def paint(size_bytes: int):
        return "x" * size_bytes

    @mcp.tool
    def fail(message: str) -> str:
        raise ValueError(message)

    @mcp.tool
    def verify(claim: str) -> str:
        return f"{claim}: true"

    @mcp.tool
    def verdict() -> str:
        return "well done"

    return mcp


app = create_app(
    CalculatorEnvironment,
    CallToolAction,
    CallToolObservation,
    env_name="calculator",
    concurrency_config=ConcurrencyConfig(max_concurrent_envs=int(os.environ["CAPACITY"])),
)
