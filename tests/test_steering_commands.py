"""The commands that steer a running gymserve: what they accept, and what they say. What they do is shown by processes
in test_handover.py.
"""

import json
import math
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from answering import answering

from gymserve.cli import run
from gymserve.cli.commands import build_app
from gymserve.cli.draining import drain
from gymserve.cli.holding import Hold
from gymserve.cli.remote import Denied, Failed, Remote, Unreachable

DURATION = "a duration such as 90s, 30m or 1h, at most 7d"
HERE = "http://127.0.0.1:1"
REFUSALS = {
    "close": "URL: is needed: the address of a running gymserve, such as http://127.0.0.1:8100",
    "close nowhere --label a": 'URL: "nowhere" is not accepted: host:port or http(s)://host[:port][/prefix]',
    "close ws://a:1/ws --label a": 'URL: "ws://a:1/ws" is not accepted: host:port or http(s)://host[:port][/prefix]',
    "close HERE": "flag --label: is needed: the label of the run's sessions",
    "close HERE --label": "flag --label: a value is needed: the label of the run's sessions",
    "close HERE --label=": 'flag --label: "" is not accepted: 1 to 200 characters',
    "close HERE --label a --label b": "flag --label: given more than once",
    "close HERE --label a --for": "flag --for: a value is needed: a duration such as 90s, 30m or 1h",
    "close HERE --label a --for soon": f'flag --for: "soon" is not accepted: {DURATION}',
    "close HERE --label a --for -1": f'flag --for: "-1" is not accepted: {DURATION}',
    "close HERE --label a --for 1h30m": f'flag --for: "1h30m" is not accepted: {DURATION}',
    "close HERE --label a --for 8d": f'flag --for: "8d" is not accepted: {DURATION}',
    "close HERE --label a --fro 8": "flag --fro: no such flag; did you mean --for?",
    "close HERE a": "an argument that belongs to no flag is not expected; a value with spaces in it needs quotes",
    "hold HERE --label a": "COMMAND: is needed: what to run, after --",
    "hold HERE --label a --": "COMMAND: is needed: what to run, after --",
    "hold HERE --lable a -- true": "flag --lable: no such flag; what to run stands after --",
    "hold HERE -- true": "flag --label: is needed: the label of the run's sessions",
    "drain": "URL: is needed: the address of a running gymserve, such as http://127.0.0.1:8100",
    "drain HERE --wait 1w": f'flag --wait: "1w" is not accepted: {DURATION}',
    "drain HERE --label a": "flag --label: not a flag of this command, but of gymserve serve",
    "pool add HERE": "ENV: is needed: the address of an environment server, such as http://127.0.0.1:8000",
    "pool add HERE a:0": 'ENV: "a:0" is not accepted: its port is missing; accepted: host:port, '
    "http(s)://host[:port][/prefix] or ws(s)://host[:port][/prefix]/ws",
    "pool add HERE a:1 --slots 0": 'flag --slots: "0" is not accepted: a whole number, 1 or more',
    "pool add HERE a:1 --slots": "flag --slots: a value is needed: a whole number, 1 or more",
    "pool drain HERE a:1 b:1": "an argument that belongs to no flag is not expected; "
    "a value with spaces in it needs quotes",
    "pool lst HERE": 'Unknown command "lst". Did you mean "list"? Available commands: add, drain, list.',
}
COMMANDS = ("close HERE --label a", "hold HERE --label a -- true", "drain HERE", "pool list HERE")


def steered(line: str, url: str = HERE, **variables: str) -> int:
    return run(build_app(variables), line.replace("HERE", url).split(" "))


@pytest.mark.parametrize(("line", "sentence"), REFUSALS.items(), ids=REFUSALS)
def test_bad_input_is_told_in_one_line(capsys: pytest.CaptureFixture[str], line: str, sentence: str) -> None:
    assert steered(line) == 2
    assert capsys.readouterr() == ("", f"gymserve: {sentence}\n")


@pytest.mark.parametrize("line", COMMANDS)
def test_variables_are_looked_at_too(capsys: pytest.CaptureFixture[str], line: str) -> None:
    assert steered(line, GYMSERVE_PATIENC="1") == 2
    assert (
        capsys.readouterr().err
        == "gymserve: variable GYMSERVE_PATIENC: no such setting; did you mean GYMSERVE_PATIENCE?\n"
    )
    assert steered(line, GYMSERVE_ADMIN_TOKEN="two words") == 2
    assert capsys.readouterr().err == (
        "gymserve: variable GYMSERVE_ADMIN_TOKEN: the value is not accepted: ASCII characters without spaces\n"
    )


@pytest.mark.parametrize("line", COMMANDS)
def test_where_nobody_listens_it_is_told_in_one_line(capsys: pytest.CaptureFixture[str], line: str) -> None:
    assert steered(line) == 1
    assert capsys.readouterr() == (
        "",
        f"gymserve: no gymserve can be reached at {HERE}: Connection refused; check that it is running there\n",
    )


