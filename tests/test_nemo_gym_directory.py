"""gymserve under NeMo Gym's launcher: the files written for it, the settings taken from it, and how it all ends."""

import json
import os
import select
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import yaml
from packaging.requirements import Requirement
from processes import START_SECONDS, Rollout, Server, environ, episodes, running, sessions, until

from gymserve import __version__
from gymserve.cli import run
from gymserve.cli.commands import build_app
from gymserve.cli.nemo_gym import instance_settings
from gymserve.cli.refusals import Refused
from gymserve.cli.requirement import of_origin
from gymserve.settings import ServeSettings

ROOT = Path(__file__).parents[1]
SERVER = Path("resources_servers", "gymserve")
SIMPLE = SERVER / "configs" / "gymserve_simple_agent.yaml"
GYMNASIUM = SERVER / "configs" / "gymserve_gymnasium_agent.yaml"
FILES = (SERVER / "app.py", SERVER / "requirements.txt", SIMPLE, GYMNASIUM)

KILL_SECONDS = 1.0  # after its SIGINT NeMo Gym kills
POLL_SECONDS = 0.5
INTERPRETER_SECONDS = 0.5


def gymserve(*arguments: str, **variables: str) -> int:
    return run(build_app(variables), arguments)


def write(directory: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What is told on stdout."""
    assert gymserve("nemo-gym", str(directory)) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out.replace(f"{directory}", "DIR")


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str, **variables: str) -> str:
    assert gymserve("nemo-gym", *arguments, **variables) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return err.removeprefix("gymserve: ").removesuffix("\n")


# -- the files -------------------------------------------------------------------------------------------------------


def test_what_is_written_is_told_and_how_to_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = write(tmp_path / "gym", capsys).splitlines()
    assert told[:4] == [f"wrote: DIR/{name}" for name in FILES]
    assert {path for path in (tmp_path / "gym").rglob("*") if path.is_file()} == {
        tmp_path / "gym" / name for name in FILES
    }
    commands = shlex.split("\n".join(told[5:7]))
    assert commands[:7] == ["gym", "env", "start", "--config", f"DIR/{SIMPLE}", "--search-dir", "DIR"]


def test_files_that_are_there_and_the_same_stay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, capsys)
    (tmp_path / SIMPLE).unlink()
    times = {name: (tmp_path / name).stat().st_mtime_ns for name in FILES if name != SIMPLE}
    told = write(tmp_path, capsys).splitlines()
    assert told[:4] == [f"{'wrote' if name == SIMPLE else 'there already'}: DIR/{name}" for name in FILES]
    assert {name: (tmp_path / name).stat().st_mtime_ns for name in times} == times


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_differs_is_refused_and_nothing_is_written(
    name: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / name
    file.parent.mkdir(parents=True)
    file.write_text("# mine\n")
    assert refusal(capsys, str(tmp_path)) == (
        f"{file}: is there already and differs from what would be written; move it out of the way, or name another "
        "directory"
    )
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [file]
    assert file.read_text() == "# mine\n"


def test_a_directory_that_cannot_be_used_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.touch()
    assert refusal(capsys, str(file)) == f"{file / FILES[0]}: cannot be read: Not a directory"
    (tmp_path / SERVER / "app.py").mkdir(parents=True)
    assert refusal(capsys, str(tmp_path)) == f"{tmp_path / FILES[0]}: cannot be read: Is a directory"
    assert refusal(capsys) == "DIR: is needed: the name of a directory"
    assert refusal(capsys, "") == "DIR: the name of a directory is needed"
    assert refusal(capsys, str(tmp_path / "new"), GYMSERVE_NAMES="x").startswith(
        "variable GYMSERVE_NAMES: no such setting"
    )
    assert not (tmp_path / "new").exists()


def test_the_configurations_are_whole_and_can_be_loaded_together(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, capsys)
    both = {name: yaml.safe_load((tmp_path / name).read_text()) for name in (SIMPLE, GYMNASIUM)}
    for name, agent in ((SIMPLE, "simple_agent"), (GYMNASIUM, "gymnasium_agent")):
        instance = f"gymserve_{agent}"
        assert list(both[name]) == ["gymserve", instance, f"{instance}_environment_server"]
        [(kind, settings)] = both[name][instance]["responses_api_agents"].items()
        assert (kind, settings["resources_server"]["name"]) == (agent, "gymserve")
        [relay] = both[name][f"{instance}_environment_server"]["environment_servers"].values()
        assert relay["agent_server"] == {"type": "responses_api_agents", "name": instance}
    assert both[SIMPLE]["gymserve"] == both[GYMNASIUM]["gymserve"]
    # NeMo Gym accepts the server, and gymserve what NeMo Gym makes of it.
    server = both[SIMPLE]["gymserve"]["resources_servers"]["gymserve"]
    assert (server["entrypoint"], server["domain"]) == ("app.py", "agent")
    assert settings_of(**server) == ServeSettings(name="oe", port=1234, grace=0.5)


# -- requirements.txt ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("origin", "line"),
    [
        pytest.param({"url": "file:///home/x", "dir_info": {}}, "gymserve @ file:///home/x", id="directory"),
        pytest.param(
            {"url": "https://x.example/gymserve.whl", "archive_info": {"hashes": {"sha256": "0" * 64}}},
            "gymserve @ https://x.example/gymserve.whl",
            id="archive",
        ),
        pytest.param(
            {
                "url": "https://x.example/g.git",
                "vcs_info": {"vcs": "git", "commit_id": "4f2e", "requested_revision": "v1"},
            },
            "gymserve @ git+https://x.example/g.git@4f2e",
            id="version control",
        ),
        pytest.param(
            {"url": "https://x.example/g.git", "vcs_info": {"vcs": "git", "commit_id": "4f2e"}, "subdirectory": "py"},
            "gymserve @ git+https://x.example/g.git@4f2e#subdirectory=py",
            id="part of a repository",
        ),
    ],
)
def test_it_is_installed_again_from_where_it_was(origin: dict[str, Any], line: str) -> None:
    assert of_origin(origin) == line
    assert Requirement(line).name == "gymserve"


def requirement_told(site: Path, root: Path) -> str:
    """What the gymserve in ``root`` says where ``site`` may describe an installation."""
    return subprocess.run(
        [sys.executable, "-c", "from gymserve.cli.requirement import requirement; print(requirement())"],
        env=environ(PYTHONPATH=f"{root}{os.pathsep}{site}"),
        cwd=root,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()


def test_the_installation_tells_where_it_is_from(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "gymserve", tmp_path / "gymserve")
    installed = tmp_path / f"gymserve-{__version__}.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text(f"Metadata-Version: 2.4\nName: gymserve\nVersion: {__version__}\n")
    assert requirement_told(tmp_path, tmp_path) == f"gymserve=={__version__}"
    (installed / "direct_url.json").write_text(json.dumps({"url": "file:///x", "dir_info": {}}))
    assert requirement_told(tmp_path, tmp_path) == "gymserve @ file:///x"
    assert requirement_told(tmp_path, ROOT) == f"-e {ROOT.as_uri()}"  # though another is installed


def test_without_an_installation_it_is_the_checkout(tmp_path: Path) -> None:
    root = tmp_path / "my checkout"
    shutil.copytree(ROOT / "gymserve", root / "gymserve")
    assert requirement_told(tmp_path, root) == f"gymserve=={__version__}"  # there is nothing to install from
    (root / "pyproject.toml").touch()
    assert requirement_told(tmp_path, root) == f"-e {root.as_uri()}"


# -- settings --------------------------------------------------------------------------------------------------------


def variables_of(instance: Any, **variables: str) -> dict[str, str]:
    config = {"policy_model": {}, "oe": {"resources_servers": {"gymserve": instance}}}
    return {"NEMO_GYM_CONFIG_DICT": yaml.safe_dump(config), "NEMO_GYM_CONFIG_PATH": "oe", **variables}


def settings_of(variables: Mapping[str, str] | None = None, **instance: Any) -> ServeSettings:
    placed = {"host": "127.0.0.1", "port": 1234, **instance}
    return instance_settings(variables_of(placed, **(variables or {})))


def setting_refusal(variables: Mapping[str, str] | None = None, **instance: Any) -> str:
    with pytest.raises(Refused) as caught:
        settings_of(variables, **instance)
    return str(caught.value)


def test_the_instance_gives_name_and_address_and_whatever_else_is_a_setting() -> None:
    settings = settings_of(
        host="10.0.0.5", env="http://envs:8000", idle_timeout=5, hide_reward=True, max_lifetime="off"
    )
    assert settings == ServeSettings(
        host="10.0.0.5", port=1234, name="oe", grace=0.5, env="http://envs:8000", idle_timeout=5, hide_reward=True
    )
    assert settings_of(name="run 7", grace=2) == ServeSettings(port=1234, name="run 7", grace=2)


def test_what_nemo_gym_reads_itself_is_no_setting() -> None:
    own: dict[str, Any] = {
        "entrypoint": "app.py",
        "domain": "games",
        "description": "${nothing}",
        "value": None,
        "verified": False,
        "verified_url": None,
        "num_workers": 4,
        "datasets": [{"name": "example"}],
        "allowed_agents": ["simple_agent"],
        "allowed_model_types": None,
    }
    assert settings_of(**own) == settings_of()


@pytest.mark.parametrize(("exposed", "mcp"), [(True, "always"), (False, "never")])
def test_nemo_gym_s_word_for_mcp_is_understood(exposed: bool, mcp: str) -> None:
    assert settings_of(expose_tools_over_mcp=exposed).mcp == mcp
    assert settings_of(expose_tools_over_mcp=exposed, mcp="auto").mcp == "auto"
    assert settings_of().mcp == "auto"


def test_variable_beats_instance_beats_file_and_none_moves_it(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("port = 1\ngrace = 9\npatience = 9\nstep_timeout = 9\n")
    variables = {"GYMSERVE_CONFIG": str(file), "GYMSERVE_PORT": "2", "GYMSERVE_PATIENCE": "7"}
    assert settings_of(variables, patience=8, step_timeout=8) == ServeSettings(
        port=1234, name="oe", grace=9, patience=7, step_timeout=8
    )


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"idle_timout": 5}, "instance oe: idle_timout: no such setting; did you mean idle_timeout?"),
        ({"judge_model_server": {}}, "instance oe: judge_model_server: no such setting"),
        ({"capacity": 5}, "instance oe: capacity: not a setting of this command, but of gymserve env"),
        ({"secret": "x" * 16}, "instance oe: secret: secrets are not accepted in files; set GYMSERVE_SECRET"),
        (
            {"patience": 1, "reset_timeout": 1},
            "instance oe: patience and reset_timeout name the same setting; give one",
        ),
        ({"idle_timeout": 0}, "instance oe: idle_timeout: 0 is not accepted: a number of seconds greater than 0"),
        ({"port": None}, "instance oe: port: null is not accepted: a whole number from 0 to 65535 (0 = any)"),
    ],
)
def test_a_key_that_is_not_accepted_is_named(given: dict[str, Any], told: str) -> None:
    assert setting_refusal(**given) == told


def test_interpolations_need_the_package_that_knows_them() -> None:
    # In an environment of NeMo Gym it is there.
    told = setting_refusal(env="${oc.env:ENV_URL}")
    assert told == (
        "instance oe: has an interpolation (${...}); add omegaconf to requirements.txt beside app.py, or write the "
        "value itself"
    )


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({}, "NEMO_GYM_CONFIG_PATH: is not set; NeMo Gym's launcher sets it: run gym env start, or gymserve serve"),
        (
            {"NEMO_GYM_CONFIG_PATH": "oe"},
            "NEMO_GYM_CONFIG_DICT: is not set; NeMo Gym's launcher sets it: run gym env start, or gymserve serve",
        ),
        *(
            ({"NEMO_GYM_CONFIG_PATH": "oe", "NEMO_GYM_CONFIG_DICT": text}, "NEMO_GYM_CONFIG_DICT: has no server oe")
            for text in (
                "",
                "{",
                "oe: 1",
                "other: {}",
                "oe: {}",
                "oe: {resources_servers: {}}",
                "oe: {a: {b: 1}}",
                "[1]",
            )
        ),
    ],
)
def test_whoever_starts_it_must_be_nemo_gym(variables: dict[str, str], told: str) -> None:
    with pytest.raises(Refused) as caught:
        instance_settings(variables)
    assert str(caught.value) == f"variable {told}"


# -- the process -----------------------------------------------------------------------------------------------------

LAUNCHER = """
import json, os, subprocess, sys
subprocess.Popen(sys.argv[1], shell=True, executable="/bin/bash", env=os.environ | json.loads(sys.argv[2])).wait()
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def variables(**instance: Any) -> dict[str, str]:
    placed = {"entrypoint": "app.py", "domain": "agent", "host": "127.0.0.1", "port": free_port(), **instance}
    return {**variables_of(placed), "PYTHONPATH": str(ROOT)}


@pytest.fixture
def app(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    write(tmp_path, capsys)
    return tmp_path / SERVER / "app.py"


@contextmanager
def started(app: Path, **instance: Any) -> Iterator[Server]:
    """Started as NeMo Gym does it, by a shell that becomes it, from the directory of the app."""
    log = app.with_name("log")
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, app], env=environ(**variables(**instance)), cwd=app.parent, stdout=file, stderr=file
        )
    try:
        server = Server(process, str(log))
        server.wait_until_listening()
        yield server
    finally:
        process.kill()
        process.wait()


