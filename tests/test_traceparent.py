"""W3C Trace Context: what is read of a request's header, and in which log lines it stands."""

from collections.abc import Mapping
from typing import Any

import pytest
import trio
from counting import Counting
from scripted import ScriptedServer, agreeable, refused
from stage import COOKIE, Client, Stage, raise_the_curtain
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from gymserve import wire
from gymserve.gridsim.faults import parse_fault
from gymserve.gridsim.server import EnvironmentServer
from gymserve.http.mcp_tools import McpTools
from gymserve.identity import SessionToken
from gymserve.toolbox import with_reward
from gymserve.traceparent import traceparent_in

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
VALUE = f"00-{TRACE}-{PARENT}-01"
OTHER = f"00-{'a' * 32}-{'b' * 16}-00"

# -- what is read (https://www.w3.org/TR/trace-context/#traceparent-header) ------------------------------------------


def read(*values: str) -> str | None:
    lines = [(b"traceparent", value.encode("latin-1")) for value in values]
    return traceparent_in([(b"host", b"x"), *lines, (b"tracestate", b"congo=t61rcWkgMzE")])


@pytest.mark.parametrize(
    ("value", "normalised"),
    [
        (VALUE, VALUE),
        (OTHER, OTHER),
        (f"00-{TRACE}-{PARENT}-ff", f"00-{TRACE}-{PARENT}-ff"),
        (f"01-{TRACE}-{PARENT}-01", VALUE),
        (f"cc-{TRACE}-{PARENT}-03", VALUE),
        (f"cc-{TRACE}-{PARENT}-02", f"00-{TRACE}-{PARENT}-00"),
        (f"fe-{TRACE}-{PARENT}-01-what-the-future-will-be-like", VALUE),
        (f"01-{TRACE}-{PARENT}-01-", VALUE),
    ],
)
def test_one_that_is_valid_is_read(value: str, normalised: str) -> None:
    assert read(value) == normalised


@pytest.mark.parametrize(
    "value",
    [
        "",
        "00",
        f"00-{TRACE}-{PARENT}",
        f"00-{TRACE}-{PARENT}-1",
        f"00-{TRACE}-{PARENT}-001",
        f"00-{TRACE}-{PARENT}-01-",
        f"00-{TRACE}-{PARENT}-01-what",
        f"00-{TRACE}-{PARENT}-01.",
        f"00-{TRACE}-{PARENT}-01\n",
        f"cc-{TRACE}-{PARENT}-01.what-the-future-will-not-be-like",
        f"cc-{TRACE}-{PARENT}-1",
        f"ff-{TRACE}-{PARENT}-01",
        f"0-{TRACE}-{PARENT}-01",
        f"0x-{TRACE}-{PARENT}-01",
        f"00-{TRACE.upper()}-{PARENT}-01",
        f"00-{TRACE}-{PARENT.upper()}-01",
        f"00-{TRACE}-{PARENT}-0A",
        f"00-{TRACE[1:]}-{PARENT}-01",
        f"00-{TRACE}0-{PARENT}-01",
        f"00-{TRACE}-{PARENT[1:]}-01",
        f"00-{TRACE[1:]}.-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"cc-{'0' * 32}-{PARENT}-01",
        f"00_{TRACE}_{PARENT}_01",
        f"00-{'٣' * 16}-{PARENT}-01".encode().decode("latin-1"),
        f" {VALUE}",
    ],
)
def test_one_that_is_not_is_none(value: str) -> None:
    assert read(value) is None


def test_several_are_none_be_they_equal() -> None:
    assert read() is None
    assert read(VALUE, VALUE) is None
    assert read(VALUE, OTHER) is None
    assert read(VALUE, "") is None


# -- in which lines it stands ----------------------------------------------------------------------------------------

Lines = list[tuple[str, str | None]]


def traced(logs: list[Any]) -> Lines:
    """Each line's event and its trace, but for what is said once for all sessions."""
    return [(line["event"], line.get("traceparent")) for line in logs if "(said once)" not in line["event"]]


