"""The command line: which source wins, what each refusal says, and that nothing secret is ever printed."""

import io
import json
import logging
import os
import pty
import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gymserve import __version__
from gymserve.cli import run
from gymserve.cli.commands import build_app
from gymserve.cli.logs import formatter
from gymserve.cli.sources import open_keys
from gymserve.settings import EnvSettings, ServeSettings

SECRET = "correct-horse-battery"
COMMANDS = ("serve", "env", "config")


def check_fault(text: str) -> str:
    if text != "full":
        raise ValueError("there is no such fault; accepted: full")
    return text


@dataclass
class Terminal:
    """Someone at the command line, with servers that remember their settings and end with ``status``."""

    directory: Path
    capture: pytest.CaptureFixture[str]
    environ: dict[str, str] = field(default_factory=dict)
    status: int = 0
    served: ServeSettings | None = None
    env: EnvSettings | None = None

    def run_serve(self, settings: ServeSettings) -> int:
        self.served = settings
        return self.status

    def run_env(self, settings: EnvSettings) -> int:
        self.env = settings
        return self.status

    def file(self, name: str, text: str | bytes) -> str:
        path = self.directory / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return str(path)

    def run(self, *arguments: str) -> int:
        app = build_app(self.environ, run_serve=self.run_serve, run_env=self.run_env, check_fault=check_fault)
        return run(app, arguments)

    def refusal(self, *arguments: str) -> str:
        """What a refused command line prints: one line, here without the program's name and the directory."""
        assert self.run(*arguments) == 2
        assert (self.served, self.env) == (None, None)
        out, err = self.capture.readouterr()
        assert out == ""
        assert err.startswith("gymserve: ")
        assert err.endswith("\n")
        assert err.count("\n") == 1
        return err.removeprefix("gymserve: ").removesuffix("\n").replace(f"{self.directory}/", "")

    def output(self, *arguments: str) -> str:
        assert self.run(*arguments) == 0
        out, err = self.capture.readouterr()
        assert err == ""
        return out

    def config(self, *arguments: str) -> dict[str, tuple[object, str]]:
        document = json.loads(self.output("config", "--json", *arguments))
        return {key: (row["value"], row["from"]) for key, row in document.items()}


@pytest.fixture
def terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(tmp_path, capsys)


