"""Bytes that nobody should send, from both sides, through a whole gymserve: every answer is one that is meant, and what
is broken is broken for its sender alone.
"""

import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cache, partial
from itertools import pairwise
from typing import Any

import h11
import pytest
import trio
from counting import Counting
from http_peer import connect
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scripted import ScriptedServer, agreeable, observed
from stage import COOKIE, raise_the_curtain, typed_close, typed_seed
from structlog.testing import capture_logs
from test_mcp import HEADER, LEGACY, MODERN, scene
from trio.testing import MockClock, memory_stream_pair, wait_all_tasks_blocked
from wsproto import ConnectionType, WSConnection
from wsproto.connection import Connection, ConnectionState
from wsproto.events import AcceptConnection, CloseConnection, Event, Ping, Request, TextMessage

import gymserve.http.mcp_server  # noqa: F401  # loaded here, not in a thread while the clock jumps
from gymserve.gridsim.server import EnvironmentServer
from gymserve.http.access import Guard
from gymserve.http.rollouts import Dialect

SOME = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
FEW = settings(SOME, max_examples=15)

MEANT = {200, 400, 401, 403, 404, 405, 406, 408, 409, 410, 413, 415, 421, 422, 431, 501, 502, 503, 505}


def run(scenario: Callable[[], Any]) -> Any:
    """What ``scenario`` comes to in virtual time; nothing in it may be a fault of ours."""
    with capture_logs() as logged, heard() as records:
        result = trio.run(scenario, clock=MockClock(autojump_threshold=0))
    assert [entry for entry in logged if entry["log_level"] in ("error", "critical")] == []
    assert records == []
    return result


