"""The processes of verifiers: ``vf-eval``, and the driver for rollouts one by one; and those of gymserve.

Both prepare each rollout's program with uv, from an index. Theirs is a stand-in, in a home of their own, that says that
the packages are there: the program runs in the environment of the tests.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

import httpx
from openenv_processes import GYMSERVE_PYTHON, Gymserve, Server

EVAL_SECONDS = 480.0
START_SECONDS = 180.0
ROLLOUT_SECONDS = 60.0
LOG_CHARACTERS = 20_000

_DRIVER = Path(__file__).with_name("verifiers_driver.py")
_LISTENING = r"listening on (http://\S+)"
_UV = """#!/bin/sh
case "$*" in
  *--help*) echo --script ;;
  "python find"*) echo "$VF_TEST_PYTHON" ;;
esac
"""


class Environments(Server):
    """``gymserve env``: GridSim, on as many slots and with such faults as the flags say."""

    def __init__(self, log: Path, *flags: str) -> None:
        super().__init__([GYMSERVE_PYTHON, "-m", "gymserve", "env", "--port", "0", *flags], log, _LISTENING, {})

    def episodes(self) -> dict[str, int]:
        """How many there are, may be and have been: ``active``, ``max``, ``opened``, ``closed``."""
        response = httpx.get(f"{self.url}/gymserve/episodes", trust_env=False, verify=False)
        counts: dict[str, int] = response.json()
        return counts


class LoggedGymserve(Gymserve):
    """``gymserve serve``, before its own GridSim if no ``--env`` is among the flags."""

    def __init__(self, log: Path, *flags: str) -> None:
        command = [GYMSERVE_PYTHON, "-m", "gymserve", "serve", "--port", "0", "--log-format", "json", *flags]
        Server.__init__(self, command, log, _LISTENING, {})

    def events(self, event: str) -> list[dict[str, Any]]:
        """The lines of the log about that."""
        lines = [json.loads(line) for line in self.log().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == event]

    def ended(self, label: str) -> dict[str, Any]:
        """How the only session of that label ended, and ``at`` what time in seconds since the epoch."""
        [line] = [line for line in self.events("session ended") if line.get("label") == label]
        return {**line, "at": datetime.fromisoformat(line["timestamp"]).timestamp()}

    def states(self) -> dict[str | None, str]:
        """Of the sessions that there are and do not wait in the line, by their labels."""
        return {session["label"]: session["state"] for session in self._sessions()["sessions"]}

    def waiting(self) -> int:
        """How many seeds wait in the line."""
        count: int = self._sessions()["waiting"]
        return count

    def held(self) -> int:
        """How many slots of the environment server are taken."""
        [server] = self._sessions()["servers"]
        count: int = server["held"]
        return count

    def has_nothing_left(self) -> bool:
        return (self.states(), self.waiting(), self.held()) == ({}, 0, 0)

    def _sessions(self) -> dict[str, Any]:
        sessions: dict[str, Any] = self.get("/gymserve/sessions").json()
        return sessions


def write_rows(path: Path, *flags: str) -> list[dict[str, Any]]:
    """What ``gymserve rows`` writes to ``path``."""
    command = [GYMSERVE_PYTHON, "-m", "gymserve", "rows", "--output", str(path), *flags]
    subprocess.run(command, env=_environ(), check=True, timeout=60)
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_rows_without_tools(path: Path, *flags: str) -> list[dict[str, Any]]:
    """The same, but for the tools that they list: none."""
    rows = write_rows(path, *flags)
    for row in rows:
        row["responses_create_params"]["tools"] = []
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return rows


def make_home(directory: Path) -> Path:
    """A home for verifiers in which nothing has to be downloaded."""
    for name in ("uv", "pip"):
        program = directory / ".local" / "bin" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(_UV, encoding="utf-8")
        program.chmod(0o755)
    return directory


def _environ_of(home: Path) -> dict[str, str]:
    return _environ() | {"HOME": str(home), "VF_TEST_PYTHON": sys.executable, "FAKE_KEY": "none"}


def _environ() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("GYMSERVE_")}


def read_traces(directory: Path) -> list[dict[str, Any]]:
    """The rollouts in ``traces.jsonl`` of that directory, in the order in which they ended."""
    file = directory / "traces.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [trace for line in lines for trace in json.loads(line)["traces"]]


@dataclass(frozen=True)
class Evaluation:
    """A run of ``vf-eval``. ``task`` is the section of its file that has gymserve's URL, headers and timeout."""

    dataset: Path
    model_url: str
    task: Mapping[str, Any]
    rollouts_per_row: int = 1
    at_once: int = 1

    def run(self, directory: Path, home: Path, gymserve: Server) -> list[dict[str, Any]]:
        """Its traces. Where ``vf-eval`` fails or does not end, so does this, with the end of both logs."""
        config = directory / "eval.toml"
        config.write_text(self._toml(directory), encoding="utf-8")
        log = directory / "eval.log"
        command = [str(Path(sys.executable).with_name("vf-eval")), "@", str(config), "--no-rich", "--clean"]
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=_environ_of(home), cwd=directory
            )
        status = _exit_status(process, EVAL_SECONDS)
        assert status == 0, f"{log.read_text(encoding='utf-8')[-LOG_CHARACTERS:]}\n\n{gymserve.log()[-LOG_CHARACTERS:]}"
        return read_traces(directory / "run")

    def _toml(self, directory: Path) -> str:
        sections: dict[str, Mapping[str, Any]] = {
            "run": {"name": "run"},
            "client": {"base_url": self.model_url, "api_key_var": "FAKE_KEY"},
            "env.taskset": {"id": "nemo-gym", "dataset": str(self.dataset)},
            "env.taskset.task": self.task,
            "env.agent.harness": {"id": "null"},
            "env.agent.runtime": {"type": "subprocess"},
        }
        top = {
            "model": "trader",
            "push": False,
            "output_dir": str(directory),
            "num_rollouts": self.rollouts_per_row,
            "max_concurrent": self.at_once,
        }
        lines = [_toml_table(top), *(f"[{name}]\n{_toml_table(table)}" for name, table in sections.items())]
        return "\n".join(lines)


