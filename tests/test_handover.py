"""Restarts and hand-overs as users have them: processes that are killed, drained and followed by others."""

import asyncio
import fcntl
import os
import pty
import signal
import socket
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
import trio
from counting import Counting
from processes import Rollout, Server, command, environ, episodes, running, sessions, until

from gymserve.cli import run
from gymserve.cli.commands import build_app
from gymserve.gridsim.policies import optimal
from gymserve.gridsim.server import EnvironmentServer

SECRET = "a secret of the tests"
DAY = 3
DISPATCHES = [arguments for _, arguments in optimal(DAY)]  # with which a day of the embedded environment earns 1.0
SLOTS_BACK_SECONDS = 1.0
BUSY_MACHINE_SECONDS = 4.0  # on top of what a thing takes
PROCESS_SECONDS = 30.0  # for a process to start or to end, on a busy machine


@contextmanager
def following(env: str, journal: Path, *, port: int = 0, listener: socket.socket | None = None) -> Iterator[Server]:
    """A gymserve that goes on where the one before it with that journal has ended."""
    arguments = ["serve", "--env", env, "--journal", str(journal)]
    with running(*arguments, port=port, listener=listener, GYMSERVE_SECRET=SECRET) as server:
        yield server


def steered(*line: str) -> int:
    """The status of a command that steers a gymserve."""
    return run(build_app({}), line)


# kill -9, and a restart


class Trainer:
    """Rollouts of GridSim at every stage, under way until their gymserve is gone."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.verified = [Rollout(url) for _ in range(3)]
        self.done = [Rollout(url) for _ in range(2)]
        self.under_way = [Rollout(url) for _ in range(8)]
        self.waiting = [Rollout(url) for _ in range(4)]
        self.told: list[Any] = []

    async def play(self, nursery: trio.Nursery) -> None:
        for client in (*self.verified, *self.done):
            assert (await client.seed(day=DAY)).status_code == 200
            for arguments in DISPATCHES:
                await client.post("dispatch", arguments)
        self.told = [(await client.verify(task=7)).json() for client in self.verified]
        for client in self.under_way:
            assert (await client.seed(day=DAY)).status_code == 200
            nursery.start_soon(self._go_on, client)
        for client in self.waiting:
            nursery.start_soon(self._wait, client)

    async def _go_on(self, client: Rollout) -> None:
        for arguments in DISPATCHES:
            try:
                await client.post("dispatch", arguments)
            except httpx.TransportError:
                return
            await trio.sleep(0.5)

    async def _wait(self, client: Rollout) -> None:
        with pytest.raises(httpx.TransportError):
            await client.seed()


@pytest.mark.filterwarnings("ignore:Async generator 'httpx:ResourceWarning")  # httpx's own, where its server is killed
async def test_kill_9_under_load_and_a_restart_cost_no_score_and_no_slot(tmp_path: Path) -> None:
    async def number_waiting(url: str, number: int) -> bool:
        return bool((await sessions(url))["waiting"] == number)

    async def slots_are_back(env: str) -> bool:
        return bool((await episodes(env))["active"] == 0)

    journal = tmp_path / "journal"
    with running("env", "--capacity", "8") as env:
        async with trio.open_nursery() as nursery:
            with following(env.url, journal) as first:
                trainer = Trainer(first.url)
                await trainer.play(nursery)
                await until(partial(number_waiting, first.url, 4), within_seconds=PROCESS_SECONDS)
                assert (await episodes(env.url))["active"] == 8
                first.send(signal.SIGKILL)
                await until(partial(slots_are_back, env.url), within_seconds=SLOTS_BACK_SECONDS + BUSY_MACHINE_SECONDS)
        port = int(first.url.rpartition(":")[2])
        with following(env.url, journal, port=port) as second:
            assert second.url == first.url
            assert [(await client.verify(task=7)).json() for client in trainer.verified] == trainer.told
            scores = [(await client.verify()).json() for client in (*trainer.verified, *trainer.done)]
            assert [(score["reward"], score.get("mask_sample")) for score in scores] == [(1.0, None)] * 5
            for client in trainer.under_way:
                masked = (await client.verify()).json()
                assert (masked["mask_sample"], masked["failure_kind"]) == (True, "session_lost")
                assert masked["failure_reason"].startswith("gymserve was restarted")
            assert [(await client.seed()).status_code for client in trainer.under_way] == [200] * 8


# A hand-over


class Followers:
    """Clients that play one rollout after the other, and notice everything that goes wrong."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.stop = trio.Event()
        self.playing = 0
        self.finished: list[tuple[Rollout, Any]] = []
        self.sent_on = 0

    async def play(self) -> None:
        self.playing += 1
        while not self.stop.is_set():
            client = Rollout(self.url, answer_seconds=PROCESS_SECONDS)
            seeded = await client.post("seed_session", {"reset_kwargs": {"target": 6}})
            if seeded.status_code == 307:  # httpx follows nothing by itself
                assert seeded.headers["location"] == "/seed_session"
                self.sent_on += 1
                continue
            assert seeded.status_code == 200, seeded.text
            client.cookie = client.handed_out[-1]
            for count in (3, 6):
                stepped = await client.step(3)
                assert (stepped.status_code, stepped.json().get("count")) == (200, count), stepped.text
            self.finished.append((client, (await client.verify()).json()))
        self.playing -= 1


