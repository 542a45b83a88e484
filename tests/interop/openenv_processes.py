"""The processes of an interop test: a real OpenEnv server, a gymserve before it, a client of that gymserve."""

import json
import os
import re
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx

GYMSERVE_PYTHON = os.environ.get("GYMSERVE_PYTHON", sys.executable)
SERVERS = Path(__file__).parent / "servers"

_START_SECONDS = 60.0
_STOP_SECONDS = 10.0
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # httpx would load every certificate there is, for each client anew


def eventually(condition: Callable[[], bool], *, within_seconds: float) -> None:
    """Wait until ``condition()`` holds; it must within that time."""
    deadline = time.monotonic() + within_seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_seconds:g} s"
        time.sleep(0.01)


class Server:
    """A process that says on its log where it listens."""

    def __init__(self, command: list[str], log: Path, announcement: str, environ: Mapping[str, str]) -> None:
        self._log = log
        self._announcement = re.compile(announcement)
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env={**clean_environ(), **environ}
            )
        self.url = ""

    def __enter__(self) -> Self:
        deadline = time.monotonic() + _START_SECONDS
        while (found := self._announcement.search(self.log())) is None:
            assert self.process.poll() is None, f"did not start:\n{self.log()}"
            assert time.monotonic() < deadline, f"did not start within {_START_SECONDS:g} s:\n{self.log()}"
            time.sleep(0.02)
        self.url = found[1]
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.stop()

    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """The process does nothing during the block; the kernel goes on to accept connections for it."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def stop(self) -> int:
        """End it as a supervisor would, by SIGTERM; the exit status."""
        self.process.terminate()
        try:
            return self.process.wait(_STOP_SECONDS)
        finally:
            self.process.kill()
            self.process.wait()


def clean_environ() -> dict[str, str]:
    """Ours without settings of gymserve."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GYMSERVE_")}


class OpenEnvServer(Server):
    """The app of one of our modules in `SERVERS` under uvicorn."""

    def __init__(
        self,
        app: str,
        directory: Path,
        *uvicorn_flags: str,
        capacity: int,
        session_timeout_seconds: float | None = None,
    ) -> None:
        self._ledger = directory / "ledger.jsonl"
        self._ledger.touch()
        environ = {"LEDGER": str(self._ledger), "CAPACITY": str(capacity)}
        if session_timeout_seconds is not None:
            environ["SESSION_TIMEOUT"] = str(session_timeout_seconds)
        super().__init__(
            [sys.executable, "-m", "uvicorn", f"{app}:app", "--app-dir", str(SERVERS), "--port", "0", *uvicorn_flags],
            directory / "openenv.log",
            r"Uvicorn running on (http://\S+)",
            environ,
        )

    def ledger(self) -> list[dict[str, Any]]:
        """What happened there: ``at`` (seconds), ``event``, details; of an environment, its number ``environment``."""
        return [json.loads(line) for line in self._ledger.read_text(encoding="utf-8").splitlines()]

    def mark(self) -> "Mark":
        """A beginning: wait until the environments of earlier tests are closed; what they did is not of interest."""
        eventually(lambda: not self._open_environments(), within_seconds=5)
        return Mark(self, len(self.ledger()), len(self.log()))

    def _open_environments(self) -> set[int]:
        ledger = [entry for entry in self.ledger() if "environment" in entry]
        closed = {entry["environment"] for entry in ledger if entry["event"] == "close"}
        return {entry["environment"] for entry in ledger} - closed


@dataclass(frozen=True)
class Mark:
    """A moment in the life of an OpenEnv server; reads only what came later."""

    server: OpenEnvServer
    entries: int
    characters: int

    def entries_since(self) -> list[dict[str, Any]]:
        return self.server.ledger()[self.entries :]

    def events(self) -> list[str]:
        return [entry["event"] for entry in self.entries_since()]

    def times(self, event: str) -> list[float]:
        return [entry["at"] for entry in self.entries_since() if entry["event"] == event]

    def log(self) -> str:
        return self.server.log()[self.characters :]


class Gymserve(Server):
    """gymserve before ``env``, of the interpreter that the variable GYMSERVE_PYTHON names."""

    def __init__(self, env: OpenEnvServer, log: Path, *flags: str) -> None:
        command = [GYMSERVE_PYTHON, "-m", "gymserve", "serve", "--env", env.url, "--port", "0", *flags]
        super().__init__(command, log, r"listening on (http://\S+)", {})

    def get(self, path: str) -> httpx.Response:
        return httpx.get(f"{self.url}{path}", trust_env=False, verify=_NO_TLS)

    @contextmanager
    def client(self, timeout_seconds: float = 30) -> Iterator["Client"]:
        """A new client, whose session is closed in the end, so that a failed test leaves no slot taken."""
        with httpx.Client(base_url=self.url, timeout=timeout_seconds, trust_env=False, verify=_NO_TLS) as http:
            try:
                yield Client(http)
            finally:
                if self.process.poll() is None:
                    http.post("/close_session")


class Client:
    """One rollout's client: it has the session's cookie."""

    def __init__(self, http: httpx.Client) -> None:
        self.http = http

    def seed(self, **reset_kwargs: Any) -> httpx.Response:
        return self.http.post("/seed_session", json={"reset_kwargs": reset_kwargs})

    def call(self, tool: str, **arguments: Any) -> httpx.Response:
        return self.http.post(f"/{tool}", json=arguments)

    def step(self, **action: Any) -> httpx.Response:
        return self.call("step", **action)

    def verify(self, **row: Any) -> dict[str, Any]:
        response = self.http.post("/verify", json=row, headers={"X-Gymserve-Masked": "flag"})  # httpx gets 503 else
        assert response.status_code == 200, response.text
        body: dict[str, Any] = response.json()
        return body