def counting(capacity: int = 8, *faults: str) -> EnvironmentServer:
    return EnvironmentServer(Counting, capacity=capacity, faults=[parse_fault(fault) for fault in faults])


async def seeded(stage: Stage, traceparent: str | None = VALUE, **row: Any) -> Client:
    client = stage.client()
    headers = {} if traceparent is None else {"Traceparent": traceparent}
    assert (await client.ask("POST", "/seed_session", row, headers)).status == 200
    return client


TYPED: Mapping[str, Any] = {
    "resources_session_id": "mine",
    "episode_id": {"rollout_id": "r"},
    "task_id": {"taskset": "t", "task_id": "1"},
    "task_data": {},
}
SEEDS = [("/seed_session", {}), ("/seed_session", TYPED), ("/reset", {"responses_create_params": {}})]


@pytest.mark.parametrize(("path", "row"), SEEDS)
async def test_the_lines_of_a_session_have_its_seeds(autojump_clock, path, row):
    async with raise_the_curtain(counting(1), idle_timeout_seconds=100) as stage:
        first = await seeded(stage, None)
        with capture_logs() as logs:
            waits = stage.client()
            await waits.send("POST", path, row, {"traceparent": f"  cc-{TRACE}-{PARENT}-01-more\t"})
            await wait_all_tasks_blocked()
            await first.verify()
            assert (await waits.answer()).status == 200
            await trio.sleep(200)
            await waits.ask("POST", "/verify", {"responses_create_params": {}, "response": {}}, {"traceparent": OTHER})
    assert traced(logs) == [
        ("session waits", VALUE),
        ("session ended", None),
        ("session opened", VALUE),
        ("session ended", VALUE),
        ("a session was reclaimed though its client was alive", VALUE),
    ]


async def test_a_session_that_could_not_be_opened_has_one_line(autojump_clock):
    async with raise_the_curtain(counting(1)) as stage:
        stage.network.refuses = True
        with capture_logs() as logs:
            refusal = await stage.client().ask("POST", "/seed_session", {}, {"traceparent": VALUE})
            assert refusal.status == 502
    assert traced(logs) == [("an environment server is set aside", None), ("session not opened", VALUE)]


@pytest.mark.parametrize("value", ["", "nonsense", f"00-{'0' * 32}-{PARENT}-01", "\xff" * 55])
async def test_an_invalid_one_is_no_error_and_in_no_line(autojump_clock, value):
    async with raise_the_curtain(counting(1)) as stage:
        client = stage.client()
        with capture_logs() as logs:
            client.peer = client.connect()
            head = f"POST /seed_session HTTP/1.1\r\nHost: gymserve\r\ntraceparent: {value}\r\nContent-Length: 0\r\n\r\n"
            await client.peer.send(head.encode("latin-1"))
            assert (await client.answer()).status == 200
    assert {trace for _, trace in traced(logs)} == {None}


async def test_two_are_none(autojump_clock):
    async with raise_the_curtain(counting(1)) as stage:
        client = stage.client()
        with capture_logs() as logs:
            await client.ask("POST", "/seed_session", {}, {"traceparent": VALUE, "Traceparent": VALUE})
    assert traced(logs)[0] == ("session opened", None)


async def test_a_session_keeps_one_string_and_without_a_header_none(autojump_clock):
    async with raise_the_curtain(counting(2)) as stage:
        await seeded(stage, VALUE)
        await seeded(stage, None)
        assert [session.traceparent for session in stage.gateway.all_sessions()] == [VALUE, None]


# -- requests --------------------------------------------------------------------------------------------------------


def show(observation: wire.Observation) -> dict[str, Any]:
    if observation.fields.get("count") == 2:
        raise RuntimeError("a count of 2")
    return with_reward(observation)


