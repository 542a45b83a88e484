"""What the settings say of who is let in: tokens in variables and files, certificates; and what is told of it."""

import os
from pathlib import Path

import pytest
from certificates import Authority, Pair
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from processes import running
from structlog.testing import capture_logs

from gymserve.cli.entrance import Entrance, read_entrance, tell_of_risk
from gymserve.cli.refusals import Refused
from gymserve.http.access import Guard
from gymserve.settings import ServeSettings

TOKEN = "a-token-of-the-tests"
ACCEPTED = "16 or more visible ASCII characters without white space"


def settings(**given: object) -> ServeSettings:
    return ServeSettings.model_validate(
        {key: str(each) if isinstance(each, Path) else each for key, each in given.items()}
    )


def refusal(**given: object) -> str:
    with pytest.raises(Refused) as refused:
        read_entrance(settings(**given))
    return str(refused.value)


def lets_in(guard: Guard, token: str, *, method: str = "POST", path: str = "/seed_session") -> bool:
    headers = [(b"host", b"x"), (b"authorization", f"Bearer {token}".encode())]
    return guard.denial({"method": method, "path": path, "headers": headers, "client": ("10.0.0.7", 1)}) is None


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file that only its owner may read."""
    path = tmp_path / "token"
    path.touch(mode=0o600)
    return path


# -- tokens ----------------------------------------------------------------------------------------------------------


def test_without_a_word_there_is_no_token_and_no_tls():
    entrance = read_entrance(settings())
    assert (entrance.guard.is_open, entrance.tls, entrance.scheme) == (True, None, "http")


def test_tokens_by_variable():
    guard = read_entrance(settings(token=TOKEN, admin_token=f"admin-{TOKEN}")).guard
    assert not guard.is_open
    assert lets_in(guard, TOKEN)
    assert not lets_in(guard, TOKEN, path="/gymserve/close")
    assert lets_in(guard, f"admin-{TOKEN}", path="/gymserve/close")


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
def test_tokens_by_file(file: Path, end: str):
    file.write_text(f"{TOKEN}{end}", newline="")
    assert lets_in(read_entrance(settings(token_file=file)).guard, TOKEN)
    guard = read_entrance(settings(admin_token_file=file)).guard
    assert guard.is_open
    assert lets_in(guard, TOKEN, path="/gymserve/close")


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"too-short", f"{TOKEN}\n\n".encode(), f" {TOKEN}".encode(), b"\xff" * 20, b"x" * 15 + b"\n"],
)
def test_what_is_no_token_is_refused_and_not_shown(file: Path, content: bytes):
    file.write_bytes(content)
    assert refusal(token_file=file) == f"--token-file: what {file} holds is not accepted: {ACCEPTED}"


def test_a_file_that_cannot_be_read(tmp_path: Path):
    missing = tmp_path / "missing\x1b[2J"
    assert (
        refusal(token_file=missing)
        == f"--token-file: {tmp_path}/missing\\x1b[2J cannot be read: No such file or directory"
    )
    assert refusal(admin_token_file=tmp_path) == f"--admin-token-file: {tmp_path} cannot be read: Is a directory"
    assert refusal(token_file="a\0b") == "--token-file: a\\x00b cannot be read: embedded null byte"


def test_an_endless_file_is_not_read_to_its_end():
    assert refusal(token_file="/dev/zero") == f"--token-file: what /dev/zero holds is not accepted: {ACCEPTED}"


def test_a_pipe_will_do():
    reader, writer = os.pipe()
    os.write(writer, TOKEN.encode())
    os.close(writer)
    with capture_logs() as logged:
        assert lets_in(read_entrance(settings(token_file=f"/dev/fd/{reader}")).guard, TOKEN)
    os.close(reader)
    assert logged == []


def test_one_token_by_two_ways_is_refused(file: Path):
    assert refusal(token=TOKEN, token_file=file) == "GYMSERVE_TOKEN and --token-file name the same token; give one"
    assert refusal(admin_token=TOKEN, admin_token_file=file) == (
        "GYMSERVE_ADMIN_TOKEN and --admin-token-file name the same token; give one"
    )


@pytest.mark.parametrize(("mode", "warned"), [(0o600, False), (0o640, False), (0o644, True), (0o604, True)])
def test_a_file_that_everybody_may_read_is_told(file: Path, mode: int, warned: bool):
    file.write_text(TOKEN)
    file.chmod(mode)
    with capture_logs() as logged:
        read_entrance(settings(token_file=file))
    expected = {
        "event": "everybody on this machine may read a file with a secret: chmod o-r it",
        "file": str(file),
        "log_level": "warning",
    }
    assert logged == ([expected] if warned else [])


# -- the risk of a wide address --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "wide"),
    [
        ("http://127.0.0.1:8100", False),
        ("http://127.3.2.1:8100", False),
        ("https://[::1]:8100", False),
        ("http://0.0.0.0:8100", True),
        ("http://[::]:8100", True),
        ("http://10.0.0.7:8100", True),
    ],
)
def test_a_wide_address_without_a_token_is_told(url: str, wide: bool):
    for guard in (Guard(), Guard(admin_token=TOKEN), Guard(token=TOKEN)):
        with capture_logs() as logged:
            tell_of_risk(url, Entrance(guard, None))
        assert [(each["log_level"], each["url"]) for each in logged] == (
            [("warning", url)] if wide and guard.is_open else []
        )
        assert all("whoever reaches the port can use the environments" in each["event"] for each in logged)


def test_it_is_told_at_the_start():
    with running("serve", "--host", "0.0.0.0") as server:
        assert "bound beyond this machine without a token: whoever reaches the port" in server.log
    with running("serve", "--host", "0.0.0.0", GYMSERVE_TOKEN=TOKEN) as server:
        assert "bound beyond" not in server.log
    with running("serve", "--host", "localhost") as server:
        assert "bound beyond" not in server.log


# -- certificates ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def pair(authority: Authority) -> Pair:
    return authority.issue("localhost")


def test_a_certificate_and_its_key(pair: Pair):
    with capture_logs() as logged:
        entrance = read_entrance(settings(tls_cert=pair.certificate, tls_key=pair.key))
    assert (entrance.scheme, entrance.tls is None, logged) == ("https", False, [])


def test_one_without_the_other(pair: Pair):
    sentence = "--tls-cert and --tls-key: HTTPS takes both, the certificate chain and its private key"
    assert refusal(tls_cert=pair.certificate) == refusal(tls_key=pair.key) == sentence


def test_files_that_will_not_do(authority: Authority, pair: Pair, tmp_path: Path):
    other = authority.issue("localhost")
    neither = (
        "--tls-cert and --tls-key: {} holds no certificate, or {} no private key without a passphrase (both in PEM)"
    )
    junk = tmp_path / "junk"
    junk.write_text("junk")
    for certificate, key in [(junk, pair.key), (pair.certificate, junk), (pair.key, pair.certificate)]:
        assert refusal(tls_cert=certificate, tls_key=key) == neither.format(certificate, key)
    assert refusal(tls_cert=pair.certificate, tls_key=other.key) == (
        f"--tls-key: {other.key} is not the key of the certificate in {pair.certificate}"
    )
    missing = tmp_path / "missing"
    assert (
        refusal(tls_cert=missing, tls_key=pair.key)
        == f"--tls-cert: {missing} cannot be read: No such file or directory"
    )
    assert (
        refusal(tls_cert=pair.certificate, tls_key=tmp_path) == f"--tls-key: {tmp_path} cannot be read: Is a directory"
    )


def test_a_passphrase_is_not_asked_for(pair: Pair, tmp_path: Path):
    """On the terminal, where nobody may be."""
    key = load_pem_private_key(Path(pair.key).read_bytes(), None)
    locked = tmp_path / "locked.pem"
    locked.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"open sesame")))
    assert "no private key without a passphrase" in refusal(tls_cert=pair.certificate, tls_key=locked)


def test_a_key_that_everybody_may_read_is_told(pair: Pair, tmp_path: Path):
    key = tmp_path / "key.pem"
    key.write_bytes(Path(pair.key).read_bytes())
    key.chmod(0o644)
    with capture_logs() as logged:
        read_entrance(settings(tls_cert=pair.certificate, tls_key=key))
    assert [each["file"] for each in logged] == [str(key)]