def seed_as_nemo_gym_does(url: str) -> int:
    """By aiohttp, as it comes."""

    async def seed() -> int:
        timeout = aiohttp.ClientTimeout(total=3 * PROCESS_SECONDS)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(f"{url}/seed_session", data=b"{}") as response,
        ):
            return response.status

    return asyncio.run(seed())


async def test_a_hand_over_under_load_refuses_no_connection_and_loses_no_score(tmp_path: Path) -> None:
    async def is_held(url: str) -> bool:
        return bool((await sessions(url))["holds_seeds"])

    async def all_is_done() -> bool:
        return bool(statuses) and followers.playing == 0

    statuses: list[int] = []

    async def seed_while_it_drains(url: str) -> None:
        await until(partial(is_held, url), within_seconds=PROCESS_SECONDS)
        statuses.append(await trio.to_thread.run_sync(seed_as_nemo_gym_does, url))

    hosted = EnvironmentServer(Counting, capacity=6)
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        async with trio.open_nursery() as nursery:
            env = f"127.0.0.1:{await nursery.start(hosted.listen, '127.0.0.1', 0)}"
            followers = Followers(url)
            async with trio.open_nursery() as playing:
                with following(env, tmp_path / "journal", listener=listener) as first:
                    assert first.url == url
                    for _ in range(10):
                        playing.start_soon(followers.play)
                    await trio.sleep(2)
                    playing.start_soon(seed_while_it_drains, url)
                    assert await trio.to_thread.run_sync(steered, "drain", url, "--wait", "30s") == 0
                    assert await first.exit_status(within_seconds=BUSY_MACHINE_SECONDS) == 0
                before = len(followers.finished)
                await trio.sleep(0.5)  # nobody is there, and nobody is refused
                with following(env, tmp_path / "journal", listener=listener) as second:
                    await trio.sleep(2)
                    followers.stop.set()
                    await until(all_is_done, within_seconds=PROCESS_SECONDS)
                    assert (statuses, followers.sent_on > 0) == ([200], True)
                    assert 0 < before < len(followers.finished)
                    for _, told in followers.finished:
                        assert (told["reward"], told["done"], told.get("mask_sample")) == (1.0, True, None)
                    for client, told in followers.finished[:before:5]:
                        assert (await client.verify()).json() == told
                    second.send(signal.SIGTERM)
                    assert await second.exit_status(within_seconds=PROCESS_SECONDS) == 0
            assert hosted.episodes["active"] == 0
            nursery.cancel_scope.cancel()


# A trainer that is held


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running("serve") as server:
        yield server


