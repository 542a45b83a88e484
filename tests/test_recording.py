"""Trajectories: what stands in their files, what a disk in trouble costs, and that it never is a rollout's time."""

import gc
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from counting import Counting
from full_disk import full_at
from hypothesis import given
from hypothesis import strategies as st
from processes import ANSWER_SECONDS, command, environ, running
from scripted import ScriptedServer, agreeable, observed, refused
from stage import COOKIE, INSTANCE, Client, Stage, raise_the_curtain, typed_seed
from structlog.testing import capture_logs

from gymserve import wire
from gymserve.contents import Acted, Began, Content, Failure, Seeded
from gymserve.excerpt import Excerpt
from gymserve.gridsim.faults import parse_fault
from gymserve.gridsim.server import EnvironmentServer
from gymserve.identity import SessionCookie, SessionToken
from gymserve.losses import Losses
from gymserve.narrator import Narrator
from gymserve.nesting import MAX_DEPTH
from gymserve.recording import Recorder, open_recorder
from gymserve.strict_json import written
from gymserve.telemetry import Ended, LinesLost, Telemetry
from gymserve.trajectories import MOST_NEVER_OPENED, Entry, RecordingFailed, Written
from gymserve.transcript import step_line

EPOCH_SECONDS = 1_764_471_795.25
CAP_BYTES = 65_536

Write = Callable[[Sequence[Entry]], Written]


