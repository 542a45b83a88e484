"""How an environment server is reached: a byte stream for an episode, and its ``/schema``."""

import ssl
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import httpx
import trio

from gymserve.address import EnvironmentAddress


class NotAnEnvironmentServer(Exception):
    """It answers HTTP, but not as an OpenEnv server does. ``status`` is the status it answered ``GET /schema`` with."""

    def __init__(self, sentence: str, status: int) -> None:
        super().__init__(sentence)
        self.status = status


class Network(Protocol):
    """What an episode needs of the outside world; tests put memory streams in its place."""

    async def open_stream(self, address: EnvironmentAddress) -> trio.abc.Stream:
        """A connection. :raises OSError: refused, unreachable, unknown host, or (`ssl.SSLError`) a certificate."""

    async def fetch_schema(self, address: EnvironmentAddress, headers: Sequence[tuple[str, str]]) -> Mapping[str, Any]:
        """The server's ``GET /schema``.

        :raises httpx.RequestError: it could not be asked, did not answer, or not in a known encoding.
        :raises NotAnEnvironmentServer: it answered something else.
        """

    async def is_alive(self, address: EnvironmentAddress, headers: Sequence[tuple[str, str]]) -> bool:
        """Whether the server answers ``GET /health`` within the connect timeout, whatever it answers."""


class TcpNetwork:
    """TCP, TLS with verified certificates; proxy variables are ignored, as an environment server is a near one."""

    def __init__(self, *, connect_timeout_seconds: float) -> None:
        self._connect_timeout_seconds = connect_timeout_seconds
        self._tls = ssl.create_default_context()

    async def open_stream(self, address: EnvironmentAddress) -> trio.abc.Stream:
        with trio.fail_after(self._connect_timeout_seconds):
            tcp = await trio.open_tcp_stream(address.host, address.port)
            if not address.tls:
                return tcp
            tls = trio.SSLStream(tcp, self._tls, server_hostname=address.host, https_compatible=True)
            try:
                await tls.do_handshake()
            except BaseException as exc:
                await trio.aclose_forcefully(tcp)
                if isinstance(exc, trio.BrokenResourceError) and isinstance(exc.__cause__, OSError):
                    raise exc.__cause__ from None  # what broke it: the certificate, a reset
                raise
            return tls

    async def fetch_schema(self, address: EnvironmentAddress, headers: Sequence[tuple[str, str]]) -> Mapping[str, Any]:
        async with self._client() as client:
            response = await client.get(f"{address.url}/schema", headers=list(headers))
        return read_schema(response.status_code, response.content)

    async def is_alive(self, address: EnvironmentAddress, headers: Sequence[tuple[str, str]]) -> bool:
        try:
            async with self._client() as client, client.stream("GET", f"{address.url}/health", headers=list(headers)):
                return True  # whatever the body is, and however it is encoded
        except httpx.TransportError:
            return False

    def _client(self) -> httpx.AsyncClient:
        timeout = httpx.Timeout(self._connect_timeout_seconds)
        return httpx.AsyncClient(verify=self._tls, trust_env=False, timeout=timeout)


def read_schema(status: int, content: bytes) -> Mapping[str, Any]:
    """The schema in an answer. :raises NotAnEnvironmentServer: it holds none."""
    if status != 200:
        raise NotAnEnvironmentServer(f"the server answered HTTP {status} to GET /schema", status)
    try:
        schema = httpx.Response(200, content=content).json()
    except (ValueError, RecursionError):
        schema = None
    if not isinstance(schema, dict) or not isinstance(schema.get("action"), dict):
        raise NotAnEnvironmentServer("the server's GET /schema is no OpenEnv schema", status)
    return schema
