"""Certificates for the tests, made when they are needed: there is no private key in this repository."""

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import trustme


@dataclass(frozen=True)
class Pair:
    """The files of a certificate chain and of its private key, in PEM."""

    certificate: str
    key: str

    @property
    def server_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(self.certificate, self.key)
        return context


class Authority:
    """A certificate authority that nobody trusts who does not know ``file``."""

    def __init__(self, folder: Path) -> None:
        self._authority = trustme.CA()
        self._folder = folder
        self._issued = 0
        self.file = str(folder / "authority.pem")
        self._authority.cert_pem.write_to_path(self.file)

    def issue(self, *names: str, not_after: datetime | None = None) -> Pair:
        not_before = datetime(2020, 1, 1, tzinfo=UTC) if not_after else None
        issued = self._authority.issue_cert(*names, not_before=not_before, not_after=not_after)
        self._issued += 1
        pair = Pair(*(str(self._folder / f"{kind}-{self._issued}.pem") for kind in ("certificate", "key")))
        Path(pair.certificate).write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
        Path(pair.key).write_bytes(issued.private_key_pem.bytes())
        Path(pair.key).chmod(0o600)
        return pair

    @property
    def client_context(self) -> ssl.SSLContext:
        """For a client that trusts it."""
        return ssl.create_default_context(cafile=self.file)
