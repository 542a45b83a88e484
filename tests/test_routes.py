"""The routes as a client sees them, through a whole gymserve in virtual time."""

import json
from http.cookies import SimpleCookie
from typing import Any

import pytest
import trio
from counting import Counting
from http_peer import POST
from scripted import ScriptedServer, agreeable, observed, refused
from stage import COOKIE, INSTANCE, Answer, Client, raise_the_curtain
from trio_websocket import WebSocketConnection

from gymserve.gridsim.faults import Fault
from gymserve.gridsim.server import EnvironmentServer
from gymserve.http.rollouts import Dialect

OVER = "The episode is over; no further call can succeed."
UNKNOWN_ID = "0" * 32
DEEP = b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
NOT_JSON_OBJECTS = [
    (b"{", "json_invalid", "the body is not JSON: "),
    (b"[1]", "dict_type", "the body must be a JSON object"),
    (b"null", "dict_type", "the body must be a JSON object"),
    (b"\xff{}", "json_invalid", "the body is not UTF-8: invalid start byte at byte 0"),
    (b'{"by":NaN}', "json_invalid", "the body is not JSON: NaN is not JSON"),
    (b'{"by":-Infinity}', "json_invalid", "the body is not JSON: -Infinity is not JSON"),
    (b'{"by":' + b"9" * 5000 + b"}", "json_invalid", "the body has an integer of more digits than can be read"),
    (DEEP, "json_invalid", "the body is nested too deep"),
]


def counting(*faults: Fault, capacity: int = 2) -> EnvironmentServer:
    return EnvironmentServer(Counting, capacity=capacity, faults=faults)


class Echo(ScriptedServer):
    """Keeps every message to the letter and answers it with an observation."""

    def __init__(self, action: str = "Action") -> None:
        super().__init__(action=action)
        self.texts: list[str] = []

    async def _converse(self, websocket: WebSocketConnection) -> None:
        await websocket.send_message(json.dumps(await agreeable(json.loads(await websocket.get_message()))))
        while True:
            self.texts.append(await websocket.get_message())
            if self.texts[-1] == '{"type":"close"}':
                return await websocket.aclose()
            await websocket.send_message(json.dumps(observed(1.0)))


def named_by(answer: Answer) -> str | None:
    """The session that the answer's cookie names."""
    header = answer.headers.get(b"set-cookie")
    return None if header is None else COOKIE.session_id(SimpleCookie(header.decode())[COOKIE.name].value)


def session_of(client: Client) -> str | None:
    return COOKIE.session_id(client.cookies.get(COOKIE.name))


def error(answer: Answer) -> tuple[int, str, bool]:
    assert set(answer.body) == {"error", "detail", "done"}
    assert answer.headers[b"content-type"] == b"application/json"
    return answer.status, answer.body["error"], answer.body["done"]


def verdict(answer: Answer) -> tuple[bool, float, str | None]:
    """Whether it is masked, its reward, its failure."""
    body = answer.body
    assert body.get("mask_sample", False) == body.get("instance_config", {}).get("mask_sample", False)
    return body.get("mask_sample", False), body["reward"], body.get("failure_kind")


# -- the small ones --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "/ng-rollout/7-0", "/ng-rollout/a.B_c-1-a2"])
@pytest.mark.parametrize(
    ("path", "body"),
    [("/", {"status": "ok"}), ("/reverify_mode", "unsupported"), ("/gymserve/health", {"status": "ok"})],
)
async def test_what_needs_no_session(autojump_clock, prefix, path, body):
    async with raise_the_curtain(counting()) as stage:
        answer = await stage.client().ask("GET", prefix + path)
        assert (answer.status, answer.body, named_by(answer)) == (200, body, None)
        assert answer.headers[b"content-type"] == b"application/json"