def test_what_cannot_be_run_is_told_before_anything_is_held(capsys: pytest.CaptureFixture[str]) -> None:
    assert steered("hold HERE --label a -- no-such-program") == 127
    assert capsys.readouterr().err == "gymserve: no-such-program: no such program, or one that cannot be executed\n"


def test_the_token_goes_with_every_request(capsys: pytest.CaptureFixture[str]) -> None:
    with answering(200, b'{"closed": 1}') as (url, asked):
        assert steered("close HERE --label a --for 1.5m", url, GYMSERVE_ADMIN_TOKEN="secret") == 0
        assert steered("close HERE --label a --for 0 --json", url) == 0
    assert asked == [
        ("/behind/gymserve/close", "Bearer secret", "application/json", {"label": "a", "for_seconds": 90}),
        ("/behind/gymserve/close", None, "application/json", {"label": "a", "for_seconds": 0}),
    ]
    out, err = capsys.readouterr()
    assert (out, err) == ('closed a: 1 session ended, its seeds are refused for 90 s\n{"closed": 1}\n', "")


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (403, {"error": "forbidden", "detail": "no"}, "refuses: no; GYMSERVE_ADMIN_TOKEN must hold its admin token"),
        (422, {"error": "bad_arguments", "detail": [{"msg": "a"}, {"msg": "b\n"}]}, "refuses: a; b\\n"),
        (
            404,
            {"nothing": 1},
            "answered 404 to POST /behind/gymserve/close; check that it is a gymserve, and of this version",
        ),
        (200, [], "answered 200 to POST /behind/gymserve/close; check that it is a gymserve, and of this version"),
    ],
)
def test_a_refusal_is_told_in_one_line(capsys: pytest.CaptureFixture[str], status: int, body: Any, told: str) -> None:
    with answering(status, json.dumps(body).encode()) as (url, _):
        assert steered("close HERE --label a", url) == 1
    assert capsys.readouterr() == ("", f"gymserve: {url} {told}\n")


# A drain, in virtual time

GONE = Unreachable("", refused=True)
SILENT = Unreachable("", refused=False)
A_PROXYS = Denied("", 502, None)


class Draining(Remote):
    """A gymserve that shows and answers what it is told, each from a moment on."""

    def __init__(self, shown: dict[float, Any], answered: tuple[float, Any]) -> None:
        self.url = HERE
        self._shown_at = shown
        self._answered = answered

    async def get(self, path: str, *, within_seconds: float = 10) -> Any:
        shown = next(shown for at, shown in reversed(self._shown_at.items()) if at <= trio.current_time())
        if shown is SILENT:
            await trio.sleep(within_seconds)
        return self._or_raise(shown)

    async def post(self, path: str, body: Any, *, within_seconds: float | None = None) -> Any:
        assert (path, body, within_seconds) == ("/gymserve/drain", {"wait_seconds": 60}, None)
        at, answer = self._answered
        await trio.sleep_until(at)
        return self._or_raise(answer)

    def _or_raise(self, told: Any) -> Any:
        if isinstance(told, Exception):
            raise told
        return told


def listing(sessions: int, waiting: int = 0, instance: str = "first") -> Any:
    return {"instance": instance, "sessions": [{}] * sessions, "waiting": waiting}


NONE_CUT = {"cut_short": 0}
TWO, ONE = listing(2), listing(0, 1)
EXITS = {
    "the port is closed": ({0: TWO, 5: ONE, 10.2: GONE}, (10.2, NONE_CUT), 10.25),
    "another one answers": ({0: TWO, 5: ONE, 10.2: listing(8, instance="second")}, (10.2, NONE_CUT), 10.25),
    "the port is held open": ({0: TWO, 5: ONE, 10.2: SILENT}, (10.2, NONE_CUT), 12.25),
    "it was killed": ({0: TWO, 5: ONE, 10.2: GONE}, (10.2, GONE), 10.25),
    "a proxy waits no longer": ({0: TWO, 5: ONE, 40.2: SILENT, 45: ONE, 60.2: A_PROXYS}, (30.2, A_PROXYS), 61.5),
    "it was too busy to show": ({0: TWO, 5: SILENT, 11: ONE, 20.2: GONE}, (20.2, NONE_CUT), 20.25),
}


@pytest.mark.parametrize(("shown", "answered", "exited_at"), EXITS.values(), ids=EXITS)
async def test_a_drain_ends_with_gymserve(
    autojump_clock: Any,
    capsys: pytest.CaptureFixture[str],
    shown: dict[float, Any],
    answered: tuple[float, Any],
    exited_at: float,
) -> None:
    assert await drain(Draining(shown, answered), 60) == 0
    assert trio.current_time() == pytest.approx(exited_at)
    assert capsys.readouterr() == ("2 sessions left\n1 session left\nit has exited\n", "")


