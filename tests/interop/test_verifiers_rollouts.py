"""verifiers 0.4.0, with its NeMo Gym taskset as it is, in rollouts through a gymserve process.

Run with an interpreter that has verifiers and pytest, no index needed; gymserve may be installed elsewhere::

    GYMSERVE_PYTHON=.../python python -m pytest -c /dev/null --confcutdir tests/interop tests/interop

``vf-eval`` plays whole evaluations. Where a rollout is cancelled, `Driver` runs it, the way in which verifiers' env
server runs it for prime-rl. The model is a scripted one.
"""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from openenv_processes import Client, eventually
from verifiers_llm import HOURS, Message, Pause, ScriptedModel, trade
from verifiers_processes import (
    Driver,
    Environments,
    Evaluation,
    LoggedGymserve,
    make_home,
    write_rows,
    write_rows_without_tools,
)
from verifiers_wire import Exchange, Relay

DAYS = 3
ROLLOUTS_A_DAY = 3
AT_ONCE = 6
SLOTS = 3
CALLS = 1 + HOURS

IDLE_SECONDS = 4.0  # a rollout takes a second to its first call
SLOW_SECONDS = 3.0
ROOM_SECONDS = 10.0
READ_TIMEOUT_SECONDS = 3.0
PROMPT_SECONDS = 0.5  # for what happens at once, on a busy machine
CLOCK_SECONDS = 0.2  # for an answer to get from gymserve to the relay, or a deadline to the log
START_SECONDS = 30.0  # for a rollout's program to start, on a busy machine
CANCELLED = {"X-Gymserve-Label": "cancelled"}

GONE = "The episode is over; no further call can succeed."
HUNG_UP = "the client hung up before its seed was answered"
NO_REQUEST = f"no request for {IDLE_SECONDS:g} s, the idle timeout"


@pytest.fixture(scope="module")
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="module")
def model(stack: ExitStack) -> ScriptedModel:
    return stack.enter_context(ScriptedModel().serving())


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_home(tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="module")
def driver(stack: ExitStack, home: Path, model: ScriptedModel, tmp_path_factory: pytest.TempPathFactory) -> Driver:
    """Its start takes long, and goes on beside whatever else is done until it is first used."""
    return stack.enter_context(Driver(tmp_path_factory.mktemp("driver"), home, model.url).running())


