"""All servers of a comparison: what is compared, and the OpenEnv servers behind it."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from server import LISTENING, Server, python

SLOTS = 256
"""Of each OpenEnv server: far more than are played at once, so that nobody waits for one that is still being closed."""

_BENCH = Path(__file__).parents[1]
_UVICORN = r"Uvicorn running on (http://\S+)"


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to an environment. ``behind`` is the OpenEnv server behind ``server``, where there is one."""

    url: str
    server: Server
    behind: Server | None = None


@contextmanager
def started(peers: Path, folder: Path) -> Iterator[dict[str, Arm]]:
    """Arms by ``ENVIRONMENT/NAME``, as ``move/adapter``; every server is started once and ended with the block.

    :param peers: what ``bench/setup_peers.sh`` has made.
    :param folder: for the servers' logs.
    :raises ServerFailed: one of them does not start.
    """
    openenv, nemo_gym = (str(peers / name / "bin" / "python") for name in ("openenv", "nemo_gym"))
    with ExitStack() as stack:

        def start(name: str, *command: str, announcement: str = LISTENING, **environ: str) -> Server:
            return stack.enter_context(
                Server(command, folder / f"{name}.log", announcement=announcement, environ=environ)
            )

        def start_before(name: str, env: Server, *command: str) -> Server:
            return start(name, *python(*command, env.await_start()))

        envs, adapters = {}, {}
        for env in ("move", "echo"):
            app = ("-m", "uvicorn", f"comparing.openenv_servers:{env}", "--port", "0")
            envs[env] = start(f"{env}-openenv", openenv, *app, announcement=_UVICORN, SLOTS=str(SLOTS))
            adapters[env] = start(f"{env}-adapter", nemo_gym, "-m", "comparing.adapter", env, announcement=_UVICORN)
        arms: dict[str, Arm] = {}
        for env, openenv_server in envs.items():
            url = openenv_server.await_start()
            gymserve = start_before(
                f"{env}-gymserve", openenv_server, "-m", "gymserve", "serve", "--port", "0", "--env"
            )
            bare = start_before(f"{env}-bare", openenv_server, str(_BENCH / "bare.py"))
            arms[f"{env}/direct"] = Arm(url.replace("http:", "ws:", 1), openenv_server)
            arms[f"{env}/gymserve"] = Arm(gymserve.await_start(), gymserve, openenv_server)
            arms[f"{env}/bare"] = Arm(bare.await_start(), bare, openenv_server)
            arms[f"{env}/adapter"] = Arm(adapters[env].await_start(), adapters[env])
        yield arms
