"""``gymserve top``: how it asks, in virtual time; and as people meet it, on a terminal and in a pipe."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import trio
from answering import answering
from processes import command, environ, running
from rich.text import Text
from told import listing, session

from gymserve.cli import run
from gymserve.cli.commands import build_app
from gymserve.cli.listing import Filters
from gymserve.cli.remote import Denied, Failed, Remote, Unreachable
from gymserve.cli.top import Watch

HERE = "http://127.0.0.1:1"
REFUSED = Unreachable("no gymserve can be reached: Connection refused", refused=True)
FORBIDDEN = Denied("refuses: no", 403, "forbidden")
BEHIND_A_PROXY = Denied("answered 502", 502, None)


# -- how it asks, in virtual time ------------------------------------------------------------------------------------


class Asked(Remote):
    """A gymserve that answers what it is told to from a moment on, after so many seconds."""

    def __init__(self, told: Mapping[float, Any], takes_seconds: float = 0.0) -> None:
        self.url = HERE
        self._told_at = told
        self._takes_seconds = takes_seconds
        self.at: list[float] = []
        self.paths: set[str] = set()

    async def get(self, path: str, *, within_seconds: float = 10) -> Any:
        self.at.append(trio.current_time())
        self.paths.add(path)
        await trio.sleep(self._takes_seconds)
        told = next(told for at, told in reversed([*self._told_at.items()]) if at <= trio.current_time())
        if isinstance(told, Failed):
            raise told
        return told


class Somebody:
    """Whoever looks at a terminal of 80 by 20, and types at some moments."""

    size = (80, 20)

    def __init__(self, types: Mapping[float, str]) -> None:
        self._types = dict(types)
        self.seen: dict[float, list[str]] = {}
        self.suspended_at: list[float] = []

    def show(self, lines: Sequence[Text]) -> None:
        self.seen[trio.current_time()] = [line.plain.rstrip() for line in lines]

    async def typed(self) -> str:
        at = min(self._types, default=10_000.0)
        await trio.sleep_until(at)
        return self._types.pop(at)

    def suspend(self) -> None:
        self.suspended_at.append(trio.current_time())

    def sees(self, words: str) -> list[float]:
        """When that was drawn."""
        return [at for at, lines in self.seen.items() if any(words in line for line in lines)]


async def raised(numbers: Mapping[float, int]) -> AsyncIterator[int]:
    for at, number in numbers.items():
        await trio.sleep_until(at)
        yield number
    await trio.sleep_forever()


async def watched(
    remote: Asked,
    somebody: Somebody,
    signals: Mapping[float, int] | None = None,
    *,
    interval_seconds: float = 1.0,
    filters: Filters | None = None,
) -> int:
    watch = Watch(remote, filters or Filters(), somebody, interval_seconds=interval_seconds)
    return await watch.run(raised(signals or {}))


async def test_it_asks_at_each_interval_for_no_more_than_fits(autojump_clock: Any) -> None:
    remote, somebody = Asked({0: listing(session())}, 0.25), Somebody({9: "q"})
    assert await watched(remote, somebody, interval_seconds=2.5) == 0
    assert trio.current_time() == 9
    assert remote.at == [0, 2.5, 5, 7.5]
    assert remote.paths == {"/gymserve/sessions?sort=expires&slots=true&limit=20"}


async def test_what_is_wanted_is_asked_for(autojump_clock: Any) -> None:
    remote = Asked({0: listing()})
    await watched(remote, Somebody({0.5: "q"}), filters=Filters("a&b c", "idle"))
    assert remote.paths == {"/gymserve/sessions?label=a%26b+c&state=idle&sort=expires&slots=true&limit=20"}


async def test_slow_answers_do_not_pile_up_nor_freeze_the_keys(autojump_clock: Any) -> None:
    remote, somebody = Asked({0: listing(session())}, 7), Somebody({17: "s", 18.5: "q"})
    assert await watched(remote, somebody) == 0
    assert (trio.current_time(), remote.at) == (18.5, [0, 7, 14])
    assert somebody.sees("asking for 3s") == [
        3,
        3.25,
        3.5,
        3.75,
        *(at + 7 for at in (3, 3.25, 3.5, 3.75)),
        17,
        17.25,
        17.5,
        17.75,
    ]
    assert min(somebody.sees("AGE steps")) == 17


async def test_it_counts_down_between_answers(autojump_clock: Any) -> None:
    remote = Asked({0: listing(session(idle_deadline_in_seconds=30.0))})
    somebody = Somebody({9.9: "q"})
    await watched(remote, somebody, interval_seconds=60)
    for second in range(10):
        assert somebody.sees(f" {30 - second}s ") == [second, second + 0.25, second + 0.5, second + 0.75]


async def test_a_lost_one_is_asked_again_after_longer_and_longer_pauses(autojump_clock: Any) -> None:
    remote = Asked({0: listing(session()), 3.5: REFUSED, 40: listing(session(2))})
    somebody = Somebody({49.9: "q"})
    assert await watched(remote, somebody) == 0
    assert remote.at == [0, 1, 2, 3, 4, 5, 7, 11, 19, 29, 39, 49]
    assert (min(somebody.sees("LOST")), max(somebody.sees("LOST"))) == (4, 48.75)
    assert any("lost for 6s, next try in 1s: no gymserve" in line for line in somebody.seen[10])
    assert (max(somebody.sees("000000000001")), min(somebody.sees("000000000002"))) == (48.75, 49)


async def test_pauses_are_short_again_after_an_answer(autojump_clock: Any) -> None:
    remote = Asked({0: BEHIND_A_PROXY, 3: listing(), 5.5: REFUSED})
    await watched(remote, Somebody({8.5: "q"}))
    assert remote.at == [0, 1, 3, 4, 5, 6, 7]


async def test_it_can_be_told_to_ask_at_once(autojump_clock: Any) -> None:
    remote = Asked({0: REFUSED, 20: listing()})
    somebody = Somebody({20.5: "r", 30.5: "r", 31: "q"})
    await watched(remote, somebody, interval_seconds=60)
    assert remote.at == [0, 1, 3, 7, 15, 20.5, 30.5]
    assert max(somebody.sees("LOST")) == 20.25


async def test_what_is_no_listing_is_no_answer(autojump_clock: Any) -> None:
    somebody = Somebody({3.5: "q"})
    await watched(Asked({0: {"sessions": []}, 1: {**listing(), "waiting": float("nan")}, 3: listing()}), somebody)
    lost = somebody.sees("tells its sessions in another")
    assert (min(lost), max(lost)) == (0, 2.75)


@pytest.mark.parametrize("told", [{0: FORBIDDEN}, {0: listing(), 3: FORBIDDEN}, {0: REFUSED, 3: Denied("", 401, None)}])
async def test_who_is_not_let_in_is_told_at_once(autojump_clock: Any, told: Mapping[float, Any]) -> None:
    with pytest.raises(Denied):
        await watched(Asked(told), Somebody({60: "q"}))
    assert trio.current_time() == max(told)


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGQUIT, 131)]
)
async def test_signals_end_it(autojump_clock: Any, number: int, status: int) -> None:
    assert await watched(Asked({0: listing()}), Somebody({60: "q"}), {2: number}) == status
    assert trio.current_time() == 2


async def test_a_terminal_that_is_gone_ends_it(autojump_clock: Any) -> None:
    class Gone(Somebody):
        def show(self, lines: Sequence[Text]) -> None:
            raise OSError(5, "Input/output error")

    assert await watched(Asked({0: listing()}), Gone({60: "q"})) == 129
    assert await watched(Asked({0: listing()}), Somebody({2: ""})) == 129
    assert trio.current_time() == 2


async def test_keys_that_mean_nothing_do_nothing(autojump_clock: Any) -> None:
    somebody = Somebody({1: "x", 2: "\x1b[qs", 3: "\xff\x00", 4: "ss", 5: "\x04q"})
    assert await watched(Asked({0: listing()}), somebody, {0.5: signal.SIGTSTP, 4.5: signal.SIGWINCH}) == 0
    assert (trio.current_time(), min(somebody.sees("STEPS")), somebody.suspended_at) == (5, 4, [0.5])
    assert not somebody.sees("AGE")


# -- what is accepted ------------------------------------------------------------------------------------------------

REFUSALS = {
    "top": "URL: is needed: the address of a running gymserve, such as http://127.0.0.1:8100",
    "top HERE --label=": 'flag --label: "" is not accepted: 1 to 200 characters',
    "top HERE --label": "flag --label: a value is needed: the label of the run's sessions",
    "top HERE --state": "flag --state: a value is needed: waiting, opening, idle, busy, done or closing",
    "top HERE --state gone": 'flag --state: "gone" is not accepted: one of waiting, opening, idle, busy, done, closing',
    "top HERE --interval": "flag --interval: a value is needed: a duration such as 0.5s, 5s or 1m",
    "top HERE --interval 0": 'flag --interval: "0" is not accepted: 0.1s or more',
    "top HERE --interval x": 'flag --interval: "x" is not accepted: a duration such as 90s, 30m or 1h, at most 7d',
    "top HERE --json": "flag --json: goes with --once",
    "top HERE --onse": "flag --onse: no such flag; did you mean --once?",
}


@pytest.mark.parametrize(("line", "sentence"), REFUSALS.items(), ids=REFUSALS)
def test_bad_input_is_told_in_one_line(capsys: pytest.CaptureFixture[str], line: str, sentence: str) -> None:
    assert run(build_app({}), line.replace("HERE", HERE).split(" ")) == 2
    assert capsys.readouterr() == ("", f"gymserve: {sentence}\n")


@pytest.mark.parametrize("variable", ["GYMSERVE_TOKEN", "GYMSERVE_ADMIN_TOKEN"])
def test_a_token_that_cannot_be_sent_is_refused(capsys: pytest.CaptureFixture[str], variable: str) -> None:
    assert run(build_app({variable: "two words"}), ["top", HERE, "--once"]) == 2
    assert capsys.readouterr().err == (
        f"gymserve: variable {variable}: the value is not accepted: ASCII characters without spaces\n"
    )


def test_without_a_terminal_it_says_what_to_do() -> None:
    done = told("top", HERE)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "gymserve: top needs a terminal to draw on and read keys from; --once prints a table, with --json the listing\n"
    )


# -- once ------------------------------------------------------------------------------------------------------------


def told(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command(*arguments),
        env=environ(**variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )


def seed(url: str, label: str) -> None:
    body = {"reset_kwargs": {"day": 1000}, "gymserve_label": label}
    response = httpx.post(f"{url}/seed_session", json=body, timeout=30)
    assert response.status_code == 200, response.text


def test_once_in_a_pipe_is_plain_text_and_json_on_request() -> None:
    with running("serve", "--idle-timeout", "600") as gymserve:
        for label in ("run-7", "eval"):
            seed(gymserve.url, label)
        done = told("top", gymserve.url, "--once", COLUMNS="80")
        assert (done.returncode, done.stderr) == (0, "")
        assert re.fullmatch(
            rf"""{gymserve.url}  instance [0-9a-f]{{8}}