@pytest.fixture(scope="module")
def row(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("row") / "row.jsonl"
    write_rows(path, "--split", "eval", "--limit", "1")
    return path


@pytest.fixture(scope="module")
def row_without_tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """To such a row gymserve offers its tools over MCP."""
    path = tmp_path_factory.mktemp("row") / "row.jsonl"
    write_rows_without_tools(path, "--split", "eval", "--limit", "1")
    return path


@dataclass(frozen=True)
class Evaluated:
    """What there is when ``vf-eval`` has ended: its traces, what it asked, how gymserve's sessions ended."""

    rows: list[dict[str, Any]]
    traces: list[dict[str, Any]]
    exchanges: list[Exchange]
    ended: list[dict[str, Any]]
    gymserve: LoggedGymserve

    def rewards(self) -> list[tuple[int, float]]:
        """Day and reward of each rollout, in order of the days."""
        return sorted(
            (_day(trace["task"]["data"]["row"]), trace["rewards"]["nemo_gym"]["score"]) for trace in self.traces
        )

    def asked(self) -> Counter[str]:
        return Counter(exchange.what for exchange in self.exchanges)


def _day(row: Mapping[str, Any]) -> int:
    day: int = row["reset_kwargs"]["day"]
    return day


def play(client: Client, row: Mapping[str, Any]) -> float:
    """The score of that row, played by hand as the scripted model does."""
    assert client.http.post("/seed_session", json=row).status_code == 200
    messages: list[Message] = []
    while isinstance(turn := trade(messages), list):
        messages += [{"role": "tool", "content": client.call(use.tool, **use.arguments).text} for use in turn]
    score: float = client.verify(**row, response={})["reward"]
    return score


# A whole evaluation, with direct tools and more rollouts than slots


@pytest.fixture(scope="module")
def direct(
    stack: ExitStack, driver: Driver, home: Path, model: ScriptedModel, tmp_path_factory: pytest.TempPathFactory
) -> Evaluated:
    """The driver is started before it, and beside it."""
    directory = tmp_path_factory.mktemp("direct")
    dataset = directory / "rows.jsonl"
    rows = write_rows(dataset, "--split", "eval", "--limit", str(DAYS))
    env = stack.enter_context(Environments(directory / "env.log", "--capacity", str(SLOTS)))
    gymserve = stack.enter_context(LoggedGymserve(directory / "gymserve.log", "--env", env.url))
    relay = stack.enter_context(Relay(gymserve.url).relaying())
    task = {"resources_url": relay.url, "headers": {"X-Gymserve-Label": "run-7"}}
    evaluation = Evaluation(dataset, model.url, task, rollouts_per_row=ROLLOUTS_A_DAY, at_once=AT_ONCE)
    traces = evaluation.run(directory, home, gymserve)
    return Evaluated(rows, traces, list(relay.exchanges), gymserve.events("session ended"), gymserve)


def test_no_rollout_of_a_group_fails_where_there_are_more_than_slots(direct: Evaluated) -> None:
    assert [trace["ok"] for trace in direct.traces] == [True] * DAYS * ROLLOUTS_A_DAY
    assert [error for trace in direct.traces for error in trace["errors"]] == []
    assert {trace["metrics"]["done"] for trace in direct.traces} == {1.0}
    assert sum(trace["metrics"]["seconds_waiting"] > 1 for trace in direct.traces) >= AT_ONCE - SLOTS


def test_rewards_in_traces_are_gymserves_scores(direct: Evaluated) -> None:
    assert {(line["ending"], line["label"], line["steps"]) for line in direct.ended} == {("verified", "run-7", CALLS)}
    assert sorted(line["reward"] for line in direct.ended) == sorted(reward for _, reward in direct.rewards())

    with direct.gymserve.client() as client:
        scores = [(_day(row), play(client, row)) for row in direct.rows]
    assert len({score for _, score in scores} - {0.0}) == DAYS
    assert direct.rewards() == [day_and_score for day_and_score in scores for _ in range(ROLLOUTS_A_DAY)]


def test_a_direct_tool_call_is_one_request(direct: Evaluated) -> None:
    rollouts = DAYS * ROLLOUTS_A_DAY
    assert direct.asked() == {
        "/seed_session": rollouts,
        "/forecast": rollouts,
        "/dispatch": rollouts * HOURS,
        "/verify": rollouts,
    }
    assert {(exchange.method, exchange.status) for exchange in direct.exchanges} == {("POST", 200)}


def test_all_slots_are_free_after_an_evaluation(direct: Evaluated) -> None:
    eventually(direct.gymserve.has_nothing_left, within_seconds=PROMPT_SECONDS)
    assert direct.gymserve.events("session not opened") == []


# The same over MCP, which verifiers uses wherever a seed's answer offers it


@pytest.fixture(scope="module")
def over_mcp(stack: ExitStack, home: Path, model: ScriptedModel, tmp_path_factory: pytest.TempPathFactory) -> Evaluated:
    directory = tmp_path_factory.mktemp("mcp")
    dataset = directory / "rows.jsonl"
    rows = write_rows_without_tools(dataset, "--split", "eval", "--limit", "2")
    gymserve = stack.enter_context(LoggedGymserve(directory / "gymserve.log"))
    relay = stack.enter_context(Relay(gymserve.url).relaying())
    traces = Evaluation(dataset, model.url, {"resources_url": relay.url}, at_once=2).run(directory, home, gymserve)
    return Evaluated(rows, traces, list(relay.exchanges), gymserve.events("session ended"), gymserve)


def test_a_row_without_tools_is_played_over_mcp(over_mcp: Evaluated) -> None:
    assert [(trace["ok"], trace["errors"]) for trace in over_mcp.traces] == [(True, [])] * 2
    asked = over_mcp.asked()
    assert (asked["/seed_session"], asked["tools/call"], asked["/verify"]) == (2, 2 * CALLS, 2)
    assert {exchange.path for exchange in over_mcp.exchanges} == {"/seed_session", "/mcp", "/verify"}
    assert {exchange.method for exchange in over_mcp.exchanges} == {"POST"}
    assert {exchange.status for exchange in over_mcp.exchanges} <= {200, 202}


def test_scores_over_mcp_are_those_of_direct_calls(over_mcp: Evaluated) -> None:
    assert [(line["ending"], line["steps"]) for line in over_mcp.ended] == [("verified", CALLS)] * 2
    with over_mcp.gymserve.client() as client:
        scores = [(_day(row), play(client, row)) for row in over_mcp.rows]
    assert over_mcp.rewards() == scores
    eventually(over_mcp.gymserve.has_nothing_left, within_seconds=PROMPT_SECONDS)


# Rollouts that are cancelled, each beside another one, which is not


@dataclass(frozen=True)
class Servers:
    """gymserve before environments of its own; rollouts to be watched go through the relay."""

    env: Environments
    gymserve: LoggedGymserve
    relay: Relay


StartServers = Callable[..., Servers]


@pytest.fixture
def start_servers(tmp_path: Path) -> Iterator[StartServers]:
    """``start_servers(*flags of gymserve, capacity, fault)``"""
    with ExitStack() as stack:

        def start(*flags: str, capacity: int = 8, fault: str | None = None) -> Servers:
            faults = () if fault is None else ("--fault", fault)
            env = stack.enter_context(Environments(tmp_path / "env.log", "--capacity", str(capacity), *faults))
            gymserve = stack.enter_context(LoggedGymserve(tmp_path / "gymserve.log", "--env", env.url, *flags))
            return Servers(env, gymserve, stack.enter_context(Relay(gymserve.url).relaying()))

        yield start
        for log in sorted(tmp_path.glob("*.log")):
            sys.stdout.write(f"{log.name}:\n{log.read_text(encoding='utf-8')}\n")  # shown if the test fails


@dataclass(frozen=True)
class Way:
    """How the tools of a row are called: each call is one such request."""

    dataset: Path
    call: str

    def prepare(self, gymserve: LoggedGymserve) -> None:
        """The first MCP request of a gymserve takes it longer than these tests' idle timeout may be."""
        with gymserve.client() as client:
            client.http.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": "ping"})


@pytest.fixture(params=["direct", "over MCP"])
def way(request: pytest.FixtureRequest, row: Path, row_without_tools: Path) -> Way:
    return Way(row, "/status") if request.param == "direct" else Way(row_without_tools, "tools/call")


@pytest.fixture
def pause(model: ScriptedModel) -> Iterator[Pause]:
    pause = model.scripts["thinker"] = Pause()
    yield pause
    pause.go_on.set()


def is_asked(servers: Servers, what: str) -> Exchange:
    """The cancelled rollout's request, when it has come and gymserve is busy with it."""
    eventually(lambda: what in servers.relay.asked(), within_seconds=START_SECONDS)
    eventually(lambda: servers.gymserve.states().get("cancelled") == "busy", within_seconds=PROMPT_SECONDS)
    return servers.relay.latest(what)


def assert_reclaimed(servers: Servers) -> None:
    """The cancelled rollout's session ends at the idle deadline, which the last answer set; not before, nor later."""
    eventually(lambda: "cancelled" not in servers.gymserve.states(), within_seconds=IDLE_SECONDS + 2 * PROMPT_SECONDS)
    ended = servers.gymserve.ended("cancelled")
    assert (ended["ending"], ended["reason"]) == ("idle timeout", NO_REQUEST)
    idle_seconds = ended["at"] - servers.relay.answered_at()
    assert IDLE_SECONDS - CLOCK_SECONDS <= idle_seconds <= IDLE_SECONDS + CLOCK_SECONDS


def assert_nothing_is_left(servers: Servers) -> None:
    eventually(servers.gymserve.has_nothing_left, within_seconds=PROMPT_SECONDS)
    eventually(lambda: servers.env.episodes()["active"] == 0, within_seconds=PROMPT_SECONDS)


def test_cancelled_in_the_line_a_seed_gives_up_its_place_at_once(
    driver: Driver, row: Path, start_servers: StartServers
) -> None:
    servers = start_servers(capacity=1)
    driver.wait_until_serving()
    with servers.gymserve.client() as holder:
        assert holder.seed().status_code == 200
        cancelled = driver.start(row, servers.relay.url, model="glancer", headers=CANCELLED)
        eventually(lambda: servers.gymserve.waiting() == 1, within_seconds=START_SECONDS)
        other = driver.start(row, servers.gymserve.url, model="glancer")
        eventually(lambda: servers.gymserve.waiting() == 2, within_seconds=START_SECONDS)

        cancelled.cancel()
        eventually(lambda: servers.gymserve.waiting() == 1, within_seconds=PROMPT_SECONDS)
        assert servers.gymserve.ended("cancelled")["reason"] == HUNG_UP
        assert servers.relay.latest("/seed_session").hung_up_at is not None
        holder.verify()
    assert other.trace()["ok"]
    assert_nothing_is_left(servers)
    assert servers.relay.asked() == ["/seed_session"]
    assert servers.env.episodes()["opened"] == 2


def test_cancelled_in_the_reset_a_seed_gives_its_episode_back(
    driver: Driver, row: Path, start_servers: StartServers
) -> None:
    servers = start_servers(capacity=2, fault=f"slow-reset:{SLOW_SECONDS}")
    driver.wait_until_serving()
    cancelled = driver.start(row, servers.relay.url, model="glancer", headers=CANCELLED)
    other = driver.start(row, servers.gymserve.url, model="glancer")
    eventually(lambda: servers.gymserve.held() == 2, within_seconds=START_SECONDS)

    cancelled.cancel()
    eventually(lambda: "cancelled" not in servers.gymserve.states(), within_seconds=PROMPT_SECONDS)
    assert servers.gymserve.ended("cancelled")["reason"] == HUNG_UP
    assert servers.relay.latest("/seed_session").hung_up_at is not None
    assert other.trace()["ok"]  # after a reset as long as the other one
    assert_nothing_is_left(servers)
    assert servers.env.episodes()["opened"] == 2


def test_cancelled_while_the_model_thinks_a_session_lives_until_its_idle_deadline(
    driver: Driver, row: Path, start_servers: StartServers, pause: Pause
) -> None:
    servers = start_servers("--idle-timeout", str(IDLE_SECONDS))
    driver.wait_until_serving()
    cancelled = driver.start(row, servers.relay.url, model="thinker", headers=CANCELLED)
    other = driver.start(row, servers.gymserve.url, model="glancer")
    assert pause.thinking.wait(START_SECONDS)
    cancelled.cancel()

    assert_reclaimed(servers)
    assert servers.relay.asked() == ["/seed_session", "/status"]  # gymserve was told nothing of the cancel
    assert other.trace()["ok"]
    assert_nothing_is_left(servers)


def test_cancelled_in_a_tool_call_the_call_runs_to_its_end_and_the_idle_time_begins_there(
    driver: Driver, way: Way, start_servers: StartServers
) -> None:
    servers = start_servers("--idle-timeout", str(IDLE_SECONDS), fault=f"slow-step:{SLOW_SECONDS}")
    way.prepare(servers.gymserve)
    driver.wait_until_serving()
    cancelled = driver.start(way.dataset, servers.relay.url, model="glancer", headers=CANCELLED)
    other = driver.start(way.dataset, servers.gymserve.url, model="glancer")
    call = is_asked(servers, way.call)
    cancelled.cancel()

    eventually(lambda: call.status is not None, within_seconds=SLOW_SECONDS + PROMPT_SECONDS)
    assert (call.status, call.hung_up_at) == (200, None)
    assert_reclaimed(servers)
    assert servers.gymserve.ended("cancelled")["steps"] == servers.relay.asked().count(way.call) == 1
    assert "/verify" not in servers.relay.asked()
    assert other.trace()["ok"]
    assert_nothing_is_left(servers)


def test_cancelled_in_verify_the_episode_is_over_as_soon_as_it_is_scored(
    driver: Driver, row: Path, start_servers: StartServers
) -> None:
    score = '{"tool_name": "status", "arguments": {}}'
    servers = start_servers("--verify-action", score, fault=f"slow-step:{SLOW_SECONDS}")
    driver.wait_until_serving()
    cancelled = driver.start(row, servers.relay.url, model="mute", headers=CANCELLED)
    other = driver.start(row, servers.gymserve.url, model="mute")
    verify = is_asked(servers, "/verify")
    cancelled.cancel()
    eventually(lambda: verify.hung_up_at is not None, within_seconds=PROMPT_SECONDS)

    eventually(lambda: "cancelled" not in servers.gymserve.states(), within_seconds=SLOW_SECONDS + PROMPT_SECONDS)
    ended = servers.gymserve.ended("cancelled")
    assert ended["ending"] == "verified"
    assert SLOW_SECONDS - CLOCK_SECONDS <= ended["at"] - verify.asked_at <= SLOW_SECONDS + PROMPT_SECONDS
    assert cancelled.left_no_trace
    assert other.trace()["ok"]
    assert_nothing_is_left(servers)


# Results that say nothing about the policy


def expired(driver: Driver, way: Way, servers: Servers, pause: Pause) -> dict[str, Any]:
    """The trace of a rollout whose model thought for longer than the idle timeout, and went on then."""
    way.prepare(servers.gymserve)
    driver.wait_until_serving()
    rollout = driver.start(way.dataset, servers.relay.url, model="thinker")
    assert pause.thinking.wait(START_SECONDS)
    eventually(servers.gymserve.has_nothing_left, within_seconds=IDLE_SECONDS + 2 * PROMPT_SECONDS)
    pause.go_on.set()
    return rollout.trace()


def test_a_rollout_whose_verify_is_masked_is_an_error_without_a_reward(
    driver: Driver, way: Way, start_servers: StartServers, pause: Pause
) -> None:
    servers = start_servers("--idle-timeout", str(IDLE_SECONDS))
    trace = expired(driver, way, servers, pause)
    assert (trace["ok"], trace["rewards"], trace["metrics"]) == (False, {"nemo_gym": None}, {})
    [error] = trace["errors"]
    assert error["type"] == "TaskError"
    assert error["message"].startswith(
        "task NeMoGymTask scoring: HTTPStatusError: Server error '503 Service Unavailable'"
    )
    assert servers.relay.latest("/verify").status == 503

    answers = [node["message"]["content"] for node in trace["nodes"] if node["message"]["role"] == "tool"]
    assert [GONE in answer for answer in answers] == [False, True]
    assert servers.relay.asked().count(way.call) == 2  # over MCP, where an error is repeated, this is none


def test_masked_without_an_error_it_would_be_a_rollout_of_reward_zero(
    driver: Driver, row: Path, start_servers: StartServers, pause: Pause
) -> None:
    servers = start_servers("--idle-timeout", str(IDLE_SECONDS), "--masked-as-error", "never")
    trace = expired(driver, Way(row, "/status"), servers, pause)
    assert (trace["ok"], trace["errors"], trace["rewards"]["nemo_gym"]["score"]) == (True, [], 0.0)
    assert trace["metrics"]["mask_sample"] == 1.0  # which verifiers takes for a number like any other
    assert trace["info"]["nemo_gym"]["failure_kind"] == "session_expired"


# A client with a short timeout


def test_a_request_timeout_of_3_seconds_survives_a_wait_of_10_for_room(
    driver: Driver, row: Path, start_servers: StartServers, tmp_path: Path
) -> None:
    servers = start_servers("--interim", "1", capacity=1)
    driver.wait_until_serving()
    with servers.gymserve.client() as holder:
        assert holder.seed().status_code == 200
        patient = driver.start(row, servers.relay.url, model="glancer", request_timeout=READ_TIMEOUT_SECONDS)
        eventually(lambda: servers.gymserve.waiting() == 1, within_seconds=START_SECONDS)
        seed = servers.relay.latest("/seed_session")
        with LoggedGymserve(tmp_path / "silent.log", "--env", servers.env.url, "--interim", "0") as silent:
            impatient = driver.start(row, silent.url, model="glancer", request_timeout=READ_TIMEOUT_SECONDS)
            [error] = impatient.trace()["errors"]
            assert (error["type"], error["message"]) == ("TaskError", "task setup: ReadTimeout: ")
            eventually(silent.has_nothing_left, within_seconds=PROMPT_SECONDS)
        time.sleep(max(0, seed.asked_at + ROOM_SECONDS - time.time()))
        assert (seed.status, seed.hung_up_at) == (None, None)
        holder.verify()
    trace = patient.trace()
    assert (trace["ok"], trace["errors"]) == (True, [])
    waited_seconds = trace["metrics"]["seconds_waiting"]
    assert waited_seconds >= ROOM_SECONDS - CLOCK_SECONDS
    assert waited_seconds - 2 <= seed.interim <= waited_seconds + 1
    assert_nothing_is_left(servers)
