"""The churn in real time: ``gymserve serve`` and an environment server as processes of their own, on loopback."""

import tempfile
import time
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import trio
from server import Server, python

from churning import environment
from churning.crowd import Crowd, Shape
from churning.habits import Habits
from churning.links import Answer, HttpLink, Link, ask
from churning.records import Churn

_SETTLE_SECONDS = 1.0  # after the last idle timeout, for the goodbyes
_HANDSHAKE_SECONDS = 0.01  # about; it is when clients hang up that depends on it


def churn_in_real_time(
    habits: Habits, shape: Shape, *, slots: int, idle_timeout_seconds: float, reset_seconds: float, seed: int
) -> Churn:
    """:raises ServerFailed: one of the two did not start."""
    churn = Churn(slots=slots, idle_timeout_seconds=idle_timeout_seconds)
    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder, "episodes")
        takes = ("--step-seconds", str(habits.step_seconds), "--reset-seconds", str(reset_seconds))
        timed = ("-m", environment.__name__, "--slots", str(slots), *takes)
        serving = ("-m", "gymserve", "serve", "--port", "0", "--idle-timeout", str(idle_timeout_seconds))
        with (
            Server(python(*timed, "--records", str(records)), Path(folder, "env.log")) as env,
            Server(python(*serving, "--env", env.await_start()), Path(folder, "serve.log")) as gymserve,
        ):
            trio.run(_churn, churn, habits, shape, reset_seconds, seed, gymserve.await_start(), env.await_start())
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
