"""An ASGI app that is a live gymserve: it forwards each request, for checks that are given an app."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import httpx

_TIMEOUT_SECONDS = 30.0
_OF_THE_CONNECTION = {b"connection", b"host", b"content-length", b"transfer-encoding"}

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


def forwarding_app(url: str) -> Callable[[Message, Receive, Send], Awaitable[None]]:
    async def forward(scope: Message, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        headers = [(name, value) for name, value in scope["headers"] if name not in _OF_THE_CONNECTION]
        async with httpx.AsyncClient(base_url=url, timeout=_TIMEOUT_SECONDS, trust_env=False) as client:
            answer = await client.request(scope["method"], scope["path"], content=await _body(receive), headers=headers)
        await send({"type": "http.response.start", "status": answer.status_code, "headers": _kept(answer)})
        await send({"type": "http.response.body", "body": answer.content})

    return forward


async def _body(receive: Receive) -> bytes:
    body = b""
    while True:
        message = await receive()
        chunk: bytes = message.get("body", b"")
        body += chunk
        if not message.get("more_body", False):
            return body


def _kept(answer: httpx.Response) -> list[tuple[bytes, bytes]]:
    return [(name.lower(), value) for name, value in answer.headers.raw if name.lower() not in _OF_THE_CONNECTION]
