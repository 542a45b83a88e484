"""Dataset rows: what stands in them, what the command refuses, and that every row seeds a real session."""

import json
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from counting import Counting
from hypothesis import given
from hypothesis import strategies as st
from processes import command, environ, episodes, running
from pydantic import SecretStr
from stage import Client, Stage, raise_the_curtain
from trio.testing import wait_all_tasks_blocked

from gymserve.cli import run
from gymserve.cli.commands import build_app
from gymserve.cli.headers import environment_headers
from gymserve.cli.learning import served_tools
from gymserve.door import Lesson
from gymserve.errors import EnvironmentFailed, NoRoom
from gymserve.gridsim.environment import Environment
from gymserve.gridsim.faults import parse_fault
from gymserve.gridsim.grid import GridSim
from gymserve.gridsim.server import EnvironmentServer
from gymserve.gridsim.tools import ToolEnvironment, ToolResult
from gymserve.rows import LARGEST_SEED, as_tool, encode_row, make_row, mcp_tools, parse_seeds
from gymserve.toolbox import Function, observation_function
from gymserve.wire import Observation

CLAIM = {"type": "object", "properties": {"claim": {"type": "string"}}, "required": ["claim"]}
COUNTING_STEP = {
    "type": "function",
    "name": "step",
    "description": "Act in the environment, and see what comes of it.",
    "parameters": {
        "type": "object",
        "properties": {"by": {"type": "integer", "minimum": 1, "maximum": 3, "title": "By"}},
        "title": "CountingAction",
        "required": ["by"],
        "additionalProperties": False,
    },
    "strict": False,
}

GRIDSIM_TOOLS = [
    {
        "type": "function",
        "name": tool["name"],
        "description": tool["description"],
        "parameters": tool["input_schema"],
        "strict": False,
    }
    for tool in GridSim.tools
]
GRIDSIM_CALLS = {"forecast": {"hours": 2}, "dispatch": {"battery_mw": 0, "generator_mw": 0}}


class Claims(ToolEnvironment):
    """Tools of which one has the name of a route and another that of the observation tool."""

    tools: Sequence[Mapping[str, Any]] = (
        {"name": "verify", "description": "Is it true?", "input_schema": CLAIM},
        {"name": "observation", "description": "Observe.", "input_schema": {"type": "object"}},
        {"name": "give_up", "description": "End.", "input_schema": {"type": "object", "properties": {}}},
    )

    def __init__(self, resets: list[dict[str, Any]]) -> None:
        self._resets = resets

    def reset(self, **kwargs: Any) -> Observation:
        self._resets.append(kwargs)
        return Observation({"metadata": {}}, 0.0)

    def call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        return ToolResult(name)


def observing(name: str) -> Any:
    return as_tool(observation_function(name))


CLAIMS_TOOLS = ["env_verify", "env_observation", "give_up", "observation"]


def check_functions(tools: Sequence[Mapping[str, Any]]) -> None:
    """What the Responses API asks of a function tool (openai's ``FunctionToolParam``)."""
    for tool in tools:
        assert set(tool) == {"type", "name", "description", "parameters", "strict"}
        assert (tool["type"], tool["strict"]) == ("function", False)
        assert isinstance(tool["name"], str) and isinstance(tool["description"], str)
        assert tool["parameters"]["type"] == "object" and isinstance(tool["parameters"]["properties"], dict)
        assert set(tool["parameters"].get("required", ())) <= set(tool["parameters"]["properties"])


