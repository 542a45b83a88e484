"""The churn in real time: ``gymserve serve`` and an environment server as processes of their own, on loopback."""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import trio

from churning import environment
from churning.crowd import Crowd, Shape
from churning.habits import Habits
from churning.links import Answer, HttpLink, Link, ask
from churning.records import Churn

_START_SECONDS = 60.0
_POLL_SECONDS = 0.02
_STOP_SECONDS = 30.0
_SETTLE_SECONDS = 1.0  # after the last idle timeout, for the goodbyes
_HANDSHAKE_SECONDS = 0.01  # about; it is when clients hang up that depends on it
_BENCH = Path(__file__).parent.parent


class ProcessFailed(Exception):
    """One did not start."""


def churn_in_real_time(
    habits: Habits, shape: Shape, *, slots: int, idle_timeout_seconds: float, reset_seconds: float, seed: int
) -> Churn:
    """:raises ProcessFailed: one of the two did not start."""
    churn = Churn(slots=slots, idle_timeout_seconds=idle_timeout_seconds)
    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder, "episodes")
        takes = ("--step-seconds", str(habits.step_seconds), "--reset-seconds", str(reset_seconds))
        timed = ("-m", environment.__name__, "--slots", str(slots), *takes)
        serving = ("-m", "gymserve", "serve", "--port", "0", "--idle-timeout", str(idle_timeout_seconds))
        with (
            process(*timed, "--records", str(records), log=Path(folder, "env.log")) as env_url,
            process(*serving, "--env", env_url, log=Path(folder, "serve.log")) as url,
        ):
            trio.run(_churn, churn, habits, shape, reset_seconds, seed, url, env_url)
        churn.episodes = environment.read(records)
    return churn


async def _churn(
    churn: Churn, habits: Habits, shape: Shape, reset_seconds: float, seed: int, url: str, env_url: str
) -> None:
    opening_seconds = _HANDSHAKE_SECONDS + reset_seconds
    crowd = Crowd(churn, habits, shape, partial(_link, url), time.monotonic, seed=seed, opening_seconds=opening_seconds)
    await _warm_up(url)
    await crowd.run()
    await trio.sleep(churn.idle_timeout_seconds + _SETTLE_SECONDS)
    listing = (await _get(url, "gymserve/sessions")).body
    slots = (await _get(env_url, "gymserve/episodes")).body
    churn.left = {"sessions": len(listing["sessions"]), "waiting": listing["waiting"], "slots": slots["active"]}


async def _warm_up(url: str) -> None:
    """One rollout, so that both processes have loaded what they load when it is first needed."""
    link = _link(url)
    await link.ask("seed_session", {"reset_kwargs": {"rollout": environment.NOBODYS}})
    await link.ask("step", {})
    await link.ask("verify", {"responses_create_params": {"input": []}, "response": {"output": []}})
    await link.hang_up()


def _link(url: str) -> Link:
    return HttpLink(partial(_dial, url))


async def _dial(url: str) -> trio.abc.Stream:
    address = urlsplit(url)
    return await trio.open_tcp_stream(address.hostname or "", address.port or 0)


async def _get(url: str, path: str) -> Answer:
    async with await _dial(url) as stream:
        return await ask(stream, path, None, None)


@contextmanager
def process(*arguments: str, log: Path) -> Iterator[str]:
    """``python ARGUMENTS``, which says on stderr where it listens; its URL. Stopped by SIGTERM in the end."""
    with log.open("w") as stderr:
        running = subprocess.Popen([sys.executable, *arguments], env=_environment(os.environ), stderr=stderr)
    try:
        yield _listening(running, log)
    finally:
        running.terminate()
        try:
            running.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            running.kill()
            raise


def _listening(running: "subprocess.Popen[Any]", log: Path) -> str:
    until = time.monotonic() + _START_SECONDS
    while running.poll() is None and time.monotonic() < until:
        if found := re.search(r"^listening on (\S+)$", log.read_text(), re.MULTILINE):
            return found.group(1)
        time.sleep(_POLL_SECONDS)
    raise ProcessFailed(log.read_text())


def _environment(ours: "os._Environ[str]") -> dict[str, str]:
    """Without settings of gymserve's; what this process can import, the other can."""
    paths: Sequence[str] = [str(_BENCH), str(_BENCH.parent), *filter(None, [ours.get("PYTHONPATH")])]
    kept = {name: value for name, value in ours.items() if not name.startswith("GYMSERVE_")}
    return {**kept, "PYTHONPATH": os.pathsep.join(paths)}