TRAINER = "import os, sys, time; sys.stdout.write(f'{os.getpid()}\\n'); sys.stdout.flush(); time.sleep(600)"


class Held:
    """``gymserve hold``, and its trainer's process."""

    def __init__(self, url: str, label: str, *trainer: str, terminal: int | None = None) -> None:
        self.label = label
        self._said = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            command("hold", url, "--label", label, "--for", "30s", "--", *(trainer or (sys.executable, "-c", TRAINER))),
            env=environ(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._said,
            start_new_session=True,  # whoever runs the tests may do so in a terminal
            preexec_fn=None if terminal is None else partial(fcntl.ioctl, terminal, termios.TIOCSCTTY, 0),
        )

    async def trainer(self) -> int:
        """The process's id, once it runs."""
        assert self.process.stdout is not None
        with trio.fail_after(PROCESS_SECONDS):
            return int(await trio.to_thread.run_sync(self.process.stdout.readline, abandon_on_cancel=True))

    async def status(self) -> int:
        with trio.fail_after(PROCESS_SECONDS):
            return await trio.to_thread.run_sync(self.process.wait, abandon_on_cancel=True)

    @property
    def said(self) -> str:
        self._said.seek(0)
        return self._said.read().decode()

    def __enter__(self) -> "Held":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._said.close()


async def seeded(url: str, label: str) -> Rollout:
    client = Rollout(url)
    assert (await client.post("seed_session", headers={"X-Gymserve-Label": label})).status_code == 200
    client.cookie = client.handed_out[-1]
    return client


async def is_held(url: str, label: str) -> bool:
    return label in (await sessions(url))["held_labels"]


async def is_over(url: str, label: str) -> bool:
    """Whether no session of the run is left, and it takes no seeds."""
    listing = await sessions(url)
    if label in listing["held_labels"] or label in [session["label"] for session in listing["sessions"]]:
        return False
    refused = await Rollout(url).post("seed_session", headers={"X-Gymserve-Label": label})
    assert (refused.status_code, refused.json()["error"]) == (409, "label_closed")
    return True


async def test_a_trainer_that_is_killed_leaves_nothing(server: Server) -> None:
    with Held(server.url, "killed") as held:
        trainer = await held.trainer()
        assert await is_held(server.url, "killed")
        clients, other = [await seeded(server.url, "killed") for _ in range(3)], await seeded(server.url, "other")
        os.kill(trainer, signal.SIGKILL)
        assert await held.status() == 128 + signal.SIGKILL
        assert held.said == "gymserve: closed killed: 3 sessions ended, its seeds are refused for 30 s\n"
        await until(partial(is_over, server.url, "killed"), within_seconds=BUSY_MACHINE_SECONDS)
        assert [(await client.post("status")).status_code for client in (*clients, other)] == [410, 410, 410, 200]


async def test_hold_that_is_killed_itself_leaves_nothing(server: Server) -> None:
    with Held(server.url, "orphaned") as held:
        trainer = await held.trainer()
        try:
            await seeded(server.url, "orphaned")
            held.process.send_signal(signal.SIGKILL)
            await until(partial(is_over, server.url, "orphaned"), within_seconds=BUSY_MACHINE_SECONDS)
        finally:
            os.kill(trainer, signal.SIGKILL)


SAVES = """
import os, signal, sys, time
def save(number, frame): sys.exit(7)
signal.signal(signal.SIGTERM, save)
sys.stdout.write(f'{os.getpid()}\\n'); sys.stdout.flush(); time.sleep(600)
"""


PASSED_ON = {
    "its own status": (SAVES, signal.SIGTERM, 7),
    "ended by SIGTERM": (TRAINER, signal.SIGTERM, 128 + signal.SIGTERM),
    "ended by SIGINT": (TRAINER, signal.SIGINT, 128 + signal.SIGINT),
}