class Disk:
    """Stands for the thread that waits for the disk, for each batch ``seconds``; ``fails_with`` is raised instead."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.fails_with: Exception | None = None

    async def write(self, write: Write, batch: Sequence[Entry]) -> Written:
        await trio.sleep(self.seconds)
        if self.fails_with is not None:
            raise self.fails_with
        return write(batch)


@asynccontextmanager
async def recording(directory: Path, disk: Disk | None = None, **limits: Any) -> AsyncIterator[Recorder]:
    async with open_recorder(
        directory,
        INSTANCE,
        max_observation_bytes=limits.pop("max_observation_bytes", CAP_BYTES),
        in_thread=(disk or Disk()).write,
        epoch_seconds=lambda: EPOCH_SECONDS + trio.current_time(),
        **limits,
    ) as recorder:
        yield recorder


@asynccontextmanager
async def gymserve(directory: Path, server: Any = None, disk: Disk | None = None, **terms: Any) -> AsyncIterator[Stage]:
    """A stage whose trajectories are recorded in ``directory``."""
    limits = {name: terms.pop(name) for name in ("max_observation_bytes", "most_lines", "most_bytes") if name in terms}
    async with (
        recording(directory, disk, **limits) as recorder,
        raise_the_curtain(server or EnvironmentServer(Counting, capacity=200), **terms) as stage,
    ):
        stage.gateway.telemetry.record(recorder.hear)
        yield stage


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "trajectories"


def short_id(client: Client) -> str:
    [value] = client.cookies.values()
    session_id = COOKIE.session_id(value)
    assert session_id is not None
    return session_id[:12]


def strict(line: str) -> Any:
    """A line as the strictest reader takes it: no NaN, no key twice."""

    def refuse(constant: str) -> Any:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(line, parse_constant=refuse)


def lines_of(file: Path) -> list[Any]:
    data = file.read_bytes()
    assert data.isascii() and data.endswith(b"\n")
    lines = data.decode("ascii").splitlines()
    assert len(lines) == data.count(b"\n")
    return [strict(line) for line in lines]


def files(directory: Path) -> list[Path]:
    return sorted(directory.iterdir())


def only_file(directory: Path) -> list[Any]:
    [file] = files(directory)
    return lines_of(file)


def without(line: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name not in names}


def warnings(logs: list[Any]) -> list[dict[str, Any]]:
    return [
        without(line, "log_level", "advice")
        for line in logs
        if line["log_level"] == "warning" and "traject" in line["event"]
    ]


def server(*faults: str, capacity: int = 1) -> EnvironmentServer:
    return EnvironmentServer(Counting, capacity=capacity, faults=[parse_fault(fault) for fault in faults])


# What stands there

EXAMPLE = """\
{"event":"seed","session":"SESSION","instance":"0a1b2c3d","label":"run-7","at_epoch_seconds":1764471795.25,"reset_kwargs":{"target":4},"row":{"task":7,"reset_kwargs":{"target":4}}}
{"event":"reset","at_seconds":3.0,"env":"http://environment:8000","waited_seconds":0.0,"reset_seconds":3.0,"tries":1,"reward":null,"done":false,"observation":{"count":0,"target":4,"metadata":{}}}
{"event":"step","at_seconds":5.5,"step":1,"step_seconds":0.5,"reward":0.75,"done":false,"action":{"by": 3},"observation":{"count":3,"target":4,"metadata":{}}}
{"event":"step","at_seconds":6.0,"step_seconds":0.5,"action":{"by": 9},"error":{"kind":"refused","code":"VALIDATION_ERROR","message":"Invalid message","errors":[{"type":"less_than_equal","loc":["by"],"msg":"Input should be less than or equal to 3","input":9}]}}
{"event":"end","at_seconds":7.0,"ending":"verified","reason":"verified","scored":true,"reward":0.75,"steps":1,"dropped_lines":0}
"""  # noqa: E501


async def test_a_whole_episode(autojump_clock, directory):
    async with gymserve(directory, server("slow-reset:3", "slow-step:0.5")) as stage:
        client = stage.client()
        await client.seed({"task": 7, "reset_kwargs": {"target": 4}}, **{"X-Gymserve-Label": "run-7"})
        await trio.sleep(2)
        await client.step(3)
        await client.step(9)
        await trio.sleep(1)
        await client.verify(task=7)
        assert trio.current_time() == 7
    [file] = files(directory)
    assert file.name == f"20251130T030315.250Z-{short_id(client)}.jsonl"
    assert file.read_text() == EXAMPLE.replace("SESSION", short_id(client))


async def test_it_can_be_followed_while_it_goes_on(autojump_clock, directory):
    async with gymserve(directory) as stage:
        client = stage.client()
        await client.seed()
        await trio.sleep(1)
        assert [line["event"] for line in only_file(directory)] == ["seed", "reset"]
        await trio.sleep(10)
        await client.step()
        await trio.sleep(1)
        assert [line["event"] for line in only_file(directory)] == ["seed", "reset", "step"]


async def test_names_are_in_the_order_of_the_seeds(autojump_clock, directory):
    async with gymserve(directory) as stage:
        clients = [stage.client() for _ in range(5)]
        for client in clients:
            await client.seed()
            await trio.sleep(0.002)
    names = [file.name for file in files(directory)]
    assert names == [
        f"20251130T030315.{250 + 2 * number}Z-{short_id(client)}.jsonl" for number, client in enumerate(clients)
    ]


async def test_what_every_reset_gets_is_told_beside_the_row(autojump_clock, directory):
    async with gymserve(directory, reset_kwargs={"target": 4, "level": 1}) as stage:
        await stage.client().seed({"verifier_metadata": {"reset_kwargs": {"target": 9}}})
    seed = only_file(directory)[0]
    assert seed["reset_kwargs"] == {"target": 9, "level": 1}
    assert seed["row"] == {"verifier_metadata": {"reset_kwargs": {"target": 9}}}


SECONDS = 5


async def ends_in_a_step(message: dict[str, Any]) -> Any:
    """Answers `how` after some seconds."""
    if message["type"] != "step":
        return await agreeable(message)
    await trio.sleep(SECONDS)
    return {
        "error": refused("EXECUTION_ERROR", "boom"),
        "crash": refused("SESSION_ERROR", "the session crashed"),
        "drop": 1006,
        "garbage": "garbage",
        "done": observed(1, done=True, text="ok"),
        "silence": None,
    }[message["data"]["how"]]


ENDINGS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "error",
        {"error": {"kind": "refused", "code": "EXECUTION_ERROR", "message": "boom", "errors": None}},
        {"at_seconds": 55.0, "ending": "idle timeout", "reason": "no request for 50 s, the idle timeout"},
    ),
    (
        "crash",
        {"error": {"kind": "refused", "code": "SESSION_ERROR", "message": "the session crashed", "errors": None}},
        {
            "at_seconds": 5.0,
            "ending": "ended by an action",
            "reason": "the environment server ended the episode in answer to an action: "
            "SESSION_ERROR: the session crashed",
            "scored": True,
        },
    ),
    (
        "drop",
        {"error": {"kind": "lost", "code": None, "message": "the server dropped the connection", "errors": None}},
        {
            "at_seconds": 5.0,
            "ending": "lost",
            "reason": "the environment server failed during a step: the server dropped the connection",
        },
    ),
    (
        "garbage",
        {
            "error": {
                "kind": "lost",
                "code": None,
                "message": "the server broke the protocol: not JSON: 'garbage'",
                "errors": None,
            }
        },
        {
            "at_seconds": 5.0,
            "ending": "lost",
            "reason": "the environment server failed during a step: the server broke the protocol: not JSON: 'garbage'",
        },
    ),
    (
        "done",
        {"step": 1, "reward": 1, "done": True, "observation": {"text": "ok"}},
        {
            "at_seconds": 55.0,
            "ending": "idle timeout",
            "reason": "no request for 50 s, the idle timeout",
            "scored": True,
            "reward": 1.0,
            "steps": 1,
        },
    ),
    (
        "silence",
        {
            "at_seconds": 20.0,
            "step_seconds": 20.0,
            "error": {"kind": "timed_out", "code": None, "message": "no answer within 20 s", "errors": None},
        },
        {
            "at_seconds": 20.0,
            "ending": "step timeout",
            "reason": "the environment did not answer a step within the step timeout: no answer within 20 s",
        },
    ),
]


@pytest.mark.parametrize(("how", "step", "end"), ENDINGS, ids=[how for how, _, _ in ENDINGS])
async def test_how_a_step_and_an_episode_end(autojump_clock, directory, how, step, end):
    async with gymserve(
        directory, ScriptedServer(ends_in_a_step), idle_timeout_seconds=50, step_timeout_seconds=20
    ) as stage:
        client = stage.client()
        await client.seed()
        await client.call("step", {"how": how})
        await trio.sleep(100)
    _, _, *others = only_file(directory)
    assert others == [
        {"event": "step", "at_seconds": 5.0, "step_seconds": 5.0, "action": {"how": how}, **step},
        {"event": "end", "scored": False, "reward": 0.0, "steps": 0, "dropped_lines": 0, **end},
    ]


@pytest.mark.parametrize("ender", ["close", "lifetime", "shutdown"])
async def test_an_action_that_the_end_of_the_session_cuts_short(autojump_clock, directory, ender):
    terms = {"lifetime_seconds": 3} if ender == "lifetime" else {}
    async with gymserve(directory, ScriptedServer(ends_in_a_step), **terms) as stage:
        client, closer = stage.client(), stage.client()
        await client.seed()
        closer.cookies = client.cookies
        await client.send("POST", "/step", {"how": "done"})
        await trio.sleep(3)
        if ender == "close":
            await closer.ask("POST", "/close_session")
        elif ender == "shutdown":
            stage.gateway.end_all()
        await client.answer()
        await trio.sleep(50)
    _, _, step, end = only_file(directory)
    assert step == {
        "event": "step",
        "at_seconds": 3.0,
        "step_seconds": 3.0,
        "action": {"how": "done"},
        "error": {
            "kind": "cut_short",
            "code": None,
            "message": "the session ended before an answer came",
            "errors": None,
        },
    }
    assert (end["event"], end["at_seconds"], end["ending"]) == (
        "end",
        3.0,
        {"close": "closed by the client", "lifetime": "maximum lifetime", "shutdown": "shutdown"}[ender],
    )


@pytest.mark.parametrize("verdict", ["a score", "an error"])
async def test_the_action_at_verify(autojump_clock, directory, verdict):
    async def judge(message: dict[str, Any]) -> Any:
        if "evaluate" not in message.get("data", {}):
            return await agreeable(message)
        await trio.sleep(SECONDS)
        return observed(0.5, text="scored") if verdict == "a score" else refused("EXECUTION_ERROR", "boom")

    async with gymserve(directory, ScriptedServer(judge), verify_action=wire.action({"evaluate": True})) as stage:
        client = stage.client()
        await client.seed()
        await client.call("step", {})
        await client.verify()
    verify, end = only_file(directory)[3:]
    asked = {"event": "verify", "at_seconds": 5.0, "step_seconds": 5.0, "action": {"evaluate": True}}
    if verdict == "a score":
        assert verify == {**asked, "reward": 0.5, "done": False, "observation": {"text": "scored"}}
        assert (end["ending"], end["scored"], end["reward"], end["steps"]) == ("verified", True, 1.5, 1)
    else:
        error = {"kind": "refused", "code": "EXECUTION_ERROR", "message": "boom", "errors": None}
        assert verify == {**asked, "error": error}
        assert (end["ending"], end["scored"]) == ("the verify action failed", False)


async def test_the_gymnasium_protocol(autojump_clock, directory):
    async with gymserve(directory) as stage:
        client = stage.client()
        row = {"responses_create_params": {"input": []}, "reset_kwargs": {"target": 5}}
        await client.ask("POST", "/reset", row)
        calls = [{"type": "function_call", "call_id": "1", "name": "step", "arguments": '{"by":  2}'}]
        await client.ask("POST", "/step", {**row, "response": {"output": calls}})
        await client.ask("POST", "/step", {**row, "response": {"output": []}})
    seed, reset, step, end = only_file(directory)
    assert seed["row"] == row
    assert reset["observation"] == {"count": 0, "target": 5, "metadata": {}}
    assert (step["action"], step["reward"], step["step"]) == ({"by": 2}, 0.4, 1)
    assert (end["ending"], end["reward"]) == ("verified", 0.4)


async def test_a_seed_by_name_without_the_name_which_can_close_the_session(autojump_clock, directory):
    name = "a-name-that-its-client-made-up"
    async with gymserve(directory) as stage:
        client = stage.client()
        seed = typed_seed(name, {"reset_kwargs": {"target": 5}})
        assert [(await client.seed(seed)).status for _ in range(2)] == [200, 200]
        await client.close_by_name(name)
    first, *_, end = only_file(directory)
    assert first["row"] == without(seed, "resources_session_id")
    assert (first["label"], first["reset_kwargs"]) == ("tasks", {"target": 5})
    assert end["ending"] == "closed by the client"
    assert name not in files(directory)[0].read_text()


# Sessions without an episode


async def test_seeds_that_get_no_episode_say_why(autojump_clock, directory):
    async with gymserve(directory, server(capacity=1), patience_seconds=30) as stage:
        holder, waiting, leaving = (stage.client() for _ in range(3))
        await holder.seed()
        await waiting.send("POST", "/seed_session", {"task": 1})
        await leaving.send("POST", "/seed_session", {"task": 2})
        await trio.sleep(10)
        await leaving.hang_up()
        assert (await waiting.answer()).status == 503
    ends = {}
    for file in files(directory):
        first, *_, end = lines_of(file)
        ends[first["row"].get("task")] = (end["at_seconds"], end["ending"], end["reason"])
    at_seconds, ending, reason = ends.pop(1)
    assert (at_seconds, ending) == (30.0, "never opened")
    assert reason.startswith("the environment server at http://environment:8000 had no room within 30 s")
    assert ends.pop(2) == (10.0, "closed by the client", "the client hung up before its seed was answered")
    assert ends.pop(None)[1] == "shutdown" and not ends


async def test_seeds_that_are_refused_at_the_door_leave_no_file(autojump_clock, directory):
    async with gymserve(directory, max_sessions=1) as stage:
        client = stage.client()
        await client.seed()
        for body in ({}, {"reset_kwargs": 7}, b'{"x": NaN}'):
            assert (await stage.client().ask("POST", "/seed_session", body)).status in (422, 503)
    assert len(files(directory)) == 1


def short(number: int) -> str:
    return f"{number:012x}"


def seeded(number: int, row: Any = None, label: str | None = None) -> Seeded:
    return Seeded(short(number), label, row, len(str(row)), {})


def ended(number: int) -> Ended:
    return Ended(short(number), None, None, "never opened", "because", False, 0.0, 0)


def began(number: int, fields: Mapping[str, Any]) -> Began:
    observation = wire.Observation(fields, None, False, len(str(fields)))
    return Began(short(number), None, "http://a:1", 0.0, 0.0, 1, observation)


def acted(number: int, action: str, outcome: wire.Observation | Failure | None = None) -> Acted:
    return Acted(short(number), None, "step", wire.Step(action), outcome or wire.Observation({}), 0.0)


async def test_of_ten_thousand_seeds_without_an_episode_the_latest_thousand_are_kept(autojump_clock, directory):
    episode, seeds = 10_000, 2 * MOST_NEVER_OPENED
    async with recording(directory) as recorder:
        for told in (seeded(episode), began(episode, {}), ended(episode)):
            recorder.hear(told)
        await trio.sleep(1)
        for number in range(seeds):
            recorder.hear(seeded(number))
            recorder.hear(ended(number))
            await trio.sleep(0.001)
    kept = [file.name[21:33] for file in files(directory)]
    assert kept == [short(episode), *(short(number) for number in range(seeds - MOST_NEVER_OPENED, seeds))]


# Long observations


def in_bytes(fields: Mapping[str, Any]) -> int:
    return len(written(fields))


async def observation_of(directory: Path, answer: Any, cap_bytes: int) -> dict[str, Any]:
    """What is told of the observation in a step's ``answer``."""

    async def script(message: dict[str, Any]) -> Any:
        return answer if message["type"] == "step" else await agreeable(message)

    async with gymserve(directory, ScriptedServer(script), max_observation_bytes=cap_bytes) as stage:
        client = stage.client()
        await client.seed()
        await client.call("step", {})
    step = only_file(directory)[2]
    return {name: step[name] for name in ("observation", "truncated") if name in step}


