"""The demo as people meet it: on a terminal, in a pipe, and interrupted. Its plain output is the README's test."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
COMMAND = [sys.executable, "-m", "gymserve", "demo"]
LIMIT_SECONDS = 60  # what the demo promises
KEYS = [
    "finished",
    "abandoned",
    "reclaimed",
    "masked",
    "lost",
    "mean_reward",
    "latest_reclaim_overshoot_seconds",
    "slots_held",
]


def environment() -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GYMSERVE_")}
    return {**inherited, "TERM": "xterm-256color", "COLUMNS": "100"}


def on_a_terminal(*arguments: str) -> tuple[int, str]:
    """Exit status of the demo on a pseudo-terminal, and all that it wrote there."""
    ours, theirs = pty.openpty()
    with subprocess.Popen([*COMMAND, *arguments], cwd=ROOT, env=environment(), stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        shown = b""
        try:
            while data := os.read(ours, 65536):
                shown += data
        except OSError:  # how Linux says that the other side of a pseudo-terminal has closed
            pass
        os.close(ours)
        return process.wait(timeout=LIMIT_SECONDS), shown.decode()


def test_on_a_terminal_there_is_a_bar_and_then_the_table() -> None:
    started = time.monotonic()
    status, shown = on_a_terminal()
    assert status == 0, shown
    assert time.monotonic() - started < LIMIT_SECONDS
    assert "\x1b[" in shown and re.search(r"rollouts .*64/64", shown)  # drawn again and again, to its end
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    for row in ("finished +│ +52", "abandoned +│ +12", "reclaimed +│ +12", "lost +│ +0", "slots still held +│ +0"):
        assert re.search(row, plain), plain


def test_in_a_pipe_json_is_all_there_is() -> None:
    done = subprocess.run(
        [*COMMAND, "--json"], cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=LIMIT_SECONDS
    )
    assert done.returncode == 0
    assert done.stderr == "16 of 64 rollouts\n32 of 64 rollouts\n48 of 64 rollouts\n64 of 64 rollouts\n"
    report = json.loads(done.stdout)
    assert list(report) == KEYS
    assert 0.5 < report.pop("mean_reward") < 0.7
    assert 0 <= report.pop("latest_reclaim_overshoot_seconds") < 1
    assert report == {"finished": 52, "abandoned": 12, "reclaimed": 12, "masked": 0, "lost": 0, "slots_held": 0}


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_ends_it_without_a_word(number: int, status: int) -> None:
    with subprocess.Popen(
        COMMAND, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        time.sleep(5)
        process.send_signal(number)
        shown, told = process.communicate(timeout=LIMIT_SECONDS)
        assert (process.returncode, shown) == (status, "")
        assert "Traceback" not in told
