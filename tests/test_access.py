"""Who is let in to which route, and what a browser cannot be made to send."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
import trio
from counting import Counting
from http_peer import POST, Peer, Reply, connect
from hypothesis import given, settings
from hypothesis import strategies as st
from stage import Answer, Client, raise_the_curtain, seen_from
from trio.testing import MockClock

from gymserve.gridsim.server import EnvironmentServer
from gymserve.http.access import Access, Guard, access_to, guarded

TOKEN = "the-token-of-the-rollouts"
ADMIN = "the-token-of-the-admins"
HERE, THERE = "127.0.0.1", "10.0.0.7"
JSON = {"Content-Type": "application/json"}
BOTH = Guard(token=TOKEN, admin_token=ADMIN)


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


async def anything(scope: Any, receive: Any, send: Any) -> None:
    """An app that has every route, later ones too."""
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def ask(
    nursery: trio.Nursery,
    guard: Guard,
    method: str,
    path: str,
    headers: Mapping[str, str] | None = None,
    *,
    address: str = HERE,
    version: str = "1.1",
) -> Reply:
    lines = [f"{method} {path} HTTP/{version}", *(f"{name}: {value}" for name, value in (headers or {}).items())]
    if version == "1.1" and "Host" not in (headers or {}):
        lines.append("Host: localhost:8100")
    peer = connect(nursery, seen_from(guarded(anything, guard), address))
    return await peer.ask("\r\n".join([*lines, "", ""]).encode("latin-1"), method.encode())


def told(reply: Reply) -> tuple[int, str]:
    """The status and the kind of a refusal."""
    body = json.loads(reply.body)
    assert set(body) == {"error", "detail", "done"}
    assert body["done"] is False
    assert reply.headers[b"content-type"] == b"application/json"
    return reply.status, body["error"]


# -- what a route is -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "access"),
    [
        ("GET", "/", Access.OPEN),
        ("HEAD", "/", Access.OPEN),
        ("GET", "/gymserve/health", Access.OPEN),
        ("GET", "//gymserve/health", Access.OPEN),
        ("GET", "/gymserve/health/", Access.OBSERVING),
        ("GET", "/gymserve/sessions", Access.OBSERVING),
        ("HEAD", "/gymserve/ready", Access.OBSERVING),
        ("GET", "///gymserve/dashboard", Access.OPEN),
        ("GET", "/gymserve/dashboard/main.js", Access.OPEN),
        ("GET", "/gymserve/dashboard/nothing", Access.OBSERVING),
        ("GET", "/gymserve", Access.OBSERVING),
        ("POST", "/gymserve", Access.ACTING),
        ("POST", "/gymserve/close", Access.ACTING),
        ("POST", "//gymserve/close", Access.ACTING),
        ("DELETE", "/gymserve/sessions/1", Access.ACTING),
        ("OPTIONS", "/gymserve/sessions", Access.ACTING),
        ("POST", "/seed_session", Access.ROLLOUT),
        ("POST", "/mcp", Access.ROLLOUT),
        ("GET", "/reverify_mode", Access.ROLLOUT),
        ("POST", "/x/gymserve/close", Access.ROLLOUT),
        ("POST", "/Gymserve/close", Access.ROLLOUT),
        ("OPTIONS", "*", Access.ROLLOUT),
    ],
)
def test_what_a_route_is(method, path, access):
    assert access_to(method, path) is access


# -- tokens and places -----------------------------------------------------------------------------------------------

ROUTES = {
    "open": ("GET", "/"),
    "alive": ("GET", "/gymserve/health"),
    "rollout": ("POST", "/step"),
    "observing": ("GET", "/gymserve/sessions"),
    "acting": ("POST", "/gymserve/close"),
}
CALLERS = {"nobody": {}, "a stranger": bearer("not-a-token-of-ours"), "token": bearer(TOKEN), "admin": bearer(ADMIN)}
GUARDS = {
    "no token": Guard(),
    "token": Guard(token=TOKEN),
    "admin token": Guard(admin_token=ADMIN),
    "both": BOTH,
}
# For each guard and route: who, from here or there, gets what; all others are let in.
REFUSED = {
    ("no token", "acting"): {("*", THERE): 403},
    ("token", "rollout"): {("nobody", "*"): 401, ("a stranger", "*"): 401, ("admin", "*"): 401},
    ("token", "observing"): {("nobody", THERE): 401, ("a stranger", THERE): 401, ("admin", THERE): 401},
    ("token", "acting"): {("*", THERE): 403},
    ("admin token", "observing"): {("nobody", THERE): 401, ("a stranger", THERE): 401, ("token", THERE): 401},
    ("admin token", "acting"): {("nobody", "*"): 401, ("a stranger", "*"): 401, ("token", "*"): 401},
    ("both", "rollout"): {("nobody", "*"): 401, ("a stranger", "*"): 401},
    ("both", "observing"): {("nobody", THERE): 401, ("a stranger", THERE): 401},
    ("both", "acting"): {("nobody", "*"): 401, ("a stranger", "*"): 401, ("token", "*"): 403},
}


@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("route", ROUTES)
async def test_who_is_let_in(autojump_clock, nursery, guard, route):
    refused = REFUSED.get((guard, route), {})
    for caller, headers in CALLERS.items():
        for address in (HERE, THERE):
            keys = [(caller, address), (caller, "*"), ("*", address)]
            expected = next((refused[key] for key in keys if key in refused), 200)
            method, path = ROUTES[route]
            reply = await ask(nursery, GUARDS[guard], method, path, {**headers, **JSON}, address=address)
            assert reply.status == expected, (caller, address)


@pytest.mark.parametrize(
    ("headers", "route", "status", "challenge"),
    [
        ({}, "rollout", 401, b'Bearer realm="gymserve"'),
        (bearer("wrong"), "rollout", 401, b'Bearer realm="gymserve", error="invalid_token"'),
        (bearer("wrong"), "acting", 401, b'Bearer realm="gymserve", error="invalid_token"'),
        (bearer(TOKEN), "acting", 403, b'Bearer realm="gymserve", error="insufficient_scope"'),
    ],
)
async def test_a_refusal_says_how_to_be_known(autojump_clock, nursery, headers, route, status, challenge):
    reply = await ask(nursery, BOTH, *ROUTES[route], {**headers, **JSON})
    assert told(reply) == (status, {401: "unauthorized", 403: "forbidden"}[status])
    assert reply.headers[b"www-authenticate"] == challenge
    assert b"wrong" not in reply.body


async def test_the_refusal_names_what_to_send_and_what_to_set(autojump_clock, nursery):
    reply = await ask(nursery, BOTH, *ROUTES["rollout"])
    assert json.loads(reply.body)["detail"] == (
        "this takes the token: send it as Authorization: Bearer TOKEN; gymserve has it from --token-file or "
        "GYMSERVE_TOKEN"
    )
    reply = await ask(nursery, BOTH, *ROUTES["acting"], bearer("wrong"))
    assert json.loads(reply.body)["detail"] == (
        "the token that was sent is not the admin token: send it as Authorization: Bearer TOKEN; gymserve has it from "
        "--admin-token-file or GYMSERVE_ADMIN_TOKEN"
    )
    reply = await ask(nursery, Guard(), *ROUTES["acting"], address=THERE)
    assert told(reply) == (403, "forbidden")
    assert "--admin-token-file" in json.loads(reply.body)["detail"]


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (f"Bearer {TOKEN}", 200),
        (f"bearer {TOKEN}", 200),
        (f"BEARER   {TOKEN}  ", 200),
        (TOKEN, 401),
        (f"Basic {TOKEN}", 401),
        (f"Bearer {TOKEN}x", 401),
        (f"Bearer {TOKEN[:-1]}", 401),
        (f"Bearer {TOKEN.upper()}", 401),
        (f"Bearer x {TOKEN}", 401),
        ("Bearer ", 401),
        ("Bearer", 401),
        ("Bearer \xff\xfe", 401),
        (f"Bearer {'x' * 60_000}", 401),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_a_bearer_token_is_read_as_its_rfc_says(autojump_clock, nursery, header, status):
    assert (await ask(nursery, BOTH, "POST", "/step", {"Authorization": header})).status == status


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("127.0.0.1", True),
        ("127.1.2.3", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.0.0.7", False),
        ("::ffff:10.0.0.7", False),
        ("0.0.0.0", False),
        ("fe80::1%eth0", False),
        ("", False),
        ("localhost", False),
    ],
)
async def test_which_places_are_this_machine(autojump_clock, nursery, address, local):
    reply = await ask(nursery, Guard(), "POST", "/gymserve/close", JSON, address=address)
    assert reply.status == (200 if local else 403)


@pytest.mark.parametrize("header", ["Forwarded", "X-Forwarded-For", "x-real-ip"])
async def test_what_a_proxy_on_this_machine_brings_is_not_from_here(autojump_clock, nursery, header):
    headers = {**JSON, header: "127.0.0.1"}
    assert (await ask(nursery, Guard(), "POST", "/gymserve/close", headers)).status == 403
    assert (await ask(nursery, Guard(token=TOKEN), "GET", "/gymserve/sessions", headers)).status == 401


async def test_who_has_no_address_is_not_from_here(autojump_clock, nursery):
    peer = connect(nursery, guarded(anything, Guard()))
    assert (await peer.ask(POST("/gymserve/close", b"{}", "Content-Type: application/json"))).status == 403


async def test_one_token_for_both_is_good_for_all(autojump_clock, nursery):
    guard = Guard(token=TOKEN, admin_token=TOKEN)
    for method, path in ROUTES.values():
        assert (await ask(nursery, guard, method, path, bearer(TOKEN), address=THERE)).status == 200


# -- browsers --------------------------------------------------------------------------------------------------------

KNOWN = ["localhost", "localhost:8100", "LOCALHOST.", "a.localhost:1", "127.0.0.1:8100", "10.0.0.7", "[::1]:8100"]
KNOWN += ["gym.example", "GYM.example:443", "bound"]
UNKNOWN = ["evil.example", "evil.example:8100", "localhost.evil.example", "notlocalhost", "127.0.0.1.evil.example", "["]
NAMED = Guard(hosts=["bound", "gym.example"])
WITH_TOKENS = Guard(token=TOKEN, admin_token=ADMIN, hosts=["bound", "gym.example"])


@pytest.mark.parametrize("host", KNOWN)
async def test_names_of_ours(autojump_clock, nursery, host):
    for method, path in (ROUTES["observing"], ROUTES["acting"]):
        assert (await ask(nursery, NAMED, method, path, {"Host": host, **JSON})).status == 200


@pytest.mark.parametrize("host", UNKNOWN)
async def test_a_name_that_a_browser_was_lent_is_refused(autojump_clock, nursery, host):
    """DNS rebinding: a page of evil.example, whose name now means this machine."""
    for method, path in (ROUTES["observing"], ROUTES["acting"]):
        assert told(await ask(nursery, NAMED, method, path, {"Host": host, **JSON})) == (421, "wrong_host")
        tokens = {"Host": host, **bearer(ADMIN)}
        assert (await ask(nursery, WITH_TOKENS, method, path, tokens)).status == 200  # no browser sends one of itself
    for route in ("open", "alive", "rollout"):  # launchers and agents know us by any name
        assert (await ask(nursery, NAMED, *ROUTES[route], {"Host": host})).status == 200
    headers = {"Host": host, "Origin": f"http://{host}"}
    assert told(await ask(nursery, NAMED, "POST", "/mcp", headers)) == (421, "wrong_host")


async def test_the_refused_name_is_told_and_what_to_set(autojump_clock, nursery):
    reply = await ask(nursery, NAMED, *ROUTES["observing"], {"Host": "node17:8100"})
    assert json.loads(reply.body)["detail"] == (
        "this gymserve is not known as 'node17': call it by an address, send its token, or start it with "
        "--allowed-host and that name"
    )


@pytest.mark.parametrize("bound", ["::", "::1", "[::1]", "0.0.0.0", ""])
async def test_an_address_that_is_bound_lets_no_nonsense_in(autojump_clock, nursery, bound):
    guard = Guard(hosts=[bound])
    for host in ("[", "::", "evil.example"):
        assert (await ask(nursery, guard, *ROUTES["observing"], {"Host": host})).status in (400, 421), host
        headers = {"Origin": f"http://{host}", "Host": "localhost"}
        assert told(await ask(nursery, guard, *ROUTES["observing"], headers)) == (403, "cross_site")
    assert (await ask(nursery, guard, *ROUTES["observing"], {"Host": "[::1]:8100"})).status == 200


async def test_no_name_at_all_is_no_browser(autojump_clock, nursery):
    reply = await ask(nursery, NAMED, *ROUTES["observing"], version="1.0")
    assert reply.status == 200
    reply = await ask(nursery, NAMED, *ROUTES["acting"], {**JSON, "Origin": "null"}, version="1.0")
    assert told(reply) == (403, "cross_site")


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:8100", 200),
        ("HTTP://LocalHost:8100", 200),
        ("https://localhost:8100", 200),  # before us a proxy that speaks TLS
        ("https://gym.example", 200),  # and one that does not hand on the name
        ("http://localhost:3000", 403),
        ("http://localhost", 403),
        ("http://127.0.0.1:8100", 403),
        ("https://evil.example", 403),
        ("https://gym.example.evil.example", 403),
        ("null", 403),
        ("localhost:8100", 403),
        ("://", 403),
        ("https://[", 403),
    ],
)
async def test_only_pages_of_our_own(autojump_clock, nursery, origin, status):
    for route in ("rollout", "observing", "acting"):
        for guard, headers in ((NAMED, {}), (WITH_TOKENS, bearer(ADMIN))):
            reply = await ask(nursery, guard, *ROUTES[route], {"Origin": origin, **headers, **JSON})
            assert reply.status == status, route
            assert status == 200 or told(reply) == (403, "cross_site")
    assert (await ask(nursery, NAMED, "POST", "/mcp", {"Origin": origin})).status == status
    assert (await ask(nursery, NAMED, "GET", "/gymserve/health", {"Origin": origin})).status == 200


FORM_TYPES = ["application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/plain"]


@pytest.mark.parametrize("kind", [*FORM_TYPES, "", "application/json-patch+json"])
async def test_no_form_can_act(autojump_clock, nursery, kind):
    """Not even that of a browser which says nothing of where it is."""
    headers = {"Content-Type": kind} if kind else {}
    assert told(await ask(nursery, Guard(), *ROUTES["acting"], headers)) == (415, "not_json")
    assert (await ask(nursery, BOTH, *ROUTES["acting"], {**headers, **bearer(ADMIN)})).status == 200


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8"])
async def test_json_can(autojump_clock, nursery, kind):
    assert (await ask(nursery, Guard(), *ROUTES["acting"], {"Content-Type": kind})).status == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site", "same-origin", "none"])
async def test_where_a_browser_says_that_a_request_comes_from(autojump_clock, nursery, site):
    status = 403 if site in ("cross-site", "same-site") else 200
    for route in ("rollout", "acting"):
        assert (await ask(nursery, Guard(), *ROUTES[route], {"Sec-Fetch-Site": site, **JSON})).status == status
    # A link to the dashboard may stand anywhere.
    assert (await ask(nursery, Guard(), *ROUTES["observing"], {"Sec-Fetch-Site": site})).status == 200


# -- the whole gymserve ----------------------------------------------------------------------------------------------

ROLLOUT_ROUTES = [
    ("POST", "/seed_session"),
    ("POST", "/step"),
    ("POST", "/observation"),
    ("POST", "/verify"),
    ("POST", "/close_session"),
    ("POST", "/reset"),
    ("POST", "/close"),
    ("POST", "/mcp"),
    ("POST", "/sandbox_access"),
    ("POST", "/aggregate_metrics"),
    ("GET", "/reverify_mode"),
    ("GET", "/mcp"),
    ("DELETE", "/step"),
    ("POST", "/ng-rollout/7-0/seed_session"),
    ("POST", "/ng-rollout/7-0//seed_session"),
]


def counting() -> EnvironmentServer:
    return EnvironmentServer(Counting, capacity=2)


async def test_without_the_token_no_rollout(autojump_clock):
    async with raise_the_curtain(counting(), guard=BOTH) as stage:
        for method, path in ROLLOUT_ROUTES:
            answer = await stage.client().ask(method, path, {})
            assert (answer.status, answer.body["error"]) == (401, "unauthorized"), path
            assert b"set-cookie" not in answer.headers
        assert (stage.episodes["opened"], stage.gateway.all_sessions()) == (0, [])


@pytest.mark.parametrize("token", [TOKEN, ADMIN])
@pytest.mark.parametrize("under", ["", "/ng-rollout/7-0"])
async def test_with_it_all_of_one(autojump_clock, token, under):
    async with raise_the_curtain(counting(), guard=BOTH) as stage:
        c, headers = stage.client(THERE), bearer(token)
        assert (await c.ask("POST", f"{under}/seed_session", {}, headers)).status == 200
        assert (await c.ask("POST", f"{under}/step", {"by": 1}, headers)).status == 200
        assert (await c.ask("POST", f"{under}/step", {"by": 1})).status == 401  # the cookie alone is not enough
        verified = await c.ask("POST", f"{under}/verify", {"responses_create_params": {}, "response": {}}, headers)
        assert (verified.status, verified.body["steps"]) == (200, 1)


async def test_a_launcher_polls_without_one(autojump_clock):
    async with raise_the_curtain(counting(), guard=BOTH) as stage:
        for path in ("/", "//", "/gymserve/health", "/ng-rollout/7-0/"):
            assert (await stage.client(THERE).ask("GET", path)).body == {"status": "ok"}


async def test_who_may_look(autojump_clock):
    async with raise_the_curtain(counting(), guard=BOTH) as stage:
        for path in ("/gymserve/sessions", "/gymserve/ready"):
            assert (await looked(stage.client(THERE), path)).status == 401
            assert (await looked(stage.client(THERE), path, bearer(TOKEN))).status == 200
            assert (await looked(stage.client(THERE), path, bearer(ADMIN))).status == 200
            assert (await looked(stage.client(HERE), path, {"Host": "localhost:8100"})).status == 200


async def looked(client: Client, path: str, headers: Mapping[str, str] | None = None) -> Answer:
    client.peer = client.connect()
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in (headers or {}).items())]
    if "Host" not in (headers or {}):
        lines.append("Host: 10.0.0.1:8100")
    await client.peer.send("\r\n".join([*lines, "", ""]).encode())
    return await client.answer()


async def test_a_refusal_comes_after_the_body_and_keeps_the_connection(autojump_clock, nursery):
    """An answer that comes before the body has been read costs a keep-alive client its next request."""
    async with raise_the_curtain(counting(), guard=BOTH) as stage:
        peer: Peer = connect(stage.nursery, stage.app)
        body = json.dumps({"padding": "x" * 200_000}).encode()
        for _ in range(3):
            assert told(await peer.ask(POST("/seed_session", body)))[0] == 401
        reply = await peer.ask(POST("/seed_session", body, f"Authorization: Bearer {TOKEN}"))
        assert reply.status == 200


async def test_a_head_has_no_body_and_the_same_refusal(autojump_clock, nursery):
    async with raise_the_curtain(counting(), guard=BOTH) as stage:
        peer = connect(stage.nursery, stage.app)
        reply = await peer.ask(b"HEAD /gymserve/sessions HTTP/1.1\r\nHost: localhost\r\n\r\n", b"HEAD")
        assert (reply.status, reply.body) == (401, b"")
        assert int(reply.headers[b"content-length"]) > 0


async def test_too_large_a_body_of_a_stranger_is_refused_as_a_strangers(autojump_clock):
    async with raise_the_curtain(counting(), guard=BOTH) as stage:
        peer = connect(stage.nursery, stage.app)
        await peer.send(b"POST /step HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n")
        reply = await peer.reply()
        assert (told(reply), reply.headers[b"connection"]) == ((401, "unauthorized"), b"close")


async def test_a_page_elsewhere_cannot_seed(autojump_clock):
    """A form of any site can POST to localhost, and what it sends need not be JSON for a seed."""
    async with raise_the_curtain(counting(), guard=Guard()) as stage:
        for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}):
            answer = await stage.client().ask("POST", "/seed_session", b"{}", headers)
            assert (answer.status, answer.body["error"]) == (403, "cross_site")
        assert stage.episodes["opened"] == 0


SEGMENTS = ["gymserve", "sessions", "ready", "health", "close", "", ".", "..", "ng-rollout", "a", "step", "%2f"]
SEGMENTS += ["%67ymserve", "gymserve%2fsessions", ";", "*", "%00", "%5c", "GYMSERVE", "seed_session"]


@settings(deadline=None)  # each has a gymserve of its own
@given(
    method=st.sampled_from(["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"]),
    start=st.sampled_from(["/", "//", "", "http://x", "http://x/", "/ng-rollout/a/"]),
    segments=st.lists(st.sampled_from(SEGMENTS), max_size=6),
)
def test_no_spelling_of_a_path_gets_past(method, start, segments):
    path = start + "/".join(segments)
    request = f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".encode()

    async def answered() -> Reply:
        async with raise_the_curtain(counting(), guard=BOTH) as stage:
            return await connect(stage.nursery, seen_from(stage.app, THERE)).ask(request, method.encode())

    reply = trio.run(answered, clock=MockClock(autojump_threshold=0))
    if reply.status not in (400, 401):
        assert reply.status in (200, 405), path
        assert reply.body in (b"", b'{"status":"ok"}') or reply.status == 405
