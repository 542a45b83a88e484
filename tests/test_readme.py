"""The README cannot rot: its commands are run and their answers compared, its tables made again."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import pytest
import yaml

from gymserve import errors
from gymserve.cli.config import written
from gymserve.cli.sources import flag_name, open_keys
from gymserve.gridsim.day import EVALUATION_DAYS
from gymserve.gridsim.faults import ACCEPTED_FAULTS
from gymserve.gridsim.grid import GridSim
from gymserve.gridsim.policies import Policy, greedy
from gymserve.settings import ServeSettings, form_of

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PORTS = ("8100", "8200")
COMMAND_SECONDS = 120
START_SECONDS = 20

#: Lines whose figures are this run's own.
VARYING = {"latest reclaim": r"│ latest reclaim after its deadline │ 0\.\d{3} s │"}


@dataclass(frozen=True)
class Example:
    command: str
    answer: tuple[str, ...]

    @property
    def starts_a_server(self) -> bool:
        return self.command.endswith(" &")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def examples() -> list[Example]:
    found: list[Example] = []
    for block in blocks("console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *answer = part.splitlines()
            found.append(Example(command, tuple(answer)))
    return found


class Shell:
    """Where the examples run: a folder of their own, ports of their own, and the interpreter of the tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
        self.servers: list[subprocess.Popen[str]] = []
        programs = folder / "bin"
        programs.mkdir()
        for name, arguments in (("gymserve", " -m gymserve"), ("python", "")):
            program = programs / name
            program.write_text(f'#!/bin/sh\nexec "{sys.executable}"{arguments} "$@"\n')
            program.chmod(0o755)
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("GYMSERVE_")}
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        self.environment = {**inherited, "PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "80"}

    def here(self, command: str) -> str:
        """The command with ports that are free on this machine."""
        command = command.replace("gymserve serve", f"gymserve serve --port {self.ports['8100']}")
        command = command.replace("gymserve env", f"gymserve env --port {self.ports['8200']}")
        for written_port, port in self.ports.items():
            command = command.replace(f":{written_port}", f":{port}")
        return command

    def there(self, text: str) -> str:
        for written_port, port in self.ports.items():
            text = text.replace(f":{port}", f":{written_port}")
        return text

    def run(self, example: Example) -> str:
        if example.starts_a_server:
            return self.start(example)
        done = subprocess.run(
            ["bash", "-c", self.here(example.command)],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_SECONDS,
        )
        return self.there(done.stdout)

    def start(self, example: Example) -> str:
        log = self.folder / f"server-{len(self.servers)}"
        with log.open("w") as stderr:
            command = self.here(example.command).removesuffix(" &")
            server = subprocess.Popen(
                ["bash", "-c", f"exec {command}"], cwd=self.folder, env=self.environment, stderr=stderr, text=True
            )
        self.servers.append(server)
        deadline = time.monotonic() + START_SECONDS
        while "\n" not in log.read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.there("\n".join(log.read_text().splitlines()[: len(example.answer)]))

    def close(self) -> None:
        for server in self.servers:
            server.send_signal(signal.SIGTERM)
        for server in self.servers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(10)
            server.kill()
            server.wait()


def free_ports(count: int) -> list[str]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [str(listener.getsockname()[1]) for listener in sockets]


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    yield shell
    shell.close()


def pattern(line: str) -> str:
    """A line of the README as an expression: ``...`` stands for whatever is there."""
    for name, expression in VARYING.items():
        if name in line:
            return expression
    return re.escape(line.rstrip()).replace(re.escape("..."), ".*?")


@pytest.mark.skipif(shutil.which("curl") is None, reason="the README's examples are curl commands")
def test_every_command_gives_the_answer_that_is_printed(shell: Shell) -> None:
    assert len(examples()) >= 12
    for example in examples():
        answer = shell.run(example)
        lines = [line.rstrip() for line in answer.splitlines()]
        expected = [pattern(line) for line in example.answer]
        fits = len(lines) == len(expected) and all(map(re.fullmatch, expected, lines))
        assert fits, (
            f"$ {example.command}\n--- the README says\n" + "\n".join(example.answer) + f"\n--- it is\n{answer}"
        )


def test_the_settings_table_is_that_of_the_code() -> None:
    rows = []
    for key in open_keys(ServeSettings):
        field = ServeSettings.model_fields[key]
        default = written(ServeSettings().model_dump(mode="json")[key], form_of(field))
        rows.append(f"| `{flag_name(key)}` | {default} | {field.description} |")
    table = "| setting | default | what it does |\n|---|---|---|\n" + "\n".join(rows) + "\n"
    assert table in README, f"README's settings should be:\n{table}"


def test_every_kind_of_error_is_told() -> None:
    kinds = {
        error.kind: error.status
        for error in vars(errors).values()
        if isinstance(error, type) and issubclass(error, errors.GymserveError) and hasattr(error, "kind")
    }
    told = README.partition("## Errors")[2].partition("\n## ")[0]
    for kind, status in kinds.items():
        assert f"`{kind}`" in told and str(status) in told, kind


def test_every_fault_is_told() -> None:
    for name in ACCEPTED_FAULTS.replace(":SECONDS", ":S").replace(":COUNT", ":N").split(", "):
        assert f"`{name}`" in README.replace("\n", " "), name


def test_the_configuration_examples_can_be_read() -> None:
    pool, verifiers = [tomllib.loads(block) for block in blocks("toml")]
    assert ServeSettings.model_validate(pool).env == ("http://a:8000 slots=16", "http://b:8000")
    assert verifiers["env"]["taskset"]["task"]["resources_url"] == "http://127.0.0.1:8100"
    running, declared, scraped, _ = [yaml.safe_load(block) for block in blocks("yaml")]
    assert next(iter(running["grid"])) == "external"
    [turns] = declared["grid_turns"]["environment_servers"].values()
    assert turns["resources_tool_transports"] == ["direct_http"]
    assert scraped["scrape_configs"][0]["metrics_path"] == "/gymserve/metrics"


def test_the_rewards_of_gridsim_are_those_that_are_printed() -> None:
    mean = fmean(reward_of(day, greedy()) for day in EVALUATION_DAYS)
    assert f"| a greedy rule (price against the next hours' mean) | {mean:.3f} |" in README


def reward_of(day: int, policy: Policy) -> float:
    environment, result = GridSim(), None
    environment.reset(day=day)
    while True:
        name, arguments = policy.send(result)
        outcome = environment.call(name, arguments)
        if outcome.done:
            return float(outcome.reward)
        result = outcome.data
