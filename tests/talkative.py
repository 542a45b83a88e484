"""A whole run of gymserve with everything in it that goes wrong, whose every log line, of the libraries too and of the
lowest level, goes to stderr: ``python -m talkative text|json``.

What it was told in secret, and what it answered, goes to stdout as JSON.
"""

import json
import logging
import sys
from collections.abc import Mapping
from typing import Any

import structlog
import trio
from counting import Counting
from http_peer import Peer, connect
from stage import COOKIE, Client, Stage, raise_the_curtain
from trio.testing import MockClock

from gymserve import wire
from gymserve.address import EnvironmentAddress
from gymserve.cli.logs import configure_logging
from gymserve.episode import Episode
from gymserve.gridsim.faults import Fault
from gymserve.gridsim.server import EnvironmentServer
from gymserve.http.access import Guard
from gymserve.identity import SessionToken
from gymserve.network import TcpNetwork
from gymserve.toolbox import with_reward

TOKEN, ADMIN, WRONG = "token-of-the-rollouts", "token-of-the-admins", "token-of-a-stranger"
ENV_TOKEN, ENV_HEADER = "token-of-the-environment", "header-of-the-environment"
COOKIE_SECRET = "a secret of the tests"  # stage's
HEADERS = [("Authorization", f"Bearer {ENV_TOKEN}"), ("X-Key", ENV_HEADER)]
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}", "X-Gymserve-Label": "run-7"}
NAME = "a-name-that-its-client-made-up"
ROW: Mapping[str, Any] = {"responses_create_params": {}, "response": {"output": []}}


class Talk:
    """What clients sent and got."""

    def __init__(self) -> None:
        self.answers: list[str] = []
        self.cookies: set[str] = set()
        self.ids: set[str] = set()

    async def ask(self, client: Client, method: str, path: str, body: Any = None, **headers: str) -> None:
        answer = await client.ask(method, path, body, {**AUTHORIZED, **headers})
        self.hear(client)
        self.answers.append(json.dumps(answer.body))

    def hear(self, client: Client) -> None:
        for value in client.cookies.values():
            session_id = COOKIE.session_id(value)
            assert session_id is not None
            self.cookies |= {value, value.partition(".")[2]}
            self.ids.add(session_id)

    @property
    def secrets(self) -> list[str]:
        tokens = [SessionToken([COOKIE_SECRET]).value(session_id) for session_id in self.ids]
        named = [TOKEN, ADMIN, WRONG, ENV_TOKEN, ENV_HEADER, COOKIE_SECRET]
        return [*named, *self.cookies, *self.ids, *tokens, *(token.partition(".")[2] for token in tokens)]


class Unshowable(Exception):
    """A fault of ours, of the tests' making."""


def show(observation: wire.Observation) -> dict[str, Any]:
    if observation.fields.get("count") == 4:
        raise Unshowable("a count of 4")
    return with_reward(observation)


async def rollouts(stage: Stage, talk: Talk) -> None:
    """Everything that a client can do well, or badly."""
    c = stage.client()
    await talk.ask(c, "POST", "/seed_session", {**ROW, "gymserve_label": "x"})
    await talk.ask(c, "POST", "/step", {"by": 1})
    await talk.ask(c, "GET", "/gymserve/sessions")
    await talk.ask(c, "GET", "/gymserve/ready")
    await talk.ask(c, "POST", "/observation")
    for arguments in (b"{", b"[1]", b'{"by": "x"}', b'{"by": 9}'):
        await talk.ask(c, "POST", "/step", arguments)
    await talk.ask(c, "POST", "/fly", {})
    await talk.ask(c, "POST", "/step", {"by": 3})  # the fault of ours
    await talk.ask(c, "GET", "/nope")
    await talk.ask(c, "GET", "/gymserve/nope")
    await talk.ask(stage.client(), "POST", "/step", {"by": 1})
    await talk.ask(c, "POST", "/verify", ROW)
    await talk.ask(c, "POST", "/step", {"by": 1})
    await talk.ask(c, "POST", "/verify", ROW)
    for path, body in (("/reset", ROW), ("/step", {**ROW, "_ng_step_request_id": "1"}), ("/close", {})):
        await talk.ask(c, "POST", path, body)


async def named(stage: Stage, talk: Talk) -> None:
    seed = {
        "resources_session_id": NAME,
        "episode_id": {"rollout_id": "r", "attempt": 0},
        "task_id": {"taskset": "t", "task_id": "1"},
        "task_data": {},
    }
    c = stage.client()
    await talk.ask(c, "POST", "/seed_session", seed)
    await talk.ask(c, "POST", "/seed_session", {**seed, "task_data": {"another": 1}})
    await talk.ask(c, "POST", "/seed_session", {**seed, "task_data": 7})
    await talk.ask(c, "POST", "/close_session", {key: seed[key] for key in ("resources_session_id", "episode_id")})
    await talk.ask(c, "POST", "/seed_session", seed)


