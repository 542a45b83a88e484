"""What ``gymserve probe`` finds out: of a good server, and of each fault that one can be told to have."""

import json
import socket
import subprocess
from typing import Any

import pytest
import trio
from counting import Counting
from processes import command, environ, running
from stage import ADDRESS, MemoryNetwork

from gymserve.gridsim.faults import parse_fault
from gymserve.gridsim.grid import GridSim
from gymserve.gridsim.server import EnvironmentServer
from gymserve.probing import Probe, Prober

TIMEOUT_SECONDS = 10


async def probed(environment: Any, *faults: str, capacity: int = 2, episodes: int = 3) -> Probe:
    server = EnvironmentServer(environment, capacity=capacity, faults=[parse_fault(fault) for fault in faults])
    async with trio.open_nursery() as nursery:
        network = MemoryNetwork(nursery, server, connect_timeout_seconds=TIMEOUT_SECONDS)
        probe = await Prober(network, ADDRESS, (), timeout_seconds=TIMEOUT_SECONDS).probe(episodes)
        await trio.sleep(TIMEOUT_SECONDS)  # an environment notices only then that nobody waits for it
        assert server.episodes["active"] == 0
        nursery.cancel_scope.cancel()
    return probe


async def test_a_good_server_with_one_action(autojump_clock):
    probe = await probed(Counting)
    assert (probe.is_openenv, probe.is_mcp, probe.fields, probe.tools) == (True, False, ["by"], None)
    assert (probe.understands_keepalive, probe.failures, probe.is_good) == (True, {}, True)
    assert (probe.handshake_seconds, probe.reset_seconds, probe.close_seconds) == ([0, 0, 0],) * 3


async def test_a_good_server_with_tools(autojump_clock):
    probe = await probed(GridSim, episodes=1)
    assert (probe.is_mcp, probe.fields, probe.tools) == (True, None, ["forecast", "status", "dispatch"])


@pytest.mark.parametrize(
    ("fault", "step", "says", "passes", "at_seconds"),
    [
        ("full", "room", "it has no room: 2 of 2 slots are taken", True, 0),
        ("slow-handshake:12", "handshake", "not done within 10 s", True, 10),
        ("silent-handshake:60", "schema", "not done within 10 s", True, 10),
        ("slow-reset:12", "reset", "not done within 10 s", True, 10),
        ("failed-reset:3", "reset", "failed in 3 of 3 episodes: this reset was told to fail", False, 0),
        ("failed-reset:1", "reset", "failed in 1 of 3 episodes: this reset was told to fail", True, 0),
        ("slow-close:12", "close", "not done within 10 s", True, 10),
        ("garbage:1", "room", "the server broke the protocol: not JSON: '<html>502 Bad Gateway</html>'", False, 0),
        ("garbage:2", "reset", "the server broke the protocol: not JSON: '<html>502 Bad Gateway</html>'", False, 0),
    ],
)
async def test_a_fault_is_told_where_it_is_met(autojump_clock, fault, step, says, passes, at_seconds):
    probe = await probed(Counting, fault)
    assert {name: (str(found), found.passes) for name, found in probe.failures.items()} == {step: (says, passes)}
    assert (probe.passes, trio.current_time()) == (passes, at_seconds + TIMEOUT_SECONDS)


@pytest.mark.parametrize(("fault", "name"), [("slow-reset:3", "reset"), ("slow-close:3", "close")])
async def test_what_is_slow_is_measured(autojump_clock, fault, name):
    probe = await probed(Counting, fault)
    assert (getattr(probe, f"{name}_seconds"), probe.is_good) == ([3, 3, 3], True)


async def test_a_step_is_not_made(autojump_clock):
    assert (await probed(Counting, "drop-mid-step:1")).is_good


async def test_what_is_no_environment_server_is_told(autojump_clock):
    async with trio.open_nursery() as nursery:
        network = MemoryNetwork(nursery, EnvironmentServer(Counting, capacity=1), connect_timeout_seconds=10)
        network.refuses = True
        probe = await Prober(network, ADDRESS, (), timeout_seconds=10).probe(1)
        assert (probe.is_openenv, list(probe.failures), probe.passes) == (False, ["schema"], False)


# -- the command -----------------------------------------------------------------------------------------------------


def told(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(command("probe", *arguments), env=environ(), capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_the_command_tells_it_in_words_and_in_json():
    with running("env", "--capacity", "1", "--fault", "slow-step:1") as env:
        status, words = told(env.url)
        assert (status, words.splitlines()[0]) == (0, f"{env.url} is an OpenEnv server")
        assert "  environment MCP, with 3 tools: forecast, status, dispatch\n  room        yes\n" in words
        assert words.count("(median of 3)") == 3
        status, document = told(env.url, "-n", "1", "--json")
        assert (status, json.loads(document)["ok"], json.loads(document)["failures"]) == (0, True, {})


def test_the_commands_status_tells_a_busy_server_from_a_wrong_one():
    with running("env", "--fault", "full") as env:
        status, words = told(env.url)
        assert (status, words.splitlines()[-1]) == (3, "gymserve waits that out, or tries again")
        assert "  room        busy: it has no room: 8 of 8 slots are taken\n" in words
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        status, words = told(f"127.0.0.1:{unused.getsockname()[1]}")
    assert (status, words.splitlines()[-1]) == (1, "gymserve cannot serve this as it is")
    assert "Connection refused" in words
