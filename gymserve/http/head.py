"""A request's head: what we refuse in it, and what an ASGI app is told of it."""

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from gymserve.http.refusal import Headers, Refusal

ABSOLUTE_FORM = re.compile(rb"[A-Za-z][A-Za-z0-9+.-]*://[^/?]*")
NO_WEBSOCKETS = (
    "gymserve speaks plain HTTP; WebSockets belong to the environment server behind it, whose URL is gymserve's --env"
)


@dataclass(frozen=True, slots=True)
class Head:
    """A request line and its headers, their names in lower case; the version as in ``1.1``."""

    method: bytes
    target: bytes
    http_version: bytes
    headers: Headers


def objection(request: Head, *, head_bytes: int) -> Refusal | None:
    """Why this head cannot be served, or None. h11 has checked its syntax, framing and Host already."""
    if _size(request) > head_bytes:
        return head_too_large(head_bytes)
    if not request.http_version.startswith(b"1."):
        return Refusal(
            505,
            "http_version_unsupported",
            f"HTTP/{request.http_version.decode()} is not spoken here; use HTTP/1.1",
        )
    if _wants_websocket(request):
        return Refusal(400, "websocket_unsupported", NO_WEBSOCKETS)
    return _misleading(request)


def head_too_large(head_bytes: int) -> Refusal:
    """431: RFC 6585 section 5."""
    return Refusal(
        431,
        "head_too_large",
        f"the request line and headers are larger than {head_bytes} bytes; send less in headers or the query",
    )


def bad_request(detail: str, status: int = 400) -> Refusal:
    """400, or the status that h11 finds more fitting."""
    return Refusal(status, "bad_request", detail)


def build_scope(request: Head, **connection: Any) -> dict[str, Any]:
    """The ASGI HTTP scope (asgi 3.0, spec 2.3); `connection` holds what the head does not say."""
    raw_path, _, query = _origin_form(request.target).partition(b"?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.0" if request.http_version == b"1.0" else "1.1",
        "method": request.method.decode("ascii"),
        "path": unquote(raw_path.decode("ascii")) if b"%" in raw_path else raw_path.decode("ascii"),
        "raw_path": raw_path,
        "query_string": query,
        "root_path": "",
        "headers": list(request.headers),
        **connection,
    }


def values(request: Head, name: bytes) -> list[bytes]:
    """The comma-separated values of a header, over all its lines, lower-case."""
    lines = [value for key, value in request.headers if key == name]
    return [item.strip().lower() for line in lines for item in line.split(b",")]


def _size(request: Head) -> int:
    return len(request.method) + len(request.target) + sum(len(k) + len(v) + 4 for k, v in request.headers)


def _wants_websocket(request: Head) -> bool:
    """Other protocols offered are ignored, as RFC 9110 section 7.8 allows; so are all of them in HTTP/1.0."""
    return request.http_version != b"1.0" and b"websocket" in values(request, b"upgrade")


def _misleading(request: Head) -> Refusal | None:
    if values(request, b"transfer-encoding") and values(request, b"content-length"):
        # RFC 9112 section 6.3: a proxy that reads the other one sees another request (smuggling).
        return bad_request("a request has either Transfer-Encoding or Content-Length, not both")
    if request.method == b"CONNECT" or not (_origin_form(request.target).startswith(b"/") or request.target == b"*"):
        return bad_request("the request target must be a path; gymserve is no proxy")
    return None


def _origin_form(target: bytes) -> bytes:
    """`http://host/path?query` as `/path?query`: RFC 9112 section 3.2.2 has every server accept both."""
    absolute = ABSOLUTE_FORM.match(target)
    if absolute is None:
        return target
    rest = target[absolute.end() :]
    return rest if rest.startswith(b"/") else b"/" + rest