async def test_there_is_nothing_else_under_our_own_prefix(autojump_clock):
    async with raise_the_curtain(counting()) as stage:
        c = stage.client()
        await c.seed()
        for method in ("GET", "POST", "PUT"):
            answer = await c.ask(method, "/gymserve/unknown", headers={"Content-Type": "application/json"})
            assert error(answer) == (404, "not_found", False)
            assert answer.body["detail"] == f"{method} /gymserve/unknown: Not Found"


@pytest.mark.parametrize("path", ["/step", "/seed_session", "/verify", "/close_session", "/nope"])
async def test_a_tool_is_posted(autojump_clock, path):
    async with raise_the_curtain(counting()) as stage:
        answer = await stage.client().ask("GET", path)
        assert error(answer) == (405, "method_not_allowed", False)
        assert b"POST" in answer.headers[b"allow"] and b"GET" not in answer.headers[b"allow"]


# -- seed ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [None, b"", b"{}", b' {"task_id": 1} '])
async def test_a_seed_opens_a_session(autojump_clock, body):
    async with raise_the_curtain(counting()) as stage:
        c = stage.client()
        answer = await c.ask("POST", "/seed_session", body)
        assert (answer.status, answer.body) == (200, {})
        assert named_by(answer) is not None
        assert stage.episodes["active"] == 1


@pytest.mark.parametrize(("body", "kind", "sentence"), NOT_JSON_OBJECTS, ids=range(len(NOT_JSON_OBJECTS)))
async def test_a_seed_that_is_no_object_is_refused_with_a_cookie(autojump_clock, body, kind, sentence):
    async with raise_the_curtain(counting()) as stage:
        answer = await stage.client().ask("POST", "/seed_session", body)
        assert error(answer) == (422, "bad_arguments", False)
        [detail] = answer.body["detail"]
        assert (detail["type"], detail["loc"], detail["msg"][: len(sentence)]) == (kind, ["body"], sentence)
        assert named_by(answer) is not None
        assert (stage.network.connections, await stage.listing()) == (
            0,
            {
                "instance": INSTANCE,
                "sessions": [],
                "next": None,
                "matching": 0,
                "counts": {"waiting": 0, "opening": 0, "idle": 0, "busy": 0, "done": 0, "closing": 0},
                "event": f"{INSTANCE}-0",
                "waiting": 0,
                "oldest_wait_seconds": 0,
                "expected_wait_seconds": 0,
                "line": [],
                "holds_seeds": False,
                "held_labels": [],
                "reclaimed_alive": 0,
                "servers": [{"url": "http://environment:8000", "held": 0, "capacity": None, "state": "ready"}],
            },
        )


@pytest.mark.parametrize(
    ("row", "target"),
    [
        ({}, 5),
        ({"reset_kwargs": {"target": 7}}, 7),
        ({"verifier_metadata": {"reset_kwargs": {"target": 8}}}, 8),
        ({"reset_kwargs": {"target": 7}, "verifier_metadata": {"reset_kwargs": {"target": 8}}}, 7),
        ({"reset_kwargs": {"seed": 1}}, 5),
        ({"reset_kwargs": None}, 5),
        ({"verifier_metadata": {"reset_kwargs": None}}, 5),
        ({"verifier_metadata": "of another kind"}, 5),
    ],
)
async def test_a_rows_reset_kwargs_overlay_the_settings(autojump_clock, row, target):
    async with raise_the_curtain(counting(), reset_kwargs={"target": 5}) as stage:
        c = stage.client()
        assert (await c.seed(row)).status == 200
        assert (await c.call("observation")).body["target"] == target


@pytest.mark.parametrize("row", [{"reset_kwargs": [1]}, {"verifier_metadata": {"reset_kwargs": "target"}}])
async def test_reset_kwargs_that_are_no_object_are_refused(autojump_clock, row):
    async with raise_the_curtain(counting()) as stage:
        answer = await stage.client().seed(row)
        assert error(answer) == (422, "bad_arguments", False)
        assert answer.body["detail"] == [
            {"type": "dict_type", "loc": ["body", "reset_kwargs"], "msg": "reset_kwargs must be a JSON object"}
        ]


