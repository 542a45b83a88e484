"""Start several of NeMo Gym's servers: ``python nemo_gym_spawn.py DIRECTORY NAME=APP.PY ...``, until SIGTERM.

Each is a process of its own, with its app as ``__main__``, as ``gym env start`` runs it, and with its output in
``DIRECTORY/NAME.log``; ``head=`` is the head server. They are forked once all is imported, which would take each of
them seconds of processor time. The configuration of all is in the variable NEMO_GYM_CONFIG_DICT.

Ray is left out, of which a server starts a cluster, not on the loopback alone, unless it declares that it needs
none; the environment servers use none and do not declare it.
"""

import importlib
import multiprocessing
import os
import runpy
import signal
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NoReturn

from nemo_gym.server_utils import HeadServer, SimpleServer

_IMPORTED = (
    "environment_servers.legacy_agent.app",
    "environment_servers.single_agent_turn_legacy.app",
    "mcp.client.streamable_http",
    "nemo_gym.telemetry.setup",
    "responses_api_agents.gymnasium_agent.app",
    "responses_api_agents.simple_agent.app",
)


def main(directory: Path, apps: Mapping[str, str]) -> None:
    SimpleServer.ray_enabled = False
    for module in _IMPORTED:
        importlib.import_module(module)
    forking = multiprocessing.get_context("fork")
    servers = [
        forking.Process(target=_serve, args=(name, app, directory / f"{name}.log"), daemon=True)
        for name, app in apps.items()
    ]
    for server in servers:
        server.start()
    signal.signal(signal.SIGTERM, lambda *_: _stop(servers))
    for server in servers:
        server.join()


def _stop(servers: Sequence[BaseProcess]) -> NoReturn:
    for server in servers:
        server.kill()
    os._exit(0)  # there is nothing else to clean up, and much that would take its time


def _serve(name: str, app: str, log: Path) -> None:
    with log.open("wb", buffering=0) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ["NEMO_GYM_CONFIG_PATH"] = name
    if app:
        runpy.run_path(app, run_name="__main__")
    else:
        _serve_as_head()


def _serve_as_head() -> None:
    _, thread, head = HeadServer.run_webserver()
    head.mark_ready()
    thread.join()


if __name__ == "__main__":
    main(Path(sys.argv[1]), dict(argument.split("=", 1) for argument in sys.argv[2:]))