def tools_of(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    tools: list[dict[str, Any]] = row["responses_create_params"]["tools"]
    check_functions(tools)
    return tools


def names_of(row: Mapping[str, Any]) -> list[str]:
    return [tool["name"] for tool in tools_of(row)]


# -- rows as such ----------------------------------------------------------------------------------------------------


def test_a_row_holds_what_nemo_gym_and_verifiers_read() -> None:
    looking = observing("look")
    params = {"input": [{"role": "user", "content": "Count."}], "tools": [looking]}
    assert make_row("Count.", [looking], {"seed": 3}) == {
        "responses_create_params": params,
        "reset_kwargs": {"seed": 3},
    }
    assert make_row("Count.", [looking], {"day": 3}, agent="counter", label="night run") == {
        "responses_create_params": params,
        "reset_kwargs": {"day": 3},
        "agent_ref": {"type": "responses_api_agents", "name": "counter"},
        "gymserve_label": "night run",
    }


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("one\ntwo\r", rb'{"a":"one\ntwo\r"}'),
        ("schön ☀", '{"a":"schön ☀"}'.encode()),
        ("\u2028\u2029\x85", rb'{"a":"\u2028\u2029\u0085"}'),
        ("\x1b[2J\x7f\x9b2J\u061c\u202e\u2066", rb'{"a":"\u001b[2J\u007f\u009b2J\u061c\u202e\u2066"}'),
        ("\ud800", b'{"a":"?"}'),
    ],
)
def test_a_row_is_one_line_of_utf_8(text: str, line: bytes) -> None:
    assert encode_row({"a": text}) == line + b"\n"


@given(st.text(st.characters(codec="utf-8")))
def test_any_prompt_comes_back_from_its_line(prompt: str) -> None:
    line = encode_row(make_row(prompt, [], {})).decode()
    assert len(line.splitlines()) == 1
    assert json.loads(line)["responses_create_params"]["input"][0]["content"] == prompt


def test_a_number_that_json_cannot_say_is_refused() -> None:
    with pytest.raises(ValueError):
        encode_row({"a": float("nan")})


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("5", [5]),
        ("0..3", [0, 1, 2, 3]),
        ("7..7", [7]),
        ("20..21, 0..2,9", [20, 21, 0, 1, 2, 9]),
        (f"{LARGEST_SEED}", [LARGEST_SEED]),
    ],
)
def test_seeds_are_numbers_and_ranges_with_both_ends(text: str, seeds: list[int]) -> None:
    assert [seed for each in parse_seeds(text) for seed in each] == seeds


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        *(
            (text, "whole numbers and ranges such as")
            for text in ("", "a", "-1", "1..", "..1", "1...2", "1,", "٣", "1e3")
        ),
        ("9..1", "9..1 ends before it begins"),
        (f"0..{LARGEST_SEED + 1}", f"{LARGEST_SEED + 1} is above {LARGEST_SEED}, the largest seed"),
        ("3,0..5", "3 is given twice"),
        ("4,1..2,4", "4 is given twice"),
    ],
)
def test_what_is_no_list_of_seeds_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(ValueError) as caught:
        parse_seeds(text)
    assert str(caught.value).startswith(sentence)


# -- tools -----------------------------------------------------------------------------------------------------------


def test_a_function_becomes_a_tool_of_the_responses_api() -> None:
    assert as_tool(Function("add", "Add.", CLAIM)) == {
        "type": "function",
        "name": "add",
        "description": "Add.",
        "parameters": CLAIM,
        "strict": False,
    }


@pytest.mark.parametrize(
    ("observation", "names"),
    [("observation", ["env_verify", "env_observation", "give_up"]), (None, ["env_verify", "observation", "give_up"])],
)
def test_tools_have_the_names_that_gymserve_serves(observation: str | None, names: list[str]) -> None:
    assert [tool["name"] for tool in mcp_tools(Claims.tools, observation)] == names


def test_without_a_list_of_tools_there_are_no_rows() -> None:
    with pytest.raises(EnvironmentFailed, match="does not list its tools"):
        served_tools(Lesson({"action": {"title": "CallToolAction"}}, tools=None), "observation")


def test_headers_are_names_and_values_and_the_token() -> None:
    assert environment_headers(["X-Team: blue", "X-Run:7:8"], SecretStr("t0ken")) == [
        ("X-Team", "blue"),
        ("X-Run", "7:8"),
        ("Authorization", "Bearer t0ken"),
    ]


# -- learning them in virtual time -----------------------------------------------------------------------------------


def claims_server(capacity: int = 1, *faults: str, resets: list[dict[str, Any]] | None = None) -> EnvironmentServer:
    make = partial(Claims, [] if resets is None else resets)
    return EnvironmentServer(make, capacity=capacity, faults=[parse_fault(fault) for fault in faults])