def gymserve(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GYMSERVE_")}
    return subprocess.run(
        [sys.executable, "-m", "gymserve", *arguments],
        env=environ | variables,
        capture_output=True,
        text=True,
        timeout=30,
    )


# Which source wins


def test_without_a_word_everything_is_default(terminal: Terminal) -> None:
    assert terminal.run() == 0
    assert terminal.served == ServeSettings()
    assert {source for _, source in terminal.config().values()} == {"default"}


def test_plain_gymserve_takes_the_flags_of_serve(terminal: Terminal) -> None:
    terminal.status = 5
    assert terminal.run("--port", "0", "--hide-reward") == 5
    assert terminal.served == ServeSettings(port=0, hide_reward=True)
    terminal.served = None
    assert terminal.run("serve", "--port=0", "--hide-reward") == 5
    assert terminal.served == ServeSettings(port=0, hide_reward=True)


def test_flag_beats_variable_beats_file_beats_default(terminal: Terminal) -> None:
    file = terminal.file("run.toml", "idle_timeout = 1\npatience = 1\nstep_timeout = 1\n")
    terminal.environ = {"GYMSERVE_IDLE_TIMEOUT": "2", "GYMSERVE_PATIENCE": "2", "HOME": "/"}
    config = terminal.config("--config", file, "--idle-timeout", "3")
    assert config["idle_timeout"] == (3.0, "flag")
    assert config["patience"] == (2.0, "GYMSERVE_PATIENCE")
    assert config["step_timeout"] == (1.0, f"file {file}")
    assert config["grace"] == (3.0, "default")


def test_a_variable_names_the_file_and_a_flag_another(terminal: Terminal) -> None:
    terminal.environ = {"GYMSERVE_CONFIG": terminal.file("weak.yml", "grace: 1\ntombstone: 1\n")}
    strong = terminal.file("strong.yaml", "grace: 2\n")
    assert terminal.config()["grace"][0] == 1.0
    assert terminal.config("--config", strong)["grace"] == (2.0, f"file {strong}")
    assert terminal.config("--config", strong)["tombstone"] == (900.0, "default")


EVERYTHING = ServeSettings(
    env="http://envs.example:8000/blue",
    env_header=("X-Team: blue", "X-Run: 7"),
    name="evaluation",
    max_lifetime=None,
    observation_tool=None,
    hide_reward=True,
    record="trajectories",
    record_max_bytes=1000,
    reset_kwargs={"level": 2, "tags": ["a"]},
)
TOML = """
env = "http://envs.example:8000/blue"
env_header = ["X-Team: blue", "X-Run: 7"]
name = "evaluation"
max_lifetime = "off"
observation_tool = "off"
hide_reward = true
record = "trajectories"
record_max_bytes = 1000
[reset_kwargs]
level = 2
tags = ["a"]
"""
YAML = """
env: http://envs.example:8000/blue
env_header:
  - "X-Team: blue"
  - "X-Run: 7"
name: evaluation
max_lifetime: off
observation_tool: off
hide_reward: yes
record: trajectories
record_max_bytes: 1000
reset_kwargs: {level: 2, tags: [a]}
"""


@pytest.mark.parametrize(("name", "text"), [("run.toml", TOML), ("run.yaml", YAML), ("run.YML", YAML)])
def test_files_of_both_kinds_say_the_same(terminal: Terminal, name: str, text: str) -> None:
    assert terminal.run("--config", terminal.file(name, text)) == 0
    assert terminal.served == EVERYTHING


def test_variables_and_flags_say_the_same_as_files(terminal: Terminal) -> None:
    texts = {
        "env": "http://envs.example:8000/blue",
        "name": "evaluation",
        "max_lifetime": "off",
        "observation_tool": "off",
        "record": "trajectories",
        "record_max_bytes": "1000",
        "reset_kwargs": '{"level": 2, "tags": ["a"]}',
    }
    terminal.environ = {f"GYMSERVE_{key.upper()}": text for key, text in texts.items()}
    terminal.environ |= {"GYMSERVE_ENV_HEADER": "X-Team: blue\nX-Run: 7", "GYMSERVE_HIDE_REWARD": "true"}
    assert terminal.run() == 0
    assert terminal.served == EVERYTHING
    terminal.environ, terminal.served = {}, None
    flags = [word for key, text in texts.items() for word in (f"--{key.replace('_', '-')}", text)]
    assert terminal.run(*flags, "--env-header", "X-Team: blue", "--env-header=X-Run: 7", "--hide-reward") == 0
    assert terminal.served == EVERYTHING


def test_an_empty_file_sets_nothing(terminal: Terminal) -> None:
    for name in ("empty.toml", "empty.yaml"):
        assert terminal.run("--config", terminal.file(name, "# nothing\n")) == 0
        assert terminal.served == ServeSettings()


def test_reset_timeout_is_patience_in_files(terminal: Terminal) -> None:
    file = terminal.file("run.yaml", "reset_timeout: 45\n")
    assert terminal.config("--config", file)["patience"] == (45.0, f"file {file}")


@pytest.mark.parametrize(("text", "held"), [("true", True), ("1", True), ("false", False), ("0", False)])
def test_a_switch_in_a_variable(terminal: Terminal, text: str, held: bool) -> None:
    terminal.environ = {"GYMSERVE_HIDE_REWARD": text}
    assert terminal.config()["hide_reward"] == (held, "GYMSERVE_HIDE_REWARD")


def test_a_switch_as_a_flag_turns_on_and_off(terminal: Terminal) -> None:
    terminal.environ = {"GYMSERVE_HIDE_REWARD": "true"}
    assert terminal.config("--no-hide-reward")["hide_reward"] == (False, "flag")
    assert terminal.config("--hide-reward")["hide_reward"] == (True, "flag")


def test_env_has_settings_of_its_own(terminal: Terminal) -> None:
    terminal.environ = {"GYMSERVE_CAPACITY": "2", "GYMSERVE_PATIENCE": "1"}
    file = terminal.file("env.toml", "fault = ['full']\nport = 0\n")
    terminal.status = 3
    assert terminal.run("env", "--config", file, "--log-format", "json") == 3
    assert terminal.env == EnvSettings(capacity=2, fault=("full",), port=0, log_format="json")


# What a refusal says

POSITIVE = "a number of seconds greater than 0"
NOT_NEGATIVE = "a number of seconds, 0 or more"
UNEXPECTED = "an argument that belongs to no flag is not expected; a value with spaces in it needs quotes"

FLAGS: list[tuple[list[str], str]] = [
    (["--idle-timeout", "abc"], f'flag --idle-timeout: "abc" is not accepted: {POSITIVE}'),
    (["--idle-timeout", "0"], f'flag --idle-timeout: "0" is not accepted: {POSITIVE}'),
    (["--idle-timeout", "inf"], f'flag --idle-timeout: "inf" is not accepted: {POSITIVE}'),
    (["--idle-timeout", ""], f'flag --idle-timeout: "" is not accepted: {POSITIVE}'),
    (["--grace", "-1"], f'flag --grace: "-1" is not accepted: {NOT_NEGATIVE}'),
    (["--max-lifetime", "never"], f'flag --max-lifetime: "never" is not accepted: {POSITIVE}, or off'),
    (["--port", "65536"], 'flag --port: "65536" is not accepted: a whole number from 0 to 65535 (0 = any)'),
    (["--reward", "mean"], 'flag --reward: "mean" is not accepted: sum, last or max'),
    (["--masked-as-error"], "flag --masked-as-error: a value is needed: never, always or auto"),
    (["--idle-timeout", "--port", "1"], f"flag --idle-timeout: a value is needed: {POSITIVE}"),
    (["--config"], "flag --config: a value is needed: the name of a file"),
    (["--hide-reward=maybe"], 'flag --hide-reward: "maybe" is not accepted: true or false'),
    (["config", "--json=maybe"], 'flag --json: "maybe" is not accepted: true or false'),
    (["--port", "1", "--port", "2"], "flag --port: given more than once"),
    (["--idle-timout", "5"], "flag --idle-timout: no such flag; did you mean --idle-timeout?"),
    (["env", "--capacty=5"], "flag --capacty: no such flag; did you mean --capacity?"),
    (["--", "--port"], UNEXPECTED),
    (["env", "--env", "envs:1"], "flag --env: not a flag of this command, but of gymserve serve"),
    (["--fault", "full"], "flag --fault: not a flag of this command, but of gymserve env"),
    (["--reset-kwargs", "1"], 'flag --reset-kwargs: "1" is not accepted: a JSON object such as {"level": 2}'),
    (["--qqq"], "flag --qqq: no such flag"),
    (["srve"], '"srve": no such command; did you mean serve?'),
    (["serve", "x"], UNEXPECTED),
    (["--env-header", "Authorization:", SECRET], UNEXPECTED),
    (["--secret", SECRET], "flag --secret: secrets are not accepted as flags; set GYMSERVE_SECRET"),
    (["--env-token=" + SECRET], "flag --env-token: secrets are not accepted as flags; set GYMSERVE_ENV_TOKEN"),
    (["--token", SECRET], "flag --token: secrets are not accepted as flags; set GYMSERVE_TOKEN or --token-file"),
    (["--admin-token=" + SECRET], "flag --admin-token: secrets are not accepted as flags; "
     "set GYMSERVE_ADMIN_TOKEN or --admin-token-file"),
    (["--allowed-host", "a:1"], 'flag --allowed-host: "a:1" is not accepted: a host name, without a port'),
    (["--env-header", SECRET], "flag --env-header: the value is not accepted: "
     "NAME: VALUE, of visible ASCII characters and on one line"),
    (["--env", f"http://me:{SECRET}@envs:1"], 'flag --env: "http://***@envs:1" is not accepted: '
     "no user, query or fragment may stand in it; accepted: "
     "host:port, http(s)://host[:port][/prefix] or ws(s)://host[:port][/prefix]/ws"),
    (["--observation-tool", "a b"],
     'flag --observation-tool: "a b" is not accepted: 1 to 64 of A-Z a-z 0-9 _ -, or off'),
    (["--reset-kwargs", "{"], 'flag --reset-kwargs: "{" is not accepted: a JSON object such as {"level": 2}'),
    (["--name", "\x1b[2J"], 'flag --name: "\\u001b[2J" is not accepted: 1 to 100 printable characters'),
    (["--name", "n" * 101], f'flag --name: "{"n" * 79}... is not accepted: 1 to 100 printable characters'),
    (["env", "--capacity", "0"], 'flag --capacity: "0" is not accepted: a whole number, 1 or more'),
    (["env", "--fault", "full", "--fault", "flood"],
     'flag --fault: "flood" is not accepted: there is no such fault; accepted: full'),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "line"), FLAGS, ids=lambda value: " ".join(value)[:40])
