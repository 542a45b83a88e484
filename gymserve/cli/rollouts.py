"""A rollout as a trainer drives it: seed, tools and verify over HTTP, with a scripted policy in the model's place."""

from collections.abc import Mapping
from typing import Any

import httpx
import trio

from gymserve.gridsim.policies import Policy

_REQUEST_TIMEOUT_SECONDS = 600.0  # a seed may wait as long as the server's patience


class RolloutFailed(Exception):
    """gymserve answered something that ends the rollout; the text has the status and the sentence."""


class Rollout:
    """One rollout at ``url``. ``answered_at`` is when its last answer came, in Trio's time."""

    def __init__(self, url: str, row: Mapping[str, Any]) -> None:
        self._client = httpx.AsyncClient(
            base_url=url,
            timeout=_REQUEST_TIMEOUT_SECONDS,
            trust_env=False,
            verify=False,  # plain HTTP: loading the certificates of the world costs more than a rollout
        )
        self._row = row
        self.answered_at = 0.0
        self.calls = 0

    async def seed(self) -> None:
        """:raises RolloutFailed: no session."""
        await self._post("/seed_session", self._row)

    async def play(self, policy: Policy, *, at_most_calls: int | None = None) -> None:
        """Call tools as ``policy`` says, to its end or for ``at_most_calls``. :raises RolloutFailed"""
        result: Mapping[str, Any] | None = None
        while at_most_calls is None or self.calls < at_most_calls:
            try:
                name, arguments = policy.send(result)
            except StopIteration:
                return
            answer = await self._post(f"/{name}", arguments)
            if answer["error"] is not None:
                raise RolloutFailed(f"{name} answered {answer['error']}")
            result = answer["result"]
            self.calls += 1

    async def verify(self) -> Mapping[str, Any]:
        """The result of the rollout. :raises RolloutFailed"""
        result: Mapping[str, Any] = await self._post("/verify", {**self._row, "response": {"output": []}})
        return result

    async def aclose(self) -> None:
        """Close the connection; the server is told nothing."""
        await self._client.aclose()

    async def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        try:
            response = await self._client.post(path, json=body)
        except httpx.TransportError as exc:
            raise RolloutFailed(f"POST {path}: {exc!r}") from exc
        self.answered_at = trio.current_time()
        if response.is_error:
            raise RolloutFailed(f"POST {path} answered {response.status_code}: {response.text}")
        return response.json()
