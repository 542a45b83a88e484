"""The dashboard in a real browser, before a real gymserve and its embedded environment server."""

import json
import os
import signal
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from processes import Server, environ, running

if TYPE_CHECKING:
    from playwright.sync_api import Page
else:
    Page = Any

OpenPage = Callable[..., Page]
Record = Callable[[str, object], None]

TOKEN, ADMIN = "the-token-of-the-rollouts", "the-token-of-the-admins"
SLOTS = 4
IDLE_SECONDS = 3.0
STEP_SECONDS = 1.2
CLOSE_SECONDS = 1.0
_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
FAILED_REQUEST = "^Failed to load resource: "
HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "\"'><script>alert(1)</script>",
    "a\u202eb\u2066c\u0007d\u200be",
    "&lt;b&gt; {{7*7}} ${7*7}",
    "x" * 200,
]


def asked(method: str, url: str, **request: Any) -> httpx.Response:
    with httpx.Client(verify=_NO_TLS, trust_env=False, timeout=30.0) as client:
        return client.request(method, url, **request)


class Rollout:
    """One rollout's client, which remembers its cookie."""

    def __init__(self, url: str, label: str, **row: Any) -> None:
        self._url = url
        self._row = {"gymserve_label": label, **row}
        self._cookie = ""

    def open(self) -> "Rollout":
        answer = self._post("seed_session", self._row)
        assert answer.status_code in (200, 409), answer.text  # or its run was closed before its turn came
        self._cookie = answer.headers["set-cookie"].partition(";")[0]
        return self

    def call(self) -> httpx.Response:
        return self._post("status", {})

    def verify(self) -> httpx.Response:
        return self._post("verify", {"responses_create_params": {}, "response": {}})

    def _post(self, path: str, body: Any) -> httpx.Response:
        return asked("POST", f"{self._url}/{path}", json=body, headers={"Cookie": self._cookie})