def test_a_flag_is_refused(terminal: Terminal, arguments: list[str], line: str) -> None:
    assert terminal.refusal(*arguments) == line


KUBERNETES = "comes from Kubernetes; set enableServiceLinks: false in the pod"
VARIABLES: list[tuple[dict[str, str], str]] = [
    ({"GYMSERVE_GRACE": "soon"}, f'variable GYMSERVE_GRACE: "soon" is not accepted: {NOT_NEGATIVE}'),
    ({"GYMSERVE_HIDE_REWARD": "maybe"}, 'variable GYMSERVE_HIDE_REWARD: "maybe" is not accepted: true or false'),
    ({"GYMSERVE_IDLE_TIMOUT": "5"},
     "variable GYMSERVE_IDLE_TIMOUT: no such setting; did you mean GYMSERVE_IDLE_TIMEOUT?"),
    ({"GYMSERVE_JSON": "1", "GYMSERVE_X": "1"}, "variable GYMSERVE_JSON: no such setting"),
    ({"GYMSERVE_SECRET": "too-short-a-one"},
     "variable GYMSERVE_SECRET: the value is not accepted: "
     "one secret, or two separated by a comma, each of 16 characters or more"),
    ({"GYMSERVE_ENV_TOKEN": "two words"},
     "variable GYMSERVE_ENV_TOKEN: the value is not accepted: visible ASCII characters without white space"),
    ({"GYMSERVE_TOKEN": "too-short-a-one"},
     "variable GYMSERVE_TOKEN: the value is not accepted: 16 or more visible ASCII characters without white space"),
    ({"GYMSERVE_ENV_HEADER": "X-A: 1\nnonsense"},
     "variable GYMSERVE_ENV_HEADER: the value is not accepted: "
     "NAME: VALUE, of visible ASCII characters and on one line"),
    ({"GYMSERVE_CONFIG": "run.ini"}, "file run.ini: is of an unknown kind; accepted: .toml, .yaml, .yml"),
    ({"GYMSERVE_PORT": "tcp://10.0.0.1:8100"}, f"variable GYMSERVE_PORT: {KUBERNETES}"),
    ({"GYMSERVE_SERVICE_HOST": "10.0.0.1"}, f"variable GYMSERVE_SERVICE_HOST: {KUBERNETES}"),
    ({"GYMSERVE_PORT_8100_TCP_ADDR": "10.0.0.1"}, f"variable GYMSERVE_PORT_8100_TCP_ADDR: {KUBERNETES}"),
]  # fmt: skip


