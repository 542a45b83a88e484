"""Who is let in, as the settings have it: tokens, names, certificates."""

import os
import ssl
import stat
from dataclasses import dataclass
from typing import BinaryIO
from urllib.parse import urlsplit

import structlog
from pydantic import SecretStr

from gymserve.cli.refusals import Refused, printable
from gymserve.http.access import Guard, is_loopback
from gymserve.settings import ACCEPTED_TOKENS, ServeSettings, is_own_token

_log = structlog.get_logger()

_TOKEN_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Entrance:
    """``tls`` is None for plain HTTP."""

    guard: Guard
    tls: ssl.SSLContext | None

    @property
    def scheme(self) -> str:
        return "http" if self.tls is None else "https"


def read_entrance(settings: ServeSettings) -> Entrance:
    """:raises Refused: a file cannot be used, or settings do not go together."""
    guard = Guard(
        token=_token("token", settings.token, settings.token_file),
        admin_token=_token("admin-token", settings.admin_token, settings.admin_token_file),
        hosts=[settings.host, *settings.allowed_host],
    )
    return Entrance(guard, _tls(settings.tls_cert, settings.tls_key))


def tell_of_risk(url: str, entrance: Entrance) -> None:
    """Warn where others can reach ``url`` and nothing keeps them out."""
    if entrance.guard.is_open and not is_loopback(urlsplit(url).hostname or ""):
        _log.warning(
            "bound beyond this machine without a token: whoever reaches the port can use the environments and take "
            "all their slots; set --token-file, or see to it that only clients of yours reach it",
            url=url,
        )


def _token(name: str, given: SecretStr | None, path: str | None) -> str | None:
    flag, variable = f"--{name}-file", f"GYMSERVE_{name.replace('-', '_').upper()}"
    if path is None:
        return None if given is None else given.get_secret_value()
    if given is not None:
        raise Refused(f"{variable} and {flag} name the same token; give one")
    with _opened(path, flag) as file:
        _warn_if_public(file)
        data = file.read(_TOKEN_BYTES)
    text = data.decode("latin-1").removesuffix("\n").removesuffix("\r")
    if not is_own_token(text):
        raise Refused(f"{flag}: what {printable(path)} holds is not accepted: {ACCEPTED_TOKENS}")
    return text


def _tls(certificate: str | None, key: str | None) -> ssl.SSLContext | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise Refused("--tls-cert and --tls-key: HTTPS takes both, the certificate chain and its private key")
    _opened(certificate, "--tls-cert").close()
    with _opened(key, "--tls-key") as file:
        _warn_if_public(file)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(certificate, key, password="")  # else OpenSSL would ask for one on the terminal
    except ssl.SSLError as error:
        raise Refused(_unusable(error, printable(certificate), printable(key))) from None
    return context


def _unusable(error: ssl.SSLError, certificate: str, key: str) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"--tls-key: {key} is not the key of the certificate in {certificate}"
    return (
        f"--tls-cert and --tls-key: {certificate} holds no certificate, or {key} no private key without a passphrase "
        "(both in PEM)"
    )


def _opened(path: str, flag: str) -> BinaryIO:
    try:
        return open(path, "rb")
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        raise Refused(f"{flag}: {printable(path)} cannot be read: {getattr(error, 'strerror', error)}") from None


def _warn_if_public(file: BinaryIO) -> None:
    mode = os.fstat(file.fileno()).st_mode
    if stat.S_ISREG(mode) and mode & stat.S_IROTH:
        _log.warning("everybody on this machine may read a file with a secret: chmod o-r it", file=file.name)
