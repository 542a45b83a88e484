"""The connection on a TLS stream, as hypercorn hands it over when it is given a certificate."""

import shutil
import ssl
import subprocess

import pytest
import trio
from http_peer import GET, Recorder, connect
from trio.testing import memory_stream_pair


@pytest.fixture
def certificate(tmp_path):
    """A certificate and its key, in one file."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command to make a certificate")
    key, pem = tmp_path / "key.pem", tmp_path / "certificate.pem"
    request = ["openssl", "req", "-x509", "-nodes", "-newkey", "rsa:2048", "-subj", "/CN=localhost"]
    subprocess.run([*request, "-keyout", key, "-out", pem], check=True, capture_output=True)
    pem.write_bytes(pem.read_bytes() + key.read_bytes())
    return pem


async def test_a_tls_stream_is_https(autojump_clock, nursery, certificate, logged):
    client, server = memory_stream_pair()
    theirs, ours = ssl.create_default_context(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    theirs.check_hostname, theirs.verify_mode = False, ssl.CERT_NONE
    ours.load_cert_chain(certificate)
    pair = (
        trio.SSLStream(client, theirs, server_hostname="localhost", https_compatible=True),
        trio.SSLStream(server, ours, server_side=True, https_compatible=True),
    )
    app = Recorder()
    peer = connect(nursery, app, pair=pair)
    assert (await peer.ask(GET("/a"))).body == b"/a "
    assert (await peer.ask(GET("/b", "Connection: close"))).body == b"/b "
    assert await peer.rest() == b""
    assert [scope["scheme"] for scope in app.scopes] == ["https", "https"]
    assert (trio.current_time(), logged) == (0, [])
