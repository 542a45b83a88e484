"""The fault table: what can befall a session in each phase of its life, and what holds after it.

A cell of `TABLE` is *played* (below, in virtual time, against a server that does exactly that), or names the test that
shows it, or says why it cannot occur. After each played one: every request is answered, no slot is held, no session and
no connection is left, the session beside it is untouched, and the same rollout can be seeded again.
"""

import ast
import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from scripted import ScriptedServer, is_ping, observed
from stage import Stage, raise_the_curtain
from trio.testing import wait_all_tasks_blocked
from trio_websocket import WebSocketConnection

from gymserve import wire
from gymserve.gridsim.http import HttpConnection

IDLE_SECONDS = 100.0
STEP_SECONDS = 60.0
CLOSE_SECONDS = 20.0
PATIENCE_SECONDS = 300.0
LONG_SECONDS = 600.0  # more than all of the above together

PHASES = ("line", "connecting", "handshake", "reset", "idle", "step", "done", "verify", "closing")


class Ward(ScriptedServer):
    """A server with two slots. What it does to the connections after the first, whose session is only a bystander,
    is up
    to a test.
    """

    def __init__(self) -> None:
        super().__init__(upgrade=self._upgrade)
        self.slots = 2
        self.stalls: set[str] = set()
        self.done_at = 3
        self.answers_late = trio.Event()
        self.streams: list[trio.abc.Stream] = []
        self.subjects: list[WebSocketConnection] = []
        self.open = 0

    async def serve_stream(self, stream: trio.abc.Stream) -> None:
        self.streams.append(stream)
        try:
            await super().serve_stream(stream)
        finally:
            self.streams.remove(stream)

    async def _upgrade(self, connection: HttpConnection, stream: trio.abc.Stream) -> bool:
        if self.sockets and "handshake" in self.stalls:
            await self.answers_late.wait()
        return True

    async def _converse(self, websocket: WebSocketConnection) -> None:
        is_subject = len(self.sockets) > 1
        if self.open >= self.slots:
            refusal = {"code": wire.CAPACITY_REACHED, "message": "full", "max_sessions": self.slots}
            await websocket.send_message(json.dumps({"type": "error", "data": refusal}))
            await websocket.aclose()
            return
        self.open += 1
        if is_subject:
            self.subjects.append(websocket)
        try:
            await self._play(websocket, stalls=is_subject)
        finally:
            self.open -= 1

    async def _play(self, websocket: WebSocketConnection, *, stalls: bool) -> None:
        steps = 0
        while True:
            message = json.loads(await websocket.get_message())
            if is_ping(message):
                error = {"code": -32601, "message": "Method not found", "data": None}
                answer: Any = {"type": "mcp", "data": {"jsonrpc": "2.0", "id": message["data"]["id"], "error": error}}
            else:
                answer = None
                while stalls and message["type"] in self.stalls and not self.answers_late.is_set():
                    await trio.sleep(1)
                    if websocket.closed:
                        return
            if message["type"] == "close":
                await websocket.aclose()
                return
            steps += message["type"] == "step"
            await self._running.wait()
            await websocket.send_message(
                json.dumps(answer or observed(1.0 if steps else None, done=stalls and steps == self.done_at))
            )

    # -- what befalls it -----------------------------------------------------------------------------------------

    async def cut_subject(self) -> None:
        await trio.aclose_forcefully(self.streams[-1])

    async def cut_all(self) -> None:
        for stream in list(self.streams):
            await trio.aclose_forcefully(stream)

    def heal(self) -> None:
        self.thaw()
        self.slots = 2
        self.stalls.clear()
        self.answers_late.set()


