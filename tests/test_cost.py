"""What a call costs: the CPU that gymserve takes for it against that of the same proxying on bare Trio, h11 and
trio-websocket, on the same environment server, in rounds that take turns.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from processes import running

BENCH = Path(__file__).parents[1] / "bench"
ROUNDS = 4
ROLLOUTS = 16
CALLS = 16
MOST = 2.0
"""Times bare Trio. Measured on an idle machine: see bench/README.md."""


@contextmanager
def bare(env: str) -> Iterator[tuple[str, int]]:
    command = [sys.executable, str(BENCH / "bare.py"), env]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            said = process.stderr.readline()
            found = re.match(r"listening on (\S+)", said)
            assert found, said
            yield found[1], process.pid
        finally:
            process.kill()


def microseconds(url: str, pid: int) -> float:
    """Of CPU for a request of a round, in that process."""
    command = [sys.executable, str(BENCH / "load.py"), url, "--tool", "status", "--at-once", "8"]
    load = [*command, "--rollouts", str(ROLLOUTS), "--calls", str(CALLS), "--warm-up", "8", "--pid", str(pid)]
    done = subprocess.run(load, capture_output=True, text=True, timeout=60)
    report: Any = json.loads(done.stdout)
    assert (done.returncode, report["errors"], report["rollouts"]) == (0, {}, ROLLOUTS)
    return float(report["cpu"][0]["microseconds_per_request"])


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_call_costs_little_more_than_bare_trio():
    with (
        running("env", "--capacity", "32") as env,
        running("serve", "--env", env.url) as server,
        bare(env.url) as other,
    ):
        ours = []
        theirs = []
        for _ in range(ROUNDS):
            theirs.append(microseconds(*other))
            ours.append(microseconds(server.url, server.process.pid))
    # The least of each is the least disturbed; the median of ratios stands for a machine that was never quiet.
    ratio = min(min(ours) / min(theirs), median(our / their for our, their in zip(ours, theirs, strict=True)))
    assert ratio < MOST, f"{min(ours):.0f} us a request against {min(theirs):.0f}: {ratio:.2f} times"
