"""How an environment server is reached: a byte stream for an episode, and its ``/schema``."""

import ipaddress
import socket
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, Protocol

import httpx
import trio

from gymserve.address import EnvironmentAddress
from gymserve.descriptors import Descriptors
from gymserve.nesting import is_too_deep
from gymserve.partition import PARTITION_SECONDS, notice_partition

_MAX_SCHEMA_BYTES = 16 * 2**20

# OpenSSL's x509_vfy.h: another host name, another address; not yet valid, expired
_OTHER_NAME = frozenset({62, 64})
_OTHER_TIME = frozenset({9, 10})
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"})  # older and newer OpenSSL


class NotAnEnvironmentServer(Exception):
    """It answers HTTP, but not as an OpenEnv server does. ``status`` is the status it answered ``GET /schema`` with."""

    def __init__(self, sentence: str, status: int) -> None:
        super().__init__(sentence)
        self.status = status


class Network(Protocol):
    """What an episode needs of the outside world; tests put memory streams in its place."""

    async def open_stream(self, address: EnvironmentAddress) -> trio.abc.Stream:
        """A connection.

        :raises OSError: refused, unreachable, unknown host, (`ssl.SSLError`) a certificate, or (`OutOfDescriptors`) a
            want of our own.
        """

    async def fetch_schema(self, address: EnvironmentAddress, headers: Sequence[tuple[str, str]]) -> Mapping[str, Any]:
        """The server's ``GET /schema``.

        :raises httpx.RequestError: it could not be asked, did not answer, or not in a known encoding.
        :raises NotAnEnvironmentServer: it answered something else. :raises OutOfDescriptors: as `open_stream`.
        """

    async def is_alive(self, address: EnvironmentAddress, headers: Sequence[tuple[str, str]]) -> bool:
        """Whether the server answers ``GET /health`` within the connect timeout, whatever it answers."""


class TcpNetwork:
    """TCP, TLS with verified certificates; proxy variables are ignored, as an environment server is a near one."""

    def __init__(
        self,
        *,
        connect_timeout_seconds: float,
        partition_seconds: float = PARTITION_SECONDS,
        descriptors: Descriptors | None = None,
    ) -> None:
        """:param partition_seconds: as `notice_partition` has it. :param descriptors: None: this process's."""
        self._connect_timeout_seconds = connect_timeout_seconds
        self._partition_seconds = partition_seconds
        self._descriptors = descriptors or Descriptors()
        self._tls = ssl.create_default_context()

    async def open_stream(self, address: EnvironmentAddress) -> trio.abc.Stream:
        with trio.fail_after(self._connect_timeout_seconds):
            tcp = await self._open_tcp_stream(address.host, address.port)
            with suppress(OSError):  # macOS: it is broken already, and whoever uses it will see
                notice_partition(tcp.socket, self._partition_seconds)
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

    async def _open_tcp_stream(self, host: str, port: int) -> trio.SocketStream:
        """A host that is a number has one address: `trio.open_tcp_stream`, which races several with a task and a scope
        for each, costs a tenth of a seed more.
        """
        family = _family(host)
        if family is None:
            self._descriptors.check()  # without any, a name that is looked up seems not to exist
            return await trio.open_tcp_stream(host, port)
        with self._descriptors.opening():
            tcp = trio.socket.socket(family, trio.socket.SOCK_STREAM)
        try:
            self._descriptors.check_opened(tcp.fileno())
            await tcp.connect((host, port))
        except BaseException:
            tcp.close()
            raise
        return trio.SocketStream(tcp)

    async def fetch_schema(self, address: EnvironmentAddress, headers: Sequence[tuple[str, str]]) -> Mapping[str, Any]:
        self._descriptors.check()
        async with (
            self._client() as client,
            client.stream("GET", f"{address.url}/schema", headers=list(headers)) as response,
        ):
            content = bytearray()
            async for part in response.aiter_bytes():
                content += part
                if len(content) > _MAX_SCHEMA_BYTES:
                    sentence = f"the server's GET /schema is larger than {_MAX_SCHEMA_BYTES} bytes"
                    raise NotAnEnvironmentServer(sentence, response.status_code)
        return read_schema(response.status_code, bytes(content))

    async def is_alive(self, address: EnvironmentAddress, headers: Sequence[tuple[str, str]]) -> bool:
        try:
            async with self._client() as client, client.stream("GET", f"{address.url}/health", headers=list(headers)):
                return True  # whatever the body is, and however it is encoded
        except (httpx.TransportError, OSError):  # OSError: descriptors are out, even for httpx's own modules
            return False

    def _client(self) -> httpx.AsyncClient:
        timeout = httpx.Timeout(self._connect_timeout_seconds)
        return httpx.AsyncClient(verify=self._tls, trust_env=False, timeout=timeout)


@lru_cache
def _family(host: str) -> int | None:
    """Of a host that is a number; None of a name."""
    try:
        return socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
    except ValueError:
        return None


def tls_fault(exc: ssl.SSLError) -> str:
    """What is wrong with the server's TLS, and what to do, in words for whoever runs gymserve."""
    if isinstance(exc, ssl.SSLCertVerificationError):
        said = exc.verify_message.rstrip(".")
        if exc.verify_code in _OTHER_NAME:
            return f"its certificate is for another name ({said}); give --env the name that stands in it"
        if exc.verify_code in _OTHER_TIME:
            return f"its certificate is not valid now ({said}); renew it, or set this machine's clock"
        return (
            f"its certificate is not trusted ({said}); if it should be, have the variable SSL_CERT_FILE name a file "
            "with the certificate of its authority (PEM)"
        )
    if exc.reason in _NO_TLS:
        return f"it does not speak TLS ({exc.reason}); without TLS its address begins with http:// or ws://"
    return str(exc)


def read_schema(status: int, content: bytes) -> Mapping[str, Any]:
    """The schema in an answer. :raises NotAnEnvironmentServer: it holds none."""
    if 300 <= status < 400:
        raise NotAnEnvironmentServer(
            f"the server answered HTTP {status} to GET /schema, and redirects are not followed: give its own address",
            status,
        )
    if status != 200:
        raise NotAnEnvironmentServer(f"the server answered HTTP {status} to GET /schema", status)
    try:
        schema = None if is_too_deep(content) else httpx.Response(200, content=content).json()
    except ValueError:
        schema = None
    if not isinstance(schema, dict) or not isinstance(schema.get("action"), dict):
        raise NotAnEnvironmentServer("the server's GET /schema is no OpenEnv schema", status)
    return schema