class heard(logging.Handler):
    """The errors that libraries log meanwhile: the SDK's own firewall is one."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.records: list[str] = []

    def __enter__(self) -> list[str]:
        logging.getLogger().addHandler(self)
        return self.records

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record.getMessage())


def cut(data: bytes, cuts: Sequence[int]) -> Iterator[bytes]:
    edges = [0, *sorted({at % len(data) for at in cuts} - {0}), len(data)]
    return (data[start:end] for start, end in pairwise(edges))


CUTS = st.lists(st.integers(0, 10_000), max_size=8)
Edit = tuple[int, int, bytes]
EDIT = st.tuples(
    st.integers(0, 10_000),
    st.integers(0, 12),
    st.binary(max_size=4)
    | st.sampled_from(
        [b"\r\n", b"\r\n\r\n", b"\0", b"\xff", b" ", b":", b"chunked", b"9" * 30, b'"', b"{", b"\\ud800", b"1e400"]
    ),
)


def edited(data: bytes, edits: Sequence[tuple[int, int, bytes]]) -> bytes:
    """``data``, in which each edit puts bytes in the place of so many others."""
    for at, gone, put in edits:
        at %= len(data) + 1
        data = data[:at] + put + data[at + gone :]
    return data


# -- clients ---------------------------------------------------------------------------------------------------------


def request(path: str, body: Any = b"", *headers: str, method: str = "POST") -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(data)}", *headers]
    return "\r\n".join([*lines, "", ""]).encode() + data


def in_chunks(path: str, body: bytes, *headers: str) -> bytes:
    head = "\r\n".join([f"POST {path} HTTP/1.1", "Host: localhost", "Transfer-Encoding: chunked", *headers, "", ""])
    return head.encode() + b"".join(b"%x;e=1\r\n%c\r\n" % (1, byte) for byte in body) + b"0\r\nTrailer: x\r\n\r\n"


def traffic(cookie: str, token: str) -> list[bytes]:
    """What clients of every dialect send, to one session where it takes one."""
    known = f"Cookie: other=1; {COOKIE.name}=stale; {COOKIE.name}={cookie}"
    row = {"reset_kwargs": {"target": 5}, "gymserve_label": "a"}
    call = {"type": "function_call", "name": "step", "arguments": '{"by":1}'}
    params = {"name": "step", "arguments": {"by": 1}}
    mcp = ("Content-Type: application/json", "Accept: application/json", f"{HEADER}: {token}")
    return [
        request("/", method="GET"),
        request("/step", {"by": 1}, known),
        in_chunks("/step", b'{"by":1}', known),
        request("/step", {"responses_create_params": {}, "response": {"output": [call]}}, known),
        request("/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}, *mcp),
        request("/mcp", {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, *mcp),
        request("/verify", {"responses_create_params": {}, "response": {}, "x": [1.5, None]}, known),
        request("/seed_session", typed_seed("a", row)),
        request("/close_session", typed_close("a")),
        request("/ng-rollout/7-0/reset", row, "Authorization: Bearer abcdefghijklmnop"),
        request("/gymserve/sessions?sort=label", method="GET"),
        request("/gymserve/nothing", {}, "Origin: http://localhost", "Content-Type: application/json"),
        request("/seed_session", row, known),
        request("/close", b"", "Connection: close"),
    ]


async def answers_to(make: Callable[[list[bytes]], Iterable[bytes]]) -> list[tuple[int, bytes]]:
    """Status and body of every answer to the bytes that ``make`` makes of `traffic`; the session beside it goes on."""
    async with scene(EnvironmentServer(Counting, capacity=8)) as play:
        client, mcp = await play.seeded()
        neighbour, _ = await play.seeded()
        peer = connect(play.stage.nursery, play.stage.app)
        for piece in make(traffic(client.cookies[COOKIE.name], mcp.headers[HEADER])):
            await peer.send(piece)
            await wait_all_tasks_blocked()
        answers = read_answers(await peer.rest())
        assert (await neighbour.step()).body["count"] == 1
        return answers


def read_answers(received: bytes) -> list[tuple[int, bytes]]:
    """:raises h11.RemoteProtocolError: they are not HTTP/1.1."""
    answers = []
    while received:
        parser = h11.Connection(h11.CLIENT)
        parser.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
        parser.send(h11.EndOfMessage())
        parser.receive_data(received)
        body, status = b"", 0
        while not isinstance(event := parser.next_event(), h11.EndOfMessage):
            assert event is not h11.NEED_DATA, received
            if isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                body += event.data
        answers.append((status, body))
        received = parser.trailing_data[0]
    return answers


def nameless(answers: Sequence[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """The same without the names of sessions, which are never the same, and without the event that was the last."""
    name = rb'[0-9a-f]{12,32}(\\.[A-Za-z0-9_-]{43})?|"event":"[^"]*"'
    return [(status, re.sub(name, b"ID", body)) for status, body in answers]


@cache
def whole() -> list[tuple[int, bytes]]:
    return run(partial(answers_to, lambda requests: [b"".join(requests)]))  # type: ignore[no-any-return]


@FEW
@given(cuts=CUTS)
def test_no_split_of_a_clients_bytes_changes_the_answers(cuts: list[int]) -> None:
    assert [status for status, _ in whole()] == [200] * 11 + [403, 200, 200]
    assert nameless(run(partial(answers_to, lambda requests: cut(b"".join(requests), cuts)))) == nameless(whole())


@SOME
@given(cuts=CUTS, edits=st.lists(EDIT, min_size=1, max_size=4))
def test_whatever_a_client_sends_is_answered_as_it_deserves(cuts: list[int], edits: list[Edit]) -> None:
    answers = run(partial(answers_to, lambda requests: cut(edited(b"".join(requests), edits), cuts)))
    assert {status for status, _ in answers} <= MEANT


@FEW
@given(number=st.integers(0, 13), edits=st.lists(EDIT, min_size=1, max_size=4))
def test_whatever_is_in_a_body_is_answered_as_it_deserves(number: int, edits: list[Edit]) -> None:
    """The edits are in the body alone, whose length is told as it is."""

    def spoilt(requests: list[bytes]) -> list[bytes]:
        head, _, body = requests[number].partition(b"\r\n\r\n")
        body = edited(body, edits)
        length = re.sub(rb"Content-Length: \d+", b"Content-Length: %d" % len(body), head)
        return [length + b"\r\n\r\n" + body]

    answers = run(partial(answers_to, spoilt))
    assert {status for status, _ in answers} <= MEANT
    assert len(answers) in ((0, 1, 2, 3) if number == 2 else (1,))


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=5)
VALUES = st.recursive(
    SCALARS | st.just(2**70) | st.just(10**400) | st.just("\ud800"),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(), max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


def objects(**usual: Any) -> st.SearchStrategy[dict[str, Any]]:
    """Objects with the keys of ``usual``, each as usual, anything at all, or not there; and now and then others."""
    return st.builds(
        lambda known, more: {**more, **known},
        st.fixed_dictionaries({}, optional={key: one_or_other(value) for key, value in usual.items()}),
        st.dictionaries(st.text(st.characters(), max_size=3), VALUES, max_size=1),
    )


def one_or_other(usual: Any) -> st.SearchStrategy[Any]:
    return st.one_of(usual if isinstance(usual, st.SearchStrategy) else st.just(usual), VALUES)


ITEMS = objects(type=st.sampled_from(["function_call", "message"]), name=st.sampled_from(["step", "observation"]),
                arguments=st.sampled_from(['{"by":1}', "{", "", '{"by":1e400}', "\ud800"]), call_id="c",
                content=st.lists(objects(type="output_text", text="hello"), max_size=2))  # fmt: skip
OF_TYPED = dict(resources_session_id="s", episode_id=objects(rollout_id="r-1", attempt=0),
                task_id=objects(taskset="t", task_id="7"), task_data=objects(reset_kwargs={"target": 5}))  # fmt: skip
RESULTS = objects(reward=1.0, mask_sample=True, _ng_task_index=1, _ng_rollout_index=0,
                  response=objects(usage=objects(total_tokens=5)), reward_components=objects(a=1.0),
                  instance_config=objects(mask_sample=True))  # fmt: skip
BODIES = {
    "/seed_session": objects(reset_kwargs=objects(target=5, seed=1), gymserve_label="a", agent_ref=objects(name="a"),
                             verifier_metadata=objects(reset_kwargs={}),
                             responses_create_params=objects(tools=st.lists(objects(type="function"), max_size=2)))
    | objects(**OF_TYPED),
    "/close_session": objects(**OF_TYPED),
    "/step": objects(by=1)
    | objects(responses_create_params={}, response=objects(output=st.lists(ITEMS, max_size=3)),
              _ng_step_request_id="r"),
    "/verify": RESULTS,
    "/reset": objects(reset_kwargs=objects(target=5)),
    "/close": VALUES,
    "/observation": objects(any=1),
    "/aggregate_metrics": objects(verify_responses=st.lists(RESULTS, max_size=3)),
}  # fmt: skip


@SOME
@given(asked=st.lists(st.one_of(*(st.tuples(st.just(path), body) for path, body in BODIES.items())), max_size=12))
def test_whatever_the_fields_of_a_body_are_it_is_answered_as_it_deserves(asked: list[tuple[str, Any]]) -> None:
    async def statuses() -> set[int]:
        async with raise_the_curtain(
            EnvironmentServer(Counting, capacity=20), dialect=Dialect(text_action="by")
        ) as stage:
            client = stage.client()
            await client.seed()
            return {(await client.ask("POST", path, body)).status for path, body in asked}

    assert run(statuses) <= MEANT


CALLS = objects(jsonrpc="2.0", id=1, method=st.sampled_from(["tools/call", "tools/list", "ping", "initialize"]),
                params=objects(name=st.sampled_from(["step", "observation"]), arguments=objects(by=1), cursor="a",
                               protocolVersion=LEGACY, capabilities={}, clientInfo=objects(name="a", version="1"),
                               _meta=st.just({"io.modelcontextprotocol/protocolVersion": MODERN,
                                              "io.modelcontextprotocol/clientCapabilities": {}})))  # fmt: skip


@SOME
@given(
    messages=st.lists(CALLS | VALUES | st.lists(CALLS, max_size=2), min_size=1, max_size=6),
    version=st.sampled_from([LEGACY, MODERN, "1999-12-31", ""]),
    named=st.none() | st.text(st.characters(min_codepoint=32, max_codepoint=255), max_size=9) | st.just("a" * 9_000),
)
def test_whatever_is_sent_to_mcp_is_answered_as_it_deserves(
    messages: list[Any], version: str, named: str | None
) -> None:
    async def statuses() -> set[int]:
        async with scene(EnvironmentServer(Counting)) as play:
            _, mcp = await play.seeded()
            headers = {"Mcp-Protocol-Version": version, "Mcp-Method": "tools/call", "Mcp-Name": "step"}
            if named is not None:
                headers[HEADER] = re.sub("[\x7f\x80-\xff]", "x", named).strip()
            answered = {(await mcp.post(message, headers)).status for message in messages}
            await wait_all_tasks_blocked()  # the SDK handles a notification after its answer
            return answered

    assert run(statuses) <= {200, 202, 400, 404}


HEADERS = st.lists(
    st.tuples(
        st.sampled_from(["Cookie", "Authorization", HEADER, "Host", "Origin", "X-Gymserve-Label", "X-Gymserve-Masked",
                         "User-Agent", "X-Forwarded-For", "Sec-Fetch-Site", "Content-Type", "Accept", "Expect",
                         "Range", "If-None-Match", "X-HTTP-Method-Override"]),
        st.binary(max_size=30).map(lambda value: re.sub(rb"[\x00-\x08\x0a-\x1f\x7f]", b"", value).strip())
        | st.sampled_from([b"Bearer", b"Bearer ", b"bearer \xff", b"Basic Og==", b"[::1", b"x:99999999", b"a@b",
                           b"null",
                           b"http://", b"://", b"http://[", b"=;=;", b'"\\', f"{COOKIE.name}=".encode(),
                           f"{COOKIE.name}=a.b; {COOKIE.name}".encode(), b"b\xc3\xa4", b"\xed\xa0\x80", b"a" * 20_000]),
    ),
    max_size=5,
)  # fmt: skip


@pytest.mark.filterwarnings("ignore:Generating overly large repr")  # of a head beyond the limit
@SOME
@given(headers=HEADERS, guarded=st.booleans(), path=st.sampled_from(["/step", "/verify", "/mcp", "/gymserve/sessions"]))
def test_whatever_its_headers_are_a_request_is_answered_as_it_deserves(
    headers: list[tuple[str, bytes]], guarded: bool, path: str
) -> None:
    guard = Guard(token="a token of 16 or more", admin_token="another of 16 or more") if guarded else Guard()
    lines = [name.encode() + b": " + value for name, value in headers]
    if not any(name == "Host" for name, _ in headers):
        lines.append(b"Host: localhost")
    data = b"\r\n".join(
        [b"POST " + path.encode() + b" HTTP/1.1", *lines, b"Connection: close", b"Content-Length: 2", b"", b"{}"]
    )

    async def answered() -> list[tuple[int, bytes]]:
        async with scene(EnvironmentServer(Counting), guard=guard) as play:
            peer = connect(play.stage.nursery, play.stage.app)
            await peer.send(data)
            return read_answers(await peer.rest())

    [(status, _)] = run(answered)
    assert status in MEANT and (not guarded or status in (400, 401, 403)), status


# -- environment servers ---------------------------------------------------------------------------------------------


class RawServer:
    """An environment server's bytes, in pieces: cut at `cuts` of what one connection says in all, or with ``spoil``
    made of it, of which the connection ends at once.
    """

    def __init__(
        self,
        cuts: Sequence[int] = (),
        spoil: Callable[[bytes], bytes] | None = None,
        after: int = 0,
        *,
        leaves: bool = True,
    ) -> None:
        """:param after: the number of writes that are as they should be; what is spoilt comes next.
        :param leaves: without it the connection does not end after what was spoilt.
        """
        self._leaves = leaves
        self._cuts = sorted({at for at in cuts if at})
        self._spoil = spoil
        self._after = after

    async def serve_stream(self, stream: trio.abc.Stream) -> None:
        try:
            await self._serve(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the peer is gone

    async def _serve(self, stream: trio.abc.Stream) -> None:
        received = b""
        while b"\r\n\r\n" not in received:
            received += await stream.receive_some(65536)
        if not received.startswith(b"GET /ws "):
            return await self._answer_schema(stream)
        protocol = WSConnection(ConnectionType.SERVER)
        written, writes = 0, 0
        while received:
            protocol.receive_data(received)
            for event in protocol.events():
                if isinstance(event, CloseConnection) and protocol.state is ConnectionState.CLOSED:
                    return await stream.aclose()  # the answer to ours
                answer = b"".join([protocol.send(said) for said in await self._answers(event)])
                if not answer:
                    continue
                if self._spoil is not None and writes >= self._after:
                    await stream.send_all(self._spoil(answer))
                    while not self._leaves and await stream.receive_some(65536):
                        pass
                    return await stream.aclose()
                for piece in cut(answer, [at - written for at in self._cuts if written < at < written + len(answer)]):
                    await stream.send_all(piece)
                    await wait_all_tasks_blocked()
                written, writes = written + len(answer), writes + 1
                if isinstance(event, CloseConnection):
                    return await stream.aclose()
            received = bytes(await stream.receive_some(65536))

    async def _answer_schema(self, stream: trio.abc.Stream) -> None:
        body = json.dumps({"action": {"title": "Action"}, "observation": {}, "state": {}}).encode()
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        await stream.aclose()

    async def _answers(self, event: Event) -> list[Event]:
        match event:
            case Request():
                return [AcceptConnection()]
            case CloseConnection():
                return [event.response()]
            case TextMessage(data='{"type":"close"}'):
                return [CloseConnection(1000)]
            case TextMessage():
                message = json.loads(event.data)
                answer = observed(0.5, text="é😀" * 50) if message["type"] == "step" else await agreeable(message)
                text = json.dumps(answer, ensure_ascii=False)
                return [
                    TextMessage(text[:9], message_finished=False),
                    Ping(b"in between"),
                    TextMessage(text[9:40], message_finished=False),
                    TextMessage(text[40:]),
                ]
        return []


async def rollout(server: Any) -> list[tuple[int, Any]]:
    """Status and body of a seed, two steps and a verify; then the line is as empty as before."""
    async with raise_the_curtain(server, patience_seconds=5) as stage:
        client = stage.client()
        answers = [await client.seed(), await client.step(), await client.step(), await client.verify()]
        await trio.sleep(100)
        assert (stage.opener.line.held, stage.opener.line.waiting) == (0, 0)
        return [(answer.status, answer.body) for answer in answers]


@cache
def undisturbed() -> list[tuple[int, Any]]:
    return run(partial(rollout, RawServer()))  # type: ignore[no-any-return]


@FEW
@given(cuts=st.lists(st.integers(0, 1_500), max_size=12))
def test_no_split_of_an_environment_servers_bytes_changes_the_answers(cuts: list[int]) -> None:
    answers = run(partial(rollout, RawServer(cuts)))
    assert answers == undisturbed()
    assert answers[1] == (200, {"text": "é😀" * 50, "reward": 0.5, "done": False})
    assert (answers[3][1]["reward"], answers[3][1].get("mask_sample")) == (1.0, None)


def test_each_byte_of_an_environment_servers_may_come_alone() -> None:
    assert run(partial(rollout, RawServer(range(10_000)))) == undisturbed()


def test_an_observation_that_is_not_utf_8_loses_its_episode() -> None:
    spoil = lambda data: data.replace(b" 0.5", b"\xff0.5")  # noqa: E731
    answers = run(partial(rollout, RawServer(spoil=spoil, after=3, leaves=False)))
    assert [status for status, _ in answers] == [200, 502, 410, 200]
    assert answers[3][1]["failure_kind"] == "session_lost"


@settings(SOME, max_examples=50)
@given(after=st.integers(0, 5), edits=st.lists(EDIT, min_size=1, max_size=3), junk=st.none() | st.binary(max_size=40))
def test_whatever_an_environment_server_says_costs_its_own_episode_at_most(
    after: int, edits: list[Edit], junk: bytes | None
) -> None:
    spoil = (lambda data: edited(data, edits)) if junk is None else (lambda data: junk)
    seed, *steps, (verify, verified) = run(partial(rollout, RawServer(spoil=spoil, after=after)))
    assert seed[0] in (200, 502, 503)
    assert {status for status, _ in steps} <= {200, 404, 410, 422, 502}
    assert verify == 200
    assert verified.get("mask_sample") or verified["reward"] <= 1.0
    assert verified.get("mask_sample") or after > 2, "an episode that was cut off is no evidence"


MESSAGES = objects(type=st.sampled_from(["observation", "error", "mcp", "state"]),
                   data=objects(observation=objects(metadata=objects(reward_components=objects(a=1.0)), result=VALUES,
                                                    error=VALUES), reward=1.0, done=True, id=1, result=VALUES,
                                code=st.sampled_from(["EXECUTION_ERROR", "VALIDATION_ERROR", "SESSION_ERROR",
                                                      "CAPACITY_REACHED"]),
                                message="no", errors=st.lists(objects(msg="no", loc=["by"]), max_size=2),
                                active_sessions=1, max_sessions=1, factory_name="a"))  # fmt: skip
TOOLS = st.lists(objects(name=st.sampled_from(["add", "verify", "\ud800"]), description="Add.",
                         input_schema=objects(type="object", properties=objects(a={}), required=["a"]),
                         inputSchema=objects(type="object", properties=objects(a=True))), max_size=3)  # fmt: skip


@SOME
@given(
    first=st.just(observed()) | MESSAGES,
    others=st.lists(MESSAGES | VALUES, max_size=3),
    listed=TOOLS | VALUES,
    title=st.sampled_from(["Action", "CallToolAction"]),
)
def test_whatever_an_environment_answers_is_handed_on_or_refused(
    first: Any, others: list[Any], listed: Any, title: str
) -> None:
    said = iter([first, *others])

    async def script(message: dict[str, Any]) -> Any:
        if message["type"] == "mcp" and message["data"]["method"] == "tools/list":
            return {"type": "mcp", "data": {"id": message["data"]["id"], "result": {"tools": listed}}}
        if message["type"] == "mcp":
            return await agreeable(message)
        return json.dumps(next(said, observed(1.0)))

    async def statuses() -> list[int]:
        async with scene(ScriptedServer(script, action=title), patience_seconds=5) as play:
            client = play.stage.client()
            seeded = await client.seed()
            session_id = COOKIE.session_id(client.cookies[COOKIE.name]) or ""
            mcp = play.mcp(play.endpoint.offer(session_id)["headers"])
            over_mcp = []
            for method, params in (
                ("tools/list", {}),
                ("tools/call", {"name": "add"}),
                ("tools/call", {"name": "step"}),
            ):
                await mcp.send_request(method, **params)
                assert mcp.peer is not None
                over_mcp.append((await mcp.peer.reply()).status)
            steps = [(await client.call(tool)).status for tool in ("step", "add", "observation")]
            verified = await client.verify()
            assert over_mcp == [200] * 3
            assert verified.status == 200
            return [seeded.status, *steps]

    assert set(run(statuses)) <= MEANT


# -- our own environment server, whose clients may be anybody's ------------------------------------------------------

FRAMES = [
    Request(host="x", target="/ws"),
    TextMessage('{"type":"reset","data":{"target":5}}'),
    Ping(b"there?"),
    TextMessage('{"type":"step",', message_finished=False),
    TextMessage('"data":{"by":2}}'),
    TextMessage('{"type":"step","data":{"by":9}}'),
    TextMessage('{"type":"state"}'),
    TextMessage('{"type":"close"}'),
]


def client_bytes() -> bytes:
    """What a client sends that waits for no answer."""
    protocol, server = WSConnection(ConnectionType.CLIENT), WSConnection(ConnectionType.SERVER)
    upgrade = protocol.send(FRAMES[0])
    server.receive_data(upgrade)
    [_] = server.events()
    protocol.receive_data(server.send(AcceptConnection()))
    [_] = protocol.events()
    return upgrade + b"".join(map(protocol.send, FRAMES[1:]))


async def conversation(pieces: Iterable[bytes]) -> tuple[bytes, list[Any]]:
    """The status line that an environment server answers to so many bytes, and the messages that follow; it then ends
    the connection, and has no episode left.
    """
    server = EnvironmentServer(Counting, capacity=1)
    async with trio.open_nursery() as nursery:
        ours, theirs = memory_stream_pair()
        nursery.start_soon(server.serve_stream, theirs)
        with suppress(trio.BrokenResourceError):  # it has had enough
            for piece in pieces:
                await ours.send_all(piece)
                await wait_all_tasks_blocked()
            await ours.send_eof()
        received = b"".join([part async for part in ours])
        await ours.aclose()
    assert server.episodes["active"] == 0
    head, _, frames = received.partition(b"\r\n\r\n")
    return head.partition(b"\r\n")[0], messages_in(frames) if b" 101 " in head else []


def messages_in(frames: bytes) -> list[Any]:
    frame_protocol = Connection(ConnectionType.CLIENT)
    frame_protocol.receive_data(frames)
    texts, text = [], ""
    for event in frame_protocol.events():
        if isinstance(event, TextMessage):
            text += event.data
            if event.message_finished:
                texts.append(json.loads(text))
                text = ""
    return texts


@FEW
@given(cuts=CUTS)
def test_no_split_of_a_clients_frames_changes_what_an_environment_server_answers(cuts: list[int]) -> None:
    status, messages = run(partial(conversation, cut(client_bytes(), cuts)))
    assert (status.split()[1], [message["type"] for message in messages]) == (
        b"101",
        ["observation", "observation", "error", "state"],
    )
    assert messages[1]["data"]["observation"]["count"] == 2


def test_an_upgrade_that_is_not_ascii_is_refused() -> None:
    spoilt = client_bytes().replace(b"Connection: Upgrade", b"Connection: Upgr\xe4de")
    assert run(partial(conversation, [spoilt])) == (b"HTTP/1.1 400 Bad Request", [])


@settings(SOME, max_examples=60)
@given(edits=st.lists(EDIT, min_size=1, max_size=3), cuts=CUTS)
def test_whatever_its_client_sends_an_environment_server_ends_in_good_order(edits: list[Edit], cuts: list[int]) -> None:
    status, _ = run(partial(conversation, cut(edited(client_bytes(), edits), cuts)))
    assert status == b"" or status.split()[1] in (
        b"101",
        b"200",
        b"400",
        b"403",
        b"404",
        b"405",
        b"426",
        b"431",
        b"501",
        b"505",
    )