async def test_tools_are_learned_without_a_reset_and_the_slot_is_given_back(autojump_clock: Any) -> None:
    resets: list[dict[str, Any]] = []
    async with raise_the_curtain(claims_server(1, "slow-close:2", resets=resets)) as stage:
        lesson = await stage.opener.learn()
        assert [tool["name"] for tool in lesson.tools or ()] == ["verify", "observation", "give_up"]
        assert (trio.current_time(), resets, stage.opener.line.held) == (2, [], 0)
        assert (stage.episodes["active"], stage.episodes["closed"]) == (0, 1)


@asynccontextmanager
async def second_to_come(server: EnvironmentServer) -> AsyncIterator[tuple[Stage, Client]]:
    """A gymserve before ``server``, and the client of another, which has the only slot."""
    async with raise_the_curtain(server) as other, raise_the_curtain(server) as stage:
        client = other.client()
        await client.seed()
        yield stage, client


async def test_a_full_server_is_waited_out(autojump_clock: Any) -> None:
    async with second_to_come(claims_server()) as (stage, client):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stage.opener.learn)
            await trio.sleep(25)
            assert stage.opener.line.waiting == 1
            await client.verify()
        assert trio.current_time() == pytest.approx(25, abs=2)  # it asks every now and then
        assert (stage.opener.line.held, stage.episodes["active"]) == (0, 0)


async def test_a_server_that_stays_full_is_given_up_when_the_patience_ends(autojump_clock: Any) -> None:
    async with raise_the_curtain(claims_server(1, "full"), patience_seconds=60) as stage:
        with pytest.raises(NoRoom, match="had no room within 60 s"):
            await stage.opener.learn()
        assert (trio.current_time(), stage.opener.line.held, stage.opener.line.waiting) == (60, 0, 0)


async def test_a_goodbye_that_is_not_answered_costs_its_bound_and_not_the_lesson(autojump_clock: Any) -> None:
    server = claims_server(1, "slow-close:100")
    async with raise_the_curtain(server, patience_seconds=5, close_timeout_seconds=10) as stage:
        assert (await stage.opener.learn()).tools
        assert trio.current_time() == pytest.approx(10, abs=0.6)  # and the last word


async def test_a_step_environment_is_known_without_a_slot(autojump_clock: Any) -> None:
    async with raise_the_curtain(EnvironmentServer(Counting, faults=[parse_fault("full")])) as stage:
        lesson = await stage.opener.learn()
        assert served_tools(lesson, None) == [COUNTING_STEP]
        assert (trio.current_time(), stage.network.connections, stage.opener.line.held) == (0, 1, 0)  # GET /schema


async def test_giving_up_the_lesson_leaves_nothing_behind(autojump_clock: Any) -> None:
    async with second_to_come(claims_server()) as (stage, _):
        with trio.move_on_after(7):
            await stage.opener.learn()
        await wait_all_tasks_blocked()
        assert (trio.current_time(), stage.opener.line.waiting, stage.opener.line.held) == (7, 0, 0)


async def test_many_learners_ask_once(autojump_clock: Any) -> None:
    lessons: list[Lesson] = []

    async def learn(stage: Stage) -> None:
        lessons.append(await stage.opener.learn())

    async with second_to_come(claims_server()) as (stage, client):
        async with trio.open_nursery() as nursery:
            impatient = trio.CancelScope()

            async def learn_for_a_while() -> None:
                with impatient:
                    await learn(stage)

            nursery.start_soon(learn_for_a_while)
            await trio.sleep(1)
            for _ in range(5):
                nursery.start_soon(learn, stage)
            await trio.sleep(1)
            assert stage.opener.line.waiting == 1
            impatient.cancel()  # the others go on
            await client.verify()
        assert stage.episodes == {"active": 0, "max": 1, "opened": 2, "closed": 2}
        assert lessons == [stage.opener.pool.lesson] * 5
        assert await stage.opener.learn() is stage.opener.pool.lesson
        assert stage.episodes["opened"] == 2
        seeded = stage.client()
        await seeded.seed()  # and a session knows them without asking
        assert (await seeded.call("env_verify", {"claim": "so"})).body == {"result": "verify", "error": None}