async def strangers(stage: Stage, talk: Talk) -> None:
    for headers in ({"Authorization": f"Bearer {WRONG}"}, {"Origin": "https://elsewhere.example"}):
        await talk.ask(stage.client("10.0.0.7"), "POST", "/seed_session", {}, **headers)
        await talk.ask(stage.client(), "POST", "/gymserve/close", {}, **headers)
    for line in (
        f"Authorization: Bearer {TOKEN}\x00",
        f"Cookie {COOKIE.name}={COOKIE.value('0' * 32)}",
        f"X: {ADMIN}\r\n {WRONG}\x01",
    ):
        peer: Peer = connect(stage.nursery, stage.app)
        await peer.send(f"GET / HTTP/1.1\r\nHost: x\r\n{line}\r\n\r\n".encode("latin-1"))
        talk.answers.append((await peer.reply()).body.decode())


async def abandoned(stage: Stage, talk: Talk) -> None:
    """Silent until reclaimed, hung up while stepping, waiting in line until refused."""
    silent, leaving, waiting = stage.client(), stage.client(), stage.client()
    await talk.ask(silent, "POST", "/seed_session", {})
    await talk.ask(leaving, "POST", "/seed_session", {})
    await leaving.send("POST", "/step", {"by": 1}, AUTHORIZED)
    await leaving.hang_up()
    await talk.ask(waiting, "POST", "/seed_session", {})  # there are two slots
    await trio.sleep(700)
    await talk.ask(silent, "POST", "/step", {"by": 1})
    await talk.ask(silent, "POST", "/verify", ROW)


async def failing(stage: Stage, talk: Talk) -> None:
    """The environment server refuses, fails by a fault of ours, and comes back."""
    stage.network.refuses = True
    await talk.ask(stage.client(), "POST", "/seed_session", {})
    stage.network.refuses = False
    stage.network.fails_with = Unshowable("a connection")
    await talk.ask(stage.client(), "POST", "/seed_session", {})
    stage.network.fails_with = None
    await talk.ask(stage.client(), "POST", "/seed_session", {})


async def play(talk: Talk, *faults: Fault) -> None:
    server = EnvironmentServer(Counting, capacity=2, faults=faults)
    settings: dict[str, Any] = {
        "patience_seconds": 90.0,
        "idle_timeout_seconds": 300.0,
        "restart_patience_seconds": 5.0,
    }
    guard = Guard(token=TOKEN, admin_token=ADMIN)
    async with raise_the_curtain(server, show=show, guard=guard, headers=HEADERS, **settings) as stage:
        for scene in (rollouts, named, strangers, abandoned, failing):
            await scene(stage, talk)
        await stage.gateway.drain(1.0)
        await talk.ask(stage.client(), "POST", "/seed_session", {})


async def ask_over_sockets(answer: bytes) -> None:
    """What httpx and the WebSocket have to say of an environment server that answers just this."""

    async def handle(stream: trio.SocketStream) -> None:
        async with stream:
            await stream.receive_some()
            await stream.send_all(answer)

    log = structlog.get_logger()
    async with trio.open_nursery() as nursery:
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, handle, [listener])
        network = TcpNetwork(connect_timeout_seconds=2)
        address = EnvironmentAddress("127.0.0.1", listener.socket.getsockname()[1])
        try:
            await network.fetch_schema(address, HEADERS)
        except Exception:
            log.exception("no schema")
        await network.is_alive(address, HEADERS)
        try:
            await nursery.start(Episode(network, address, HEADERS).connect)
        except Exception:
            log.exception("no connection")
        nursery.cancel_scope.cancel()


ANSWERS = [
    b"",
    b"nonsense\r\n\r\n",
    b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nnone",
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\n",
]


def main(style: str) -> None:
    configure_logging(style, least_level=logging.DEBUG)
    logging.getLogger().setLevel(logging.DEBUG)
    talk = Talk()
    for faults in ([], [Fault("drop-mid-step", 1)], [Fault("garbage", 2)], [Fault("failed-reset", 5)]):
        trio.run(play, talk, *faults, clock=MockClock(autojump_threshold=0))
    for answer in ANSWERS:
        trio.run(ask_over_sockets, answer)
    json.dump({"secrets": talk.secrets, "names": [NAME], "answers": talk.answers}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
