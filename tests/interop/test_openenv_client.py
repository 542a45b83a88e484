"""OpenEnv's own client drives the embedded environment server.

Run by an interpreter that has openenv; the server runs under GYMSERVE_PYTHON (by default the same interpreter).
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

generic_client = pytest.importorskip(
    "openenv.core.generic_client",
    reason="needs openenv's client (pip install openenv==0.10.0 requests)",
)

pytestmark = pytest.mark.interop

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def embedded_server() -> Iterator[str]:
    """The address of a server with one slot."""
    python = os.environ.get("GYMSERVE_PYTHON", sys.executable)
    command = [python, "-m", "gymserve", "env", "--port", "0", "--capacity", "1"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GYMSERVE_")}
    with subprocess.Popen(command, cwd=ROOT, env=environ, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            line = process.stderr.readline()
            assert line.startswith("listening on http://127.0.0.1:"), line + process.stderr.read()
            yield line.removeprefix("listening on ").strip()
        finally:
            process.terminate()
            assert process.wait(timeout=10) == 0


def call(client: Any, tool: str, **arguments: Any) -> Any:
    return client.step({"type": "call_tool", "tool_name": tool, "arguments": arguments})


def play(client: Any, day: int) -> float:
    """A whole day, each hour as the generator's ramp allows; the day's reward."""
    begun = client.reset(day=day, episode_id="ep-1")
    assert begun.observation["day"] == day and not begun.done
    for hour in range(24):
        status = call(client, "status").observation["result"]["data"]
        assert status["hour"] == hour
        result = call(client, "dispatch", battery_mw=status["battery"]["min_mw"], generator_mw=0)
        assert result.observation["error"] is None
        assert result.done is (hour == 23)
    return float(result.reward)


def test_a_day_of_gridsim(embedded_server: str) -> None:
    with generic_client.GenericEnvClient(base_url=embedded_server).sync() as client:
        reward = play(client, 1000)
        assert 0 <= reward < 1
        assert client.state() == {"episode_id": "ep-1", "step_count": 48}
        assert play(client, 1000) == reward


def test_its_errors_reach_the_client_and_the_episode_goes_on(embedded_server: str) -> None:
    with generic_client.GenericEnvClient(base_url=embedded_server).sync() as client:
        client.reset()
        with pytest.raises(RuntimeError, match="VALIDATION_ERROR"):
            client.step({"dispatch": 9})
        with pytest.raises(RuntimeError, match="VALIDATION_ERROR"):
            client.reset(day=5000)
        refused = call(client, "dispatch", battery_mw=99, generator_mw=0)
        assert refused.observation["error"]["error_type"] == "invalid_args"
        assert "from -4 to 4" in refused.observation["error"]["message"]
        assert call(client, "status").observation["result"]["data"]["hour"] == 0


def test_a_slot_is_free_as_soon_as_the_client_has_closed(embedded_server: str) -> None:
    for day in range(5):
        with generic_client.GenericEnvClient(base_url=embedded_server).sync() as client:
            assert client.reset(day=day).observation["day"] == day


def test_a_full_server_is_understood(embedded_server: str) -> None:
    with generic_client.GenericEnvClient(base_url=embedded_server).sync() as seated:
        seated.reset()
        with generic_client.GenericEnvClient(base_url=embedded_server).sync() as turned_away:
            with pytest.raises(RuntimeError, match="CAPACITY_REACHED"):
                turned_away.reset()
        assert call(seated, "status").observation["error"] is None
