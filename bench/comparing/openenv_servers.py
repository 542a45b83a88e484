"""The environments behind OpenEnv's own server: ``python -m uvicorn comparing.openenv_servers:move`` (or ``:echo``)."""

import os

from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.env_server.types import ConcurrencyConfig

from comparing.environments import EchoEnvironment, MoveAction, MoveEnvironment, MoveObservation

_CONCURRENCY = ConcurrencyConfig(max_concurrent_envs=int(os.environ["SLOTS"]))

move = create_app(MoveEnvironment, MoveAction, MoveObservation, env_name="move", concurrency_config=_CONCURRENCY)
echo = create_app(
    EchoEnvironment, CallToolAction, CallToolObservation, env_name="echo", concurrency_config=_CONCURRENCY
)
