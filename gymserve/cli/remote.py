"""A running gymserve, asked over HTTP by the commands that steer it."""

import json
import ssl
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, cast

import httpx
import trio

from gymserve.cli.process import tell
from gymserve.cli.refusals import masked, printable
from gymserve.verdict import is_refused, sentence

_ANSWER_SECONDS = 10.0
_DENIED = (401, 403)
_NEEDED_TO_ACT = "GYMSERVE_ADMIN_TOKEN must hold its admin token"
_NEEDED_TO_LOOK = "GYMSERVE_TOKEN must hold its token, or GYMSERVE_ADMIN_TOKEN its admin token"


class Failed(Exception):
    """What was asked for could not be done; the text is one line: what was tried, and what to do."""


class Unreachable(Failed):
    """No answer came. ``refused``: nobody listens there."""

    def __init__(self, text: str, *, refused: bool) -> None:
        super().__init__(text)
        self.refused = refused


class Denied(Failed):
    """gymserve, or what stands before it, answered with an error; ``kind`` is gymserve's word for it, if it was."""

    def __init__(self, text: str, status: int, kind: str | None) -> None:
        super().__init__(text)
        self.status = status
        self.kind = kind


class Remote:
    """The gymserve at ``url``."""

    def __init__(self, client: httpx.AsyncClient, url: str) -> None:
        self._client = client
        self.url = url

    async def get(self, path: str, *, within_seconds: float = _ANSWER_SECONDS) -> Any:
        """The JSON that is answered. :raises Failed: none is."""
        return await self._ask("GET", path, None, within_seconds)

    async def post(self, path: str, body: Mapping[str, Any], *, within_seconds: float | None = _ANSWER_SECONDS) -> Any:
        """The JSON that is answered; None waits for as long as it takes. :raises Failed: none is."""
        return await self._ask("POST", path, body, within_seconds)

    @asynccontextmanager
    async def lines(self, path: str, body: Mapping[str, Any]) -> AsyncIterator[AsyncIterator[str]]:
        """The lines of an answer that goes on and on. :raises Failed: there is none, or it breaks off."""
        waits = httpx.Timeout(_ANSWER_SECONDS, read=None)
        try:
            async with self._client.stream("POST", path, json=body, timeout=waits) as response:
                if not response.is_success:
                    await response.aread()
                    raise self._denied(response)
                async with aclosing(cast(AsyncGenerator[str, None], response.aiter_lines())) as lines:
                    yield lines
        except httpx.TransportError as exc:
            raise self._unreachable(exc) from exc

    async def _ask(self, method: str, path: str, body: Mapping[str, Any] | None, within_seconds: float | None) -> Any:
        waits = httpx.Timeout(_ANSWER_SECONDS, read=within_seconds)
        try:
            response = await self._client.request(method, path, json=body, timeout=waits)
        except httpx.TransportError as exc:
            raise self._unreachable(exc) from exc
        if response.is_success and (answered := _object(response)):
            return answered
        raise self._denied(response)

    def _unreachable(self, exc: httpx.TransportError) -> Unreachable:
        text = f"no gymserve can be reached at {self._shown}: {printable(_why(exc))}; check that it is running there"
        return Unreachable(text, refused=is_refused(exc))

    def _denied(self, response: httpx.Response) -> Denied:
        body = _object(response)
        kind = body.get("error")
        if kind is None:
            what = f"{self._shown} answered {response.status_code} to {response.request.method} {response.url.path}"
            return Denied(f"{what}; check that it is a gymserve, and of this version", response.status_code, None)
        what = f"{self._shown} refuses: {printable(_told(body.get('detail')))}"
        if response.status_code in _DENIED:
            what += f"; {_NEEDED_TO_LOOK if response.request.method == 'GET' else _NEEDED_TO_ACT}"
        return Denied(what, response.status_code, str(kind))

    @property
    def _shown(self) -> str:
        return printable(masked(self.url))


def _why(exc: httpx.TransportError) -> str:
    if isinstance(exc, httpx.TimeoutException):
        return "it did not answer in time"
    return sentence(exc)


def _object(response: httpx.Response) -> dict[str, Any]:
    """Empty where it is none."""
    try:
        body = response.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _told(detail: Any) -> str:
    faults = detail if isinstance(detail, list) else [detail]
    return "; ".join(str(fault.get("msg", fault)) if isinstance(fault, dict) else str(fault) for fault in faults)


def steer(url: str, token: str | None, job: Callable[[Remote], Awaitable[int]]) -> int:
    """The status of ``job`` with the gymserve at ``url``; 1 with a line on stderr where it failed."""
    try:
        return trio.run(_with_remote, url, token, job)
    except Failed as failure:
        warn(str(failure))
        return 1


async def _with_remote(url: str, token: str | None, job: Callable[[Remote], Awaitable[int]]) -> int:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    # The authorities that this machine trusts; without TLS, loading them would be most of the work.
    verify = ssl.create_default_context() if url.startswith("https:") else False
    async with httpx.AsyncClient(base_url=url, headers=headers, trust_env=False, verify=verify) as client:
        return await job(Remote(client, url))


def warn(line: str) -> None:
    tell(f"gymserve: {line}")


def write_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