@pytest.mark.parametrize(("code", "number", "status"), PASSED_ON.values(), ids=PASSED_ON)
async def test_signals_are_the_trainers_and_so_is_the_status(
    server: Server, code: str, number: signal.Signals, status: int
) -> None:
    with Held(server.url, "signalled", sys.executable, "-c", code) as held:
        await held.trainer()
        held.process.send_signal(number)
        assert await held.status() == status
        await until(partial(is_over, server.url, "signalled"), within_seconds=BUSY_MACHINE_SECONDS)
    assert await trio.to_thread.run_sync(steered, "close", server.url, "--label", "signalled", "--for", "0") == 0


COUNTS = """
import os, signal, sys, time
heard = []
signal.signal(signal.SIGINT, lambda *_: heard.append(1))
sys.stdout.write(f'{os.getpid()}\\n'); sys.stdout.flush()
while not heard: time.sleep(0.01)
time.sleep(1)
sys.exit(len(heard))
"""


async def test_ctrl_c_in_a_terminal_reaches_the_trainer_once(server: Server) -> None:
    ours, theirs = pty.openpty()
    try:
        with Held(server.url, "interrupted", sys.executable, "-c", COUNTS, terminal=theirs) as held:
            await held.trainer()
            os.write(ours, b"\x03")
            assert await held.status() == 1
    finally:
        os.close(ours)
        os.close(theirs)


async def test_a_run_is_held_again_by_a_gymserve_that_has_restarted(tmp_path: Path) -> None:
    with running("serve") as first:
        with Held(first.url, "long") as held:
            trainer = await held.trainer()
            first.send(signal.SIGKILL)
            await first.exit_status(within_seconds=PROCESS_SECONDS)
            with running("serve", port=int(first.url.rpartition(":")[2])) as second:
                await until(partial(is_held, second.url, "long"), within_seconds=PROCESS_SECONDS)
                client = await seeded(second.url, "long")
                os.kill(trainer, signal.SIGTERM)
                assert await held.status() == 128 + signal.SIGTERM
                assert (await client.post("status")).status_code == 410
                lost, again, closed = held.said.splitlines()
                assert lost.startswith("gymserve: long is not held: no gymserve can be reached at ")
                assert (again, closed) == (
                    "gymserve: long is held again",
                    "gymserve: closed long: 1 session ended, its seeds are refused for 30 s",
                )


# The pool of a running gymserve


async def test_servers_come_and_go(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    def pool(*line: str) -> tuple[int, list[str]]:
        status = steered("pool", line[0], server.url, *line[1:])
        return status, capsys.readouterr().out.splitlines()

    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"http://127.0.0.1:{mute.getsockname()[1]}"
        added = await trio.to_thread.run_sync(pool, "add", address, "--slots", "2")
        assert added == (0, [f"{address} is in the pool: ready"])
        status, [head, own, line] = await trio.to_thread.run_sync(pool, "list")
        assert (status, head.split(), line.split()) == (
            0,
            ["url", "state", "held", "capacity"],
            [address, "ready", "0", "2"],
        )
        drained = await trio.to_thread.run_sync(pool, "drain", address)
        assert drained == (0, [f"{address} gets no new sessions, and leaves, as no slot of it is held"])
        assert await trio.to_thread.run_sync(pool, "list") == (0, [head, own])
        assert await trio.to_thread.run_sync(pool, "drain", address) == (1, [])


# What cannot be served with


def test_a_journal_that_cannot_be_used_is_told_in_one_line(tmp_path: Path) -> None:
    journal = tmp_path / "no" / "journal"
    done = subprocess.run(
        command("serve", "--journal", str(journal)),
        env=environ(GYMSERVE_SECRET="a secret of the tests"),
        capture_output=True,
        text=True,
        timeout=PROCESS_SECONDS,
    )
    assert (done.returncode, done.stdout, done.stderr) == (
        1,
        "",
        f"the journal {journal} cannot be used: No such file or directory (--journal)\n",
    )


def test_an_inherited_socket_that_does_not_listen_is_told_in_one_line() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        with pytest.raises(AssertionError, match=r"it ended with 1: cannot listen on .* does not listen"):
            with running("serve", listener=closed):
                raise RuntimeError("it listens")
