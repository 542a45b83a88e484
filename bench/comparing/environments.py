"""The environments of the comparison: the same classes run in NeMo Gym's adapter and on the OpenEnv server.

Both are small on purpose, so that what is measured is the way to them. `EchoEnvironment` is made as OpenEnv's own echo
environment is: its tools are a FastMCP server of each instance.
"""

import time
from typing import Any

from fastmcp import FastMCP
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_environment import MCPEnvironment
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field


class MoveAction(Action):
    """One of four directions, and how long the environment takes to go there."""

    direction: int
    sleep_seconds: float = 0.0


class MoveObservation(Observation):
    """Where one is on a board without walls."""

    x: int = 0
    y: int = 0
    moves: int = 0
    legal_directions: list[int] = Field(default_factory=lambda: [0, 1, 2, 3])


class MoveEnvironment(Environment[MoveAction, MoveObservation, State]):
    """Each step moves by one and earns 0.125."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._state = State(step_count=0)
        self._x, self._y = 0, 0

    def reset(self, **_: Any) -> MoveObservation:
        return MoveObservation()

    def step(self, action: MoveAction, timeout_s: float | None = None, **_: Any) -> MoveObservation:
        if action.sleep_seconds:
            time.sleep(action.sleep_seconds)
        self._state.step_count += 1
        self._x += (0, 1, 0, -1)[action.direction]
        self._y += (1, 0, -1, 0)[action.direction]
        return MoveObservation(x=self._x, y=self._y, moves=self._state.step_count, reward=0.125)

    @property
    def state(self) -> State:
        return self._state


class EchoEnvironment(MCPEnvironment):
    """Tools over MCP; no call earns anything."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__(_echo_tools())
        self._state = State(step_count=0)

    def reset(self, **_: Any) -> Observation:
        return Observation(metadata={"status": "ready"})

    def _step_impl(self, action: Action, timeout_s: float | None = None, **_: Any) -> Observation:
        raise NotImplementedError("there are only tools")

    @property
    def state(self) -> State:
        return self._state


def _echo_tools() -> FastMCP:
    tools = FastMCP("echo")

    @tools.tool
    def echo_message(message: str) -> str:
        return message

    @tools.tool
    def echo_with_length(message: str) -> dict[str, Any]:
        return {"message": message, "length": len(message)}

    return tools
