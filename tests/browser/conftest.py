"""A real Chromium for the tests, Debian's or the system's, driven by Playwright. Where either is missing they are left
out.

Every page is watched: what it says on the console, asks others for or violates of its policy fails the test.
"""

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

_MISSING = None
if find_spec("playwright") is None:
    _MISSING = "needs Playwright (pip install 'gymserve[browser]')"
elif CHROMIUM is None:
    _MISSING = "needs Chromium (apt-get install chromium fonts-dejavu-core)"

_WATCH = """
window.violations = [];
addEventListener("securitypolicyviolation", ({ violatedDirective, blockedURI }) => {
    violations.push(`${violatedDirective}: ${blockedURI}`);
});
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if _MISSING is not None and Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=_MISSING))


class Watched:
    """A browser's page, and what was noticed of it."""

    def __init__(self, page: Any, *, allowed: str) -> None:
        """:param allowed: what may be said on the console, of requests that are meant to fail."""
        self.page = page
        self.noticed: list[str] = []
        self.asked: list[str] = []
        self._allowed = re.compile(allowed)
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.noticed.append(f"an error: {error}"))
        page.on("dialog", lambda dialog: self.noticed.append(f"a dialog: {dialog.message}"))
        page.on("request", lambda request: self.asked.append(request.url))
        page.add_init_script(_WATCH)

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning") and not self._allowed.search(message.text):
            self.noticed.append(f"{message.type}: {message.text}")

    def check(self) -> None:
        home = re.match(r"https?://[^/]+", self.page.url)
        assert home is not None
        assert [url for url in self.asked if not url.startswith((f"{home[0]}/", "data:"))] == []
        assert self.page.evaluate("violations") == []
        assert self.noticed == []


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # Its own sandbox wants a user of its own, which containers and CI seldom have; the pages are ours.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium: Any) -> Iterator[Callable[..., Any]]:
    """``open_page(url, allowed=..., **context)``: a page of its own, watched until the end of the test."""
    with ExitStack() as stack:
        pages: list[Watched] = []

        def opened(
            url: str, *, allowed: str = "(?!)", before: Callable[[Any], None] | None = None, **context: Any
        ) -> Any:
            made = chromium.new_context(**{"viewport": {"width": 1280, "height": 900}, **context})
            stack.callback(made.close)
            page = made.new_page()
            page.set_default_timeout(15_000)
            pages.append(Watched(page, allowed=allowed))
            if before is not None:
                before(page)
            page.goto(url)
            return page

        yield opened
        for watched in pages:
            watched.check()