async def test_a_drain_tells_whom_it_has_cut_short(autojump_clock: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert await drain(Draining({0: listing(2), 60: GONE}, (60, {"cut_short": 2})), 60) == 0
    assert capsys.readouterr().out == ("2 sessions left\nit has exited, and cut short 2 sessions\n")


async def test_a_drain_that_does_not_end_is_told(autojump_clock: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert await drain(Draining({0: listing(3)}, (1000, NONE_CUT)), 60) == 1
    assert trio.current_time() == 75
    out, err = capsys.readouterr()
    assert (out, err) == (
        "3 sessions left\n",
        f"gymserve: {HERE} has not exited 15 s after the 60 s of --wait; 3 sessions left\n",
    )


async def test_a_drain_that_is_refused_is_none(autojump_clock: Any) -> None:
    with pytest.raises(Denied, match="no token"):
        await drain(Draining({0: listing(3)}, (1.2, Denied("no token", 403, "forbidden"))), 60)
    assert trio.current_time() == pytest.approx(1.25)


# A hold; its gymserve is scripted, its command a real process, for which the clock does not wait

FORBIDDEN = Denied("no token", 403, "forbidden")
CLOSED = Denied("the run was closed", 409, "label_closed")
RUN = {"label": "a", "for_seconds": 60.0}


class Holding(Remote):
    """A gymserve that holds a run for so many seconds, and then again, or fails to."""

    def __init__(self, *outcomes: float | Failed, closing: int | Failed = 2) -> None:
        self._outcomes = list(outcomes)
        self._closing = closing
        self.asked: list[float] = []

    @asynccontextmanager
    async def lines(self, path: str, body: Any) -> AsyncIterator[AsyncIterator[str]]:
        assert (path, body) == ("/gymserve/hold", RUN)
        self.asked.append(trio.current_time())
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, Failed):
            raise outcome
        async with aclosing(self._held(outcome)) as lines:
            yield lines

    async def _held(self, seconds: float) -> AsyncGenerator[str, None]:
        yield '{"held": "a"}'
        until = trio.current_time() + seconds
        while trio.current_time() < until:
            await trio.sleep(min(15, until - trio.current_time()))
            yield ""

    async def post(self, path: str, body: Any, *, within_seconds: float | None = 10) -> Any:
        assert (path, body) == ("/gymserve/close", RUN)
        if isinstance(self._closing, Failed):
            raise self._closing
        return {"closed": self._closing}


def shell(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


@pytest.mark.parametrize(("script", "status"), [("true", 0), ("exit 3", 3), ("kill -9 $$", 137)])
async def test_a_hold_has_the_status_of_its_command(
    autojump_clock: Any, capsys: pytest.CaptureFixture[str], script: str, status: int
) -> None:
    assert await Hold(Holding(math.inf), "a", 60.0).around(shell(script)) == status
    assert capsys.readouterr() == ("", "gymserve: closed a: 2 sessions ended, its seeds are refused for 60 s\n")


async def test_a_file_that_is_no_program_is_told(
    autojump_clock: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    garbage = tmp_path / "garbage"
    garbage.write_text("garbage")
    garbage.chmod(0o755)
    assert await Hold(Holding(math.inf), "a", 60.0).around([str(garbage)]) == 126
    assert f"{garbage}: cannot be started: Exec format error\n" in capsys.readouterr().err


async def test_a_run_that_was_just_closed_is_waited_for(
    autojump_clock: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    remote = Holding(CLOSED, CLOSED, CLOSED, math.inf)
    assert await Hold(remote, "a", 60.0).around(shell("true")) == 0
    assert remote.asked == [0, 1, 2, 3]
    waits, closed = capsys.readouterr().err.splitlines()
    assert waits == (
        "gymserve: a is not held: the run was closed (gymserve close with --for 0 ends that); trying again every second"
    )
    assert closed.startswith("gymserve: closed a: ")


@pytest.mark.parametrize("failure", [FORBIDDEN, GONE, SILENT])
async def test_without_a_hold_nothing_is_run(autojump_clock: Any, tmp_path: Path, failure: Failed) -> None:
    with pytest.raises(type(failure)):
        await Hold(Holding(failure), "a", 60.0).around(shell(f"touch {tmp_path}/run"))
    assert not (tmp_path / "run").exists()


async def test_a_run_is_held_again_and_each_loss_told_once(
    autojump_clock: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    remote = Holding(30, GONE, SILENT, GONE, 45, GONE, math.inf)
    assert await Hold(remote, "a", 60.0).around(shell("sleep 1")) == 0
    assert remote.asked == [0, 31, 32, 33, 34, 80, 81]
    lost, again = "a is not held: gymserve stops; trying again every second", "a is held again"
    assert [line.removeprefix("gymserve: ") for line in capsys.readouterr().err.splitlines()[:-1]] == [lost, again] * 2


@pytest.mark.parametrize("failure", [GONE, FORBIDDEN])
async def test_a_run_that_cannot_be_closed_changes_no_status(
    autojump_clock: Any, capsys: pytest.CaptureFixture[str], failure: Failed
) -> None:
    remote = Holding(math.inf, closing=failure)
    assert await Hold(remote, "a", 60.0).around(shell("exit 3")) == 3
    assert capsys.readouterr().err == f"gymserve: a could not be closed: {failure}\n"