# -- the command -----------------------------------------------------------------------------------------------------


class Terminal:
    """Someone at the command line, in a directory of their own."""

    def __init__(self, directory: Path, capture: pytest.CaptureFixture[str]) -> None:
        self.directory = directory
        self.environ: dict[str, str] = {}
        self._capture = capture

    def file(self, name: str, content: str | bytes) -> str:
        path = self.directory / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return str(path)

    def run(self, *arguments: str) -> tuple[int, str, str]:
        status = run(build_app(self.environ), ["rows", *arguments])
        out, err = self._capture.readouterr()
        return status, out, err.replace(f"{self.directory}/", "")

    def rows(self, *arguments: str) -> list[Any]:
        status, out, err = self.run(*arguments)
        assert (status, err) == (0, "")
        return [json.loads(line) for line in out.splitlines()]


@pytest.fixture
def terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(tmp_path, capsys)


@pytest.mark.parametrize(
    ("arguments", "days"),
    [
        ([], range(1000)),
        (["--split", "train"], range(1000)),
        (["--split", "eval"], range(1000, 1200)),
        (["--split", "eval", "--limit", "3"], range(1000, 1003)),
        (["--limit", "5000"], range(1000)),
    ],
)
def test_gridsim_has_a_row_a_day(terminal: Terminal, arguments: list[str], days: range) -> None:
    rows = terminal.rows(*arguments)
    assert [row["reset_kwargs"] for row in rows] == [{"day": day} for day in days]
    assert {tuple(row) for row in rows} == {("responses_create_params", "reset_kwargs")}


def test_gridsims_tools_are_the_environments_own(terminal: Terminal) -> None:
    [row] = terminal.rows("--limit", "1")
    assert tools_of(row) == GRIDSIM_TOOLS


def test_gridsims_prompt_tells_the_task(terminal: Terminal) -> None:
    [row] = terminal.rows("--limit", "1")
    [message] = row["responses_create_params"]["input"]
    assert message["role"] == "user"
    for word in (*names_of(row), "24 times", "score", "hours_left"):
        assert word in message["content"]


def test_a_prompt_of_ones_own_an_agent_and_a_label(terminal: Terminal) -> None:
    prompt = terminal.file("prompt.txt", "\ufeff\r\nBe green.\r\nBe cheap: 5 €.\n\n")
    [row] = terminal.rows("--prompt", prompt, "--agent", "grid_agent", "--label", "run 7", "--limit", "1")
    assert row["responses_create_params"]["input"] == [{"role": "user", "content": "Be green.\nBe cheap: 5 €."}]
    assert row["agent_ref"] == {"type": "responses_api_agents", "name": "grid_agent"}
    assert row["gymserve_label"] == "run 7"


def test_the_same_command_writes_the_same_rows(terminal: Terminal) -> None:
    assert terminal.run("--limit", "20") == terminal.run("--limit", "20")


def test_a_file_is_written_whole(terminal: Terminal) -> None:
    path = terminal.directory / "rows.jsonl"
    path.write_text("of yesterday")
    path.chmod(0o600)
    assert terminal.run("--limit", "2", "--output", str(path)) == (0, "", "")
    assert path.read_bytes() == terminal.run("--limit", "2")[1].encode()
    assert files_in(terminal.directory) == ["rows.jsonl"]


def test_a_new_file_has_the_mode_of_any_new_file(terminal: Terminal) -> None:
    terminal.run("--limit", "1", "--output", str(terminal.directory / "rows.jsonl"))
    (terminal.directory / "plain").touch()
    modes = {stat.S_IMODE(file.stat().st_mode) for file in terminal.directory.iterdir()}
    assert len(modes) == 1


def test_a_link_still_leads_to_the_file(terminal: Terminal) -> None:
    (terminal.directory / "elsewhere").mkdir()
    link = terminal.directory / "rows.jsonl"
    link.symlink_to("elsewhere/rows.jsonl")
    terminal.run("--limit", "1", "--output", str(link))
    assert link.is_symlink() and (terminal.directory / "elsewhere" / "rows.jsonl").is_file()