@pytest.mark.parametrize(("environ", "line"), VARIABLES, ids=lambda value: str(value)[:40])
def test_a_variable_is_refused(terminal: Terminal, environ: dict[str, str], line: str) -> None:
    terminal.environ = environ
    assert terminal.refusal() == line


FILES: list[tuple[str, str | bytes, str]] = [
    ("f.toml", "idle_timeout = 'abc'", f'idle_timeout: "abc" is not accepted: {POSITIVE}'),
    ("f.toml", "idle_timeout = true", f"idle_timeout: true is not accepted: {POSITIVE}"),
    ("f.toml", "idle_timeout = nan", f"idle_timeout: NaN is not accepted: {POSITIVE}"),
    ("f.yaml", "patience:", f"patience: null is not accepted: {NOT_NEGATIVE}"),
    ("f.yaml", "name: 2024-01-31", 'name: "2024-01-31" is not accepted: 1 to 100 printable characters'),
    ("f.yaml", "reset_kwargs: {day: 2024-01-31}", 'reset_kwargs: "2024-01-31" is not accepted: '
     'a JSON object such as {"level": 2}'),
    ("f.yaml", "reset_kwargs: &a {a: *a}", "reset_kwargs: \"{'a': {...}}\" is not accepted: "
     'a JSON object such as {"level": 2}'),
    ("f.yaml", "reset_timeout: -1", f"reset_timeout: -1 is not accepted: {NOT_NEGATIVE}"),
    ("f.yaml", "patience: 1\nreset_timeout: 2",
     "patience and reset_timeout name the same setting; give one"),
    ("f.toml", "reset_timeout = 1\npatience = 2",
     "reset_timeout and patience name the same setting; give one"),
    ("f.yaml", "idle-timeout: 5", "idle-timeout: no such setting; did you mean idle_timeout?"),
    ("f.yaml", "7: 5", "7: no such setting"),
    ("f.toml", "capacity = 5", "capacity: not a setting of this command, but of gymserve env"),
    ("f.toml", f"secret = '{SECRET}'", "secret: secrets are not accepted in files; set GYMSERVE_SECRET"),
    ("f.toml", f"token = '{SECRET}'", "token: secrets are not accepted in files; set GYMSERVE_TOKEN"),
    ("f.yaml", f"env_header: [{SECRET}]", "env_header: the value is not accepted: "
     "NAME: VALUE, of visible ASCII characters and on one line"),
    ("f.toml", "a = ", "cannot be parsed: Invalid value (at end of document)"),
    ("f.yaml", "a: [", "cannot be parsed: line 1: expected the node content, but found '<stream end>'"),
    ("f.yaml", "grace: 1\ngrace: 2", "cannot be parsed: line 2: grace is given twice"),
    ("f.yaml", "name: 2024-13-45", "cannot be parsed: month must be in 1..12"),
    ("f.yaml", "- grace", "is not a mapping from settings to values"),
    ("f.yaml", "false", "is not a mapping from settings to values"),
    ("f.yaml", b"name: \xff",
     "cannot be parsed: 'utf-8' codec can't decode byte 0xff in position 6: invalid start byte"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "line"), FILES, ids=lambda value: str(value)[:30])