class Launched:
    """A launcher that runs ``command`` in a shell, and everything that comes of it."""

    def __init__(self, command: str, given: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", LAUNCHER, command, json.dumps(given)],
            env=environ(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.said = ""

    def wait_until_listening(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while "listening on" not in self.said:
            assert self._hears(deadline - time.monotonic()), self.said

    def wait_until_nobody_is_left(self, *, within_seconds: float) -> None:
        """Until no process is left that could say a word."""
        deadline = time.monotonic() + within_seconds
        while self._hears(deadline - time.monotonic()):
            pass

    def _hears(self, within_seconds: float) -> bool:
        """Whether more was said, or nobody is left."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], max(within_seconds, 0))
        assert ready, f"silent for too long, after: {self.said}"
        read = os.read(self.process.stdout.fileno(), 65536)
        self.said += read.decode()
        return bool(read)

    @property
    def is_silent(self) -> bool:
        """Whether nothing more was said, and somebody is left."""
        return not select.select([self.process.stdout], [], [], 0)[0]  # type: ignore[type-var]

    @property
    def shell(self) -> int:
        [child] = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(child)


@contextmanager
def launched(app: Path, *, log: Path | None = None) -> Iterator[Launched]:
    """As ``run_command`` of NeMo Gym (``nemo_gym/cli/setup_command.py``) does; ``log``: what it does with a log
    directory.
    """
    command = f"cd {shlex.quote(str(app.parent))} && {shlex.quote(sys.executable)} app.py"
    if log is not None:
        command = f"set -o pipefail; ({command}) 2>&1 | tee -a {shlex.quote(str(log))}"
    launcher = Launched(command, variables())
    try:
        launcher.wait_until_listening()
        yield launcher
    finally:
        os.killpg(launcher.process.pid, signal.SIGKILL)
        launcher.process.communicate()


async def test_it_serves_where_nemo_gym_looks_for_it_and_ends_in_order(app: Path) -> None:
    with running("env") as env, started(app, env=env.url, name="night run") as server:
        client = Rollout(server.url)
        assert (await client.seed()).status_code == 200
        assert len((await sessions(server.url))["sessions"]) == 1
        server.send(signal.SIGINT)
        assert await server.exit_status(within_seconds=KILL_SECONDS) == 0
        assert await episodes(env.url) == {"active": 0, "max": 8, "opened": 1, "closed": 1}


async def test_a_call_in_flight_does_not_hold_it_up_nor_ctrl_c_cut_it_off(app: Path) -> None:
    with running("env", "--fault", "slow-step:30") as env, started(app, env=env.url) as server:
        client = Rollout(server.url)
        await client.seed()
        answers: list[Any] = []

        async def call() -> None:
            answers.append(await client.post("dispatch", {"battery_mw": 0, "generator_mw": 0}))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(call)
            await until(partial(is_busy, server), within_seconds=2.0)
            server.send(signal.SIGINT)  # from the terminal
            await trio.sleep(0.2)
            server.send(signal.SIGINT)  # from NeMo Gym
            assert await server.exit_status(within_seconds=KILL_SECONDS - 0.2) == 0
        assert (answers[0].status_code, answers[0].json()["error"]) == (410, "session_closed")


async def is_busy(server: Server) -> bool:
    return [session["state"] for session in (await sessions(server.url))["sessions"]] == ["busy"]


def test_it_ends_when_its_launcher_dies(app: Path) -> None:
    with launched(app) as launcher:
        launcher.process.kill()
        launcher.wait_until_nobody_is_left(within_seconds=POLL_SECONDS + INTERPRETER_SECONDS)


def test_with_a_log_file_it_ends_when_the_shell_between_is_killed(app: Path, tmp_path: Path) -> None:
    log = tmp_path / "gymserve.log"
    with launched(app, log=log) as launcher:
        os.kill(launcher.shell, signal.SIGINT)  # it waits for its command, which is not told
        time.sleep(0.2)
        assert "listening on" in log.read_text()
        assert launcher.is_silent
        os.kill(launcher.shell, signal.SIGKILL)
        launcher.wait_until_nobody_is_left(within_seconds=POLL_SECONDS + INTERPRETER_SECONDS)


def test_with_a_log_file_it_ends_when_its_launcher_dies_behind_the_shell(app: Path, tmp_path: Path) -> None:
    with launched(app, log=tmp_path / "gymserve.log") as launcher:
        launcher.process.kill()
        launcher.wait_until_nobody_is_left(within_seconds=POLL_SECONDS + INTERPRETER_SECONDS)


def test_a_launcher_that_lives_is_no_reason_to_end(app: Path, tmp_path: Path) -> None:
    with launched(app, log=tmp_path / "gymserve.log") as launcher:
        time.sleep(2 * POLL_SECONDS)
        assert launcher.process.poll() is None
        assert launcher.is_silent


def test_a_configuration_that_is_not_accepted_is_one_line_and_the_status_2(app: Path) -> None:
    process = subprocess.run(
        [sys.executable, app], env=environ(**variables(idle_timout=5)), capture_output=True, text=True, timeout=20
    )
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr == "gymserve: instance oe: idle_timout: no such setting; did you mean idle_timeout?\n"