async def test_seeding_again_closes_the_old_session_and_names_a_new_one(autojump_clock):
    async with raise_the_curtain(counting(capacity=1)) as stage:
        c = stage.client()
        old = named_by(await c.seed())
        old_cookies = dict(c.cookies)
        new = named_by(await c.seed())
        assert len({old, new}) == 2
        assert stage.episodes == {"active": 1, "max": 1, "opened": 2, "closed": 1}
        assert (await c.step()).status == 200
        c.cookies = old_cookies
        assert error(await c.step()) == (410, "session_closed", True)


async def test_a_seed_whose_body_is_refused_costs_no_session_that_there_is(autojump_clock):
    async with raise_the_curtain(counting()) as stage:
        c = stage.client()
        await c.seed()
        cookie = dict(c.cookies)
        assert (await c.seed({"reset_kwargs": 1})).status == 422
        assert (await c.ask("POST", "/seed_session", b"[")).status == 422
        assert c.cookies == cookie
        assert (await c.step()).body["count"] == 1


async def test_a_failed_seed_can_be_verified(autojump_clock):
    async with raise_the_curtain(counting()) as stage:
        stage.network.refuses = True
        c = stage.client()
        answer = await c.seed()
        assert error(answer) == (502, "environment_error", False)
        assert answer.body["detail"].startswith("the environment server at http://environment:8000 cannot be used: ")
        assert named_by(answer) is not None
        assert error(await c.step()) == (410, "session_lost", True)
        assert verdict(await c.verify()) == (True, 0.0, "provider_unavailable")


async def test_no_room_says_when_to_come_back(autojump_clock):
    async with raise_the_curtain(counting(Fault("full")), patience_seconds=5) as stage:
        answer = await stage.client().seed()
        assert error(answer) == (503, "no_room", False)
        assert (answer.headers[b"retry-after"], trio.current_time()) == (b"10", 5)


# -- labels ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "header", "label"),
    [
        ({}, None, None),
        ({}, "run 1", "run 1"),
        ({"gymserve_label": "row's"}, None, "row's"),
        ({"agent_ref": {"type": "responses_api_agents", "name": "agent's"}}, None, "agent's"),
        ({"gymserve_label": "row's", "agent_ref": {"name": "agent's"}}, None, "row's"),
        ({"gymserve_label": "row's", "agent_ref": {"name": "agent's"}}, "header's", "header's"),
        ({"gymserve_label": 5}, None, None),
        ({"agent_ref": "agent's"}, None, None),
        ({"gymserve_label": "x" * 200}, None, "x" * 200),
        ({"agent_ref": {"name": "x" * 300}}, None, "x" * 200),
    ],
)
async def test_a_label_comes_from_the_header_the_row_or_its_agent(autojump_clock, row, header, label):
    async with raise_the_curtain(counting()) as stage:
        await stage.client().seed(row, **({"X-Gymserve-Label": header} if header else {}))
        assert [session["label"] for session in (await stage.listing())["sessions"]] == [label]


# -- tools -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cookies", [{}, {COOKIE.name: f"{UNKNOWN_ID}.forged"}, {"other": "x"}])
async def test_without_our_cookie_there_is_no_session(autojump_clock, cookies):
    async with raise_the_curtain(counting()) as stage:
        c = stage.client()
        c.cookies = cookies
        for answer in (await c.step(), await c.call("observation"), await c.call("nope"), await c.call("step", b"[")):
            assert error(answer) == (404, "no_session", True)
            assert named_by(answer) is None


async def test_a_session_that_was_forgotten_keeps_its_cookie(autojump_clock):
    async with raise_the_curtain(counting()) as stage:
        c = stage.client()
        c.cookies = {COOKIE.name: COOKIE.value(UNKNOWN_ID)}
        answer = await c.step()
        assert (error(answer), named_by(answer)) == ((404, "no_session", True), UNKNOWN_ID)


