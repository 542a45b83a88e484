"""``gymserve probe`` before real OpenEnv servers.

How to run it is in test_openenv_rollouts.py.
"""

import json
import subprocess
from typing import Any

from openenv_processes import GYMSERVE_PYTHON, OpenEnvServer, clean_environ, eventually


def probed(server: OpenEnvServer, *flags: str) -> tuple[int, Any]:
    command = [GYMSERVE_PYTHON, "-m", "gymserve", "probe", server.url, "--json", *flags]
    done = subprocess.run(command, env=clean_environ(), capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def test_a_step_environment(step_server: OpenEnvServer) -> None:
    mark = step_server.mark()
    status, found = probed(step_server, "-n", "2")
    assert (status, found["ok"], found["failures"]) == (0, True, {})
    assert (found["mcp"], found["tools"], found["keepalive_understood"]) == (False, None, True)
    assert found["action_fields"]
    assert all(0 < found[f"{name}_seconds"] < 10 for name in ("handshake", "reset", "close"))
    eventually(lambda: mark.events() == ["reset", "close"] * 2, within_seconds=5)


def test_an_mcp_environment(mcp_server: OpenEnvServer) -> None:
    status, found = probed(mcp_server, "-n", "1")
    assert (status, found["mcp"], found["action_fields"]) == (0, True, None)
    assert {"add", "divide", "describe"} <= set(found["tools"])