2 sessions  = 2 idle
SERVER +STATE  HELD  SLOTS
http://127.0.0.1:\d+  ready   2/\?  ==

nobody waits

ID            STATE    EXPIRES     AGE  STEPS   REWARD  LABEL
[0-9a-f]{{12}}  idle +(?:10m00|9m\d\d)s      \ds      0    0.000  run-7
[0-9a-f]{{12}}  idle +(?:10m00|9m\d\d)s      \ds      0    0.000  eval
""",
            done.stdout,
        ), done.stdout
        done = told("top", gymserve.url, "--once", "--json", "--label", "eval", "--state", "idle")
        answer = json.loads(done.stdout)
        assert [each["label"] for each in answer["sessions"]] == ["eval"]
        assert (answer["matching"], answer["counts"]["idle"]) == (1, 2)


def test_once_needs_no_particular_encoding_and_minds_no_closed_pipe() -> None:
    sessions = [session(number, label="run-\u4e16") for number in range(2000)]
    with answering(200, json.dumps(listing(*sessions)).encode()) as (url, _):
        done = told("top", url, "--once", PYTHONIOENCODING="ascii")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.count("run-\\u4e16\n") == 2000
        head = ["bash", "-c", '"$0" "$@" | head -1; exit ${PIPESTATUS[0]}', *command("top", url, "--once")]
        done = subprocess.run(head, env=environ(), capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{url}  instance 0a1b2c3d\n", "")


TOKENS = {
    "": None,
    "GYMSERVE_TOKEN=a": "Bearer a",
    "GYMSERVE_ADMIN_TOKEN=b": "Bearer b",
    "GYMSERVE_TOKEN=a GYMSERVE_ADMIN_TOKEN=b": "Bearer b",
}


@pytest.mark.parametrize("variables", TOKENS)
def test_either_token_is_sent(capsys: pytest.CaptureFixture[str], variables: str) -> None:
    environment = dict(variable.split("=") for variable in variables.split())
    with answering(200, json.dumps(listing()).encode()) as (url, asked):
        assert run(build_app(environment), ["top", url, "--once"]) == 0
    assert asked == [("/behind/gymserve/sessions?sort=expires&slots=true", TOKENS[variables], None, None)]
    assert capsys.readouterr().out.startswith(f"{url}  instance 0a1b2c3d\n")


def test_once_tells_of_who_is_not_there_or_does_not_let_us_in() -> None:
    done = told("top", HERE, "--once")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"gymserve: no gymserve can be reached at {HERE}: Connection refused; check that it is running there\n"
    )


# -- on a terminal ---------------------------------------------------------------------------------------------------

_ON_ITS_TERMINAL = "import os, sys; os.login_tty(0); os.execvp(sys.argv[1], sys.argv[1:])"
PATIENCE_SECONDS = 20.0


@dataclass
class Screen:
    """A terminal, and what a process draws on it."""

    process: "subprocess.Popen[bytes]"
    keyboard: int
    modes: int
    drawn: bytes = b""
    usual: list[Any] = field(default_factory=list)

    def press(self, keys: str) -> None:
        os.write(self.keyboard, keys.encode())

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.keyboard, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    @property
    def frame(self) -> list[str]:
        """The lines of what was drawn last."""
        last = self.drawn.decode().rpartition("\x1b[H")[2]
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", last).replace("\r", "").split("\n")

    def wait_for(self, pattern: str) -> list[str]:
        """The first whole frame that has it, from now on."""
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while self._look() or not re.search(pattern, "\n".join(self.frame)):
            assert time.monotonic() < give_up_at, f"{pattern!r} was not drawn; instead:\n" + "\n".join(self.frame)
        return self.frame

    def wait_for_bytes(self, expected: bytes) -> None:
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while expected not in self.drawn:
            assert time.monotonic() < give_up_at, self.drawn[-2000:]
            self._look()

    def _look(self) -> bool:
        """Whether something was drawn, within a tenth of a second."""
        if not select.select([self.keyboard], [], [], 0.1)[0]:
            return False
        try:
            self.drawn += os.read(self.keyboard, 65536)
        except OSError:  # how Linux says that nobody else has the terminal open
            time.sleep(0.05)
            return False
        return True

    def status(self) -> int:
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while self.process.poll() is None:
            assert time.monotonic() < give_up_at, "it goes on"
            self._look()
        self._look()
        return self.process.returncode

    def is_as_it_was(self) -> bool:
        """Whether the terminal has its modes, its screen, its cursor and its wrapping again."""
        ends = [self.drawn.rfind(code) for code in (b"\x1b[?1049l", b"\x1b[?25h", b"\x1b[?7h")]
        begins = [self.drawn.rfind(code) for code in (b"\x1b[?1049h", b"\x1b[?25l", b"\x1b[?7l")]
        is_given_back = all(end > begin for end, begin in zip(ends, begins, strict=True))
        return is_given_back and termios.tcgetattr(self.modes) == self.usual


@contextmanager
def on_a_terminal(*arguments: str, columns: int = 100, lines: int = 30, **variables: str) -> Iterator[Screen]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
    usual = termios.tcgetattr(theirs)
    process = subprocess.Popen(
        [sys.executable, "-c", _ON_ITS_TERMINAL, *arguments],
        env=environ(TERM="xterm-256color", **variables),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    try:
        yield Screen(process, ours, theirs, usual=usual)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        os.close(theirs)


def test_sessions_appear_count_down_and_q_leaves() -> None:
    with running("serve", "--idle-timeout", "600") as gymserve, on_a_terminal(*command("top", gymserve.url)) as screen:
        screen.wait_for("0 sessions")
        seed(gymserve.url, "run-\u4e16\u754c")
        frame = screen.wait_for("run-\u4e16\u754c")
        assert len(frame) == 30 and frame[-1].startswith("q leaves  s sorts: EXPIRES")
        assert termios.tcgetattr(screen.modes) != screen.usual
        screen.wait_for("9m57s")
        screen.press("s")
        screen.wait_for("expires AGE")
        screen.press("q")
        assert screen.status() == 0
        assert screen.is_as_it_was()


def test_it_fits_the_terminal_as_that_changes() -> None:
    with running("serve") as gymserve, on_a_terminal(*command("top", gymserve.url), columns=60, lines=20) as screen:
        for number in range(3):
            seed(gymserve.url, f"run-{number}")
        assert len(screen.wait_for("run-2")) == 20
        assert "REWARD" not in "".join(screen.frame)
        screen.resize(120, 40)
        assert len(screen.wait_for("REWARD")) == 40
        screen.resize(30, 5)
        frame = screen.wait_for("\\Aht.*(\n.*){4}\\Z")
        assert max(map(len, frame)) <= 30


def test_without_colours_where_they_are_not_wanted() -> None:
    with running("serve") as gymserve, on_a_terminal(*command("top", gymserve.url), NO_COLOR="1") as screen:
        seed(gymserve.url, "run")
        screen.wait_for("# 1 busy|= 1 idle")
        assert not re.search(rb"\x1b\[[0-9;]*(3[0-7]|9[0-7]|38;)[0-9;]*m", screen.drawn)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 0), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signals_leave_the_terminal_as_it_was(number: signal.Signals, status: int) -> None:
    with on_a_terminal(*command("top", HERE)) as screen:
        screen.wait_for("LOST")
        screen.process.send_signal(number)
        assert screen.status() == status
        assert screen.is_as_it_was()


def test_control_c_leaves() -> None:
    with on_a_terminal(*command("top", HERE)) as screen:
        screen.wait_for("LOST")
        screen.press("\x03")
        assert screen.status() == 0
        assert screen.is_as_it_was()


def test_an_error_of_ours_leaves_the_terminal_as_it_was() -> None:
    fails = "from gymserve.cli.terminal import Terminal\nwith Terminal() as terminal: terminal.show([1 / 0])"
    with on_a_terminal(sys.executable, "-c", fails) as screen:
        assert screen.status() == 1
        assert screen.is_as_it_was()
        assert b"ZeroDivisionError" in screen.drawn.rpartition(b"\x1b[?1049l")[2]


def test_control_z_stops_it_with_the_terminal_as_it_was() -> None:
    shell = ["bash", "-c", 'set -m; "$0" "$@"; echo STOPPED; sleep 1; fg > /dev/null', *command("top", HERE)]
    with on_a_terminal(*shell) as screen:
        screen.wait_for("LOST")
        screen.press("\x1a")
        screen.wait_for_bytes(b"STOPPED")
        assert screen.is_as_it_was()
        screen.drawn = b""
        screen.wait_for("LOST")
        screen.press("q")
        assert screen.status() == 0
        assert screen.is_as_it_was()


def test_a_lost_gymserve_is_shown_and_found_again() -> None:
    with running("serve") as gymserve:
        port = int(gymserve.url.rpartition(":")[2])
        with on_a_terminal(*command("top", gymserve.url, "--interval", "0.2")) as screen:
            seed(gymserve.url, "run-7")
            first = screen.wait_for("run-7")[0]
            gymserve.process.kill()
            frame = screen.wait_for("lost for")
            assert "LOST  last answer" in frame[0]
            assert re.match(r"lost for \ds, (next try in \ds|asking again): no gymserve can be reached", frame[1])
            with running("serve", port=port):
                again = screen.wait_for("0 sessions")[0]
                assert re.findall("instance \\w+", first) != re.findall("instance \\w+", again)
                screen.press("q")
                assert screen.status() == 0


def test_who_is_not_let_in_is_told_on_the_terminal_as_it_was() -> None:
    with answering(403, b'{"error": "forbidden", "detail": "no"}') as (url, _):
        with on_a_terminal(*command("top", url)) as screen:
            assert screen.status() == 1
            assert screen.is_as_it_was()
    said = (
        f"gymserve: {url} refuses: no; GYMSERVE_TOKEN must hold its token, or GYMSERVE_ADMIN_TOKEN its admin token\r\n"
    )
    assert screen.drawn.decode().endswith(said)


def test_it_ends_with_its_terminal() -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", _ON_ITS_TERMINAL, *command("top", HERE)],
        env=environ(TERM="xterm"),
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs)
    os.read(ours, 1)
    os.close(ours)
    assert process.wait(timeout=PATIENCE_SECONDS) in (129, -signal.SIGHUP)  # Linux may send it twice