async def test_other_servers_cookies_do_no_harm(autojump_clock):
    async with raise_the_curtain(counting()) as stage:
        c = stage.client()
        await c.seed()
        c.cookies = {"gymserve_00000000": COOKIE.value(UNKNOWN_ID), **c.cookies, "session": '"a=b=="'}
        assert (await c.step()).status == 200


async def test_an_unknown_tool_names_the_known_ones(autojump_clock):
    async with raise_the_curtain(counting()) as stage:
        c = stage.client()
        await c.seed()
        for path in ("nope", "STEP", "step/", "a/b", "%C3%A4"):
            answer = await c.call(path)
            assert error(answer) == (404, "unknown_tool", False)
            assert answer.body["detail"].endswith("; the tools are observation, step")
        assert (await c.step()).body["count"] == 1


async def test_no_arguments_are_an_empty_object(autojump_clock):
    server = Echo()
    async with raise_the_curtain(server) as stage:
        c = stage.client()
        await c.seed()
        await c.call("step")
        assert server.texts[-1] == '{"type":"step","data":{}}'


@pytest.mark.parametrize(("body", "kind", "sentence"), NOT_JSON_OBJECTS, ids=range(len(NOT_JSON_OBJECTS)))
async def test_arguments_that_are_no_object_reach_nobody(autojump_clock, body, kind, sentence):
    server = Echo()
    async with raise_the_curtain(server) as stage:
        c = stage.client()
        await c.seed()
        asked = len(server.texts)
        answer = await c.call("step", body)
        assert error(answer) == (422, "bad_arguments", False)
        assert (answer.body["detail"][0]["type"], len(server.texts)) == (kind, asked)
        assert (await c.step()).status == 200


async def test_the_environments_own_objections_are_the_clients(autojump_clock):
    async with raise_the_curtain(counting()) as stage:
        c = stage.client()
        await c.seed()
        answer = await c.step(9)
        assert error(answer) == (422, "bad_arguments", False)
        assert (answer.body["detail"][0]["loc"], answer.body["detail"][0]["input"]) == (["by"], 9)
        assert (await c.step(3)).body == {"count": 3, "target": 10, "metadata": {}, "reward": 0.3, "done": False}


async def test_an_environments_failure_is_502_and_the_episode_goes_on(autojump_clock):
    answers = iter([observed(), refused("EXECUTION_ERROR", "boom"), refused("EXECUTION_ERROR"), observed(1.0)])

    async def script(message: dict[str, Any]) -> dict[str, Any]:
        return next(answers)

    async with raise_the_curtain(ScriptedServer(script)) as stage:
        c = stage.client()
        await c.seed()
        sentences = [(await c.step()).body, (await c.step()).body]
        assert sentences == [
            {"error": "environment_error", "detail": f"the environment raised an error: {said}", "done": False}
            for said in ("boom", "without a message")
        ]
        assert (await c.step()).body == {"reward": 1.0, "done": False}
        assert verdict(await c.verify()) == (False, 1.0, None)


async def test_the_observation_tool_shows_the_latest(autojump_clock):
    async with raise_the_curtain(counting()) as stage:
        c = stage.client()
        await c.seed({"reset_kwargs": {"target": 4}})
        shown = {"count": 0, "target": 4, "metadata": {}, "reward": None, "done": False}
        assert (await c.call("observation")).body == shown
        assert (await c.call("observation", {"any": 1})).body == shown
        stepped = await c.step(3)
        assert (await c.call("observation")).body == stepped.body
        last = await c.step(1)
        assert (await c.call("observation")).body == last.body
        assert stage.episodes["active"] == 0
        assert verdict(await c.verify()) == (False, 1.0, None)
        assert error(await c.call("observation")) == (410, "session_closed", True)


@pytest.mark.parametrize("name", ["look", None])
async def test_the_observation_tool_can_have_another_name_or_none(autojump_clock, name):
    async with raise_the_curtain(counting(), dialect=Dialect(observation_tool=name)) as stage:
        c = stage.client()
        await c.seed()
        assert error(await c.call("observation")) == (404, "unknown_tool", False)
        assert (await c.call("look")).status == (404 if name is None else 200)