async def test_a_fault_of_ours_in_a_request_has_that_requests(autojump_clock):
    async with raise_the_curtain(counting(1), show=show) as stage:
        client = await seeded(stage, VALUE)
        named = COOKIE.session_id(*client.cookies.values())
        assert named is not None
        with capture_logs() as logs:
            assert (await client.ask("POST", "/step", {"by": 2}, {"traceparent": OTHER})).status == 500
            assert (await client.ask("POST", "/observation", {})).status == 500
    told = [{key: line.get(key) for key in ("event", "method", "path", "session", "traceparent")} for line in logs[:2]]
    fault = {"event": "a request failed by a fault of ours", "method": "POST", "session": named[:12]}
    assert told == [
        {**fault, "path": "/step", "traceparent": OTHER},
        {**fault, "path": "/observation", "traceparent": None},
    ]


async def test_a_fault_of_ours_in_a_verify_has_that_requests(autojump_clock):
    async with raise_the_curtain(counting(1)) as stage:
        client = await seeded(stage, VALUE)

        async def fail(*_: Any) -> Any:
            raise RuntimeError("broken")

        stage.gateway.verify = fail  # type: ignore[method-assign]
        row = {"responses_create_params": {}, "response": {}}
        with capture_logs() as logs:
            assert (await client.ask("POST", "/verify", row, {"traceparent": OTHER})).status == 500
    assert logs[0]["event"] == "a request failed by a fault of ours"
    assert (logs[0]["path"], logs[0]["traceparent"]) == ("/verify", OTHER)


async def test_a_fault_of_ours_in_a_route_that_is_seldom_asked_has_that_requests(autojump_clock):
    async with raise_the_curtain(counting(1)) as stage:

        def fail() -> Any:
            raise RuntimeError("broken")

        stage.gateway.readiness = fail  # type: ignore[method-assign]
        with capture_logs() as logs:
            answer = await stage.client().ask("GET", "/gymserve/ready", None, {"traceparent": OTHER})
    assert answer.status == 500
    assert [(line["method"], line["path"], line["traceparent"]) for line in logs] == [("GET", "/gymserve/ready", OTHER)]


async def test_an_app_that_fails_is_told_with_the_requests(autojump_clock):
    async with raise_the_curtain(counting(1)) as stage:

        async def fail(scope: Any, receive: Any, send: Any) -> None:
            raise RuntimeError("broken")

        stage.app = fail
        client = stage.client()
        with capture_logs() as logs:
            path = "/" + "x" * 1000
            assert (await client.ask("POST", path, {}, {"traceparent": OTHER})).status == 500
    assert traced(logs) == [("the app failed", OTHER), ("no answer from the app: 500", OTHER)]
    assert {line["path"] for line in logs} == {path[:100]}


async def test_a_fault_of_ours_in_a_tool_call_over_mcp_has_that_requests(autojump_clock):
    token = SessionToken(["a secret of the tests"])
    async with raise_the_curtain(counting(1), show=show) as stage:
        client = await seeded(stage, VALUE)
        named = COOKIE.session_id(*client.cookies.values())
        assert named is not None
        tools = McpTools(stage.gateway, token, None)
        with capture_logs() as logs:
            result = await tools.call(token.value(named), "step", {"by": 2}, traceparent=OTHER)
    assert result.is_error
    assert logs[0]["event"] == "a tool call failed by a fault of ours"
    assert (logs[0]["tool"], logs[0]["session"], logs[0]["traceparent"]) == ("step", named[:12], OTHER)


async def test_a_verify_action_that_fails_is_told_with_its_session(autojump_clock):
    async def script(message: dict[str, Any]) -> Any:
        return refused("EXECUTION_ERROR", "no score") if message["type"] == "step" else await agreeable(message)

    action = wire.Step('{"evaluate": true}')
    async with raise_the_curtain(ScriptedServer(script), verify_action=action) as stage:
        client = await seeded(stage, VALUE, gymserve_label="run-7")
        named = COOKIE.session_id(*client.cookies.values())
        assert named is not None
        with capture_logs() as logs:
            await client.verify()
    [line] = [line for line in logs if line["log_level"] == "warning"]
    assert line["event"] == "a verify action failed, and its result is masked (said once)"
    assert (line["session"], line["label"], line["traceparent"]) == (named[:12], "run-7", VALUE)
