"""The load that all benches share, on a real gymserve: what it reports is what there was."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from processes import running

LOAD = Path(__file__).parents[2] / "bench" / "load.py"


def load(url: str, *options: str) -> tuple[int, Any]:
    command = [sys.executable, str(LOAD), url, "--at-once", "4", "--calls", "2", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.returncode, json.loads(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="waits by epoll")
def test_a_load_tells_what_there_was():
    with running("serve") as server:
        for options in ([], ["--close"], ["--rate", "50"]):
            status, report = load(server.url, "--tool", "status", "--rollouts", "6", *options)
            assert (status, report["rollouts"], report["requests"], report["errors"]) == (0, 6, 24, {})
            assert set(report["milliseconds"]) == {"seed", "call", "verify", "all"}
        assert report["seconds"] >= 11 / 50  # twelve calls, evenly
        status, report = load(server.url, "--tool", "nope", "--rollouts", "3")
        [(sentence, times)] = report["errors"].items()
        assert (status, report["rollouts"], times) == (1, 0, 3)
        assert sentence.startswith("404 to a call: ")
