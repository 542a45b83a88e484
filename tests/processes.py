"""gymserve as its users have it: a process of its own, and clients on real sockets."""

import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx
import trio
from http_peer import POST, Peer

from gymserve.descriptors import Descriptors

START_SECONDS = 20.0
ANSWER_SECONDS = 10.0
STRANGERS = "policy_model=eyJzaWQiOjF9.x; gymserve_00000000=0123456789abcdef.forged"

_LISTENING = re.compile(r"^listening on (https?://\S+)$", re.MULTILINE)
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # httpx would load every certificate there is, for each client anew

# LISTEN_PID must be the process's own, which only it knows; so it becomes gymserve when it has set that.
_AS_SYSTEMD = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
os.execv(sys.argv[2], sys.argv[2:])
"""


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "gymserve", *arguments]


def environ(**variables: str) -> dict[str, str]:
    """Our environment without settings of gymserve, and ``variables``."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GYMSERVE_")} | variables


@dataclass
class Server:
    """A running ``gymserve serve`` or ``gymserve env``."""

    process: "subprocess.Popen[bytes]"
    log_path: str
    url: str = ""

    @property
    def log(self) -> str:
        """What it has said on stderr."""
        with open(self.log_path, encoding="utf-8") as file:
            return file.read()

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def exit_status(self, *, within_seconds: float) -> int:
        """:raises trio.TooSlowError: it is still running then."""
        with trio.fail_after(within_seconds):
            return await trio.to_thread.run_sync(self.process.wait, abandon_on_cancel=True)

    def wait_until_listening(self) -> None:
        give_up_at = time.monotonic() + START_SECONDS
        while (said := _LISTENING.search(self.log)) is None:
            assert self.process.poll() is None, f"it ended with {self.process.returncode}: {self.log}"
            assert time.monotonic() < give_up_at, f"it does not listen after {START_SECONDS} s: {self.log}"
            time.sleep(0.01)
        self.url = said.group(1)


def _limited_to(descriptors: int | None, soft: int | None) -> list[str]:
    if descriptors is None:
        return []
    return ["sh", "-c", f'ulimit -Sn {soft or descriptors}; ulimit -Hn {descriptors}; exec "$0" "$@"']


@contextmanager
def running(
    *arguments: str,
    port: int = 0,
    listener: socket.socket | None = None,
    descriptors: int | None = None,
    soft: int | None = None,
    **variables: str,
) -> Iterator[Server]:
    """``gymserve ARGUMENTS``, listening; killed at the end of the block if it still runs then.

    :param listener: a socket that it inherits, as from systemd.
    :param descriptors: the hard limit on its open files, where it is not ours; ``soft`` is what it begins with.
    """
    started = [*command(*arguments), "--port", str(port)]
    inherited = [] if listener is None else [listener.fileno()]
    if listener is not None:
        started = [sys.executable, "-c", _AS_SYSTEMD, str(listener.fileno()), *started]
    with tempfile.NamedTemporaryFile(suffix=".log") as log:
        process = subprocess.Popen(
            [*_limited_to(descriptors, soft), *started],
            env=environ(**variables),
            stdin=subprocess.DEVNULL,
            stderr=log,
            pass_fds=inherited,
        )
        try:
            server = Server(process, log.name)
            server.wait_until_listening()
            yield server
        finally:
            process.kill()
            process.wait()


def with_descriptors_left(count: int) -> Descriptors:
    """Those of a process with a limit so low that they are out when ``count`` more than now are taken."""
    lowest = os.dup(0)
    os.close(lowest)
    return next(d for d in map(Descriptors, range(4096)) if d.last_begin == lowest + count)


async def get(url: str) -> Any:
    """The JSON that is answered to GET."""
    async with httpx.AsyncClient(verify=_NO_TLS, trust_env=False, timeout=ANSWER_SECONDS) as client:
        response = await client.get(url)
    assert response.status_code == 200, response.text
    return response.json()


async def until(holds: Callable[[], Awaitable[bool]], *, within_seconds: float) -> float:
    """The seconds until ``holds()``. :raises trio.TooSlowError: it does not, within the time."""
    started = trio.current_time()
    with trio.fail_after(within_seconds):
        while not await holds():  # noqa: ASYNC110 - what is waited for happens in another process
            await trio.sleep(0.01)
    return trio.current_time() - started


@asynccontextmanager
async def dialled(url: str) -> AsyncIterator[Peer]:
    """A client that sends what it is told, byte for byte, for at most as long as an answer may take."""
    with trio.fail_after(ANSWER_SECONDS):
        stream = await trio.open_tcp_stream(urlsplit(url).hostname or "", urlsplit(url).port or 0)
        async with stream:
            yield Peer(stream)


@dataclass
class Rollout:
    """One rollout's client as verifiers is one: a connection for every request, and the seed's cookie on all of them,
    among those of other servers.
    """

    url: str
    cookie: str = ""
    answer_seconds: float = ANSWER_SECONDS
    handed_out: list[str] = field(default_factory=list)  # the cookies on the answers, as NAME=VALUE

    async def post(self, path: str, body: Any = None, *, headers: Mapping[str, str] | None = None) -> httpx.Response:
        cookies = "; ".join(filter(None, [STRANGERS, self.cookie]))
        async with httpx.AsyncClient(verify=_NO_TLS, trust_env=False, timeout=self.answer_seconds) as client:
            response = await client.post(
                f"{self.url}/{path}", json={} if body is None else body, headers={"Cookie": cookies, **(headers or {})}
            )
        self.handed_out += [line.partition(";")[0] for line in response.headers.get_list("set-cookie")]
        return response

    async def seed(self, **reset_kwargs: Any) -> httpx.Response:
        response = await self.post("seed_session", {"reset_kwargs": reset_kwargs})
        self.cookie = self.handed_out[-1]
        return response

    async def step(self, by: int = 1) -> httpx.Response:
        return await self.post("step", {"by": by})

    async def verify(self, **row: Any) -> httpx.Response:
        return await self.post("verify", {"responses_create_params": {}, "response": {}, **row})

    def request(self, path: str, body: bytes) -> bytes:
        """A POST of this client, byte for byte."""
        return POST(f"/{path}", body, f"Cookie: {self.cookie or STRANGERS}")


async def sessions(url: str) -> Any:
    return await get(f"{url}/gymserve/sessions")


async def episodes(url: str) -> Any:
    return await get(f"{url}/gymserve/episodes")
