"""One round of load on one arm: ``bench/load.py`` in a process of its own, and the processor time of the servers."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from comparing.fleet import Arm

_LOAD = Path(__file__).parents[1] / "load.py"
_SETTLING_SECONDS = 0.2  # goodbyes go on after the last answer, and belong to what was asked
_VERIFY = {
    "responses_create_params": {"input": [{"role": "user", "content": "Reach the exit."}]},
    "response": {
        "id": "resp_1",
        "created_at": 1764460800.0,
        "model": "policy",
        "object": "response",
        "output": [
            {
                "id": "msg_1",
                "type": "message",
                "role": "assistant",
                "status": "completed",
                "content": [{"type": "output_text", "text": "Done.", "annotations": []}],
            }
        ],
        "parallel_tool_calls": False,
        "tool_choice": "auto",
        "tools": [],
    },
}
"""The smallest row that NeMo Gym accepts to be verified."""


class LoadFailed(Exception):
    """The load generator failed, or requests of it did."""


@dataclass(frozen=True, slots=True)
class Work:
    """What is played on an arm in a round: rollouts of a seed, ``calls`` calls and a verify.

    :param rate: calls a second in all; None is as fast as they are answered.
    :param closes: each request has a connection of its own.
    """

    rollouts: int
    calls: int = 8
    at_once: int = 64
    tool: str = "step"
    arguments: str = '{"direction": 1}'
    rate: float | None = None
    closes: bool = False

    def command(self, url: str) -> list[str]:
        flags = {
            "--rollouts": self.rollouts,
            "--calls": self.calls,
            "--at-once": self.at_once,
            "--tool": self.tool,
            "--body": self.arguments,
            "--verify": json.dumps(_VERIFY),
        }
        return [
            *(sys.executable, str(_LOAD), url),
            *(text for name, value in flags.items() for text in (name, str(value))),
            *(() if self.rate is None else ("--rate", str(self.rate))),
            *(("--close",) if self.closes else ()),
        ]


@dataclass(frozen=True, slots=True)
class Outcome:
    """A round's figures. CPU is of the server alone; ``behind_us`` is that of the OpenEnv server behind it."""

    rollouts_per_second: float
    calls_per_second: float
    cpu_us: float
    behind_us: float | None
    p50_ms: float
    p99_ms: float


def measured(arm: Arm, work: Work) -> Outcome:
    """:raises LoadFailed: a request failed; there are no figures of a comparison then."""
    servers = [server for server in (arm.server, arm.behind) if server is not None]
    before = [server.cpu_seconds() for server in servers]
    report = loaded(work.command(arm.url))
    time.sleep(_SETTLING_SECONDS)
    spent = [server.cpu_seconds() - start for server, start in zip(servers, before, strict=True)]
    per_request = [1e6 * seconds / report["requests"] for seconds in spent]
    return Outcome(
        rollouts_per_second=report["rollouts_per_second"],
        calls_per_second=report["rollouts"] * work.calls / report["seconds"],
        cpu_us=per_request[0],
        behind_us=per_request[1] if len(per_request) > 1 else None,
        p50_ms=report["milliseconds"]["call"]["p50"],
        p99_ms=report["milliseconds"]["call"]["p99"],
    )


def loaded(command: Sequence[str]) -> dict[str, Any]:
    """What the load generator tells. :raises LoadFailed"""
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        report: dict[str, Any] = json.loads(ended.stdout)
    except ValueError:
        raise LoadFailed(f"{command}: status {ended.returncode}\n{ended.stderr}") from None
    if report["errors"]:
        raise LoadFailed(f"requests failed: {report['errors']}")
    return report
