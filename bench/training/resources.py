"""How verifiers' NeMo Gym taskset comes to its episodes: seed, tools and verify over HTTP.

It closes no session, retries nothing, and says nothing when a rollout is cancelled. A tool's failure is text for
the model, so that the rollout goes on to its verify; a call that is under way at a cancellation runs to its end.
(verifiers opens a connection for each request; here a rollout keeps one, which costs less and tells gymserve no
more.)
"""

import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio

from training.http import Answer, Browser, Unanswered
from training.playing import RolloutFailed, Seat

_TOOLS: list[dict[str, Any]] = [
    {"type": "function", "name": name, "parameters": {}} for name in ("forecast", "schedule")
]


class ResourcesTools:
    def __init__(self, browser: Browser, seat: Seat) -> None:
        self._browser = browser
        self._seat = seat
        self._row = {
            "responses_create_params": {"input": [], "tools": _TOOLS},
            "reset_kwargs": {"day": seat.day, "rollout": seat.rollout},
        }

    async def seed(self) -> None:
        """:raises RolloutFailed"""
        began = trio.current_time()
        answer = await self._post("seed_session", self._row)
        if answer.status != 200:
            raise RolloutFailed(f"seed {answer.status}", str(answer.body))
        self._seat.has_episode = True
        self._seat.waited_seconds = trio.current_time() - began

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        with trio.CancelScope(shield=True):  # by the toolset's process, which outlives the rollout
            answer = await self._post(name, arguments)
        if answer.status != 200:
            await self.score()
            raise RolloutFailed(f"{name} {answer.status}", str(answer.body))
        result: Mapping[str, Any] = answer.body["result"]
        self._seat.note(name, result)
        return result

    async def score(self) -> float:
        self._seat.is_over = True
        answer = await self._post("verify", {**self._row, "response": {"output": []}})
        if answer.status != 200:
            raise RolloutFailed(f"verify {answer.status}", str(answer.body))
        return float(answer.body["reward"])

    async def _post(self, path: str, body: Mapping[str, Any]) -> Answer:
        try:
            answer = await self._browser.post(path, body)
        except Unanswered as exc:
            raise RolloutFailed(f"{path} unanswered", str(exc)) from exc
        self._seat.answered_at = time.monotonic()
        return answer


class Resources:
    """Opens episodes at the resources server at ``url``."""

    def __init__(self, url: str) -> None:
        self._url = url

    @asynccontextmanager
    async def open(self, seat: Seat) -> AsyncIterator[ResourcesTools]:
        """:raises RolloutFailed"""
        browser = Browser(self._url)
        try:
            tools = ResourcesTools(browser, seat)
            await tools.seed()
            yield tools
        finally:
            await browser.aclose()