TEXTS = {"ascii": "x" * 100, "é": "é" * 100, "beyond 16 bits": "😀" * 50, "escapes": '"\\' * 50, "breaks": "\n" * 100}


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("beyond_bytes", [0, 1])
async def test_the_longest_observation_that_is_whole(autojump_clock, directory, name, beyond_bytes):
    fields = {"text": TEXTS[name]}
    size = in_bytes(fields)
    cap_bytes = size - beyond_bytes
    told = await observation_of(directory, observed(0.5, **fields), cap_bytes)
    if not beyond_bytes:
        assert told == {"observation": fields}
        return
    truncated = told["truncated"]
    assert (told["observation"], truncated["bytes"]) == (None, size)
    assert written(fields).startswith(truncated["begins"])
    in_the_file = len(json.dumps(truncated["begins"])) - 2
    assert cap_bytes - 1 <= in_the_file <= cap_bytes  # an escape is not torn


def test_every_cap_leaves_json() -> None:
    fields = {"text": '"\\' * 20 + "é\n", "\\": ['"']}
    for most_bytes in range(in_bytes(fields)):
        told = strict(step_line(0.0, acted(1, "{}", wire.Observation(fields)), 1, most_bytes=most_bytes))
        assert written(fields).startswith(told["truncated"]["begins"])
        assert most_bytes - 1 <= len(json.dumps(told["truncated"]["begins"])) - 2 <= most_bytes