def test_a_file_is_refused(terminal: Terminal, name: str, text: str | bytes, line: str) -> None:
    assert terminal.refusal("--config", terminal.file(name, text)) == f"file {name}: {line}"


def test_a_deeply_nested_file_is_refused(terminal: Terminal) -> None:
    for name, text in (("deep.yaml", "a: " + "[" * 5000), ("deep.toml", "a = " + "[" * 5000)):
        line = terminal.refusal("--config", terminal.file(name, text))
        assert line.startswith(f"file {name}: cannot be parsed: ")


def test_a_file_that_cannot_be_read_is_refused(terminal: Terminal) -> None:
    missing = str(terminal.directory / "missing.toml")
    assert terminal.refusal("--config", missing) == "file missing.toml: cannot be read: No such file or directory"
    (terminal.directory / "folder.yaml").mkdir()
    folder = str(terminal.directory / "folder.yaml")
    assert terminal.refusal("--config", folder) == "file folder.yaml: cannot be read: Is a directory"


def test_a_wrong_value_is_refused_even_where_a_flag_overrides_it(terminal: Terminal) -> None:
    terminal.environ = {"GYMSERVE_GRACE": "soon"}
    line = f'variable GYMSERVE_GRACE: "soon" is not accepted: {NOT_NEGATIVE}'
    assert terminal.refusal("--grace", "1") == line


def test_env_refuses_a_file_for_serve(terminal: Terminal) -> None:
    file = terminal.file("serve.toml", "patience = 1")
    line = "file serve.toml: patience: not a setting of this command, but of gymserve serve"
    assert terminal.refusal("env", "--config", file) == line


# gymserve config


def test_config_in_a_pipe_is_aligned_lines(terminal: Terminal) -> None:
    terminal.environ = {"GYMSERVE_MAX_LIFETIME": "1e3", "GYMSERVE_ENV_HEADER": f"X-Key: {SECRET}\nX-Run: 7"}
    lines = terminal.output("config", "--reset-kwargs", '{"a": "\\u001b[2J"}', "--hide-reward").splitlines()
    assert [line.split()[0] for line in lines] == list(ServeSettings.model_fields)
    assert lines[:2] == [
        "env                the embedded GridSim server  default",
        "env_header         X-Key: set, X-Run: set       GYMSERVE_ENV_HEADER",
    ]
    assert "max_lifetime       1000                         GYMSERVE_MAX_LIFETIME" in lines
    assert "hide_reward        true                         flag" in lines
    assert 'reset_kwargs       {"a": "\\u001b[2J"}           flag' in lines
    assert lines[-1] == "env_token          not set                      default"


def test_config_shows_of_secrets_only_that_they_are_set(terminal: Terminal) -> None:
    terminal.environ = {
        "GYMSERVE_SECRET": f"{SECRET},{SECRET}-old",
        "GYMSERVE_ENV_TOKEN": SECRET,
        "GYMSERVE_TOKEN": SECRET,
        "GYMSERVE_ENV_HEADER": f"Authorization: {SECRET}",
    }
    config = terminal.config()
    assert config["secret"] == ("set", "GYMSERVE_SECRET")
    assert config["env_token"] == ("set", "GYMSERVE_ENV_TOKEN")
    assert config["token"] == ("set", "GYMSERVE_TOKEN")
    assert config["admin_token"] == (None, "default")
    assert config["env_header"] == (["Authorization: set"], "GYMSERVE_ENV_HEADER")
    assert SECRET not in terminal.output("config")
    assert SECRET not in terminal.output("config", "--json")


