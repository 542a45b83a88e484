"""Where an environment server is: every accepted form, and what is wrong with the others."""

import pytest

from gymserve.address import (
    ACCEPTED_FORMS,
    ACCEPTED_SERVERS,
    EnvironmentAddress,
    Server,
    parse_address,
    parse_server,
)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost:8200", EnvironmentAddress("localhost", 8200)),
        ("127.0.0.1:8200", EnvironmentAddress("127.0.0.1", 8200)),
        ("[::1]:8200", EnvironmentAddress("::1", 8200)),
        ("http://env", EnvironmentAddress("env", 80)),
        ("http://env/", EnvironmentAddress("env", 80)),
        ("HTTP://ENV:81", EnvironmentAddress("env", 81)),
        ("https://env", EnvironmentAddress("env", 443, tls=True)),
        ("https://env:8443/maze/", EnvironmentAddress("env", 8443, tls=True, prefix="/maze")),
        ("http://env/a/b", EnvironmentAddress("env", 80, prefix="/a/b")),
        ("http://env/ws", EnvironmentAddress("env", 80, prefix="/ws")),
        ("ws://env/ws", EnvironmentAddress("env", 80)),
        ("ws://env:8200", EnvironmentAddress("env", 8200)),
        ("ws://env/maze/ws/", EnvironmentAddress("env", 80, prefix="/maze")),
        ("wss://env/maze/ws", EnvironmentAddress("env", 443, tls=True, prefix="/maze")),
        ("wss://env", EnvironmentAddress("env", 443, tls=True)),
        ("http://[::1]:8200", EnvironmentAddress("::1", 8200)),
    ],
)
def test_accepted_forms(text: str, address: EnvironmentAddress) -> None:
    assert parse_address(text) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("ftp://env", f"scheme 'ftp' is not http, https, ws or wss; accepted: {ACCEPTED_FORMS}"),
        ("://env", f"scheme '' is not http, https, ws or wss; accepted: {ACCEPTED_FORMS}"),
        ("http://user:secret@env", f"no user, query or fragment may stand in it; accepted: {ACCEPTED_FORMS}"),
        ("http://env?x=1", f"no user, query or fragment may stand in it; accepted: {ACCEPTED_FORMS}"),
        ("http://env#x", f"no user, query or fragment may stand in it; accepted: {ACCEPTED_FORMS}"),
        ("", f"it names no host; accepted: {ACCEPTED_FORMS}"),
        (":8200", f"it names no host; accepted: {ACCEPTED_FORMS}"),
        ("http://", f"it names no host; accepted: {ACCEPTED_FORMS}"),
        ("http://:8200", f"it names no host; accepted: {ACCEPTED_FORMS}"),
        ("http://bücher.example", f"it names no host; accepted: {ACCEPTED_FORMS}"),
        ("http://a b", f"it names no host; accepted: {ACCEPTED_FORMS}"),
        ("http://env:99999", "its port is not a number from 1 to 65535"),
        ("env:http", "its port is not a number from 1 to 65535"),
        ("http://env:0", f"its port is missing; accepted: {ACCEPTED_FORMS}"),
        ("env", f"its port is missing; accepted: {ACCEPTED_FORMS}"),
        ("wss://env/maze", f"a WebSocket's address ends in /ws; accepted: {ACCEPTED_FORMS}"),
        ("env/maze", f"its port is missing; accepted: {ACCEPTED_FORMS}"),
        ("http://[::1", f"it names no host; accepted: {ACCEPTED_FORMS}"),
        ("http://[nonsense]:80", f"it names no host; accepted: {ACCEPTED_FORMS}"),
        ("http://env\n:80", f"it names no host; accepted: {ACCEPTED_FORMS}"),
        ("http://env:-1", "its port is not a number from 1 to 65535"),
    ],
)
def test_refused_forms(text: str, sentence: str) -> None:
    with pytest.raises(ValueError) as raised:
        parse_address(text)
    assert str(raised.value) == sentence


@pytest.mark.parametrize(
    ("text", "netloc", "url", "websocket_path"),
    [
        ("http://env", "env", "http://env", "/ws"),
        ("https://env", "env", "https://env", "/ws"),
        ("https://env:80", "env:80", "https://env:80", "/ws"),
        ("http://env:443", "env:443", "http://env:443", "/ws"),
        ("ws://[::1]:8200/maze/ws", "[::1]:8200", "http://[::1]:8200/maze", "/maze/ws"),
    ],
)
def test_what_is_made_of_it(text: str, netloc: str, url: str, websocket_path: str) -> None:
    address = parse_address(text)
    assert (address.netloc, address.url, address.websocket_path) == (netloc, url, websocket_path)
    assert str(address) == url


@pytest.mark.parametrize(
    ("text", "server"),
    [
        ("env:8200", Server(EnvironmentAddress("env", 8200))),
        ("http://env slots=16", Server(EnvironmentAddress("env", 80), 16)),
        ("  ws://env/ws   slots=007 ", Server(EnvironmentAddress("env", 80), 7)),
    ],
)
def test_a_server_with_a_limit(text: str, server: Server) -> None:
    assert parse_server(text) == server


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", f"it names no host; accepted: {ACCEPTED_FORMS}"),
        ("http://env slots=0", "slots must be a whole number, 1 or more"),
        ("http://env slots=-1", "slots must be a whole number, 1 or more"),
        ("http://env slots=", "slots must be a whole number, 1 or more"),
        ("http://env slots=²", "slots must be a whole number, 1 or more"),
        ("http://env slots=1000000000", "slots must be a whole number, 1 or more"),
        ("http://env 16", f"after the address only slots=COUNT may stand; accepted: {ACCEPTED_SERVERS}"),
        ("http://env slots=1 slots=2", f"after the address only slots=COUNT may stand; accepted: {ACCEPTED_SERVERS}"),
        ("ftp://env slots=1", f"scheme 'ftp' is not http, https, ws or wss; accepted: {ACCEPTED_FORMS}"),
    ],
)
def test_a_server_that_is_none(text: str, sentence: str) -> None:
    with pytest.raises(ValueError) as raised:
        parse_server(text)
    assert str(raised.value) == sentence