def _toml_table(table: Mapping[str, Any]) -> str:
    return "".join(f"{key} = {_toml_value(value)}\n" for key, value in table.items())


def _toml_value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml_value(of_key)}" for key, of_key in value.items()) + "}"
    return json.dumps(value)  # strings, numbers and truths are written alike in TOML and JSON


def _exit_status(process: "subprocess.Popen[bytes]", within_seconds: float) -> int | None:
    """None where it had to be ended."""
    try:
        return process.wait(within_seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end(process)


def _end(process: "subprocess.Popen[Any]") -> None:
    """By SIGTERM, at which verifiers ends the programs of its rollouts too."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Driver:
    """verifiers_driver.py as a process: rollouts that can be started, cancelled and waited for."""

    def __init__(self, directory: Path, home: Path, model_url: str) -> None:
        self.directory = directory
        self._numbers = count()
        self._log = directory / "driver.log"
        self._told: list[dict[str, str]] = []
        self._news = threading.Condition()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(_DRIVER), str(directory), model_url],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=_environ_of(home),
                cwd=directory,
                text=True,
            )
        self._reader = threading.Thread(target=self._listen)

    @contextmanager
    def running(self) -> Iterator["Driver"]:
        self._reader.start()
        try:
            yield self
        finally:
            _end(self._process)
            self._reader.join()
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe is not None
                pipe.close()

    def wait_until_serving(self) -> None:
        self.wait_for({"serving": "nemo-gym"}, START_SECONDS)

    def start(self, dataset: Path, url: str, *, model: str, **task: Any) -> "Rollout":
        """Begin a rollout of the only row of ``dataset`` at ``url``; it goes on without us."""
        rollout = Rollout(self, f"rollout-{next(self._numbers)}")
        self.order(start=rollout.name, dataset=str(dataset), model=model, task={"resources_url": url, **task})
        return rollout

    def order(self, **order: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._news:
                self._told.append(json.loads(line))
                self._news.notify_all()

    def wait_for(self, words: dict[str, str], within_seconds: float) -> None:
        deadline = time.monotonic() + within_seconds
        with self._news:
            while words not in self._told:
                left = deadline - time.monotonic()
                assert left > 0 and self._process.poll() is None, f"never told {words}:\n{self._log_text()}"
                self._news.wait(min(left, 1))

    def _log_text(self) -> str:
        return self._log.read_text(encoding="utf-8")[-LOG_CHARACTERS:]


@dataclass(frozen=True)
class Rollout:
    """One that the driver was told to run."""

    driver: Driver
    name: str

    def cancel(self) -> None:
        """As an env server does at prime-rl's behest; it is gone on return."""
        self.driver.order(cancel=self.name)
        self.driver.wait_for({"cancelled": self.name}, ROLLOUT_SECONDS)

    def trace(self) -> dict[str, Any]:
        """What is kept of it, when it has ended by itself."""
        self.driver.wait_for({"finished": self.name}, ROLLOUT_SECONDS)
        [trace] = self._traces()
        return trace

    @property
    def left_no_trace(self) -> bool:
        return self._traces() == []

    def _traces(self) -> list[dict[str, Any]]:
        return [trace for trace in read_traces(self.driver.directory) if trace["info"]["name"] == self.name]