def on_a_terminal(*command: str, **variables: str) -> str:
    """What a command writes when both its outputs are a terminal."""
    controller, terminal = pty.openpty()
    environ = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | {"TERM": "xterm"}
    with subprocess.Popen([sys.executable, *command], stdout=terminal, stderr=terminal, env=environ | variables):
        os.close(terminal)
        chunks = []
        try:
            while chunk := os.read(controller, 65536):
                chunks.append(chunk)
        except OSError:  # Linux's end of file on a terminal is EIO
            pass
    os.close(controller)
    return b"".join(chunks).decode()


def test_config_on_a_terminal_is_a_table() -> None:
    text = on_a_terminal("-m", "gymserve", "config", "--name", "[red]", COLUMNS="100", NO_COLOR="1")
    rows = [re.sub(r"\x1b\[\d*m", "", line).split() for line in text.splitlines()]
    assert ["│", "name", "│", "[red]", "│", "flag", "│"] in rows


def test_config_into_a_pipe_that_is_shut_ends_quietly() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "gymserve", "config"]
    process = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, timeout=30)
    os.close(writer)
    assert (process.returncode, process.stderr) == (0, b"")


# The program


def test_version(terminal: Terminal) -> None:
    assert terminal.output("--version") == f"gymserve {__version__}\n"


def test_version_loads_no_server() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "gymserve", "--version"]
    process = subprocess.run(command, capture_output=True, text=True, timeout=30)
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in process.stderr.splitlines()}
    assert process.stdout == f"gymserve {__version__}\n"
    assert "cyclopts" in loaded
    assert loaded.isdisjoint({"trio", "quart", "quart_trio", "hypercorn", "httpx"})


@pytest.mark.parametrize("command", COMMANDS)
def test_help_names_every_flag_and_its_default(terminal: Terminal, command: str) -> None:
    text = terminal.output(command, "--help")
    model = EnvSettings if command == "env" else ServeSettings
    for key in open_keys(model):
        assert f"--{key.replace('_', '-')}" in text
    assert "--secret" not in text
    assert text.count("default:") == len(open_keys(model))
    assert "--idle-timeout SECONDS" in text or command == "env"


def test_plain_help_lists_the_commands(terminal: Terminal) -> None:
    text = terminal.output("--help")
    for word in (*COMMANDS, "GYMSERVE_SECRET", "--idle-timeout SECONDS", "[default: 600]"):
        assert word in text


@pytest.mark.parametrize(
    ("arguments", "variables", "line"),
    [
        (["--idle-timeout", "abc"], {}, f'flag --idle-timeout: "abc" is not accepted: {POSITIVE}'),
        (["env"], {"GYMSERVE_CAPACITY": "0"}, 'variable GYMSERVE_CAPACITY: "0" is not accepted: '
         "a whole number, 1 or more"),
        (["config", "--config", "no.toml"], {}, "file no.toml: cannot be read: No such file or directory"),
    ],
)  # fmt: skip
def test_the_program_refuses_with_status_2(arguments: list[str], variables: Mapping[str, str], line: str) -> None:
    process = gymserve(*arguments, **variables)
    assert (process.returncode, process.stdout, process.stderr) == (2, "", f"gymserve: {line}\n")


CRASH = """
import sys
from gymserve.cli import main
class Stdout:
    def write(self, text):
        raise ExceptionGroup("two\\x9b", [ValueError("an environment said \\x1b[2J\\u202e"), KeyError("\\nforged")])
    def isatty(self):
        return False
    def writelines(self, lines):
        self.write("")
    def flush(self):
        pass
sys.stdout = Stdout()
sys.argv[1:] = ["config"]
main()
"""


