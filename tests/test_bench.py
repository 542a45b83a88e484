"""The benchmark runs and loses nothing; what it measures is for a quiet machine."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_churn() -> None:
    command = [sys.executable, "bench/churn.py", "--seconds", "3", "--clients", "6", "--slots", "4", "--json"]
    done = subprocess.run(
        command, cwd=ROOT, env={"PYTHONPATH": str(ROOT), "PATH": ""}, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["finished"] > 0 and result["reclaimed"] == result["abandoned"]
    assert (result["lost"], result["masked"], result["slots_held"]) == (0, 0, 0)
