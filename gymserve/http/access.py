"""Who may call which route, and what a browser cannot be made to send.

Rollouts are for whoever has the token, or for all where none is set. What is seen of them is for the same, and for this
machine. What acts on them takes the admin token, or, where none is set, comes from this machine.

Where a request is trusted for the place it comes from and not for a token, that place may have a browser that shows a
page of somebody else's: so the page's own address (``Origin``, ``Sec-Fetch-Site``), the name that the browser knows
this server by (``Host``: DNS rebinding) and the kind of the body (no form can send JSON) are looked at too.
"""

import enum
import hashlib
import hmac
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from gymserve.http.dashboard.files import FILES, PAGE_PATH
from gymserve.http.prefix import AsgiApp
from gymserve.http.refusal import Headers, Refusal

_SAFE_METHODS = frozenset({"GET", "HEAD"})
_OTHER_SITES = frozenset({"cross-site", "same-site"})  # https://www.w3.org/TR/fetch-metadata/#sec-fetch-site-header
_PROXY_HEADERS = frozenset({b"forwarded", b"x-forwarded-for", b"x-real-ip"})
_SHOWN_CHARACTERS = 100


class Access(enum.Enum):
    """What a route is for."""

    OPEN = "tells that this server is there"
    ROLLOUT = "plays a rollout"
    OBSERVING = "shows sessions"
    ACTING = "acts on sessions"


_DECLARED = {
    "/": Access.OPEN,
    "/gymserve/health": Access.OPEN,
    "/gymserve/touch": Access.ROLLOUT,  # a client keeps its own
    **dict.fromkeys([*FILES, f"{PAGE_PATH}/"], Access.OPEN),  # what the page shows it asks for, as anybody must
}


def access_to(method: str, path: str) -> Access:
    """What a request asks for: the one place where this is decided.

    Under ``/gymserve/`` GET looks and everything else acts, so that no route can be forgotten here.
    """
    path = "/" + path.lstrip("/")  # as the router reads it
    if path in _DECLARED:
        return _DECLARED[path]
    if path.split("/")[1] != "gymserve":
        return Access.ROLLOUT
    return Access.OBSERVING if method in _SAFE_METHODS else Access.ACTING


@dataclass(frozen=True, slots=True)
class Denial:
    """Why a request is not let in. ``challenge``: how a caller could be known (RFC 6750 section 3)."""

    refusal: Refusal
    challenge: str | None = None

    def headers(self) -> Headers:
        if self.challenge is None:
            return self.refusal.headers()
        return [*self.refusal.headers(), (b"www-authenticate", self.challenge.encode("ascii"))]


class _Role(enum.Enum):
    ROLLOUT = "token"
    ADMIN = "admin token"


class _Request:
    """What of a request tells who sends it."""

    def __init__(self, scope: Any) -> None:
        self.is_safe = scope["method"] in _SAFE_METHODS
        self._client = scope.get("client")
        self._lines: Headers = scope["headers"]
        self._headers = dict(self._lines)

    def __getitem__(self, header: bytes) -> str:
        value: bytes = self._headers.get(header, b"")
        return value.decode("latin-1").strip()

    @property
    def bearer(self) -> str | None:
        """The token of RFC 6750 section 2.1, if one is sent."""
        if b"authorization" not in self._headers:
            return None
        scheme, _, token = self[b"authorization"].partition(" ")
        # Of several, a proxy before us may have looked at another one.
        is_sole = sum(name == b"authorization" for name, _ in self._lines) == 1
        return token.strip() if scheme.lower() == "bearer" and is_sole else None

    @property
    def is_local(self) -> bool:
        """Whether it comes from this machine, and not from beyond a proxy on it that says so."""
        return self._client is not None and is_loopback(self._client[0]) and _PROXY_HEADERS.isdisjoint(self._headers)

    @property
    def is_json(self) -> bool:
        return self[b"content-type"].partition(";")[0].strip().lower() == "application/json"


