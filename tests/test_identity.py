"""The session cookie: what it may contain, whom it admits, and whether it survives the clients' cookie jars."""

import asyncio
import re
from http.cookies import SimpleCookie

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from gymserve.identity import (
    SessionCookie,
    SessionToken,
    instance_of,
    new_instance,
    new_secret,
    new_session_id,
    short,
)

OLD, NEW = "an old secret", "a new secret"
COOKIE = SessionCookie("a", [NEW])
SESSION = "0123456789abcdef0123456789abcdef"


def test_ids_and_secrets_are_long_and_never_the_same():
    assert (
        re.fullmatch("[0-9a-f]{32}-00c0ffee", new_session_id("00c0ffee")) and instance_of("ab-00c0ffee") == "00c0ffee"
    )
    assert re.fullmatch("[0-9a-f]{64}", new_secret())
    assert len({new_session_id(new_instance()) for _ in range(100)} | {new_secret() for _ in range(100)}) == 200
    assert short(SESSION) == "0123456789ab"


@given(st.integers(0, 2**128 - 1), st.text(min_size=1))
def test_a_cookie_comes_back_in_characters_that_no_client_quotes(number, secret):
    cookie = SessionCookie("a", [secret])
    session_id = f"{number:032x}"
    assert re.fullmatch(r"[A-Za-z0-9._-]+", cookie.value(session_id))
    assert cookie.session_id(cookie.value(session_id)) == session_id


def test_a_cookie_tells_which_process_made_its_session():
    session_id = new_session_id("00c0ffee")
    value = COOKIE.value(session_id)
    assert re.fullmatch(r"[A-Za-z0-9._-]+", value)
    assert COOKIE.session_id(value) == session_id
    assert instance_of(session_id) == "00c0ffee"
    assert COOKIE.session_id(value.replace("-00c0ffee", "-00c0ffef")) is None
    assert short(session_id) == session_id[:12]


@given(st.text())
def test_whatever_an_id_is_it_names_some_instance(text):
    assert instance_of(text) == text.split("-")[-1]


def test_a_new_secret_signs_and_the_old_one_still_admits():
    both = SessionCookie("a", [NEW, OLD])
    assert both.value(SESSION) == SessionCookie("a", [NEW]).value(SESSION) != SessionCookie("a", [OLD]).value(SESSION)
    assert both.session_id(SessionCookie("a", [OLD]).value(SESSION)) == SESSION
    assert both.session_id(both.value(SESSION)) == SESSION
    assert SessionCookie("a", [NEW]).session_id(SessionCookie("a", [OLD]).value(SESSION)) is None


@pytest.mark.parametrize(
    "value", [None, "", ".", SESSION, f"{SESSION}.", "\ud800", "ü.ü", "eyJzZXNzaW9uX2lkIjoiMSJ9.aQ.x"]
)
def test_what_we_did_not_sign_names_no_session(value):
    assert COOKIE.session_id(value) is None


@given(st.text())
def test_a_foreign_value_names_no_session(value):
    assert COOKIE.session_id(value) is None


@given(st.integers(0, len(COOKIE.value(SESSION)) - 1))
def test_a_truncated_value_names_no_session(length):
    assert COOKIE.session_id(COOKIE.value(SESSION)[:length]) is None


@given(st.integers(0, len(COOKIE.value(SESSION)) - 1), st.characters())
def test_an_altered_value_names_no_other_session(position, character):
    value = COOKIE.value(SESSION)
    altered = value[:position] + character + value[position + 1 :]
    # The last digit of a base64 text has bits that mean nothing, and characters outside the alphabet are skipped.
    assert COOKIE.session_id(altered) in ({None, SESSION} if position > len(SESSION) or altered == value else {None})


def test_a_token_names_a_session_and_is_no_cookie():
    token = SessionToken([NEW])
    value = token.value(SESSION)
    assert re.fullmatch(r"[A-Za-z0-9._-]+", value)
    assert (token.session_id(value), SessionToken([OLD, NEW]).session_id(value)) == (SESSION, SESSION)
    assert [token.session_id(foreign) for foreign in (None, "", SESSION, COOKIE.value(SESSION))] == [None] * 4
    assert COOKIE.session_id(value) is None
    assert SessionToken([OLD]).session_id(value) is None


def test_instances_of_different_names_have_cookies_of_different_names():
    names = [SessionCookie(name, [NEW]).name for name in ("a", "b", "A", "ä b;=", "a" * 1000)]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch("gymserve_[0-9a-f]{8}", name) for name in names)
    assert SessionCookie("a", [OLD]).name == COOKIE.name


def test_the_header_is_read_by_the_standard_librarys_cookies():
    morsel = SimpleCookie(COOKIE.header(SESSION))[COOKIE.name]
    assert morsel.value == COOKIE.value(SESSION)
    given_attributes = {key: value for key, value in morsel.items() if value}
    assert given_attributes == {"path": "/", "httponly": True, "samesite": "Lax"}


@pytest.mark.parametrize("host", ["127.0.0.1", "gymserve", "gymserve.example"])
def test_aiohttp_sends_the_cookie_back_unquoted(host):
    url = URL(f"http://{host}:8100/seed_session")

    async def sent_back() -> str:
        jar = aiohttp.CookieJar(unsafe=True)
        jar.update_cookies(SimpleCookie(COOKIE.header(SESSION)), url)
        return jar.filter_cookies(url.with_path("/verify")).output(header="", sep=";")

    assert asyncio.run(sent_back()).strip() == f"{COOKIE.name}={COOKIE.value(SESSION)}"
