"""Where an environment server is."""

from dataclasses import dataclass
from urllib.parse import urlsplit

_TLS = {"http": False, "ws": False, "https": True, "wss": True}
ACCEPTED_FORMS = "host:port, http(s)://host[:port][/prefix] or ws(s)://host[:port][/prefix]/ws"

ACCEPTED_SERVERS = f"{ACCEPTED_FORMS}, and after it slots=COUNT for a limit of its own"


@dataclass(frozen=True, slots=True)
class EnvironmentAddress:
    """An OpenEnv server's address. ``prefix`` is the path before ``/ws``, without a slash at its end."""

    host: str
    port: int
    tls: bool = False
    prefix: str = ""

    @property
    def netloc(self) -> str:
        """``host:port`` as in a Host header; without a port that the scheme implies (RFC 9110 section 7.2)."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.tls else 80) else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.netloc}{self.prefix}"

    @property
    def websocket_path(self) -> str:
        return f"{self.prefix}/ws"

    def __str__(self) -> str:
        return self.url


@dataclass(frozen=True, slots=True)
class Server:
    """An environment server to use; ``slots``: the most that may be held there, None for as many as it has."""

    address: EnvironmentAddress
    slots: int | None = None


def parse_server(text: str) -> Server:
    """``ADDRESS`` or ``ADDRESS slots=COUNT``. :raises ValueError: as `parse_address`, or the count is none."""
    address, *limits = text.split() or [""]
    match limits:
        case []:
            return Server(parse_address(address))
        case [limit] if (count := limit.removeprefix("slots=")) != limit:
            if not (count.isascii() and count.isdigit() and len(count) < 10 and int(count)):
                raise ValueError("slots must be a whole number, 1 or more")
            return Server(parse_address(address), int(count))
    raise ValueError(f"after the address only slots=COUNT may stand; accepted: {ACCEPTED_SERVERS}")


def parse_address(text: str) -> EnvironmentAddress:
    """The address in ``text``.

    :raises ValueError: it is none of the accepted forms; the message is a sentence that says which part is wrong.
    """
    scheme, separator, _ = text.partition("://")
    try:
        parts = urlsplit(text if separator else f"http://{text}")
    except ValueError:  # brackets without an IPv6 address in them
        raise ValueError(f"it names no host; accepted: {ACCEPTED_FORMS}") from None
    if parts.scheme not in _TLS:
        raise ValueError(f"scheme {scheme!r} is not http, https, ws or wss; accepted: {ACCEPTED_FORMS}")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError(f"no user, query or fragment may stand in it; accepted: {ACCEPTED_FORMS}")
    if not parts.hostname or not text.isascii() or any(character.isspace() for character in text):
        raise ValueError(f"it names no host; accepted: {ACCEPTED_FORMS}")
    try:
        port = parts.port
    except ValueError:
        raise ValueError("its port is not a number from 1 to 65535") from None
    if port == 0 or (port is None and not separator):
        raise ValueError(f"its port is missing; accepted: {ACCEPTED_FORMS}")
    tls = _TLS[parts.scheme]
    prefix = parts.path.rstrip("/")
    if parts.scheme in ("ws", "wss"):
        if prefix and not prefix.endswith("/ws"):
            raise ValueError(f"a WebSocket's address ends in /ws; accepted: {ACCEPTED_FORMS}")
        prefix = prefix.removesuffix("/ws")
    return EnvironmentAddress(parts.hostname, port or (443 if tls else 80), tls, prefix)