class Scene:
    """A bystander's session, which goes on, and the subject's, of which every request must be answered."""

    def __init__(self, stage: Stage, ward: Ward, nursery: trio.Nursery) -> None:
        self.stage = stage
        self.ward = ward
        self.bystander = stage.client()
        self.subject = stage.client()
        self.nursery = nursery
        self.asked = 0
        self.answers: list[int] = []
        self.bystander_lives = True
        self.scored_on_request = False

    async def begin(self) -> None:
        assert (await self.bystander.seed()).status == 200
        self.nursery.start_soon(self._go_on)

    async def _go_on(self) -> None:
        while True:
            await trio.sleep(IDLE_SECONDS / 2)
            if self.bystander_lives:
                assert (await self.bystander.step()).status == 200

    def ask(self, request: Callable[[], Awaitable[Any]]) -> None:
        self.asked += 1
        self.nursery.start_soon(self._ask, request)

    async def _ask(self, request: Callable[[], Awaitable[Any]]) -> None:
        try:
            self.answers.append((await request()).status)
        except trio.ClosedResourceError:
            self.asked -= 1  # the client hung up, and hears no answer

    async def afterwards(self) -> None:
        """What holds after a fault that has passed."""
        await trio.sleep(LONG_SECONDS)
        self.ward.heal()
        self.stage.network.refuses = False
        self.stage.network.connecting_seconds = 0
        await trio.sleep(LONG_SECONDS)
        assert len(self.answers) == self.asked
        assert all(200 <= status < 600 for status in self.answers)
        assert self.stage.opener.line.held == self.bystander_lives and self.stage.opener.line.waiting == 0
        assert len(self.stage.gateway.all_sessions()) == self.bystander_lives
        assert len(self.ward.streams) == self.ward.open == self.bystander_lives
        again = self.stage.client()
        self.ward.done_at = 1_000_000
        assert (await again.seed()).status == 200
        assert (await again.step()).body["reward"] == 1.0
        verified = (await again.verify()).body
        assert (verified["reward"], verified.get("mask_sample")) == (1.0 + self.scored_on_request, None)
        await trio.sleep(1)
        assert self.stage.opener.line.held == self.bystander_lives


# -- phases ----------------------------------------------------------------------------------------------------------


async def to_line(scene: Scene) -> None:
    scene.ward.slots = 1
    scene.ask(scene.subject.seed)
    await trio.sleep(1)
    assert scene.stage.opener.line.waiting == 1


async def to_connecting(scene: Scene) -> None:
    scene.stage.network.connecting_seconds = 5
    scene.ask(scene.subject.seed)
    await trio.sleep(1)


async def to_handshake(scene: Scene) -> None:
    scene.ward.stalls.add("handshake")
    scene.ask(scene.subject.seed)
    await trio.sleep(1)
    assert scene.ward.unanswered == 1


async def to_reset(scene: Scene) -> None:
    scene.ward.stalls.add("reset")
    scene.ask(scene.subject.seed)
    await trio.sleep(1)
    assert len(scene.ward.subjects) == 1


async def to_idle(scene: Scene) -> None:
    assert (await scene.subject.seed()).status == 200


async def to_step(scene: Scene) -> None:
    await to_idle(scene)
    scene.ward.stalls.add("step")
    scene.ask(scene.subject.step)
    await trio.sleep(1)


async def to_done(scene: Scene) -> None:
    await to_idle(scene)
    for _ in range(scene.ward.done_at):
        assert (await scene.subject.step()).status == 200
    await trio.sleep(1)


async def to_verify(scene: Scene) -> None:
    scene.scored_on_request = True
    await to_idle(scene)
    scene.ward.stalls.add("step")
    scene.ask(scene.subject.verify)
    await trio.sleep(1)


async def to_closing(scene: Scene) -> None:
    await to_idle(scene)
    scene.ward.stalls.add("close")
    assert (await scene.subject.ask("POST", "/close_session")).status == 200
    await trio.sleep(1)


REACH = {
    "line": to_line,
    "connecting": to_connecting,
    "handshake": to_handshake,
    "reset": to_reset,
    "idle": to_idle,
    "step": to_step,
    "done": to_done,
    "verify": to_verify,
    "closing": to_closing,
}

# -- faults ----------------------------------------------------------------------------------------------------------


async def killed(scene: Scene) -> None:
    scene.bystander_lives = False
    scene.stage.network.refuses = True
    await scene.ward.cut_all()


async def stopped(scene: Scene) -> None:
    scene.bystander_lives = False
    scene.ward.freeze()