SEEDS_FORM = "whole numbers and ranges such as 5 or 0..9,20..29 (both ends included)"
REFUSED: list[tuple[list[str], str]] = [
    (["--split", "test"], 'flag --split: "test" is not accepted: train or eval'),
    (["--limit", "0"], 'flag --limit: "0" is not accepted: a whole number, 1 or more'),
    (["--label", ""], 'flag --label: "" is not accepted: 1 to 200 printable characters'),
    (["--agent", "a\nb"], 'flag --agent: "a\\nb" is not accepted: 1 to 100 printable characters'),
    (["--seeds", "x"], f'flag --seeds: "x" is not accepted: {SEEDS_FORM}'),
    (["--seeds", "9..1"], f'flag --seeds: "9..1" is not accepted: 9..1 ends before it begins; accepted: {SEEDS_FORM}'),
    (["--seeds", "1"], "flag --seeds: is for an environment server, and needs --env; GridSim has --split"),
    (["--env", "envs:1", "--seeds", "1"],
     "flag --env: needs --prompt FILE: what a model's task is there, gymserve cannot know"),
    (["--env", "envs:1", "--prompt", "p"],
     "flag --env: needs --seeds, such as --seeds 0..999: a row is written for each"),
    (["--env", "envs:1", "--split", "eval"],
     "flag --split: is for GridSim; with an environment server (flag --env) use --seeds"),
    (["--prompt", "/no/such"], "flag --prompt: /no/such cannot be read: No such file or directory"),
    (["--prompt", "/"], "flag --prompt: / cannot be read: Is a directory"),
    (["--output", "/no/such/file"], "flag --output: /no/such/file cannot be written: No such file or directory"),
    (["--output", "/dev/null"], "flag --output: /dev/null is not a file; without --output rows go to stdout"),
    (["--output", "/tmp"], "flag --output: /tmp is not a file; without --output rows go to stdout"),
    (["--idle-timeout", "1"], "flag --idle-timeout: not a flag of this command, but of gymserve serve"),
    (["--env-token", "x"], "flag --env-token: secrets are not accepted as flags; set GYMSERVE_ENV_TOKEN"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "line"), REFUSED)
def test_bad_input_is_refused_in_a_line(terminal: Terminal, arguments: list[str], line: str) -> None:
    assert terminal.run(*arguments) == (2, "", f"gymserve: {line}\n")


def test_a_refusal_names_the_variable(terminal: Terminal) -> None:
    terminal.environ = {"GYMSERVE_ENV": "envs:1"}
    line = "variable GYMSERVE_ENV: needs --prompt FILE: what a model's task is there, gymserve cannot know"
    assert terminal.run() == (2, "", f"gymserve: {line}\n")


@pytest.mark.parametrize(
    ("content", "reason"), [(b"\xff", "cannot be read: it is not UTF-8 text"), (b" \n", "is empty")]
)
def test_a_prompt_that_says_nothing_is_refused(terminal: Terminal, content: bytes, reason: str) -> None:
    prompt = terminal.file("prompt.txt", content)
    assert terminal.run("--prompt", prompt) == (2, "", f"gymserve: flag --prompt: prompt.txt {reason}\n")


def test_seeds_may_be_a_number_in_a_file(terminal: Terminal) -> None:
    prompt = terminal.file("prompt.txt", "Count.")
    config = terminal.file("rows.yaml", f"seeds: 5\nprompt: {prompt}\nenv: 127.0.0.1:1\n")
    status, out, err = terminal.run("--config", config)
    assert (status, out) == (1, "")
    assert err.startswith("gymserve: the environment server at http://127.0.0.1:1 cannot be used: ")
    assert err.endswith("; check that --env is right and that an OpenEnv server is running there\n")
    assert err.count("\n") == 1


