"""No secret, token, cookie or whole session id is in anything that gymserve writes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from processes import ANSWER_SECONDS, command, environ, running

from gymserve.identity import SessionCookie, SessionToken

TESTS = Path(__file__).parent
EVENTS = [  # without these the run would show nothing
    "session opened",
    "session waits",
    "session ended",
    "session not opened",
    "session failed by a fault of ours",
    "a request failed by a fault of ours",
    "a knock failed by a fault of ours",
    "Traceback (most recent call last):",
    "no schema",
    "no connection",
    "talkative.py",  # in the tracebacks
]
ERRORS = [
    "unauthorized",
    "forbidden",
    "bad_request",
    "bad_arguments",
    "unknown_tool",
    "no_room",
    "no_session",
    "not_found",
    "internal_error",
    "environment_error",
    "session_expired",
    "session_closed",
    "seed_conflict",
    "shutting_down",
    "cross_site",
]


@pytest.mark.parametrize("style", ["text", "json"])
def test_a_whole_run_at_every_level(style: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "talkative", style],
        env=environ(PYTHONPATH=os.pathsep.join(map(str, (TESTS.parent, TESTS, TESTS / "http")))),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [event for event in EVENTS if event not in done.stderr] == []
    assert '"level": "debug"' in done.stderr or "[debug" in done.stderr
    assert [error for error in ERRORS if not any(f'"error": "{error}"' in answer for answer in told["answers"])] == []
    assert len(told["secrets"]) > 30
    assert [secret for secret in told["secrets"] + told["names"] if secret in done.stderr] == []
    answers = "\n".join(told["answers"])
    assert [secret for secret in told["secrets"] if secret in answers] == []


SECRETS = {
    "GYMSERVE_SECRET": "one-that-signs-cookies",
    "GYMSERVE_TOKEN": "one-that-guards-rollouts",
    "GYMSERVE_ADMIN_TOKEN": "one-that-guards-sessions",
    "GYMSERVE_ENV_TOKEN": "one-for-the-environment",
    "GYMSERVE_ENV_HEADER": "X-Key: one-in-a-header",
}


def values() -> list[str]:
    return [value.removeprefix("X-Key: ") for value in SECRETS.values()]


@pytest.mark.parametrize("style", ["text", "json"])
async def test_a_real_server(style: str) -> None:
    # A seed's answer has the MCP token, which is its client's.
    arguments = ("--log-format", style, "--idle-timeout", "0.3", "--host", "0.0.0.0", "--mcp", "never")
    with running("serve", *arguments, **SECRETS) as server:
        bearer = {"Authorization": f"Bearer {SECRETS['GYMSERVE_TOKEN']}"}
        url = server.url.replace("0.0.0.0", "127.0.0.1")
        bodies = []
        async with httpx.AsyncClient(verify=False, trust_env=False, base_url=url, timeout=ANSWER_SECONDS) as client:
            for path in ("seed_session", "status", "nope", "verify", "status", "seed_session"):
                bodies.append((await client.post(f"/{path}", json={}, headers=bearer)).text)
            bodies.append((await client.post("/status", json={})).text)
            for path in ("sessions", "ready", "health", "nope"):
                bodies.append((await client.get(f"/gymserve/{path}")).text)
            [cookie] = client.cookies.jar
        session_id = SessionCookie("gymserve", [SECRETS["GYMSERVE_SECRET"]]).session_id(cookie.value)
        assert session_id is not None and cookie.value is not None
        said = server.log + "\n".join(bodies)
        assert session_id[:12] in said  # shortened, it is in the log
        token = SessionToken([SECRETS["GYMSERVE_SECRET"]]).value(session_id)
        hidden = [*values(), session_id, cookie.value, cookie.value.partition(".")[2], token.partition(".")[2]]
        assert [secret for secret in hidden if secret in said] == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["config"],
        ["config", "--json"],
        ["--help"],
        ["serve", "--idle-timeout", "never"],
        ["serve", "--token", "one-that-guards-rollouts"],
        ["serve", "--token-file", "/nope"],
        ["serve", "--tls-cert", "/nope"],
        ["rows", "--seeds", "5"],
    ],
)
def test_the_command_line(arguments: list[str]) -> None:
    done = subprocess.run(
        command(*arguments),
        env=environ(**SECRETS),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert [secret for secret in values() if secret in done.stdout + done.stderr] == []
    assert "Traceback" not in done.stderr