@contextmanager
def beside(*works: Callable[[], object]) -> Iterator[None]:
    """While they are done in threads of their own."""
    threads = [Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(30.0)


def listing(url: str) -> Any:
    return asked("GET", f"{url}/gymserve/sessions").json()


def eventually(holds: Callable[[], bool], *, within_seconds: float = 15.0, every_seconds: float = 0.05) -> None:
    give_up_at = time.monotonic() + within_seconds
    while not holds():
        assert time.monotonic() < give_up_at
        time.sleep(every_seconds)


def until(page: Page, expression: str) -> None:
    """Waits for JavaScript to be true, outside of the page's policy."""
    give_up_at = time.monotonic() + 15.0
    while not page.evaluate(expression):
        assert time.monotonic() < give_up_at, expression
        page.wait_for_timeout(50)


def until_rows(page: Page, table: str, count: int) -> None:
    until(page, f"document.querySelectorAll('#{table} tbody tr').length === {count}")


def shows(page: Page, place: str, text: str) -> None:
    """Waits for it. A part of the text is enough."""
    page.locator(place).filter(has_text=text).first.wait_for()


def gone(page: Page, place: str) -> None:
    page.locator(place).first.wait_for(state="detached")


def seconds(text: str) -> int:
    minutes, _, rest = text.partition(":")
    return 60 * int(minutes) + int(rest)


@pytest.fixture(scope="module")
def environment() -> Iterator[Server]:
    """Slow to step and to close, so that these can be seen."""
    faults = ("--fault", f"slow-step:{STEP_SECONDS}", "--fault", f"slow-close:{CLOSE_SECONDS}")
    with running("env", "--capacity", str(SLOTS), *faults) as server:
        yield server


@pytest.fixture(scope="module")
def gymserve(environment: Server) -> Iterator[Server]:
    with running("serve", "--env", environment.url, "--idle-timeout", str(IDLE_SECONDS)) as server:
        yield server


@pytest.fixture
def live(gymserve: Server) -> Iterator[str]:
    """Its address; it has no sessions then, whatever the test before has left."""
    for label in {session["label"] for session in listing(gymserve.url)["sessions"]}:
        asked("POST", f"{gymserve.url}/gymserve/close", json={"label": label, "for_seconds": 0})
    eventually(lambda: not listing(gymserve.url)["servers"][0]["held"])
    yield gymserve.url


def dashboard(url: str) -> str:
    return f"{url}/gymserve/dashboard"


# -- sessions --------------------------------------------------------------------------------------------------------


def test_a_browser_is_led_there(live: str, open_page: OpenPage) -> None:
    page = open_page(live)
    shows(page, "#connection", "live")
    assert page.url == dashboard(live)
    assert page.text_content("#instance") == listing(live)["instance"]


def test_a_session_appears_counts_down_and_vanishes(live: str, open_page: OpenPage) -> None:
    page = open_page(dashboard(live))
    shows(page, "#sessions-more", "No sessions.")
    Rollout(live, "run-a").open()
    cell, left = page.locator('.cells .cell[data-state="idle"]'), page.locator("#sessions tbody td").last
    cell.wait_for()
    assert page.locator("#sessions tbody .label").all_text_contents() == ["run-a"]
    before = (seconds(cell.inner_text()), seconds(left.inner_text()))
    assert max(before) <= IDLE_SECONDS
    until(page, f"document.querySelector('#sessions tbody td:last-child').textContent === '0:0{before[1] - 1}'")
    page.locator('.cells .cell[data-state="closing"]').wait_for()
    gone(page, "#sessions tbody tr")
    shows(page, ".server .quiet", f"{SLOTS} free" if listing(live)["servers"][0]["capacity"] else "nothing held")
    shows(page, "#rollouts .legend", "not scored 1")
    shows(page, "#masks .legend", "none")


def test_the_cells_are_as_the_listing_has_it(live: str, open_page: OpenPage) -> None:
    page = open_page(dashboard(live))
    busy, idle, closing = (Rollout(live, label).open() for label in ("b", "i", "c"))
    with beside(busy.call, closing.verify):
        shows(page, ".server .quiet", "1 busy, 1 idle, 1 closing")
        counts = listing(live)["counts"]
        assert (counts["busy"], counts["idle"], counts["closing"]) == (1, 1, 1)
        cells = page.locator(".cells .cell").evaluate_all("cells => cells.map((cell) => cell.dataset.state)")
        assert sorted(cells)[:3] == ["busy", "closing", "idle"]
        assert set(cells[3:]) <= {"free"}
        states = page.locator("#sessions .state").all_text_contents()
        assert sorted(states) == ["busy", "closing", "idle"]
        assert page.locator(".cells").get_attribute("aria-label") == page.inner_text(".server .quiet")
    idle.verify()


def test_who_waits_by_label(live: str, open_page: OpenPage) -> None:
    page = open_page(dashboard(live))
    waiting = [Rollout(live, label) for label in ("eval", "eval", "train")]
    for _ in range(SLOTS):
        Rollout(live, "held", gymserve_idle_timeout=120).open()
    with beside(*(rollout.open for rollout in waiting)):
        row = page.locator("#runs tbody tr").filter(has_text="eval")
        row.filter(has_text="2").wait_for()
        cells = row.locator("td").all_inner_texts()
        assert (cells[0], cells[1]) == ("0", "2")
        assert seconds(cells[2]) < 60
        shows(page, "#runs-sum", "3 waiting")
        page.select_option("#by-state", "waiting")
        until_rows(page, "sessions", 3)
        assert sorted(page.locator("#sessions .label").all_text_contents()) == ["eval", "eval", "train"]
        asked("POST", f"{live}/gymserve/close", json={"label": "held", "for_seconds": 0})


def test_a_session_and_what_happened_to_it(live: str, open_page: OpenPage) -> None:
    page = open_page(dashboard(live))
    rollout = Rollout(live, "run-a").open()
    rollout.call()
    page.locator("#sessions button.id").press("Enter")
    shows(page, "#details-timeline", "stepped")
    assert page.evaluate("document.activeElement.id") == "details-title"
    session_id = listing(live)["sessions"][0]["id"]
    assert page.inner_text("#details-title") == f"Session {session_id}"
    rollout.verify()
    shows(page, "#details-timeline", "freed")
    shows(page, "#details-facts", "verified")
    page.keyboard.press("Escape")
    assert page.locator("#details").is_hidden()


def test_sorted_and_filtered(live: str, open_page: OpenPage) -> None:
    page = open_page(dashboard(live))
    for label in ("run-b", "run-a", "other"):
        Rollout(live, label).open()
        page.wait_for_timeout(200)  # gymserve gathers events for a tenth of a second: so exactly their times are known
    until_rows(page, "sessions", 3)
    labels = page.locator("#sessions tbody .label")
    assert labels.all_text_contents() == ["run-b", "run-a", "other"]  # the oldest first
    head = page.locator("#sessions th").filter(has_text="run")
    for order, wanted in (("ascending", ["other", "run-a", "run-b"]), ("descending", ["run-b", "run-a", "other"])):
        head.locator("button").press("Enter")
        assert head.get_attribute("aria-sort") == order
        assert labels.all_text_contents() == wanted
    page.fill("#by-label", "RUN-")
    assert labels.all_text_contents() == ["run-b", "run-a"]
    assert page.inner_text("#sessions-sum") == "2 of 3"
    page.select_option("#by-state", "closing")
    assert labels.all_text_contents() == []
    assert page.inner_text("#sessions-more") == "None like that."


def test_what_ended_before_the_page_was_opened_is_shown(open_page: OpenPage) -> None:
    with running("serve") as server:
        Rollout(server.url, "before").open().verify()
        page = open_page(dashboard(server.url), allowed=FAILED_REQUEST)  # gymserve ends before the page
        shows(page, "#rollouts .legend", "scored 1")
        shows(page, ".since", "since gymserve started")


# -- closing ---------------------------------------------------------------------------------------------------------


def test_a_run_is_closed_by_its_label(live: str, open_page: OpenPage) -> None:
    page = open_page(dashboard(live))
    stays, *ends = (Rollout(live, label).open() for label in ("stays", "to-close", "to-close"))
    until_rows(page, "sessions", 3)
    shows(page, "#runs-sum", "nobody waits")
    button = page.get_by_role("button", name="close the run to-close")
    button.click()
    dialog = page.locator("#closing")
    assert "2 sessions and 0 in the line" in dialog.inner_text()
    assert page.evaluate("document.activeElement.id") == "closing-leave"
    page.keyboard.press("Escape")
    assert dialog.is_hidden()
    assert listing(live)["counts"]["closing"] == 0
    button.click()
    page.click("#closing-act")
    shows(page, "#closing-what", "2 sessions ended.")
    page.click("#closing-leave")
    until_rows(page, "sessions", 1)
    assert page.locator("#sessions tbody .label").all_text_contents() == ["stays"]
    assert {rollout.verify().status_code for rollout in ends} == {503}  # as httpx is told of a masked result
    assert stays.verify().json()["steps"] == 0
    shows(page, "#masks .legend", "cancelled 2")


# -- what clients choose ---------------------------------------------------------------------------------------------


def test_hostile_labels_are_text(live: str, open_page: OpenPage) -> None:
    page = open_page(dashboard(live))
    with beside(*(Rollout(live, label).open for label in HOSTILE)):
        until_rows(page, "runs", len(HOSTILE))
        shown = page.locator("#runs .label").all_text_contents()
        assert set(shown) == {*HOSTILE[:2], "a\\u202eb\\u2066c\\u0007d\\u200be", *HOSTILE[3:]}
        page.get_by_role("button", name=f"close the run {HOSTILE[0]}").click()
        assert page.inner_text("#closing-label") == HOSTILE[0]
        page.click("#closing-act")
        shows(page, "#closing-title", "Closed")
        page.click("#closing-leave")
        page.locator("#sessions button.id").first.click()
        shows(page, "#details-timeline", "opened")
        assert page.evaluate("document.querySelectorAll('main img, main script, main b:not(.legend b)').length") == 0
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


# -- the connection --------------------------------------------------------------------------------------------------


def test_gymserve_is_killed_and_comes_back(open_page: OpenPage) -> None:
    with running("serve") as first:
        page = open_page(dashboard(first.url), allowed=FAILED_REQUEST)
        Rollout(first.url, "before").open()
        shows(page, "#sessions", "before")
        first.send(signal.SIGKILL)
        shows(page, "#notice", "What is shown here is as it was at")
        assert page.get_attribute("#connection", "data-state") == "lost"
        assert "stale" in (page.get_attribute("#shown", "class") or "")
        first.process.wait()
    with running("serve", port=int(first.url.rpartition(":")[2])) as second:
        Rollout(second.url, "after").open()
        page.click("#retry")
        shows(page, "#connection", "live")
        shows(page, "#notice", "gymserve was restarted")
        shows(page, "#sessions", "after")
        assert page.locator("#sessions .label").all_text_contents() == ["after"]
        assert page.text_content("#instance") == listing(second.url)["instance"]
        shows(page, ".since", "since gymserve started")
        second.send(signal.SIGTERM)
        shows(page, "#notice", "gymserve has stopped.")
        shows(page, "#connection", "stopped: again in")


def test_what_was_missed_is_read_anew(live: str, open_page: OpenPage) -> None:
    missed = {"body": "event: missed\ndata: {}\n\n", "content_type": "text/event-stream"}
    urls: list[str] = []

    def miss_once(page: Page) -> None:
        page.on("request", lambda request: urls.append(request.url))
        page.route("**/gymserve/events", lambda route: route.fulfill(**missed), times=1)

    page = open_page(dashboard(live), before=miss_once)
    shows(page, "#connection", "live")
    assert sum("/gymserve/sessions?" in url for url in urls) == 2
    assert sum(url.endswith("/gymserve/events") for url in urls) == 2


def test_a_hidden_page_draws_nothing(live: str, open_page: OpenPage) -> None:
    page = open_page(dashboard(live))
    shows(page, "#connection", "live")
    page.evaluate("""
        Object.defineProperty(document, "hidden", { get: () => window.isHidden });
        window.isHidden = true;
        window.changes = 0;
        new MutationObserver((all) => { changes += all.length; })
            .observe(document.body, { subtree: true, childList: true, characterData: true, attributes: true });
    """)
    Rollout(live, "unseen").open()
    page.wait_for_timeout(1200)
    assert page.evaluate("changes") == 0
    page.evaluate("window.isHidden = false; document.dispatchEvent(new Event('visibilitychange'))")
    shows(page, "#sessions", "unseen")


def test_below_a_prefix_of_a_proxy(live: str, open_page: OpenPage) -> None:
    """The proxy is the test's, and its events end."""
    prefix = "http://gym.test/team/a"
    urls: list[str] = []

    def proxied(route: Any) -> None:
        url = route.request.url
        urls.append(url)
        if url.endswith("/events"):
            body = f"event: standing\ndata: {json.dumps(listing(live))}\n\n"
            route.fulfill(body=body, content_type="text/event-stream")
            return
        inside = asked("GET", live + url.removeprefix(prefix))
        route.fulfill(status=inside.status_code, headers=dict(inside.headers), body=inside.content)

    page = open_page(f"{prefix}/gymserve/dashboard", before=lambda page: page.route("**/*", proxied))
    until(page, "document.querySelector('#instance').textContent !== ''")
    assert {
        f"{prefix}/gymserve/{name}" for name in ("sessions?limit=1000&ended=true", "events", "dashboard/main.js")
    } <= set(urls)
    assert [url for url in urls if not url.startswith(f"{prefix}/gymserve/")] == []


# -- who may ---------------------------------------------------------------------------------------------------------

ELSEWHERE = {"extra_http_headers": {"X-Forwarded-For": "10.0.0.7"}}  # a browser that a proxy speaks for


def test_a_browser_elsewhere_is_asked_for_a_token(open_page: OpenPage) -> None:
    with running("serve", GYMSERVE_TOKEN=TOKEN, GYMSERVE_ADMIN_TOKEN=ADMIN) as server:
        asked("POST", f"{server.url}/seed_session", json={"gymserve_label": "run-a"}, headers=bearer(TOKEN))
        urls: list[str] = []
        page = open_page(
            dashboard(server.url),
            allowed=FAILED_REQUEST,
            before=lambda page: page.on("request", lambda request: urls.append(request.url)),
            **ELSEWHERE,
        )
        shows(page, "#entrance-why", "shows its sessions to who has its token")
        shows(page, "#connection", "not let in")
        for token, why in (("too short", "That is no token of gymserve"), ("x" * 20, "is not the token")):
            page.fill("#token", token)
            page.keyboard.press("Enter")
            shows(page, "#entrance-why", why)
        page.fill("#token", TOKEN)
        page.keyboard.press("Enter")
        shows(page, "#connection", "live")
        assert page.locator("#entrance").is_hidden()
        page.get_by_role("button", name="close the run run-a").click()
        page.click("#closing-act")
        shows(page, "#closing-said", "acting on sessions takes the admin token")
        page.click("#closing-token")
        page.fill("#token", ADMIN)
        page.click("#entrance button[type=submit]")
        page.click("#closing-act")  # asked again by itself, now that there is another token
        shows(page, "#closing-what", "1 session ended.")
        page.click("#closing-leave")
        page.reload()
        shows(page, "#connection", "live")
        page.click("#forget")
        shows(page, "#entrance-why", "shows its sessions to who has its token")
        assert [url for url in urls if TOKEN in url or ADMIN in url] == []


def test_without_an_admin_token_runs_are_closed_from_here_only(live: str, open_page: OpenPage) -> None:
    page = open_page(dashboard(live), allowed=FAILED_REQUEST, **ELSEWHERE)
    Rollout(live, "run-a").open()
    page.get_by_role("button", name="close the run run-a").click()
    page.click("#closing-act")
    shows(page, "#closing-said", "from gymserve's own machine only")
    assert page.locator("#closing-act").is_hidden()
    assert listing(live)["counts"]["idle"] == 1


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


# -- how it looks ----------------------------------------------------------------------------------------------------

CONTRASTS = """() => {
    const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const ground = (node) => {
        for (; node; node = node.parentElement) {
            const [r, g, b, a = 1] = channels(getComputedStyle(node).backgroundColor);
            if (a > 0) return [r, g, b];
        }
        return [255, 255, 255];
    };
    const luminance = (rgb) => {
        const [r, g, b] = rgb.map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const found = [];
    while (texts.nextNode()) {
        const node = texts.currentNode.parentElement;
        if (!texts.currentNode.data.trim() || !node.checkVisibility() || node.closest("noscript, option")) continue;
        const colours = [channels(getComputedStyle(node).color).slice(0, 3), ground(node)];
        const [dark, light] = colours.map(luminance).sort((a, b) => a - b);
        found.push([(light + 0.05) / (dark + 0.05), texts.currentNode.data.trim()]);
    }
    return found;
}"""


TOO_WIDE = """() => [document.documentElement, ...document.querySelectorAll(".scroll, .card, dialog, .drawer")]
    .filter((each) => each.scrollWidth > each.clientWidth).map((each) => each.className)"""


def test_it_can_be_read_in_the_light_in_the_dark_and_on_a_telephone(live: str, open_page: OpenPage) -> None:
    page = open_page(dashboard(live))
    busy, closing, _ = (Rollout(live, label).open() for label in ("busy", "closing", "x" * 200))
    with beside(busy.call, closing.verify):
        shows(page, ".server .quiet", "1 busy, 1 idle, 1 closing")
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            for width in (1920, 1000, 360):
                page.set_viewport_size({"width": width, "height": 900})
                contrasts = page.evaluate(CONTRASTS)
                assert len(contrasts) > 40
                assert [each for each in contrasts if each[0] < 4.5] == [], (scheme, width)
                assert page.evaluate(TOO_WIDE) == [], (scheme, width)


def test_it_can_be_used_without_a_pointer_and_without_sight(live: str, open_page: OpenPage) -> None:
    page = open_page(dashboard(live))
    Rollout(live, "run-a").open()
    page.locator("#sessions button.id").wait_for()
    names = page.locator("button:visible, input:visible, select:visible, [role=img], [role=region]").evaluate_all(
        "all => all.map((each) => each.ariaLabel || each.textContent.trim() || each.labels?.[0]?.textContent.trim()"
        " || document.getElementById(each.getAttribute('aria-labelledby'))?.textContent)"
    )
    assert len(names) > 12
    assert all(names)
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.append(page.evaluate("document.activeElement.id || document.activeElement.textContent.trim()"))
        assert page.evaluate(
            "document.activeElement.matches(':focus-visible') || document.activeElement === document.body"
        )
    session_id = listing(live)["sessions"][0]["id"]
    assert {"close\u2026", "by-label", "by-state", "age", session_id} <= set(reached)
    assert page.locator("#sessions tbody th[scope=row], #runs tbody th[scope=row]").count() == 2


# -- many ------------------------------------------------------------------------------------------------------------

MANY = 2000
EVENTS = 1000
CROWD = 240  # a real gymserve's, which takes 10 ms of the processor to open each
CALLS_A_SECOND = 300
MOST_SCRIPT_SECONDS = 0.1
DRAWN_EVERY_SECONDS = 0.5
WATCHED_SECONDS = 3.0


@pytest.fixture
def crowded() -> Iterator[str]:
    """The address of a gymserve with many sessions, which are called all the time."""
    tests = Path(__file__).parents[1]
    paths = os.pathsep.join([str(tests), str(tests / "http"), *filter(None, [os.environ.get("PYTHONPATH")])])
    script = str(Path(__file__).with_name("crowd.py"))
    with running("env", "--capacity", str(CROWD)) as env, running("serve", "--env", env.url) as server:
        command = [sys.executable, script, server.url, str(CROWD), str(CALLS_A_SECOND)]
        process = subprocess.Popen(command, env=environ(PYTHONPATH=paths))
        try:
            eventually(lambda: page_of_one(server.url)["matching"] == CROWD, within_seconds=180.0, every_seconds=0.5)
            yield server.url
            assert process.poll() is None
        finally:
            process.kill()
            process.wait()


def test_many_sessions(crowded: str, open_page: OpenPage, record_testsuite_property: Record) -> None:
    page = open_page(dashboard(crowded))
    until(page, f"document.querySelectorAll('.cells .cell').length === {CROWD}")
    assert page.locator("#sessions tbody tr").count() == 200
    assert page.inner_text("#sessions-more").startswith(f"and {CROWD - 200} more")
    seen, started = last_event(crowded), time.monotonic()
    an_update = script_seconds_an_update(page)
    record_testsuite_property("script_seconds_an_update", an_update)
    record_testsuite_property("events_a_second", (last_event(crowded) - seen) / (time.monotonic() - started))
    assert last_event(crowded) > seen
    assert an_update < MOST_SCRIPT_SECONDS
    assert page.get_attribute("#connection", "data-state") == "live"


def test_two_thousand_sessions_and_a_thousand_events_a_second(
    live: str, open_page: OpenPage, record_testsuite_property: Record
) -> None:
    """The test makes them up: a thousand events each time that the page connects, which it does every second."""
    nothing_ended = {"since_epoch_seconds": time.time(), "minutes": []}
    told = {**listing(live), "event": "0-0", "next": None, "matching": MANY, "ended": nothing_ended}
    told["servers"] = [{"url": "http://env", "held": MANY, "capacity": MANY, "state": "full"}]
    told["sessions"] = [a_session(number) for number in range(MANY)]
    numbers = iter(range(1, 1_000_000))
    asked_at: list[float] = []

    def tell(route: Any) -> None:
        asked_at.append(time.monotonic())
        events = [an_event(next(numbers)) for _ in range(EVENTS)]
        standing = "event: standing\ndata: " + json.dumps({**told, "sessions": []})
        body = "retry: 2000\n\n" + "\n\n".join([standing, *events, ""])
        route.fulfill(body=body, content_type="text/event-stream")

    def stand_in(page: Page) -> None:
        page.route("**/gymserve/sessions?*", lambda route: route.fulfill(json=told))
        page.route("**/gymserve/events", tell)

    page = open_page(dashboard(live), before=stand_in)
    until(page, f"document.querySelectorAll('.cells .cell').length === {MANY}")
    before = len(asked_at)
    an_update = script_seconds_an_update(page)
    record_testsuite_property("script_seconds_an_update_by_a_thousand_events", an_update)
    assert len(asked_at) - before >= WATCHED_SECONDS / 2
    assert an_update < MOST_SCRIPT_SECONDS


def a_session(number: int) -> dict[str, Any]:
    return {
        "id": f"{number:012x}",
        "label": f"run-{number % 7}",
        "state": "idle",
        "env": "http://env",
        "holds_slot": True,
        "steps": 0,
        "reward": 0.0,
        "age_seconds": 60.0 + number,
        "idle_deadline_in_seconds": 600.0,
    }


def an_event(number: int) -> str:
    """Each session is called, and answered when all others have been called."""
    turn, which = divmod(number, MANY)
    data: dict[str, Any] = {"at_epoch_seconds": time.time(), "session": f"{which:012x}", "label": "x"}
    if turn % 2 == 0:
        name, data = "called", {**data, "think_seconds": 1.0}
    else:
        name = "stepped"
        data |= {"step_seconds": 1.0, "steps": turn, "reward": 0.5, "done": False, "idle_deadline_in_seconds": 600.0}
    return f"id: 0-{number}\nevent: {name}\ndata: {json.dumps(data)}"


def script_seconds_an_update(page: Page) -> float:
    """Of the processor, for scripts, over some seconds: others may take the processor meanwhile."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    before, started = script_seconds(session), time.monotonic()
    page.wait_for_timeout(1000 * WATCHED_SECONDS)
    updates = (time.monotonic() - started) / DRAWN_EVERY_SECONDS
    return (script_seconds(session) - before) / updates


def script_seconds(session: Any) -> float:
    metrics = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
    return float(metrics["ScriptDuration"])


def page_of_one(url: str) -> Any:
    return asked("GET", f"{url}/gymserve/sessions?limit=1").json()


def last_event(url: str) -> int:
    return int(page_of_one(url)["event"].rpartition("-")[2])