def test_a_server_that_cannot_be_used_leaves_the_file_alone(terminal: Terminal) -> None:
    prompt, output = terminal.file("prompt.txt", "Count."), terminal.file("rows.jsonl", "of yesterday")
    status, out, err = terminal.run("--env", "127.0.0.1:1", "--seeds", "1", "--prompt", prompt, "--output", output)
    assert (status, out, err.count("\n")) == (1, "", 1)
    assert Path(output).read_text() == "of yesterday"
    assert files_in(terminal.directory) == ["prompt.txt", "rows.jsonl"]


def test_gridsims_rows_load_no_server() -> None:
    process = subprocess.run(
        [sys.executable, "-X", "importtime", *command("rows", "--limit", "1")[1:]],
        env=environ(), capture_output=True, text=True, timeout=30,
    )  # fmt: skip
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in process.stderr.splitlines()}
    assert json.loads(process.stdout)["reset_kwargs"] == {"day": 0}
    assert "cyclopts" in loaded
    assert loaded.isdisjoint({"trio", "quart", "quart_trio", "hypercorn", "httpx"})


# -- end to end ------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def listening(serve: Callable[[trio.SocketStream], Any]) -> AsyncIterator[str]:
    """Connections served by ``serve``, and the address."""
    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        yield f"127.0.0.1:{listener.socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


async def gymserve_rows(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[bytes]":
    with trio.fail_after(30):
        return await trio.run_process(
            command("rows", *arguments), env=environ(**variables), capture_stdout=True, capture_stderr=True, check=False
        )


def prompt_file(directory: Path) -> str:
    path = directory / "prompt.txt"
    path.write_text("Do it.\n")
    return str(path)


def files_in(directory: Path) -> list[str]:
    return sorted(file.name for file in directory.iterdir())


async def rows_for(url: str, tmp_path: Path, *arguments: str) -> list[Any]:
    process = await gymserve_rows("--env", url, "--prompt", prompt_file(tmp_path), *arguments)
    assert (process.returncode, process.stderr) == (0, b"")
    return [json.loads(line) for line in process.stdout.splitlines()]


async def test_rows_for_a_step_environment(tmp_path: Path) -> None:
    async with listening(EnvironmentServer(Counting).serve_stream) as url:
        [first, second] = await rows_for(url, tmp_path, "--seeds", "4,9", "--agent", "a", "--label", "l")
    assert first == {
        "responses_create_params": {
            "input": [{"role": "user", "content": "Do it."}],
            "tools": [COUNTING_STEP, observing("observation")],
        },
        "reset_kwargs": {"seed": 4},
        "agent_ref": {"type": "responses_api_agents", "name": "a"},
        "gymserve_label": "l",
    }
    assert second == {**first, "reset_kwargs": {"seed": 9}}
    await play(first, Counting, [(name, {"by": 1} if name == "step" else {}) for name in names_of(first)])


async def test_rows_for_the_embedded_server(tmp_path: Path) -> None:
    with running("env", "--capacity", "1") as env:
        rows = await rows_for(env.url, tmp_path, "--seeds", "4,9")
        assert await episodes(env.url) == {"active": 0, "max": 1, "opened": 1, "closed": 1}
    assert [row["reset_kwargs"] for row in rows] == [{"seed": 4}, {"seed": 9}]
    assert tools_of(rows[0]) == [*GRIDSIM_TOOLS, observing("observation")]
    await play(rows[0], GridSim, [(name, GRIDSIM_CALLS.get(name, {})) for name in names_of(rows[0])])


async def test_rows_for_an_mcp_server(tmp_path: Path) -> None:
    server = claims_server()
    async with listening(server.serve_stream) as url:
        rows = await rows_for(url, tmp_path, "--seeds", "0..2", "--limit", "2")
    assert server.episodes == {"active": 0, "max": 1, "opened": 1, "closed": 1}
    assert [row["reset_kwargs"] for row in rows] == [{"seed": 0}, {"seed": 1}]
    assert [names_of(row) for row in rows] == [CLAIMS_TOOLS] * 2
    assert tools_of(rows[0])[0]["parameters"] == CLAIM
    resets: list[dict[str, Any]] = []
    for row in rows:
        await play(row, partial(Claims, resets), [(name, {"claim": "it is"}) for name in CLAIMS_TOOLS])
    assert resets == [{"seed": 0}, {"seed": 1}]


async def test_rows_for_gridsim(terminal: Terminal) -> None:
    [row] = terminal.rows("--split", "eval", "--limit", "1")
    await play(row, GridSim, [(name, GRIDSIM_CALLS.get(name, {})) for name in names_of(row)])


async def play(row: Any, make: Callable[[], Environment], calls: list[tuple[str, dict[str, Any]]]) -> None:
    """A session that ``row`` seeds, as any client would send it, and calls of the tools that it lists."""
    async with raise_the_curtain(EnvironmentServer(make)) as stage:
        client = stage.client()
        assert (await client.seed(row)).status == 200
        for name, arguments in calls:
            answer = await client.call(name, arguments)
            assert (answer.status, answer.body.get("error")) == (200, None), name
        assert (await client.verify(**row)).status == 200


async def test_without_an_observation_tool_its_name_is_free(tmp_path: Path) -> None:
    async with listening(claims_server().serve_stream) as url:
        [row] = await rows_for(url, tmp_path, "--seeds", "1", "--observation-tool", "off")
    assert names_of(row) == ["env_verify", "observation", "give_up"]


async def test_headers_and_the_token_reach_the_server(tmp_path: Path) -> None:
    heads: list[bytes] = []
    schema = b'{"action":{"type":"object"}}'

    async def serve(stream: trio.SocketStream) -> None:
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += await stream.receive_some()
        heads.append(head)
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(schema) + schema)

    async with listening(serve) as url:
        arguments = ["--env", url, "--env-header", "X-Team: blue", "--prompt", prompt_file(tmp_path), "--seeds", "1"]
        process = await gymserve_rows(*arguments, GYMSERVE_ENV_TOKEN="t0ken")
    assert process.returncode == 0
    [head] = heads
    assert b"\r\nX-Team: blue\r\n" in head and b"\r\nAuthorization: Bearer t0ken\r\n" in head


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"<html>", "cannot be used: the server's GET /schema is no OpenEnv schema"),
        (b'{"action":{"default":NaN}}', "a schema of the environment server has a number that JSON cannot say"),
    ],
)
async def test_a_server_that_talks_nonsense_is_told_in_a_line(tmp_path: Path, body: bytes, sentence: str) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    output = str(tmp_path / "rows.jsonl")
    async with listening(serve) as url:
        arguments = ["--env", url, "--prompt", prompt_file(tmp_path), "--seeds", "1", "--output", output]
        process = await gymserve_rows(*arguments)
    assert (process.returncode, process.stdout, process.stderr.count(b"\n")) == (1, b"", 1)
    assert sentence in process.stderr.decode()
    assert files_in(tmp_path) == ["prompt.txt"]


