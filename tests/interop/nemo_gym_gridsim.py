"""A gymserve with the embedded GridSim, its rows, and days of which it is known what they are worth."""

import json
import os
import ssl
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import httpx
from nemo_gym_model import ToolCall, call
from openenv_processes import GYMSERVE_PYTHON, Client, Server, eventually

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # httpx would load every certificate there is, for each client anew
HOURS = 24
SLOTS = 8
_OPTIMUM = """
import json, sys
from gymserve.gridsim.optimum import optimum
print(json.dumps([[hour.battery_mw, hour.generator_mw] for hour in optimum(int(sys.argv[1])).dispatches]))
"""


class GridGymserve(Server):
    """Of the interpreter that the variable GYMSERVE_PYTHON names."""

    def __init__(self, log: Path, *flags: str) -> None:
        command = [GYMSERVE_PYTHON, "-m", "gymserve", "serve", "--port", "0", *flags]
        super().__init__(command, log, r"listening on (http://\S+)", {})

    @property
    def port(self) -> int:
        return httpx.URL(self.url).port or 0

    @contextmanager
    def client(self) -> Iterator[Client]:
        with httpx.Client(base_url=self.url, timeout=30, trust_env=False, verify=NO_TLS) as http:
            yield Client(http)

    def sessions(self) -> list[dict[str, Any]]:
        sessions: list[dict[str, Any]] = self._status()["sessions"]
        return sessions

    def occupancy(self) -> tuple[int, int]:
        """How many slots are held, and how many sessions wait for one."""
        status = self._status()
        return status["servers"][0]["held"], status["waiting"]

    def assert_free(self, within_seconds: float = 2) -> None:
        """Every slot is free, and nobody waits for one."""
        eventually(lambda: self.occupancy() == (0, 0), within_seconds=within_seconds)

    def assert_closed(self) -> None:
        """There is no session either, which outlives its slot until it is verified or closed."""
        eventually(lambda: self.sessions() == [], within_seconds=2)
        self.assert_free()

    def _status(self) -> dict[str, Any]:
        with httpx.Client(base_url=self.url, timeout=10, trust_env=False, verify=NO_TLS) as http:
            status: dict[str, Any] = http.get("/gymserve/sessions").json()
            return status


@dataclass(frozen=True)
class Played:
    """A day as a client of gymserve's own sees it: each tool's answer, and what verify made of it."""

    answers: Sequence[str]
    verified: Mapping[str, Any]


def played(gymserve: GridGymserve, day: int, calls: Sequence[ToolCall]) -> Played:
    with gymserve.client() as client:
        assert client.seed(day=day).status_code == 200
        answers = [client.http.post(f"/{tool.name}", content=tool.arguments).text for tool in calls]
        return Played(answers, client.verify())


@cache
def rows() -> Sequence[Mapping[str, Any]]:
    """The rows of the first evaluation days, 1000 and on."""
    printed = _printed("-m", "gymserve", "rows", "--split", "eval", "--limit", "4")
    return [json.loads(line) for line in printed.splitlines()]


@cache
def optimal(day: int) -> Sequence[ToolCall]:
    """The dispatches of a day that are worth 1."""
    return [dispatch(*hour) for hour in json.loads(_printed("-c", _OPTIMUM, str(day)))]


IDLE = [call("dispatch", battery_mw=0, generator_mw=0)] * HOURS  # worth 0 on any day
STEADY = [call("dispatch", battery_mw=0, generator_mw=2)] * HOURS  # worth something in between, or less than 0


def dispatch(battery_mw: int, generator_mw: int) -> ToolCall:
    return call("dispatch", battery_mw=battery_mw, generator_mw=generator_mw)


def _printed(*arguments: str) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GYMSERVE_")}
    done = subprocess.run(
        [GYMSERVE_PYTHON, *arguments], env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