async def test_a_cap_of_nothing(autojump_clock, directory):
    told = await observation_of(directory, observed(0.5, text="ok"), 0)
    assert told == {"observation": None, "truncated": {"bytes": 13, "begins": ""}}


MIB = 2**20


async def test_of_a_huge_observation_only_the_beginning_is_written_out(autojump_clock, directory):
    answer = json.dumps(observed(0.5, text="é" * 100, shots=["x" * MIB, "y" * MIB]), ensure_ascii=False)
    told = await observation_of(directory, answer, 1000)
    assert told["truncated"]["bytes"] == len(answer)  # as it was received
    assert told["truncated"]["begins"].startswith('{"text":"\\u00e9\\u00e9')
    assert len(json.dumps(told["truncated"]["begins"])) - 2 in (999, 1000)


async def test_a_huge_message_may_have_a_small_observation(autojump_clock, directory):
    answer = json.dumps(observed(0.5, text="ok")) + " " * MIB
    assert await observation_of(directory, answer, 13) == {"observation": {"text": "ok"}}


async def test_a_huge_cap_keeps_huge_observations(autojump_clock, directory):
    fields = {"text": "x" * (2 * MIB)}
    assert await observation_of(directory, observed(0.5, **fields), in_bytes(fields)) == {"observation": fields}


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=900),
    lambda inner: st.lists(inner, max_size=40) | st.dictionaries(st.text(max_size=300), inner, max_size=20),
    max_leaves=60,
)


def assert_excerpt(value: Any, most_bytes: int) -> None:
    excerpt = Excerpt(most_bytes)
    text = written(excerpt.of(value))
    if excerpt.is_cut:
        assert len(written(value)) > most_bytes
        assert text[:most_bytes] == written(value)[:most_bytes]
    else:
        assert text == written(value)


@given(VALUES, st.integers(0, 3000))
def test_an_excerpt_is_a_beginning(value: Any, most_bytes: int) -> None:
    assert_excerpt(value, most_bytes)


