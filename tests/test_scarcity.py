"""gymserve as a process that has few file descriptors, and on sockets whose other end may be cut off."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import trio
from http_peer import POST
from processes import Rollout, Server, dialled, environ, get, running, sessions, until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

DESCRIPTORS = 128  # of which clients may have 64, episodes 48; the last 8 are for nobody
PATIENT_SECONDS = 20.0


@pytest.fixture(scope="module")
def env() -> Iterator[Server]:
    with running("env", "--capacity", "64") as server:
        yield server


@pytest.fixture
def scarce(env: Server) -> Iterator[Server]:
    """A gymserve with few descriptors."""
    with running("serve", "--env", env.url, "--interim", "2", descriptors=DESCRIPTORS) as server:
        yield server


def held(server: Server) -> int:
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def cpu_seconds(server: Server) -> float:
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@asynccontextmanager
async def crowd(server: Server, count: int, data: bytes = b"") -> AsyncIterator[list[trio.SocketStream]]:
    """So many connections, on each of which ``data`` was sent."""
    url = urlsplit(server.url)
    async with AsyncExitStack() as stack:
        streams = []
        for _ in range(count):
            stream = await stack.enter_async_context(await trio.open_tcp_stream(url.hostname or "", url.port or 0))
            await stream.send_all(data)
            streams.append(stream)
        yield streams


async def status(stream: trio.SocketStream) -> bytes:
    """Of its answer; empty where it was closed without one."""
    with trio.move_on_after(0.01):
        try:
            return bytes(await stream.receive_some(12)).removeprefix(b"HTTP/1.1 ")
        except trio.BrokenResourceError:
            return b""
    return b"none"


async def test_clients_that_say_nothing_keep_nobody_out(scarce: Server) -> None:
    player = Rollout(scarce.url)
    await player.seed(day=1)
    async with crowd(scarce, 400):
        assert await get(f"{scarce.url}/gymserve/health") == {"status": "ok"}
        assert (await player.post("status")).status_code == 200
        assert (await Rollout(scarce.url).seed(day=2)).status_code in (200, 503)
        spent = cpu_seconds(scarce)
        await trio.sleep(2)
        assert cpu_seconds(scarce) - spent < 1
        assert held(scarce) < DESCRIPTORS
    assert (await player.verify()).json()["steps"] == 1
    assert await until(lambda: has_at_most(scarce, 30), within_seconds=5) < 5
    assert scarce.log.count("too many connections") == 1
    assert "EMFILE" not in scarce.log and "Traceback" not in scarce.log


async def has_at_most(server: Server, descriptors: int) -> bool:
    return held(server) <= descriptors


async def test_seeds_that_wait_keep_no_session_from_its_end(env: Server) -> None:
    with (
        running("env", "--capacity", "1") as narrow,
        running("serve", "--env", narrow.url, descriptors=DESCRIPTORS) as server,
    ):
        player = Rollout(server.url)
        await player.seed(day=1)
        seed = POST("/seed_session", b"{}")
        async with crowd(server, 60, seed) as waiting, crowd(server, 30, seed) as late:
            await until(lambda: wait_in_line(server, 50), within_seconds=PATIENT_SECONDS)
            refusals = [await status(stream) for stream in late]
            assert refusals.count(b"503") >= 24, refusals
            assert await get(f"{server.url}/gymserve/health") == {"status": "ok"}
            for _ in range(3):
                assert (await player.post("status")).status_code == 200
            spent = cpu_seconds(server)
            await trio.sleep(2)
            assert cpu_seconds(server) - spent < 1
            assert (await player.verify()).json()["steps"] == 3
            await until(lambda: one_is_open(waiting), within_seconds=PATIENT_SECONDS)
        await until(lambda: has_at_most(server, 30), within_seconds=PATIENT_SECONDS)
        assert (await get(f"{server.url}/gymserve/sessions"))["waiting"] == 0
        assert "EMFILE" not in server.log and "Traceback" not in server.log


async def wait_in_line(server: Server, at_least: int) -> bool:
    return int((await sessions(server.url))["waiting"]) >= at_least


async def one_is_open(waiting: list[trio.SocketStream]) -> bool:
    return b"200" in [await status(stream) for stream in waiting]


async def test_more_episodes_than_descriptors_wait_for_each_other(scarce: Server) -> None:
    answers: list[int] = []
    all_are_there = trio.Event()

    async def play(day: int) -> None:
        rollout = Rollout(scarce.url)
        answers.append((await rollout.seed(day=day)).status_code)
        await all_are_there.wait()
        answers.append((await rollout.post("status")).status_code)
        answers.append((await rollout.verify()).status_code)

    async def are_there() -> bool:
        listing = await sessions(scarce.url)
        return (len(listing["sessions"]), listing["waiting"]) == (48, 12)

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            for day in range(60):
                nursery.start_soon(play, day)
            await until(are_there, within_seconds=PATIENT_SECONDS)
            all_are_there.set()
    assert answers == [200] * 180
    assert "EMFILE" not in scarce.log and "Traceback" not in scarce.log


@pytest.mark.parametrize(("command", "is_told"), [("serve", True), ("env", False)])
def test_the_limit_is_raised_as_far_as_it_goes_and_a_low_one_is_told(command: str, is_told: bool) -> None:
    with running(command, descriptors=DESCRIPTORS, soft=64) as server:
        limits = Path(f"/proc/{server.process.pid}/limits").read_text().splitlines()
        assert [line.split()[3:5] for line in limits if "open files" in line] == [[f"{DESCRIPTORS}"] * 2]
        assert (f"file_descriptors={DESCRIPTORS}" in server.log) is is_told


# -- a peer that is cut off ------------------------------------------------------------------------------------------


def keepalive_seconds(local: int | None = None, remote: int | None = None) -> list[float]:
    """Of every established connection of these ports: until TCP probes it; infinite where it never does (proc(5))."""
    found = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        ports = [int(address.rpartition(":")[2], 16) for address in fields[1:3]]
        if fields[3] == "01" and local in (None, ports[0]) and remote in (None, ports[1]):
            kind, _, ticks = fields[5].partition(":")
            found.append(int(ticks, 16) / os.sysconf("SC_CLK_TCK") if kind == "02" else float("inf"))
    return found


@pytest.mark.parametrize(("seconds", "most"), [("60", 30), ("0", float("inf"))])
async def test_tcp_probes_clients_and_environment_servers(env: Server, seconds: str, most: float) -> None:
    with running("serve", "--env", env.url, "--partition-timeout", seconds) as server:
        await Rollout(server.url).seed(day=1)
        port, env_port = urlsplit(server.url).port, urlsplit(env.url).port
        async with dialled(server.url):
            await trio.sleep(0.1)
            accepted = keepalive_seconds(local=port)
            opened = keepalive_seconds(remote=env_port)
    assert len(accepted) == 1 and len(opened) == 1
    for probed_after in accepted + opened:
        assert most * 0.8 <= probed_after <= most


def in_a_network_of_its_own(*arguments: str) -> list[str]:
    return ["unshare", "-rn", "sh", "-c", 'ip link set lo up && exec "$0" "$@"', *arguments]


def can_have_a_network() -> bool:
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return False
    return subprocess.run(in_a_network_of_its_own("true"), capture_output=True).returncode == 0


@pytest.mark.skipif(not can_have_a_network(), reason="needs a network namespace to cut the connections in")
def test_what_is_cut_off_is_noticed() -> None:
    script = Path(__file__).parent / "cut_off.py"
    path = os.pathsep.join([str(script.parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        in_a_network_of_its_own(sys.executable, str(script), "4"),
        env=environ(PYTHONPATH=path),
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stderr
    after_seconds = json.loads(done.stdout)
    assert after_seconds.keys() == {"client", "episode"}
    assert all(1 < after < 12 for after in after_seconds.values()), after_seconds