async def test_a_finished_episode_takes_no_more_calls(autojump_clock):
    async with raise_the_curtain(counting()) as stage:
        c = stage.client()
        await c.seed({"reset_kwargs": {"target": 1}})
        assert (await c.step()).body["done"] is True
        answer = await c.step()
        assert (error(answer), answer.body["detail"]) == ((409, "episode_over", True), OVER)


async def test_an_ended_session_says_how_it_ended_and_nothing_more(autojump_clock):
    async with raise_the_curtain(counting(Fault("drop-mid-step", 2), capacity=4), idle_timeout_seconds=100) as stage:
        expired, closed, verified, lost = (stage.client() for _ in range(4))
        for c in (expired, closed, verified, lost):
            await c.seed()
        await closed.ask("POST", "/close_session")
        await verified.verify()
        await lost.step()
        answer = await lost.step()
        assert (error(answer), answer.body["detail"]) == ((502, "environment_error", True), OVER)
        await trio.sleep(100)
        kinds = {"session_expired": expired, "session_closed": closed, "session_lost": lost}
        for kind, c in [*kinds.items(), ("session_closed", verified)]:
            for answer in (await c.step(), await c.call("observation"), await c.call("nope")):
                assert (error(answer), answer.body["detail"]) == ((410, kind, True), OVER)
                assert named_by(answer) == session_of(c)


# -- verify ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cookies", [{}, {COOKIE.name: "forged"}, {COOKIE.name: COOKIE.value(UNKNOWN_ID)}])
async def test_a_verify_without_a_session_is_masked(autojump_clock, cookies):
    async with raise_the_curtain(counting()) as stage:
        c = stage.client()
        c.cookies = cookies
        answer = await c.verify(task_id=7)
        assert (answer.status, verdict(answer)) == (200, (True, 0.0, "session_lost"))
        assert (answer.body["task_id"], answer.body["responses_create_params"], answer.body["response"]) == (7, {}, {})


async def test_a_repeated_verify_has_the_score_and_its_own_row(autojump_clock):
    async with raise_the_curtain(counting()) as stage:
        c = stage.client()
        await c.seed()
        await c.step(3)
        first, second = await c.verify(attempt=1), await c.verify(attempt=2)
        assert second.body == {**first.body, "attempt": 2}
        assert (first.body["reward"], first.body["steps"], first.body["done"]) == (0.3, 1, False)


async def test_a_verify_that_is_no_object_is_refused_and_ends_nothing(autojump_clock):
    async with raise_the_curtain(counting()) as stage:
        c = stage.client()
        await c.seed()
        assert error(await c.ask("POST", "/verify", b"[]")) == (422, "bad_arguments", False)
        assert (await c.step()).status == 200


async def test_a_deep_row_is_echoed_or_refused_and_no_fault_of_ours(autojump_clock):
    async with raise_the_curtain(counting()) as stage:
        c = stage.client()
        await c.seed()
        for depth in (100, 800, *range(900, 1_000, 3), 2_490, 5_000, 9_990, 20_000):
            for number in (b"1", b"1e400"):
                body = b'{"a":' + b"[" * depth + number + b"]" * depth + b"}"
                assert (await c.ask("POST", "/verify", body)).status in (200, 422), (depth, number)


VERIFIERS = "python-httpx/0.28.1"


@pytest.mark.parametrize(
    ("choice", "agent", "status"),
    [
        ("never", VERIFIERS, 200),
        ("never", "Python/3.11 aiohttp/3.12", 200),
        ("always", VERIFIERS, 503),
        ("always", None, 503),
        ("auto", VERIFIERS, 503),
        ("auto", "Python/3.11 aiohttp/3.12", 200),
        ("auto", None, 200),
    ],
)
async def test_a_masked_verify_may_be_an_error(autojump_clock, choice, agent, status):
    headers = {"User-Agent": agent} if agent else {}
    async with raise_the_curtain(counting(), dialect=Dialect(masked_as_error=choice)) as stage:
        c = stage.client()
        answer = await c.ask("POST", "/verify", {"a": 1}, headers)
        assert (answer.status, verdict(answer)) == (status, (True, 0.0, "session_lost"))
        await c.seed()
        answer = await c.ask("POST", "/verify", {"a": 1}, headers)
        assert (answer.status, verdict(answer)) == (200, (False, 0.0, None))


