"""NeMo Gym's servers before a gymserve, each the process that ``gym env start`` makes of it, but for a virtual
environment of its own, and Ray.
"""

import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import httpx
from nemo_gym.global_config import get_first_server_config_dict
from nemo_gym_configuration import EPISODE_SECONDS, Ports, configuration
from nemo_gym_gridsim import NO_TLS, GridGymserve
from nemo_gym_losing import LosingProxy
from nemo_gym_model import ScriptedModel
from omegaconf import DictConfig, OmegaConf
from openenv_processes import Server, eventually

# Longer than any rollout here: NeMo Gym's client tries for ever, and a test must not.
_RUN_SECONDS = EPISODE_SECONDS + 15
_COMMAND_SECONDS = 150.0
_START_SECONDS = 120.0
_LOG_CHARACTERS = 4000
_HERE = Path(__file__).parent
_SERVES = "Uvicorn running on"

_COMMAND = """
import sys
from nemo_gym.cli.main import main
sys.exit(main())
"""


class NemoGymServers(Server):
    """One process for each instance of the configuration that is to be started, and one for the head server."""

    def __init__(self, config: DictConfig, directory: Path) -> None:
        self.names = [*_to_start(config), "head"]
        self._directory = directory
        apps = {name: str(_app(config, name)) for name in _to_start(config)} | {"head": ""}
        super().__init__(
            [sys.executable, str(_HERE / "nemo_gym_spawn.py"), str(directory), *map("=".join, apps.items())],
            directory / "spawn.log",
            "",  # the servers say in their own logs where they listen
            {"NEMO_GYM_CONFIG_DICT": OmegaConf.to_yaml(config)},
        )

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.push(self)  # a start that fails leaves nothing behind
            try:
                eventually(self._all_serve, within_seconds=_START_SECONDS)
            except AssertionError as error:
                raise AssertionError(f"{error}\n{shown(self.logs())}") from None
            stack.pop_all()
        return self

    def logs(self) -> dict[str, str]:
        """Of each, by its name; those that have written none yet are left out."""
        files = {name: self._directory / f"{name}.log" for name in self.names}
        return {name: file.read_text(encoding="utf-8") for name, file in files.items() if file.exists()}

    def _all_serve(self) -> bool:
        assert self.process.poll() is None, self.log()
        logs = self.logs()
        return all(_SERVES in logs.get(name, "") for name in self.names)


def shown(logs: Mapping[str, str]) -> str:
    """The ends of logs, for a message."""
    return "\n".join(f"-- {name}\n{log[-_LOG_CHARACTERS:]}" for name, log in logs.items())


def _to_start(config: DictConfig) -> list[str]:
    """As ``gym env start`` tells them: there is an entrypoint under the first key of the first key."""
    started = []
    for name, instance in config.items():
        server = next(iter(instance.values())) if isinstance(instance, DictConfig) else None
        settings = next(iter(server.values())) if isinstance(server, DictConfig) else None
        if isinstance(settings, DictConfig) and "entrypoint" in settings:
            started.append(str(name))
    return started


def _app(config: DictConfig, name: str) -> Path:
    """In the wheel, or a module of ours."""
    kind = next(iter(config[name]))
    implementation = next(iter(config[name][kind]))
    ours = _HERE / f"{implementation}.py"
    found = find_spec("nemo_gym")
    assert found is not None and found.origin is not None
    return ours if ours.exists() else Path(found.origin).parent.parent / kind / implementation / "app.py"


@dataclass(frozen=True)
class Fleet:
    """All that runs. ``hasty`` is the gymserve with an idle timeout of 2 s, ``losing`` is on the way to ``grid``."""

    config: DictConfig
    grid: GridGymserve
    hasty: GridGymserve
    losing: LosingProxy
    model: ScriptedModel
    servers: NemoGymServers

    def post(self, name: str, path: str, body: Any) -> Any:
        """What server ``name`` answers, which must be a 200; instead of a hang there is an error, with every log."""
        server = get_first_server_config_dict(self.config, name)
        with httpx.Client(timeout=_RUN_SECONDS, trust_env=False, verify=NO_TLS) as http:
            try:
                response = http.post(f"http://{server.host}:{server.port}{path}", json=body)
            except httpx.TimeoutException:
                raise AssertionError(f"no answer from {name} within {_RUN_SECONDS:g} s\n{self.logs()}") from None
        assert response.status_code == 200, f"{response.status_code} {response.text}\n{self.logs()}"
        return response.json()

    def run(self, name: str, row: Mapping[str, Any]) -> dict[str, Any]:
        """One rollout by server ``name``."""
        result: dict[str, Any] = self.post(name, "/run", row)
        return result

    @contextmanager
    def running(self, name: str, rows: Sequence[Mapping[str, Any]]) -> Iterator[list[dict[str, Any]]]:
        """A rollout of each row, all at once; after the block the list has their results, in the rows' order."""
        results: list[dict[str, Any]] = []
        with ThreadPoolExecutor(len(rows)) as pool:
            runs = [pool.submit(self.run, name, row) for row in rows]
            yield results
            results += [run.result() for run in runs]

    def gym(self, directory: Path, *arguments: str) -> str:
        """Run NeMo Gym's command line in ``directory``; it asks the head server what there is. What it prints."""
        head = self.config.head_server
        command = [sys.executable, "-c", _COMMAND, *arguments]
        command += [f"++head_server.host={head.host}", f"++head_server.port={head.port}"]
        try:
            done = subprocess.run(
                command, cwd=directory, capture_output=True, text=True, timeout=_COMMAND_SECONDS, check=False
            )
        except subprocess.TimeoutExpired as expired:
            raise AssertionError(f"not done within {_COMMAND_SECONDS:g} s: {expired.stdout!r}\n{self.logs()}") from None
        assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{self.logs()}"
        return done.stdout

    def logs(self) -> str:
        return shown({"grid": self.grid.log(), "hasty": self.hasty.log(), **self.servers.logs()})


@contextmanager
def started_fleet(directory: Path) -> Iterator[Fleet]:
    """A fleet, which is stopped in the end."""
    with ExitStack() as stack:
        # With interim answers every 0.2 s, NeMo Gym's client sees many of them while a seed waits for a slot.
        grid = stack.enter_context(GridGymserve(directory / "grid.log", "--interim", "0.2"))
        hasty = stack.enter_context(GridGymserve(directory / "hasty.log", "--idle-timeout", "2"))
        model = stack.enter_context(ScriptedModel())
        losing = stack.enter_context(LosingProxy(grid.url))
        ports = Ports(grid=grid.port, hasty=hasty.port, losing=losing.port, model=model.port, head=_free_port())
        config = configuration(directory, ports)
        servers = stack.enter_context(NemoGymServers(config, directory))
        yield Fleet(config, grid, hasty, losing, model, servers)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