class Guard:
    """Lets requests in, or says why not."""

    def __init__(self, *, token: str | None = None, admin_token: str | None = None, hosts: Iterable[str] = ()) -> None:
        """:param admin_token: is good for all that ``token`` is good for.
        :param hosts: names by which a browser may know this server, beside ``localhost`` and addresses, which no DNS
        can lend to others.
        """
        self._tokens = {role: _digest(text) for role, text in _given(token, admin_token)}
        self._hosts = frozenset(map(_hostname, hosts)) - {""}  # that of an IPv6 address without brackets

    @property
    def is_open(self) -> bool:
        """Whether rollouts take no token."""
        return _Role.ROLLOUT not in self._tokens

    def denial(self, scope: Any) -> Denial | None:
        """None for a request that is let in."""
        access = access_to(scope["method"], scope["path"])
        if access is Access.OPEN:
            return None
        request = _Request(scope)
        role = self._role(request.bearer)
        return self._unknown(access, role, request) or self._led_astray(access, role, request)

    def _role(self, bearer: str | None) -> _Role | None:
        if bearer is None:
            return None
        digest = _digest(bearer)
        # Digests, so that not even the length of a token shows in the time that this takes; all of them, always.
        held = [role for role, token in self._tokens.items() if hmac.compare_digest(digest, token)]
        return held[-1] if held else None

    def _unknown(self, access: Access, role: _Role | None, request: _Request) -> Denial | None:
        match access:
            case Access.ACTING if _Role.ADMIN not in self._tokens:
                return None if request.is_local else _ONLY_FROM_HERE
            case Access.ACTING:
                if role is _Role.ROLLOUT:
                    return _NOT_THE_ADMINS
                needed = True
            case Access.OBSERVING:
                needed = bool(self._tokens) and not request.is_local
            case _:
                needed = not self.is_open
        return _unauthorized(access, request) if needed and role is None else None

    def _led_astray(self, access: Access, role: _Role | None, request: _Request) -> Denial | None:
        host, origin = request[b"host"], request[b"origin"]
        if origin and not self._is_own(origin, host):  # of every request, also with a token: MCP's specification has it
            return _cross_site(origin)
        if role is not None:  # a browser sends no token of itself
            return None
        if (origin or access is not Access.ROLLOUT) and not self._knows(host):
            return _wrong_host(host)
        if not request.is_safe and request[b"sec-fetch-site"].lower() in _OTHER_SITES:
            return _cross_site(request[b"sec-fetch-site"])
        if access is Access.ACTING and not request.is_json:
            return _NOT_JSON
        return None

    def _is_own(self, origin: str, host: str) -> bool:
        _, separator, authority = origin.lower().partition("://")
        name = _hostname(authority)
        # Another port of an address is another program; a name that was allowed may be a proxy's, on any port.
        return bool(separator) and (authority == host.lower() or (name in self._hosts and _address(name) is None))

    def _knows(self, host: str) -> bool:
        name = _hostname(host)
        if not host or name in self._hosts:  # without one (HTTP/1.0) it is no browser
            return True
        return name == "localhost" or name.endswith(".localhost") or _address(name) is not None


def guarded(app: AsgiApp, guard: Guard) -> AsgiApp:
    """``app`` behind ``guard``."""

    async def admitting(scope: Any, receive: Any, send: Any) -> None:
        denial = guard.denial(scope) if scope["type"] == "http" else None
        if denial is None:
            return await app(scope, receive, send)
        await send({"type": "http.response.start", "status": denial.refusal.status, "headers": denial.headers()})
        await send({"type": "http.response.body", "body": denial.refusal.body()})

    return admitting


def is_loopback(host: str) -> bool:
    """Whether ``host``, an address, is this machine's own for itself."""
    address = _address(host)
    mapped = getattr(address, "ipv4_mapped", None)  # on a socket for both: ::ffff:127.0.0.1
    return address is not None and (mapped or address).is_loopback


def _given(token: str | None, admin_token: str | None) -> list[tuple[_Role, str]]:
    """The stronger last."""
    pairs = ((_Role.ROLLOUT, token), (_Role.ADMIN, admin_token))
    return [(role, text) for role, text in pairs if text is not None]


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("latin-1")).digest()


def _hostname(authority: str) -> str:
    """``HOST:PORT`` without the port, in lower case; empty where it is none."""
    try:
        return (urlsplit(f"//{authority}").hostname or "").removesuffix(".")
    except ValueError:
        return ""


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


# -- what is said ----------------------------------------------------------------------------------------------------

_CHALLENGE = 'Bearer realm="gymserve"'

_NOT_THE_ADMINS = Denial(
    Refusal(403, "forbidden", "acting on sessions takes the admin token; the token that was sent is the rollouts'"),
    f'{_CHALLENGE}, error="insufficient_scope"',
)
_ONLY_FROM_HERE = Denial(
    Refusal(
        403,
        "forbidden",
        "without an admin token sessions are acted on from gymserve's own machine only: call it there, "
        "or start it with --admin-token-file",
    )
)
_NOT_JSON = Denial(
    Refusal(415, "not_json", "send Content-Type: application/json, which no other site's form can, or the admin token")
)


def _unauthorized(access: Access, request: _Request) -> Denial:
    name, flag, variable = ("token", "--token-file", "GYMSERVE_TOKEN")
    if access is Access.ACTING:
        name, flag, variable = ("admin token", "--admin-token-file", "GYMSERVE_ADMIN_TOKEN")
    if request.bearer is None:
        said, challenge = f"this takes the {name}", _CHALLENGE
    else:
        said, challenge = f"the token that was sent is not the {name}", f'{_CHALLENGE}, error="invalid_token"'
    detail = f"{said}: send it as Authorization: Bearer TOKEN; gymserve has it from {flag} or {variable}"
    return Denial(Refusal(401, "unauthorized", detail), challenge)


def _cross_site(origin: str) -> Denial:
    detail = f"a page of another site sent this ({origin[:_SHOWN_CHARACTERS]}); gymserve answers pages of its own only"
    return Denial(Refusal(403, "cross_site", detail))


def _wrong_host(host: str) -> Denial:
    name = _hostname(host)[:_SHOWN_CHARACTERS]
    detail = (
        f"this gymserve is not known as {name!r}: call it by an address, send its token, "
        "or start it with --allowed-host and that name"
    )
    return Denial(Refusal(421, "wrong_host", detail))