async def test_closing_a_session(autojump_clock):
    async with raise_the_curtain(counting()) as stage:
        c = stage.client()
        await c.seed()
        await c.step(3)
        for body in ({"reason": "cancelled"}, b"[", None):  # repeated, it does no harm
            answer = await c.ask("POST", "/close_session", body)
            assert (answer.status, answer.body, named_by(answer)) == (200, {}, session_of(c))
        await trio.sleep(1)
        assert stage.episodes["active"] == 0
        assert error(await c.step()) == (410, "session_closed", True)
        assert verdict(await c.verify()) == (True, 0.0, "cancelled")
        assert (await stage.client().ask("POST", "/close_session")).body == {}


# -- the prefix ------------------------------------------------------------------------------------------------------


async def test_a_whole_rollout_under_nemo_gyms_prefix(autojump_clock):
    async with raise_the_curtain(counting()) as stage:
        c = stage.client()
        under = "/ng-rollout/0-3-a1"
        assert (await c.ask("POST", f"{under}/seed_session", {})).status == 200
        assert (await c.ask("POST", f"{under}/step", {"by": 2})).body["count"] == 2
        assert (await c.ask("POST", f"{under}/observation")).body["count"] == 2
        assert error(await c.ask("POST", f"{under}/nope")) == (404, "unknown_tool", False)
        assert len((await c.ask("GET", f"{under}/gymserve/sessions")).body["sessions"]) == 1
        assert verdict(await c.ask("POST", f"{under}/verify", {})) == (False, 0.2, None)
        assert (await c.ask("POST", f"{under}/close_session", {})).body == {}


@pytest.mark.parametrize("rollout", ["-a", ".", "a%20b", "a%C3%A4", "", "a/ng-rollout/b"])
async def test_a_prefix_that_is_none_leads_nowhere(autojump_clock, rollout):
    async with raise_the_curtain(counting()) as stage:
        c = stage.client()
        await c.seed()
        assert (await c.ask("POST", f"/ng-rollout/{rollout}/step", {"by": 1})).status == 404
        assert (await c.call("observation")).body["count"] == 0


# -- the listing -----------------------------------------------------------------------------------------------------


