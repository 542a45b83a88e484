"""The dashboard's page as it is served: to whom, with which headers, and who is led to it. What it does in a browser is
in tests/browser.
"""

import json
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from urllib.parse import urljoin

import pytest
from counting import Counting
from http_peer import Reply, connect
from stage import Stage, raise_the_curtain, seen_from

from gymserve.gridsim.server import EnvironmentServer
from gymserve.http.access import Access, Guard, access_to
from gymserve.http.dashboard.files import FILES, PAGE_PATH

HERE, THERE = "127.0.0.1", "10.0.0.7"
GUARDED = Guard(token="the-token-of-the-rollouts", admin_token="the-token-of-the-admins")
BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8"
POLICY = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "connect-src": "'self'",
    "img-src": "'self' data:",
    "base-uri": "'none'",
    "form-action": "'none'",
    "frame-ancestors": "'none'",
}


def counting() -> EnvironmentServer:
    return EnvironmentServer(Counting, capacity=1)


async def ask(
    stage: Stage,
    path: str,
    headers: Mapping[str, str] | None = None,
    *,
    method: str = "GET",
    address: str = HERE,
) -> Reply:
    given = {"Host": "localhost:8100", **(headers or {})}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items()), "", ""]
    return await connect(stage.nursery, seen_from(stage.app, address)).ask("\r\n".join(lines).encode(), method.encode())


# -- the files -------------------------------------------------------------------------------------------------------


def test_the_files_are_installed() -> None:
    assert {PAGE_PATH, f"{PAGE_PATH}/main.js", f"{PAGE_PATH}/dashboard.css", f"{PAGE_PATH}/icon.svg"} <= FILES.keys()
    assert [path for path, file in FILES.items() if not file.content] == []


