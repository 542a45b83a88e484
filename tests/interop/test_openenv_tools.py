"""Rollouts through gymserve on a real OpenEnv server whose environment is a set of MCP tools.

How to run them is in test_openenv_rollouts.py.
"""

from collections.abc import Callable
from typing import Any

import pytest
from openenv_processes import Client, Gymserve, OpenEnvServer, eventually

NewClient = Callable[[Gymserve], Client]


def test_a_whole_rollout_of_tools(mcp_server: OpenEnvServer, mcp_gymserve: Gymserve, new_client: NewClient) -> None:
    mark = mcp_server.mark()
    client = new_client(mcp_gymserve)
    assert client.seed(seed=7).status_code == 200
    assert mark.entries_since()[0]["kwargs"] == {"seed": 7}
    first = {"metadata": {"status": "ready"}, "reward": None, "done": False}
    assert client.call("observation").json() == {"result": first, "error": None}

    assert client.call("add", a=2, b=3).json() == {"result": 5, "error": None}
    assert client.call("verdict").json() == {"result": "well done", "error": None}
    assert client.call("add", a=2).status_code == 409
    verified = client.verify(task="sums")
    assert (verified["task"], verified["reward"], verified["steps"], verified["done"]) == ("sums", 0.5, 2, True)
    eventually(lambda: mark.events() == ["reset", "step", "step", "close"], within_seconds=1)
    assert "Traceback" not in mark.log()


@pytest.mark.parametrize(
    ("tool", "arguments", "result"),
    [
        pytest.param("add", {"a": 41}, 42, id="data"),
        pytest.param("divide", {"a": 7, "b": 2}, {"quotient": 3, "remainder": 1}, id="an object"),
        pytest.param("describe", {"topic": "trees"}, "about trees", id="text only"),
        pytest.param("env_verify", {"claim": "2 + 2 = 4"}, "2 + 2 = 4: true", id="a tool named as a route"),
    ],
)
def test_a_tool_answers_with_its_result(
    tool: str, arguments: dict[str, Any], result: Any, mcp_gymserve: Gymserve, new_client: NewClient
) -> None:
    client = new_client(mcp_gymserve)
    client.seed()
    answered = client.call(tool, **arguments)
    assert (answered.status_code, answered.json()) == (200, {"result": result, "error": None})


def test_a_tool_that_fails_answers_with_its_error(mcp_gymserve: Gymserve, new_client: NewClient) -> None:
    client = new_client(mcp_gymserve)
    client.seed()
    failed = client.call("fail", message="no such planet")
    assert (failed.status_code, failed.json()["result"]) == (200, None)
    assert "no such planet" in failed.json()["error"]["message"]
    wrong = client.call("add", a="two")
    assert (wrong.status_code, wrong.json()["result"]) == (200, None)
    assert wrong.json()["error"]["message"]
    assert client.call("add", a=1).json() == {"result": 2, "error": None}


def test_an_unknown_tool_is_a_404_that_names_the_known(mcp_gymserve: Gymserve, new_client: NewClient) -> None:
    client = new_client(mcp_gymserve)
    client.seed()
    unknown = client.call("subtract", a=1)
    known = "add, describe, divide, env_verify, fail, observation, paint, verdict"
    detail = f"there is no tool 'subtract'; the tools are {known}"
    assert (unknown.status_code, unknown.json()) == (404, {"error": "unknown_tool", "detail": detail, "done": False})


def test_a_result_of_20_megabytes_passes(mcp_gymserve: Gymserve, new_client: NewClient) -> None:
    client = new_client(mcp_gymserve)
    client.seed()
    assert len(client.call("paint", size_bytes=20_000_000).json()["result"]) == 20_000_000
