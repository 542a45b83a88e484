"""Who a session is, on the wire and in a log."""

import hashlib
import secrets
from collections.abc import Sequence

from itsdangerous import BadSignature, Signer

#: The request header in which NeMo Gym's MCP clients name their session.
TOKEN_HEADER = "X-NeMo-Gym-Session-Token"

_SHORT_DIGITS = 12


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

    def value(self, session_id: str) -> str:
        return self._signer.sign(session_id).decode("ascii")

    def session_id(self, value: str | None) -> str | None:
        """The session that ``value`` names, or None where it is absent or was not signed by us."""
        if value is None:
            return None
        try:
            return self._signer.unsign(value).decode("ascii")
        except (BadSignature, UnicodeError):
            return None


class SessionCookie(_SignedId):
    """The signed cookie that names a session.

    Its name differs between instances of different ``name``, since a NeMo Gym agent sends every server's cookies to
    all of them. Its value is in ``[A-Za-z0-9._-]`` only: aiohttp quotes anything else on its way back.
    """

    def __init__(self, name: str, secret_keys: Sequence[str]) -> None:
        """:param secret_keys: as `SessionToken`'s."""
        super().__init__(secret_keys, salt="gymserve.session")
        self.name = f"gymserve_{hashlib.sha256(name.encode()).hexdigest()[:8]}"

    def header(self, session_id: str) -> str:
        """The ``Set-Cookie`` header. No Secure, Domain or Max-Age: aiohttp drops such a cookie on plain HTTP."""
        return f"{self.name}={self.value(session_id)}; Path=/; HttpOnly; SameSite=Lax"


class SessionToken(_SignedId):
    """The signed value of `TOKEN_HEADER` that names a session to MCP, whose clients keep no cookies."""

    def __init__(self, secret_keys: Sequence[str]) -> None:
        """:param secret_keys: the first signs; all are accepted, so that a secret can be changed without losing
        sessions.
        """
        super().__init__(secret_keys, salt="gymserve.mcp")