class Links(HTMLParser):
    """What a page loads, and what it would run or style in between."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: set[str] = set()
        self.inline: list[str] = []
        self._inside = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag
        for name, value in attrs:
            if name in ("src", "href"):
                self.loaded.add(value or "")
            if name == "style" or name.startswith("on"):
                self.inline.append(name)

    def handle_data(self, data: str) -> None:
        if self._inside in ("script", "style") and data.strip():
            self.inline.append(data)

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""


def test_the_page_loads_all_of_them_and_nothing_else() -> None:
    """By addresses relative to its own, which hold below any prefix of a proxy."""
    links = Links()
    links.feed(FILES[PAGE_PATH].content.decode())
    assert {urljoin(PAGE_PATH, link) for link in links.loaded} == FILES.keys() - {PAGE_PATH}
    assert [link for link in links.loaded if not re.fullmatch(r"dashboard/[a-z]+\.(css|js|svg)", link)] == []
    assert links.inline == []


SOURCES = [path for path in FILES if path.endswith((".js", ".css", ".html"))]
MAKES_MARKUP = (
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|DOMParser|srcdoc|setHTML"
)
RUNS_TEXT = r"\beval\b|\bFunction\(|setTimeout\(\s*[\"'`]|javascript:|\bimport\("
ELSEWHERE = r"(?<!\")https?://(?!html\.spec\.whatwg\.org/|www\.w3\.org/2000/svg)|@import|url\("
KEEPS = r"localStorage|document\.cookie|indexedDB"


@pytest.mark.parametrize("path", SOURCES)
@pytest.mark.parametrize("kind", [MAKES_MARKUP, RUNS_TEXT, ELSEWHERE, KEEPS, r"setAttribute\(\s*[\"'`](style|on)"])
def test_no_source_has(path: str, kind: str) -> None:
    assert re.findall(kind, FILES[path].content.decode().replace("/^https?:", "")) == []


def test_the_scripts_import_each_other_only() -> None:
    names = {path.rpartition("/")[2] for path in FILES}
    for path in SOURCES:
        imported = re.findall(r"^import .*? from \"(.*?)\";$", FILES[path].content.decode(), re.M | re.S)
        assert {name.removeprefix("./") for name in imported} <= names, path


# -- how they are served ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", FILES)
async def test_each_file(autojump_clock, path: str) -> None:
    async with raise_the_curtain(counting()) as stage:
        reply = await ask(stage, path)
    assert (reply.status, reply.body) == (200, FILES[path].content)
    suffix = path.removeprefix(PAGE_PATH).rpartition(".")[2]
    kinds = {"": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
    assert reply.headers[b"content-type"].decode().partition(";")[0] == kinds[suffix]
    policy = (part.strip().partition(" ") for part in reply.headers[b"content-security-policy"].decode().split(";"))
    assert {name: sources for name, _, sources in policy} == POLICY
    assert reply.headers[b"x-content-type-options"] == b"nosniff"
    assert reply.headers[b"referrer-policy"] == b"no-referrer"
    assert reply.headers[b"cache-control"] == b"no-cache"
    assert b"set-cookie" not in reply.headers


@pytest.mark.parametrize("path", [PAGE_PATH, f"{PAGE_PATH}/main.js"])
async def test_a_head(autojump_clock, path: str) -> None:
    async with raise_the_curtain(counting()) as stage:
        asked, head = await ask(stage, path), await ask(stage, path, method="HEAD")
    assert (head.status, head.body) == (200, b"")
    assert {**head.headers, b"date": b""} == {**asked.headers, b"date": b""}


async def test_what_a_browser_has_is_not_sent_again(autojump_clock) -> None:
    async with raise_the_curtain(counting()) as stage:
        etag = (await ask(stage, PAGE_PATH)).headers[b"etag"].decode()
        for known in (etag, f'"other", {etag}', f"W/{etag}", "*"):
            reply = await ask(stage, PAGE_PATH, {"If-None-Match": known})
            assert (reply.status, reply.body, reply.headers[b"etag"].decode()) == (304, b"", etag), known
            assert b"content-type" not in reply.headers
            assert reply.headers[b"cache-control"] == b"no-cache"
        assert (await ask(stage, PAGE_PATH, {"If-None-Match": '"other"'})).status == 200
        assert (await ask(stage, f"{PAGE_PATH}/main.js", {"If-None-Match": etag})).status == 200


async def test_no_other_file_of_ours(autojump_clock) -> None:
    async with raise_the_curtain(counting()) as stage:
        for name in (
            "page.py",
            "__init__.py",
            "../access.py",
            "..%2faccess.py",
            "dashboard.html",
            "main.js/",
            "nothing",
        ):
            reply = await ask(stage, f"{PAGE_PATH}/{name}")
            assert (reply.status, json.loads(reply.body)["error"]) == (404, "not_found"), name


async def test_it_is_looked_at_only(autojump_clock) -> None:
    async with raise_the_curtain(counting()) as stage:
        reply = await ask(stage, PAGE_PATH, {"Content-Type": "application/json", "Content-Length": "0"}, method="POST")
        assert reply.status in (404, 405)


# -- for whom --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("path", [*FILES, f"{PAGE_PATH}/"])
def test_the_files_are_for_everybody(method: str, path: str) -> None:
    assert access_to(method, path) is Access.OPEN


@pytest.mark.parametrize(
    "path", [f"{PAGE_PATH}/sessions", f"{PAGE_PATH}/../sessions", "/gymserve/events", f"{PAGE_PATH}s"]
)
def test_what_it_shows_is_not(path: str) -> None:
    assert access_to("GET", path) is Access.OBSERVING


async def test_without_a_token_a_page_that_knows_nothing(autojump_clock) -> None:
    async with raise_the_curtain(counting(), guard=GUARDED) as stage:
        for headers in ({}, {"Host": "evil.example"}, {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}):
            for path, file in FILES.items():
                reply = await ask(stage, path, headers, address=THERE)
                assert (reply.status, reply.body) == (200, file.content)
        assert (await ask(stage, "/gymserve/sessions", address=THERE)).status == 401


async def test_a_name_that_a_browser_was_lent_shows_the_page_and_no_sessions(autojump_clock) -> None:
    async with raise_the_curtain(counting()) as stage:
        assert (await ask(stage, PAGE_PATH, {"Host": "evil.example"})).status == 200
        assert (await ask(stage, "/gymserve/sessions", {"Host": "evil.example"})).status == 421


# -- who is led there ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("accept", "is_led"),
    [
        (None, False),
        ("", False),
        ("*/*", False),
        ("application/json", False),
        ("application/json, text/plain, */*", False),
        ("application/json, text/html", False),
        ("text/html, application/json", False),
        ("text/html;q=0.5, application/json;q=0.9", False),
        ("application/*, text/html;q=0.9", False),
        ("text/html;q=0, */*;q=0.1", False),
        ("text/html;q=0", False),
        ("text/plain", False),
        ("nonsense;;,q=", False),
        ("text/html", True),
        ("TEXT/HTML", True),
        ("text/html, */*;q=0.9", True),
        ("text/html;q=0.9, application/json;q=0.5", True),
        (BROWSER, True),
    ],
)
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_browser_is_led_to_it(autojump_clock, accept: str | None, is_led: bool, method: str) -> None:
    async with raise_the_curtain(counting(), guard=GUARDED) as stage:
        headers = {} if accept is None else {"Accept": accept}
        reply = await ask(stage, "/", headers, method=method, address=THERE)
    assert reply.status == (303 if is_led else 200)
    assert reply.body == (b"" if method == "HEAD" else b'{"status":"ok"}')
    assert reply.headers[b"vary"] == b"Accept"
    assert reply.headers.get(b"location") == (b"gymserve/dashboard" if is_led else None)


@pytest.mark.parametrize(
    ("outside", "inside"),
    [
        ("http://localhost:8100/", "/"),
        ("https://gym.example/team/a/", "/"),
        ("http://localhost:8100/ng-rollout/7-0/", "/ng-rollout/7-0/"),
        ("https://gym.example/team/a/gymserve/dashboard/", f"{PAGE_PATH}/"),
    ],
)
async def test_below_a_prefix_too(autojump_clock, outside: str, inside: str) -> None:
    """``outside`` is what the browser asks a proxy for, ``inside`` what the proxy asks us for."""
    async with raise_the_curtain(counting()) as stage:
        reply = await ask(stage, inside, {"Accept": BROWSER})
    there = urljoin(outside, reply.headers[b"location"].decode())
    assert there == outside.removesuffix("gymserve/dashboard/") + "gymserve/dashboard"