async def test_the_listing_of_every_state(autojump_clock):
    faults = [Fault("slow-reset", 5), Fault("slow-step", 7), Fault("slow-close", 9)]
    async with raise_the_curtain(counting(*faults, capacity=1), idle_timeout_seconds=100) as stage:
        c, late = stage.client(), stage.client()

        async def shown() -> tuple[Any, ...]:
            listing = await stage.listing()
            states = [
                (session["state"], session["steps"], session["reward"], session["idle_deadline_in_seconds"])
                for session in listing["sessions"]
            ]
            return *states, listing["waiting"], listing["servers"][0]["held"]

        assert await shown() == (0, 0)
        await c.send("POST", "/seed_session", {"reset_kwargs": {"target": 4}}, {"X-Gymserve-Label": "run"})
        await trio.sleep(1)
        assert await shown() == (("opening", 0, 0.0, None), 0, 1)
        await c.answer()
        await trio.sleep(10.25)
        assert await shown() == (("idle", 0, 0.0, 89.75), 0, 1)
        await late.send("POST", "/seed_session", {})
        await c.send("POST", "/step", {"by": 3})
        await trio.sleep(1)
        assert await shown() == (("busy", 0, 0.0, None), 1, 1)
        await c.answer()
        assert await stage.listing() == {
            "instance": INSTANCE,
            "sessions": [
                {
                    "id": session_of(c)[:12],
                    "label": "run",
                    "state": "idle",
                    "env": "http://environment:8000",
                    "holds_slot": True,
                    "steps": 1,
                    "reward": 0.75,
                    "age_seconds": 22.25,
                    "idle_deadline_in_seconds": 100.0,
                }
            ],
            "next": None,
            "matching": 1,
            "counts": {"waiting": 1, "opening": 0, "idle": 1, "busy": 0, "done": 0, "closing": 0},
            "event": f"{INSTANCE}-4",
            "waiting": 1,
            "oldest_wait_seconds": 7.0,
            "expected_wait_seconds": None,
            "line": [{"label": None, "waiting": 1, "oldest_wait_seconds": 7.0}],
            "holds_seeds": False,
            "held_labels": [],
            "reclaimed_alive": 0,
            "servers": [{"url": "http://environment:8000", "held": 1, "capacity": 1, "state": "full"}],
        }
        await c.step(1)
        await trio.sleep(1)
        assert await shown() == (("done", 2, 1.0, 99.0), 1, 1)
        await c.verify()
        assert await shown() == (("closing", 2, 1.0, None), 1, 1)
        await trio.sleep(9)
        assert await shown() == (("opening", 0, 0.0, None), 0, 1)
        await late.hang_up()


# -- the cookie ------------------------------------------------------------------------------------------------------


async def test_every_answer_carries_the_cookie(autojump_clock):
    async with raise_the_curtain(counting()) as stage:
        c = stage.client()
        session = named_by(await c.seed())
        asked = [
            (await c.ask("GET", "/"), 200),
            (await c.step(), 200),
            (await c.call("nope"), 404),
            (await c.ask("GET", "/gymserve/unknown"), 404),
            (await c.ask("GET", "/step"), 405),
            (await c.step(9), 422),
            (await oversized(c), 413),
            (await c.verify(), 200),
            (await c.step(), 410),
        ]
        assert [(answer.status, named_by(answer)) for answer, _ in asked] == [(status, session) for _, status in asked]


async def oversized(client: Client) -> Answer:
    """A request that announces a body beyond any limit."""
    client.peer = client.connect()
    cookies = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
    head = POST("/step", b"", f"Cookie: {cookies}").replace(b"Content-Length: 0", b"Content-Length: 99999999999")
    await client.peer.send(head)
    return await client.answer()


async def test_a_fault_of_ours_is_500_with_the_cookie(autojump_clock):
    def broken(observation: object) -> dict[str, Any]:
        raise ZeroDivisionError

    async with raise_the_curtain(counting(), show=broken) as stage:
        c = stage.client()
        session = named_by(await c.seed())
        answer = await c.step()
        assert (error(answer), named_by(answer)) == ((500, "internal_error", False), session)
        assert answer.body["detail"] == "gymserve failed; its log says why"


async def test_too_large_a_body_is_refused_in_the_same_shape(autojump_clock):
    async with raise_the_curtain(counting()) as stage:
        assert error(await oversized(stage.client())) == (413, "body_too_large", False)


async def test_a_stale_cookie_beside_a_good_one_hides_nothing(autojump_clock):
    async with raise_the_curtain(counting()) as stage:
        c = stage.client()
        await c.seed()
        [(name, value)] = c.cookies.items()
        for jar in (f"{name}=stale; {name}={value}", f"{name}={value}; {name}=stale"):
            stranger = stage.client()
            answer = await stranger.ask("POST", "/step", {"by": 1}, {"Cookie": jar})
            assert answer.status == 200


async def test_a_label_of_any_alphabet_is_read_as_utf_8(autojump_clock):
    async with raise_the_curtain(counting()) as stage:
        await stage.client().seed(**{"X-Gymserve-Label": "h\u00e9-\u6e38"})
        assert (await stage.listing())["sessions"][0]["label"] == "h\u00e9-\u6e38"