async def reset(scene: Scene) -> None:
    await scene.ward.cut_subject()


async def half_open(scene: Scene) -> None:
    """Nothing is ever said again on this connection, and nobody closes it: what stalls, stalls on."""
    scene.ward.stalls |= {"step", "reset", "close"}


async def garbage(scene: Scene) -> None:
    await scene.ward.subjects[-1].send_message("this is no JSON")


async def slow(scene: Scene) -> None:
    scene.stage.network.connecting_seconds = 0
    await trio.sleep(7)
    scene.ward.slots = 2
    scene.ward.answers_late.set()


async def refuses(scene: Scene) -> None:
    scene.stage.network.refuses = True


async def hangs_in_close(scene: Scene) -> None:
    scene.ward.stalls.add("close")


async def hangs_up(scene: Scene) -> None:
    await scene.subject.hang_up()


async def half_closes(scene: Scene) -> None:
    """In memory a stream closes as a whole: what differs on a socket is in the tests of the HTTP connection."""
    await hangs_up(scene)


async def repeats(scene: Scene) -> None:
    other = scene.stage.client()
    other.cookies = dict(scene.subject.cookies)
    for request in (other.seed if not other.cookies else other.step, other.verify, other.verify):
        scene.ask(request)
        await wait_all_tasks_blocked()


async def reorders(scene: Scene) -> None:
    other = scene.stage.client()
    other.cookies = dict(scene.subject.cookies)
    for request in (other.verify, other.step, partial(other.ask, "POST", "/close_session"), other.step):
        scene.ask(request)
        await wait_all_tasks_blocked()


async def closes_twice_at_once(scene: Scene) -> None:
    for _ in range(2):
        other = scene.stage.client()
        other.cookies = dict(scene.subject.cookies)
        scene.ask(partial(other.ask, "POST", "/close_session"))


FAULTS = {
    "server killed": killed,
    "server stopped": stopped,
    "server resets the connection": reset,
    "server half-open": half_open,
    "server sends garbage": garbage,
    "server slow": slow,
    "server refuses": refuses,
    "server hangs in close": hangs_in_close,
    "client hangs up": hangs_up,
    "client half-closes": half_closes,
    "client repeats": repeats,
    "client reorders": reorders,
    "client closes twice at once": closes_twice_at_once,
}

PLAYED = "played"
NO_CONNECTION = "there is no connection to the environment server in this phase"
NO_REQUEST = "no request of the client is under way in this phase"
NO_COOKIE = "the client has no cookie before its seed is answered"


def cells(**but: str) -> dict[str, str]:
    """A row of the table: played, but where it says otherwise."""
    return {phase: but.get(phase, PLAYED) for phase in PHASES}


def everywhere(test: str) -> dict[str, str]:
    return dict.fromkeys(PHASES, test)


WITHOUT_CONNECTION = {"line": NO_CONNECTION, "connecting": NO_CONNECTION, "done": NO_CONNECTION}
WITHOUT_REQUEST = {"idle": NO_REQUEST, "done": NO_REQUEST, "closing": NO_REQUEST}
WITHOUT_COOKIE = dict.fromkeys(("line", "connecting", "handshake", "reset"), NO_COOKIE)