async def test_an_interrupt_ends_the_waiting_without_a_word(tmp_path: Path) -> None:
    knocked, server = trio.Event(), claims_server(1, "full")

    async def serve(stream: trio.SocketStream) -> None:
        knocked.set()
        await server.serve_stream(stream)

    arguments = ["--prompt", prompt_file(tmp_path), "--seeds", "1", "--output", str(tmp_path / "rows.jsonl")]
    async with listening(serve) as url:
        process = await trio.lowlevel.open_process(
            command("rows", "--env", url, *arguments), env=environ(), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        with trio.fail_after(30):
            await knocked.wait()
            process.send_signal(signal.SIGINT)
            assert process.stderr is not None
            assert b"".join([part async for part in process.stderr]) == b""
            assert await process.wait() == 130
    assert files_in(tmp_path) == ["prompt.txt"]


async def test_a_full_server_is_told_in_a_line(tmp_path: Path) -> None:
    async with listening(claims_server(1, "full").serve_stream) as url:
        arguments = ["--env", url, "--prompt", prompt_file(tmp_path), "--seeds", "1", "--patience", "0.3"]
        process = await gymserve_rows(*arguments)
    assert (process.returncode, process.stdout, process.stderr.count(b"\n")) == (1, b"", 1)
    assert b"had no room within 0.3 s" in process.stderr and b"raise --patience" in process.stderr
