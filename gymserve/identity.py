"""Who a session is, on the wire and in a log."""

import hashlib
import re
import secrets
from collections.abc import Iterable, Sequence
from functools import lru_cache

from itsdangerous import BadSignature, Signer

#: The request header in which NeMo Gym's MCP clients name their session.
TOKEN_HEADER = "X-NeMo-Gym-Session-Token"

_SHORT_DIGITS = 12
_MOST_CHARACTERS = 200  # of what may be a signed id
_REMEMBERED = 16_384  # ids, and as many signed ones


def new_instance() -> str:
    """What tells one process from another: 8 hex digits."""
    return secrets.token_hex(4)


def new_session_id(instance: str) -> str:
    """128 random bits as 32 hex digits, and the process that made it."""
    return f"{secrets.token_hex(16)}-{instance}"


def instance_of(session_id: str) -> str:
    """The process that made the id."""
    return session_id.rpartition("-")[2]


def new_secret() -> str:
    return secrets.token_hex(32)


def short(session_id: str) -> str:
    """The part of an id that logs and listings show; it opens nothing."""
    return session_id[:_SHORT_DIGITS]


def session_fields(session_id: str | None, label: str | None, traceparent: str | None) -> dict[str, str]:
    """What a log line says of the session that it concerns, as far as it is known."""
    named = None if session_id is None else short(session_id)
    fields = {"session": named, "label": label, "traceparent": traceparent}
    return {name: value for name, value in fields.items() if value is not None}


class _SignedId:
    """A session's id as ``<id>.<signature>``, which only who knows the secret can make. What is signed for one ``salt``
    is not accepted for another.
    """

    def __init__(self, secret_keys: Sequence[str], *, salt: str) -> None:
        self._signer = Signer(
            list(reversed(secret_keys)),  # itsdangerous signs with the last
            salt=salt,
            digest_method=hashlib.sha256,
        )
        # Both are asked of a session at each of its calls, and cost more than most of what else a call does.
        self.value = lru_cache(_REMEMBERED)(self._sign)
        self._unsigned = lru_cache(_REMEMBERED)(self._unsign)

    def _sign(self, session_id: str) -> str:
        return self._signer.sign(session_id).decode("ascii")

    def _unsign(self, value: str) -> str | None:
        try:
            return self._signer.unsign(value).decode("ascii")
        except (BadSignature, UnicodeError):
            return None

    def session_id(self, value: str | None) -> str | None:
        """The session that ``value`` names, or None where it is absent or was not signed by us."""
        return None if value is None or len(value) > _MOST_CHARACTERS else self._unsigned(value)


class SessionCookie(_SignedId):
    """The signed cookie that names a session.

    Its name differs between instances of different ``name``, since a NeMo Gym agent sends every server's cookies to
    all of them. Its value is in ``[A-Za-z0-9._-]`` only: aiohttp quotes anything else on its way back.
    """

    def __init__(self, name: str, secret_keys: Sequence[str]) -> None:
        """:param secret_keys: as `SessionToken`'s."""
        super().__init__(secret_keys, salt="gymserve.session")
        self.name = f"gymserve_{hashlib.sha256(name.encode()).hexdigest()[:8]}"
        self._pair = re.compile(
            rf"(?:^|;)\s*{self.name}\s*=\s*(?P<quote>\"?)([A-Za-z0-9._-]+)(?P=quote)\s*(?=;|$)".encode("ascii")
        )

    def header(self, session_id: str) -> str:
        """The ``Set-Cookie`` header. No Secure, Domain or Max-Age: aiohttp drops such a cookie on plain HTTP."""
        return f"{self.name}={self.value(session_id)}; Path=/; HttpOnly; SameSite=Lax"

    def named_in(self, headers: Iterable[tuple[bytes, bytes]]) -> str | None:
        """The session that the cookies in a request's headers (their names in lower case) name, or None. A jar may hold
        a stale one too.
        """
        for name, value in headers:
            if name == b"cookie":
                for pair in self._pair.finditer(value):
                    session_id = self.session_id(pair[2].decode("ascii"))
                    if session_id is not None:
                        return session_id
        return None


class SessionToken(_SignedId):
    """The signed value of `TOKEN_HEADER` that names a session to MCP, whose clients keep no cookies."""

    def __init__(self, secret_keys: Sequence[str]) -> None:
        """:param secret_keys: the first signs; all are accepted, so that a secret can be changed without losing
        sessions.
        """
        super().__init__(secret_keys, salt="gymserve.mcp")