def test_an_excerpt_of_what_is_deep_closes_nothing_that_is_open() -> None:
    value: Any = "x" * 300
    for level in range(MAX_DEPTH // 2):
        value = [level, {"deeper": value, "more": [True] * 20}]
    for most_bytes in range(len(written(value))):
        assert_excerpt(value, most_bytes)


def test_an_excerpt_is_small() -> None:
    for value in ("x" * MIB, ["x" * 900] * 10_000, {str(number): number for number in range(10_000)}, [0.5] * 10_000):
        excerpt = Excerpt(1000)
        assert len(written(excerpt.of(value))) < 8000 and excerpt.is_cut


# Whatever comes


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


HOSTILE: Mapping[str, tuple[str, Any]] = {
    "infinity": ('{"a": 1e400, "b": -1e400}', {"a": None, "b": None}),
    "huge integer": (f'{{"a": {"9" * 4300}}}', {"a": int("9" * 4300)}),
    "deep": (f'{{"a": {json.dumps(nested(125))}}}', {"a": nested(125)}),  # two more in the answer's message
    "half a surrogate pair": ('{"a": "\\ud800", "\\udfff": 1}', {"a": "\ud800", "\udfff": 1}),
    "what ends lines": (
        '{"a": "\\n\\r\\u0085\\u2028 \u0085\u2028\u2029\x7f", "\\n": 1}',
        {"a": "\n\r\u0085\u2028 \u0085\u2028\u2029\x7f", "\n": 1},
    ),
    "over many lines": ('{\r\n\t"a":\n\n[\n1,\r2\r\n]\n}', {"a": [1, 2]}),
    "a key twice": ('{"a": 1, "a": 2}', {"a": 2}),
    "spelling": ('{"a": 1.50E+2, "b": -0.0, "\\u0062c": 0.10000000000000000555}', {"a": 150.0, "b": -0.0, "bc": 0.1}),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_rows_actions_and_observations(autojump_clock, directory, name):
    text, value = HOSTILE[name]

    async def echo(message: dict[str, Any]) -> Any:
        if message["type"] != "step":
            return await agreeable(message)
        return f'{{"type":"observation","data":{{"observation":{text},"reward":NaN,"done":false}}}}'

    async with gymserve(directory, ScriptedServer(echo)) as stage:
        client = stage.client()
        assert (await client.seed(text.encode())).status == 200  # type: ignore[arg-type]
        await client.ask("POST", "/step", text.encode())
    seed, _, step, _ = only_file(directory)
    assert seed["row"] == step["observation"] == value
    assert step["reward"] is None
    assert step["action"] == json.loads(text)
    if text.isascii():  # to the letter, but for what ends lines
        assert re.sub(r"[\r\n]", " ", text) in files(directory)[0].read_text()


LABELS = ["../../etc/passwd", "a\nb\r\x00\x85\u2028", "\ud800", "'; rm -rf /", "é" * 200, '"}{"event":"end"']


@pytest.mark.parametrize("label", LABELS, ids=ascii)
async def test_a_label_is_data_and_in_no_path(autojump_clock, directory, label):
    async with gymserve(directory) as stage:
        await stage.client().seed({"gymserve_label": label})
    [file] = files(directory)
    assert lines_of(file)[0]["label"] == label
    assert re.fullmatch(r"\d{8}T\d{6}\.\d{3}Z-[0-9a-f]{12}\.jsonl", file.name)
    assert files(directory.parent) == [directory]


async def test_what_cannot_be_said_costs_its_own_episode_some_lines_and_no_other(autojump_clock, directory):
    """Such values come from no client, but from a program that uses the package."""
    with capture_logs() as logs:
        async with recording(directory) as recorder:
            for told in (seeded(1, {"a": {1, 2}}, "x"), seeded(2), began(1, {}), began(2, {})):
                recorder.hear(told)
            await trio.sleep(1)
            for number in (1, 2):
                recorder.hear(acted(number, '{"by":1}'))
                recorder.hear(ended(number))
    first, second = map(lines_of, files(directory))
    assert [line["event"] for line in first] == ["seed", "step", "end"]
    assert [line["event"] for line in second] == ["seed", "reset", "step", "end"]
    assert "row" not in first[0] and first[0]["label"] == "x"
    assert (first[-1]["dropped_lines"], second[-1]["dropped_lines"]) == (2, 0)
    assert warnings(logs) == [
        {
            "event": "trajectories cannot be written",
            "reason": "TypeError: Object of type set is not JSON serializable",
            "lines_lost": 2,
        },
        {"event": "trajectories are not whole", "lines_lost": 2},
    ]


# A disk that is slow


async def roll_out(stage: Stage, steps: int, took: list[float]) -> None:
    client = stage.client()
    started = trio.current_time()
    await client.seed({"reset_kwargs": {"target": 1000}})
    for _ in range(steps):
        await trio.sleep(1)
        await client.step()
    await trio.sleep(1)
    await client.verify()
    took.append(trio.current_time() - started)


async def test_a_disk_that_hangs_slows_no_rollout(autojump_clock, directory):
    rollouts, steps, disk = 100, 4, Disk(60)
    took: list[float] = []
    with capture_logs() as logs:
        async with gymserve(directory, disk=disk, most_lines=300) as stage:
            async with trio.open_nursery() as nursery:
                for _ in range(rollouts):
                    nursery.start_soon(roll_out, stage, steps, took)
            assert took == [5.0] * rollouts == [trio.current_time()] * rollouts
            assert files(directory) == []
            await trio.sleep_until(60.75)
            disk.seconds = 0
            await trio.sleep(1)
            # The first batch is seeds and resets, behind it there was room for one step of each, and for the endings.
            for file in files(directory):
                lines = lines_of(file)
                assert [line["event"] for line in lines] == ["seed", "reset", "step", "end"]
                assert (lines[-1]["steps"], lines[-1]["dropped_lines"]) == (4, 3)
            assert len(files(directory)) == rollouts
            client = stage.client()
            await client.seed()
            await client.step()
            await client.verify()
    assert [line["event"] for line in lines_of(files(directory)[-1])] == ["seed", "reset", "step", "end"]
    gaps = "trajectories have gaps: lines come faster than they can be written"
    assert warnings(logs) == [{"event": gaps, "lines_dropped": 1}, {"event": gaps, "lines_dropped": 299}]


async def test_drops_are_told_every_ten_seconds(autojump_clock, directory):
    told_at: list[tuple[float, int]] = []
    async with recording(directory, Disk(100), most_lines=1) as recorder:
        with capture_logs() as logs:
            recorder.hear(seeded(1))
            for _ in range(70):
                await trio.sleep(0.5)
                recorder.hear(acted(1, "{}"))
                told_at += [(trio.current_time(), line["lines_dropped"]) for line in warnings(logs)]
                logs.clear()
    assert told_at == [(0.5, 1), (10.5, 20), (20.5, 20), (30.5, 20)]


async def test_what_is_held_is_bounded_in_bytes_too(autojump_clock, directory):
    text = "x" * 10_000
    with capture_logs() as logs:
        async with recording(directory, most_bytes=25_000) as recorder:
            recorder.hear(seeded(1))
            for _ in range(5):
                recorder.hear(acted(1, f'"{text}"'))
            recorder.hear(ended(1))
            await trio.sleep(1)
            recorder.hear(seeded(2))  # there is room again
            recorder.hear(acted(2, f'"{text}"'))
            recorder.hear(ended(2))
    first, second = map(lines_of, files(directory))
    assert [line.get("step") for line in first] == [None, 1, 2, None]
    assert (first[-1]["dropped_lines"], len(second), second[-1]["dropped_lines"]) == (3, 3, 0)
    assert [line["lines_dropped"] for line in warnings(logs)] == [1, 2]


async def test_endings_have_room_that_others_have_not_but_not_for_ever(autojump_clock, directory):
    async with recording(directory, Disk(1), most_lines=4) as recorder:
        for number in range(10):
            recorder.hear(seeded(number))
        for number in range(10):
            recorder.hear(ended(number))
    events = [[line["event"] for line in lines_of(file)] for file in files(directory)]
    assert events == [["seed", "end"]] * 4


async def test_a_file_whose_first_lines_were_dropped_still_says_whose_it_is(autojump_clock, directory):
    async with recording(directory, Disk(10), most_lines=1) as recorder:
        recorder.hear(seeded(1))
        await trio.sleep(1)
        recorder.hear(seeded(2, {"task": 7}, "run-7"))
        await trio.sleep_until(11)
        recorder.hear(acted(2, "{}"))
        await trio.sleep(20)
        recorder.hear(ended(2))
        await trio.sleep(20)
    first, step, end = lines_of(files(directory)[1])
    assert first == {
        "event": "seed",
        "session": short(2),
        "instance": INSTANCE,
        "label": "run-7",
        "at_epoch_seconds": EPOCH_SECONDS + 1,
    }
    assert (step["at_seconds"], end["at_seconds"], end["dropped_lines"]) == (10.0, 30.0, 1)


# A disk in trouble


async def test_a_full_disk_costs_lines_and_is_told_once(autojump_clock, directory):
    with capture_logs() as logs:
        async with gymserve(directory) as stage:
            client, other = stage.client(), stage.client()
            await client.seed()
            await trio.sleep(1)
            [file] = files(directory)
            whole = file.read_bytes()
            with full_at(len(whole) + 20) as make_room:  # not a line, but the beginning of one
                for _ in range(3):
                    assert (await client.step()).status == 200
                    await trio.sleep(1)
                await other.seed()
                await trio.sleep(1)
                assert file.read_bytes() == whole and len(files(directory)) == 2
                make_room()
            await client.step()
            await trio.sleep(10)
            await client.step()
            assert (await client.verify()).body["reward"] == 0.5
            await trio.sleep(1)
    assert [(line["event"], line.get("step")) for line in lines_of(file)] == [
        ("seed", None),
        ("reset", None),
        ("step", 4),
        ("step", 5),
        ("end", None),
    ]
    assert lines_of(file)[-1]["dropped_lines"] == 3
    assert warnings(logs) == [
        {"event": "trajectories cannot be written", "reason": "File too large", "lines_lost": 1},
        {"event": "trajectories are written again", "lines_lost": 3},
    ]


async def test_a_trouble_that_lasts_is_told_of_every_minute_with_what_it_cost(autojump_clock):
    told: list[LinesLost] = []
    losses = Losses(told.append)
    with capture_logs() as logs:
        for _ in range(14):
            losses.note(Written(2, "No space left on device"))
            await trio.sleep(10)
    assert [line["lines_lost"] for line in warnings(logs)] == [2, 14, 26]
    assert {line["advice"] for line in logs} == {
        "give --record room on its disk; rollouts go on, and their lines are lost until then"
    }
    assert told == [LinesLost(2, "unwritten")] * 14


async def test_a_file_that_cannot_be_begun_is_begun_later(autojump_clock, directory):
    with capture_logs() as logs:
        async with gymserve(directory) as stage:
            client = stage.client()
            with full_at(10):
                await client.seed({"task": 7})
                await trio.sleep(1)
                assert files(directory) == []
            await client.step()
    seed, step, end = only_file(directory)
    assert (seed["session"], "row" in seed, step["step"], end["dropped_lines"]) == (short_id(client), False, 1, 2)
    assert [line["lines_lost"] for line in warnings(logs)] == [2, 2]


@pytest.mark.parametrize("parent", ["stays", "goes too"])
async def test_a_directory_that_is_removed(autojump_clock, tmp_path, parent):
    directory = tmp_path / "runs" / "trajectories"
    directory.parent.mkdir()
    with capture_logs() as logs:
        async with gymserve(directory) as stage:
            client = stage.client()
            await client.seed()
            await client.step()
            await trio.sleep(1)
            shutil.rmtree(directory if parent == "stays" else directory.parent)
            await client.step()
            await trio.sleep(1)
            directory.parent.mkdir(exist_ok=True)
            await client.step()
            await stage.client().seed()
            await trio.sleep(1)
    lost = 3 if parent == "stays" else 4
    first, second = map(lines_of, files(directory))
    steps = [2, 3] if parent == "stays" else [3]
    assert [line["event"] for line in first] == ["seed", *["step" for _ in steps], "end"]
    assert ([line["step"] for line in first[1:-1]], first[-1]["dropped_lines"]) == (steps, lost)
    assert [line["event"] for line in second] == ["seed", "reset", "end"]
    reason = "files were removed" if parent == "stays" else "No such file or directory"
    assert warnings(logs) == [
        {"event": "trajectories cannot be written", "reason": reason, "lines_lost": lost},
        {"event": "trajectories are not whole", "lines_lost": lost},
    ]


async def test_a_machine_without_threads_costs_lines_only(autojump_clock, directory):
    disk = Disk()
    disk.fails_with = RuntimeError("can't start new thread")
    with capture_logs() as logs:
        async with gymserve(directory, disk=disk) as stage:
            client = stage.client()
            await client.seed()
            await trio.sleep(1)
            disk.fails_with = None
            await client.step()
            await trio.sleep(1)
    assert [line["event"] for line in only_file(directory)] == ["seed", "step", "end"]
    assert warnings(logs)[0]["reason"] == "RuntimeError: can't start new thread"


async def test_nothing_is_ever_overwritten(autojump_clock, directory):
    async with recording(directory) as recorder:
        recorder.hear(seeded(1, {"task": 1}))
    [file] = files(directory)
    before = file.read_bytes()
    decoy = directory / file.name.replace(short(1), short(2))
    decoy.symlink_to("/nowhere")
    autojump_clock.jump(0)
    async with recording(directory) as recorder:
        recorder.hear(seeded(1, {"task": 2}))
        recorder.hear(seeded(2, {"task": 3}))
        await trio.sleep(1)
        recorder.hear(ended(1))
    name = file.name.removesuffix(".jsonl")
    assert [each.name for each in files(directory)] == [
        f"{name}-2.jsonl",
        f"{name}.jsonl",
        f"{decoy.name.removesuffix('.jsonl')}-2.jsonl",
        decoy.name,
    ]
    assert file.read_bytes() == before
    assert [line["event"] for line in lines_of(files(directory)[0])] == ["seed", "end"]


async def test_a_restart_adds_files_of_its_own(autojump_clock, directory):
    for _ in range(2):
        async with gymserve(directory) as stage:
            client = stage.client()
            await client.seed()
            await client.verify()
    assert [[line["event"] for line in lines_of(file)] for file in files(directory)] == [["seed", "reset", "end"]] * 2


# Beginning and end


@pytest.mark.parametrize("mode", [0o022, 0o077])
async def test_who_may_read_it_is_the_umasks_to_say(autojump_clock, directory, mode):
    before = os.umask(mode)
    try:
        async with recording(directory) as recorder:
            recorder.hear(seeded(1))
    finally:
        os.umask(before)
    assert (directory.stat().st_mode & 0o777, files(directory)[0].stat().st_mode & 0o777) == (
        0o777 & ~mode,
        0o666 & ~mode,
    )


async def test_a_directory_that_cannot_be_used_is_refused(autojump_clock, tmp_path):
    (tmp_path / "file").write_text("")
    for name, reason in (
        ("no/trajectories", "there is no directory to make it in"),
        ("file", "it is a file"),
        ("file/trajectories", "Not a directory"),
    ):
        with pytest.raises(RecordingFailed) as failed:
            async with recording(tmp_path / name):
                pass
        assert str(failed.value) == f"the directory {tmp_path / name} cannot be used: {reason}"
    assert files(tmp_path) == [tmp_path / "file"]


async def test_the_end_writes_what_is_queued_and_takes_no_time(autojump_clock, directory):
    async with gymserve(directory) as stage:
        await trio.sleep(5)
        await stage.client().seed()
    assert trio.current_time() == 5
    assert [line["event"] for line in only_file(directory)] == ["seed", "reset", "end"]


async def test_the_end_waits_for_a_slow_disk_though_it_is_cancelled(autojump_clock, directory):
    disk = Disk(1)
    with trio.move_on_after(5):
        async with gymserve(directory, disk=disk) as stage:
            await stage.client().seed()
            await trio.sleep(10)
    assert trio.current_time() == 6
    assert [line["event"] for line in only_file(directory)] == ["seed", "reset", "end"]


async def test_the_end_waits_for_no_disk_that_hangs(autojump_clock, directory):
    with capture_logs() as logs:
        async with gymserve(directory, disk=Disk(1000)) as stage:
            await stage.client().seed()
            await trio.sleep(5)
        assert trio.current_time() == 7
    assert warnings(logs) == [{"event": "trajectories are not whole", "lines_lost": 3}]


# What it costs others


async def test_nobody_who_does_not_listen_for_contents_is_told_them(autojump_clock):
    class Unrecorded(Telemetry):
        def tell_content(self, content: Content) -> None:
            raise AssertionError(content)

    telemetry = Unrecorded()
    facts: list[Any] = []
    telemetry.listen(facts.append)
    narrator = Narrator(telemetry, "0" * 32, None)
    narrator.acts(wire.Step("{}"))
    narrator.hears(wire.Observation({}))
    narrator.asks_for_the_score(wire.Step("{}"))
    narrator.ends()
    async with raise_the_curtain(server()) as stage:
        stage.gateway.telemetry.listen(facts.append)
        client = stage.client()
        await client.seed()
        await client.step()
        await client.verify()
    assert facts and not any(isinstance(fact, Content) for fact in facts)


async def test_a_row_is_not_held_beyond_its_line(autojump_clock, directory):
    def held() -> bool:
        gc.collect()
        return any(type(thing) is dict and "a-marker-of-this-row" in thing for thing in gc.get_objects())

    async with gymserve(directory) as stage:
        client = stage.client()
        await client.seed(typed_seed("name", {"a-marker-of-this-row": [{}]}))
        assert held()
        await trio.sleep(1)
        assert not held()
        assert len(stage.gateway.all_sessions()) == 1


# In a process of its own


async def test_a_real_server(directory: Path) -> None:
    secrets = {"GYMSERVE_SECRET": "one-that-signs-cookies", "GYMSERVE_TOKEN": "one-that-guards-rollouts"}
    variables: Any = {**secrets, "GYMSERVE_RECORD_MAX_BYTES": "400"}
    headers = {"Authorization": f"Bearer {secrets['GYMSERVE_TOKEN']}", "X-Gymserve-Label": "run-7"}
    with running("serve", "--record", str(directory), **variables) as gymserve:
        async with httpx.AsyncClient(
            verify=False, trust_env=False, base_url=gymserve.url, timeout=ANSWER_SECONDS, headers=headers
        ) as client:
            row = {"responses_create_params": {"input": []}, "reset_kwargs": {"day": 1000}}
            offer = (await client.post("/seed_session", json=row)).json()["mcp"]
            [cookie] = client.cookies.jar
            status = (await client.post("/status")).json()
            call = {"name": "forecast", "arguments": {"hours": 24}}
            forecast = await client.post(
                "/mcp",
                json={"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call},
                headers={**offer["headers"], "Accept": "application/json"},
            )
            assert forecast.status_code == 200
            verified = (await client.post("/verify", json={**row, "response": {}})).json()
            [file] = files(directory)
            assert (await client.post("/seed_session", json={"task": "the last"})).status_code == 200
        gymserve.send(signal.SIGTERM)
        assert await gymserve.exit_status(within_seconds=10) == 0
    first, second = files(directory)
    assert first == file
    seed, reset, by_route, by_mcp, end = lines_of(first)
    assert (seed["row"], seed["label"], seed["reset_kwargs"]) == (row, "run-7", {"day": 1000})
    assert (reset["env"].startswith("http://127.0.0.1:"), reset["truncated"]["bytes"] > 400) == (True, True)
    assert by_route["action"] == {"type": "call_tool", "tool_name": "status", "arguments": {}}
    assert by_route["truncated"]["begins"].startswith('{"metadata":{},"tool_name":"status","result":{')
    assert status["result"]["hour"] == 0
    assert by_mcp["action"] == {"type": "call_tool", "tool_name": "forecast", "arguments": {"hours": 24}}
    assert (end["ending"], end["steps"], end["reward"]) == ("verified", 2, verified["reward"])
    assert [line["event"] for line in lines_of(second)] == ["seed", "reset", "end"]
    assert lines_of(second)[-1]["ending"] == "shutdown"
    session_id = SessionCookie("gymserve", [secrets["GYMSERVE_SECRET"]]).session_id(cookie.value)
    assert session_id is not None and cookie.value is not None
    token = SessionToken([secrets["GYMSERVE_SECRET"]]).value(session_id)
    said = first.read_text() + second.read_text() + "".join(each.name for each in files(directory))
    hidden = [*secrets.values(), session_id, cookie.value, cookie.value.partition(".")[2], token.partition(".")[2]]
    assert [secret for secret in hidden if secret in said] == []
    assert session_id[:12] in said


def test_a_directory_that_cannot_be_used_is_told_in_one_line(tmp_path: Path) -> None:
    directory = tmp_path / "no" / "trajectories"
    done = subprocess.run(
        command("serve", "--record", str(directory), "--port", "0"),
        env=environ(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (
        1,
        "",
        f"the directory {directory} cannot be used: there is no directory to make it in (--record)\n",
    )