TABLE: dict[str, dict[str, str]] = {
    "server killed": cells(),
    "server stopped": cells(),
    "server resets the connection": cells(**WITHOUT_CONNECTION),
    "server half-open": cells(**WITHOUT_CONNECTION),
    "server sends garbage": cells(
        **{**WITHOUT_CONNECTION, "handshake": "test_opening.py::test_garbage_is_hopeless_and_tried_once"}
    ),
    "server slow": cells(),
    "server refuses": cells(),
    "server hangs in close": cells(),
    "client hangs up": cells(**WITHOUT_REQUEST),
    "client half-closes": cells(**WITHOUT_REQUEST),
    "client repeats": cells(),
    "client reorders": cells(),
    "client closes twice at once": cells(**WITHOUT_COOKIE),
    "server sends too much": {
        "line": NO_CONNECTION,
        "connecting": NO_CONNECTION,
        "handshake": "test_opening.py::test_garbage_is_hopeless_and_tried_once",
        "reset": "test_limits.py::test_a_reset_that_is_too_large_is_not_tried_again",
        **dict.fromkeys(
            ("idle", "step", "verify", "closing"),
            "test_limits.py::test_an_observation_too_large_loses_its_episode_and_says_what_to_raise",
        ),
        "done": NO_CONNECTION,
    },
    "client stops reading": everywhere("http/test_http_answers.py::test_a_reader_that_stops_is_dropped_on_time"),
    "client trickles": everywhere("http/test_http_requests.py::test_a_stalled_body_is_refused_by_the_app_on_time"),
    "gymserve SIGTERM": {
        "line": "test_shutdown.py::test_waiting_seeds_and_new_ones_are_refused_and_calls_in_flight_finish",
        **dict.fromkeys(
            ("connecting", "handshake", "reset"),
            "test_shutdown.py::test_a_seed_that_is_being_opened_is_refused_and_its_place_given_back",
        ),
        "idle": "test_shutdown.py::test_with_idle_sessions_only_it_is_over_at_once",
        "step": "test_shutdown.py::test_a_call_longer_than_the_grace_is_answered_at_its_end",
        "done": "test_shutdown.py::test_a_score_survives_until_the_very_end",
        "verify": "test_verify_action.py::test_a_shutdown_meanwhile_grants_it_the_grace",
        "closing": "test_shutdown.py::test_leaving_the_gateway_says_goodbye_and_is_bounded_against_a_mute_server",
    },
    "gymserve SIGTERM twice": everywhere("test_processes.py::test_a_second_signal_kills"),
    "gymserve SIGKILL": everywhere("test_handover.py::test_kill_9_under_load_and_a_restart_cost_no_score_and_no_slot"),
    "gymserve out of file descriptors": everywhere(
        "test_scarcity.py::test_more_episodes_than_descriptors_wait_for_each_other"
    ),
    "the wall clock jumps": everywhere("test_faults.py::test_the_wall_clock_is_only_written_down"),
}


def known_tests() -> dict[str, set[str]]:
    """The names of all test functions, by file below this folder."""
    here = Path(__file__).parent
    return {
        str(path.relative_to(here)): {
            node.name
            for node in ast.walk(ast.parse(path.read_text("utf-8")))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        for path in here.rglob("test_*.py")
    }


def test_every_cell_is_played_or_says_where_it_is_shown() -> None:
    known = known_tests()
    for fault, row in TABLE.items():
        assert tuple(sorted(row)) == tuple(sorted(PHASES)), fault
        assert PLAYED not in row.values() or fault in FAULTS, fault
        for cell in row.values():
            file, named, test = cell.partition("::")
            assert not named or test in known[file], cell
    assert set(FAULTS) <= set(TABLE)


def test_the_wall_clock_is_only_written_down() -> None:
    """Deadlines are Trio's, which are monotonic; the time of day is in tombstones and logs."""
    package = Path(__file__).parents[1] / "gymserve"
    using = {path.name for path in package.rglob("*.py") if "time.time()" in path.read_text("utf-8")}
    assert using <= {"session.py", "journal.py"}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("phase", PHASES)
async def test_a_fault_in_a_phase(autojump_clock: Any, phase: str, fault: str) -> None:
    if TABLE[fault][phase] != PLAYED:
        return
    ward = Ward()
    async with (
        raise_the_curtain(
            ward,
            patience_seconds=PATIENCE_SECONDS,
            idle_timeout_seconds=IDLE_SECONDS,
            step_timeout_seconds=STEP_SECONDS,
            close_timeout_seconds=CLOSE_SECONDS,
            verify_action=wire.Step("{}") if phase == "verify" else None,
        ) as stage,
        trio.open_nursery() as nursery,
    ):
        scene = Scene(stage, ward, nursery)
        await scene.begin()
        await REACH[phase](scene)
        await FAULTS[fault](scene)
        await scene.afterwards()
        nursery.cancel_scope.cancel()
