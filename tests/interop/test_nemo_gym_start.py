"""``gym env start`` with the directory that ``gymserve nemo-gym`` has written: it starts, is found, and ends in time.

All of NeMo Gym is real, Ray too. One thing is done beforehand: the virtual environments that it would make of an index
for each of its servers are there already, as its ``skip_venv_if_present`` has it. That of gymserve runs the interpreter
of GYMSERVE_PYTHON.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("nemo_gym")

import psutil  # type: ignore[import-untyped]
from openenv_processes import GYMSERVE_PYTHON, eventually

ROOT = Path(__file__).parents[2]
NO_MODEL = "http://127.0.0.1:9/v1"

_START_SECONDS = 300.0  # Ray, four interpreters with all that NeMo Gym imports, and looks every three seconds
_STOP_SECONDS = 60.0
_IDLE_SECONDS = 77
_POLL_SECONDS = 0.5
_KILL_SECONDS = 1.0
_NEMO_GYM_SERVERS = (
    "responses_api_agents/simple_agent",
    "responses_api_agents/gymnasium_agent",
    "environment_servers/legacy_agent",
    "responses_api_models/openai_model",
)
_READY = re.compile(r"All 4 / 4 servers ready!")
_KILLED = re.compile(r"Some processes \((.*?)\) didn't shutdown")


class NemoGym:
    """A running ``gym env start``."""

    def __init__(self, process: "subprocess.Popen[bytes]", output: Path, head: str) -> None:
        self.process = process
        self._output = output
        self._head = head

    @property
    def output(self) -> str:
        return self._output.read_text(encoding="utf-8", errors="replace")

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not _READY.search(self.output):
            assert self.process.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.2)

    def url_of(self, instance: str) -> str:
        """Where NeMo Gym has told it to listen."""
        instances = httpx.get(f"{self._head}/server_instances", trust_env=False).json()
        return next(str(each["url"]) for each in instances if each["config_path"] == instance)


def make_virtual_environments(directory: Path) -> None:
    for server in _NEMO_GYM_SERVERS:
        (directory / server).mkdir(parents=True)
        (directory / server / ".venv").symlink_to(sys.prefix)
    programs = directory / "resources_servers" / "gymserve" / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "activate").touch()
    (programs / "python").write_text(f'#!/bin/sh\nexec {GYMSERVE_PYTHON} "$@"\n')
    (programs / "python").chmod(0o755)


def borrow_omegaconf(directory: Path) -> Path:
    """nemo-gym, and so omegaconf, is in every environment that NeMo Gym makes, but not in that of GYMSERVE_PYTHON."""
    directory.mkdir()
    for package in ("omegaconf", "antlr4"):
        spec = find_spec(package)
        assert spec is not None and spec.origin is not None
        (directory / package).symlink_to(Path(spec.origin).parent)
    return directory


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@contextmanager
def started(directory: Path, agent: str, **settings: Any) -> Iterator[NemoGym]:
    """``gym env start`` as the command's output tells, with ``settings`` of NeMo Gym beside; ready."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GYMSERVE_")}
    environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{borrow_omegaconf(directory / 'borrowed')}"
    environ["IDLE_SECONDS"] = str(_IDLE_SECONDS)
    gym = directory / "gym"
    subprocess.run(
        [GYMSERVE_PYTHON, "-m", "gymserve", "nemo-gym", gym], env=environ, stdout=subprocess.DEVNULL, check=True
    )
    make_virtual_environments(directory / "venvs")
    head_port = free_port()
    settings |= {
        "uv_venv_dir": directory / "venvs",
        "skip_venv_if_present": "true",
        "results_dir": directory / "results",
        "cache_dir": directory / "cache",
        "model_endpoint_readiness_timeout_seconds": 0,
        "head_server.port": head_port,
    }
    config = gym / "resources_servers" / "gymserve" / "configs" / f"gymserve_{agent}.yaml"
    command = [f"{sys.prefix}/bin/gym", "env", "start", "--config", str(config), "--search-dir", str(gym)]
    model = ["--model-type", "openai_model", "--model", "m", "--model-url", NO_MODEL, "--model-api-key", "none"]
    output = directory / "output"
    ray = tempfile.mkdtemp()  # whose name must be short: Ray's sockets are in it
    with output.open("wb") as file:
        process = subprocess.Popen(
            [*command, *model, *(f"++{key}={value}" for key, value in settings.items())],
            env={**environ, "RAY_TMPDIR": ray, "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"},
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
    started_by_us = [psutil.Process(process.pid)]
    try:
        launcher = NemoGym(process, output, f"http://127.0.0.1:{head_port}")
        launcher.wait_until_ready()
        started_by_us += started_by_us[0].children(recursive=True)
        yield launcher
    finally:
        if process.poll() is None:
            started_by_us += started_by_us[0].children(recursive=True)
        end(started_by_us)
        process.wait()
        shutil.rmtree(ray, ignore_errors=True)


def end(processes: list[psutil.Process]) -> None:
    for process in processes:
        try:
            process.kill()  # psutil looks first whether it is still the same process
        except psutil.NoSuchProcess:
            pass


def is_listening(url: str) -> bool:
    try:
        httpx.get(url, trust_env=False, timeout=2)
    except httpx.TransportError:
        return False
    return True


def seed(url: str) -> None:
    assert httpx.get(url, trust_env=False).json() == {"status": "ok"}
    assert httpx.post(f"{url}/seed_session", json={}, trust_env=False, timeout=30).status_code == 200


def test_it_serves_as_configured_and_ends_before_nemo_gym_kills(tmp_path: Path) -> None:
    setting = {"gymserve.resources_servers.gymserve.idle_timeout": "${oc.env:IDLE_SECONDS}"}
    with started(tmp_path, "simple_agent", **setting) as launcher:
        url = launcher.url_of("gymserve")
        seed(url)
        [session] = httpx.get(f"{url}/gymserve/sessions", trust_env=False).json()["sessions"]
        assert _IDLE_SECONDS - 10 < session["idle_deadline_in_seconds"] <= _IDLE_SECONDS

        launcher.process.send_signal(signal.SIGINT)
        launcher.process.wait(_STOP_SECONDS)
        assert not is_listening(url)
        killed = _KILLED.search(launcher.output)
        assert "gymserve" not in (killed[1].split(", ") if killed else [])
        assert "reason='gymserve shut down'" in launcher.output  # of the session, which had its goodbye


def test_with_a_log_directory_it_ends_when_nemo_gym_is_killed(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    with started(tmp_path, "gymnasium_agent", nemo_gym_log_dir=logs) as launcher:
        url = launcher.url_of("gymserve")
        seed(url)
        launcher.process.kill()
        launcher.process.wait()
        eventually(lambda: not is_listening(url), within_seconds=_POLL_SECONDS + _KILL_SECONDS)
        assert "reason='gymserve shut down'" in (logs / "gymserve.log").read_text()