def test_a_crash_does_nothing_to_the_terminal() -> None:
    done = subprocess.run([sys.executable, "-c", CRASH], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.replace("\n", "").isprintable()
    assert r"ValueError: an environment said \x1b[2J\u202e" in done.stderr
    assert done.stderr.startswith("  + Exception Group Traceback (most recent call last):\n")


# Logs

LOG = """
import logging, math, structlog
from gymserve.cli.logs import configure_logging
configure_logging({style!r})
log = structlog.get_logger("gymserve.demo")
log.debug("unseen")
log.info("session ended", reason="idle for\\x1b[2J", deadline=math.inf, tool="look\\x7f")
try:
    raise ExceptionGroup("two\\nforged", [KeyError("\\x9b31m")])
except ExceptionGroup:
    log.exception("bug")
logging.getLogger("hypercorn.error").info("unseen")
logging.getLogger("hypercorn.error").warning("lost %s", "a\\nclient")
"""


def logged(style: str) -> list[str]:
    process = subprocess.run(
        [sys.executable, "-c", LOG.format(style=style)], capture_output=True, text=True, timeout=30
    )
    assert (process.returncode, process.stdout) == (0, "")
    assert process.stderr.replace("\n", "").isprintable()
    return process.stderr.splitlines()


def test_text_logs_are_lines_of_time_level_event_and_values() -> None:
    first, bug, *traceback, lost = logged("text")
    time, rest = first.split(" ", 1)
    assert len(time) == len("2024-01-31T12:00:00.000000Z") and time.endswith("Z")
    assert rest == r"[info     ] session ended reason='idle for\\x1b[2J' deadline=inf tool=look\x7f"
    assert bug.endswith("[error    ] bug")
    assert all(line.startswith("    ") for line in traceback)
    assert r"KeyError: '\x9b31m'" in traceback[-2]
    assert "    forged (1 sub-exception)" in [line.replace("  | ", "") for line in traceback]
    assert lost.endswith(r"[warning  ] lost a\nclient [hypercorn.error]")


LONG = """
import structlog
from gymserve.cli.logs import configure_logging
configure_logging({style!r})
structlog.get_logger("gymserve.demo").info("session ended", reason="x" * 2000, ending="y" * 5_000_000)
"""


@pytest.mark.parametrize("style", ["text", "json"])
def test_a_long_value_is_cut(style: str) -> None:
    done = subprocess.run([sys.executable, "-c", LONG.format(style=style)], capture_output=True, text=True, timeout=30)
    [line] = done.stderr.splitlines()
    assert line.count("x" * 2000) == 1
    assert "y" * 2000 + "... (5000000 characters)" in line and len(line) < 5000


def test_json_logs_are_one_object_a_line() -> None:
    first, bug, lost = map(json.loads, logged("json"))
    assert first.pop("timestamp").endswith("Z")
    assert first == {
        "event": "session ended",
        "level": "info",
        "reason": "idle for\x1b[2J",
        "deadline": "inf",
        "tool": "look\x7f",
    }
    assert bug["level"] == "error"
    assert bug["exception"].startswith("  + Exception Group Traceback (most recent call last):")
    assert (lost["event"], lost["level"], lost["logger"]) == ("lost a\nclient", "warning", "hypercorn.error")


def test_text_logs_are_coloured_on_a_terminal_unless_no_color() -> None:
    code = LOG.format(style="text")
    assert "\x1b[0m" in on_a_terminal("-c", code)
    assert "\x1b" not in on_a_terminal("-c", code, NO_COLOR="1")


def test_an_objects_own_text_is_escaped_too() -> None:
    class Hostile:
        def __repr__(self) -> str:
            return "\x1b]0;owned\x07"

    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter("text"))
    handler.handle(logging.makeLogRecord({"msg": {"event": "x", "peer": Hostile()}, "_logger": None, "_name": "info"}))
    assert stream.getvalue() == "x peer=\\x1b]0;owned\\x07\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_one_line():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "gymserve", "config"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert done.returncode == 1
    assert done.stderr == "gymserve: cannot write the output: No space left on device\n"


FAULTY_LOG = """
import sys, structlog
from gymserve.cli.logs import configure_logging
class Faulty:
    def __repr__(self):
        raise ValueError("no text")
configure_logging("text")
log = structlog.get_logger()
log.info("before", peer=Faulty())
log.info("after")
sys.stderr.close()
log.info("never")
sys.stdout.write("went on")
"""


def test_a_line_that_cannot_be_rendered_or_written_fails_nobody() -> None:
    done = subprocess.run([sys.executable, "-c", FAULTY_LOG], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (0, "went on")
    assert "ValueError: no text" in done.stderr
    assert done.stderr.splitlines()[-1].endswith("[info     ] after")
