"""The settings' bounds: what each takes, what it refuses, and that importing them costs nothing of the rooms above."""

import subprocess
import sys

import pytest
from pydantic import SecretStr, ValidationError

from gymserve.settings import EnvSettings, ServeSettings, Settings, form_of
from gymserve.toolbox import ROUTE_NAMES

TAKEN: list[tuple[str, object, object]] = [
    ("env", "envs.example:8000", ("envs.example:8000",)),
    ("env", "wss://envs.example/blue/ws", ("wss://envs.example/blue/ws",)),
    ("env", "a:1 slots=8\nb:1", ("a:1 slots=8", "b:1")),
    ("env", [{"url": "a:1", "slots": 8}, {"url": "b:1"}, "c:1"], ("a:1 slots=8", "b:1", "c:1")),
    ("label", ["eval*=weight:4,reserve:8,max:32"], ("eval*=weight:4,reserve:8,max:32",)),
    ("env_header", "X-Team: blue\nX-Run:7\n", ("X-Team: blue", "X-Run:7")),
    ("env_header", ["X-Team: blue"], ("X-Team: blue",)),
    ("env_header", "", ()),
    ("port", "0", 0),
    ("port", 65535, 65535),
    ("name", "n" * 100, "n" * 100),
    ("idle_timeout", "0.5", 0.5),
    ("patience", 0, 0.0),
    ("max_lifetime", "off", None),
    ("max_lifetime", False, None),  # YAML's bare off
    ("max_lifetime", "60", 60.0),
    ("keepalive", "0", 0.0),
    ("interim", "0", 0.0),
    ("restart_patience", "0", 0.0),
    ("max_handshakes", "1", 1),
    ("max_sessions", "1", 1),
    ("max_waiting", 1, 1),
    ("max_connections", "off", None),
    ("max_connections", False, None),
    ("max_connections", "64", 64),
    ("max_body", "0.5", 0.5),
    ("max_observation", 1024, 1024.0),
    ("client_timeout", "0.5", 0.5),
    ("partition_timeout", "0", 0.0),
    ("partition_timeout", 3600, 3600.0),
    ("reset_retries", "0", 0),
    ("reset_failed", "reward_type=reset_error\nok=false", ("reward_type=reset_error", "ok=false")),
    ("reset_failed", ["url=http://a/?b=c"], ("url=http://a/?b=c",)),
    ("hide_reward", "1", True),
    ("hide_reward", "true", True),
    ("hide_reward", "no", False),
    ("observation_tool", "off", None),
    ("observation_tool", False, None),
    ("observation_tool", "look-around_2", "look-around_2"),
    ("reset_kwargs", '{"level": 2}', {"level": 2}),
    ("reset_kwargs", {"deep": [1, {"er": None}]}, {"deep": [1, {"er": None}]}),
    ("verify_action", '{"evaluate": true}', {"evaluate": True}),
    ("failure_class", "gymserve:masked", "gymserve:masked"),
    ("derive_seed", "true", True),
    ("text_action", "guess", "guess"),
    ("secret", "a" * 16, (SecretStr("a" * 16),)),
    ("secret", "a" * 16 + "," + "b" * 16, (SecretStr("a" * 16), SecretStr("b" * 16))),
    ("env_token", "t0ken", SecretStr("t0ken")),
    ("token", "t" * 16, SecretStr("t" * 16)),
    ("admin_token", "~!" * 8, SecretStr("~!" * 8)),
    ("token_file", "/run/secrets/token", "/run/secrets/token"),
    ("allowed_host", "gym.example\nnode17", ("gym.example", "node17")),
    ("allowed_host", ["gym.example"], ("gym.example",)),
    ("tls_cert", "chain.pem", "chain.pem"),
    ("record", "/var/trajectories", "/var/trajectories"),
    ("record_max_bytes", "0", 0),
    ("record_max_bytes", 1_000_000, 1_000_000),
]

REFUSED: list[tuple[str, object]] = [
    ("verify_action", "{}"),
    ("verify_action", {"tool_name": 5}),
    ("verify_action", {"tool_name": "score"}),
    ("verify_action", {"tool_name": "", "arguments": {}}),
    ("verify_action", {"tool_name": "score", "arguments": []}),
    ("failure_class", "two words"),
    ("env", "envs.example"),
    ("env", "ftp://envs.example"),
    ("env", "a:1 slots=0"),
    ("env", "a:1 places=8"),
    ("env", ["a:1", "http://a:1/"]),
    ("env", [{"url": "a:1", "slots": True}]),
    ("env", [{"url": "a:1", "places": 8}]),
    ("label", "eval"),
    ("label", "eval=weight:0"),
    ("label", "eval=reserve:9,max:8"),
    ("env_header", ["no colon"]),
    ("env_header", ["Bad Name: x"]),
    ("env_header", ["X: a\r\nY: b"]),
    ("env_header", ["X: a\nY: b"]),
    ("env_header", ["X: é"]),
    ("host", ""),
    ("host", "a host"),
    ("host", "http://host"),
    ("port", -1),
    ("port", 65536),
    ("port", 1.5),
    ("port", True),
    ("name", ""),
    ("name", "n" * 101),
    ("name", "two\nlines"),
    ("name", 7),
    ("idle_timeout", 0),
    ("idle_timeout", "inf"),
    ("idle_timeout", "nan"),
    ("idle_timeout", True),
    ("idle_timeout", None),
    ("idle_timeout", "off"),
    ("patience", -0.1),
    ("patience", "inf"),
    ("max_lifetime", 0),
    ("max_lifetime", "inf"),
    ("max_lifetime", True),
    ("connect_timeout", 0),
    ("step_timeout", 0),
    ("close_timeout", 0),
    ("keepalive", -1),
    ("interim", -1),
    ("restart_patience", -1),
    ("restart_patience", "inf"),
    ("max_handshakes", 0),
    ("max_sessions", 0),
    ("max_sessions", "off"),
    ("max_sessions", 1.5),
    ("max_waiting", 0),
    ("max_waiting", True),
    ("max_connections", 0),
    ("max_connections", True),
    ("max_body", 0),
    ("max_body", 1025),
    ("max_body", "inf"),
    ("max_observation", -1),
    ("max_observation", True),
    ("client_timeout", 0),
    ("partition_timeout", -1),
    ("partition_timeout", 3601),
    ("max_handshakes", True),
    ("max_handshakes", 1.5),
    ("reset_retries", -1),
    ("reset_failed", ["reset_error"]),
    ("reset_failed", ["=reset_error"]),
    ("interim", "inf"),
    ("grace", -1),
    ("tombstone", -1),
    ("reward", "mean"),
    ("hide_reward", "maybe"),
    ("observation_tool", "a b"),
    ("observation_tool", "t" * 65),
    ("observation_tool", ""),
    ("masked_as_error", ""),
    ("on_step_timeout", "fail"),
    ("reset_kwargs", "[1]"),
    ("reset_kwargs", "{"),
    ("reset_kwargs", '{"x": NaN}'),
    ("reset_kwargs", '{"x": 1e999}'),
    ("reset_kwargs", "[" * 100_000),
    ("reset_kwargs", {"x": [float("inf")]}),
    ("reset_kwargs", {1: 2}),
    ("log_format", "xml"),
    ("secret", "a" * 15),
    ("secret", "a" * 16 + ","),
    ("secret", ",".join("abc"[i] * 16 for i in range(3))),
    ("env_token", ""),
    ("env_token", "two words"),
    ("env_token", "line\n"),
    ("token", "t" * 15),
    ("token", "two words, and long"),
    ("admin_token", "é" * 16),
    ("token_file", ""),
    ("admin_token_file", 7),
    ("allowed_host", ["gym.example:8100"]),
    ("allowed_host", ["https://gym.example"]),
    ("allowed_host", ["[::1]"]),
    ("allowed_host", ["a b"]),
    ("tls_key", ""),
    ("record", ""),
    ("record", 7),
    ("record_max_bytes", -1),
    ("record_max_bytes", 2**30 + 1),
    ("record_max_bytes", 0.5),
    ("record_max_bytes", True),
    ("record_max_bytes", "off"),
    ("idle_timout", 5),
]


@pytest.mark.parametrize(("key", "given", "held"), TAKEN)
def test_taken(key: str, given: object, held: object) -> None:
    assert getattr(ServeSettings.model_validate({key: given}), key) == held


@pytest.mark.parametrize(("key", "given"), REFUSED, ids=lambda value: str(value)[:20])
def test_refused(key: str, given: object) -> None:
    with pytest.raises(ValidationError) as refusal:
        ServeSettings.model_validate({key: given})
    assert {error["loc"][0] for error in refusal.value.errors()} == {key}


@pytest.mark.parametrize("name", sorted(ROUTE_NAMES))
def test_the_observation_tool_cannot_hide_behind_a_route(name: str) -> None:
    with pytest.raises(ValidationError, match="a route of the server has this name"):
        ServeSettings(observation_tool=name)


@pytest.mark.parametrize(("key", "given"), [("capacity", 0), ("capacity", True), ("port", 65536), ("patience", 1)])
def test_the_environments_own_bounds(key: str, given: object) -> None:
    with pytest.raises(ValidationError):
        EnvSettings.model_validate({key: given})


def test_faults_are_held_as_text() -> None:
    assert EnvSettings.model_validate({"fault": "full\nslow-step:2"}).fault == ("full", "slow-step:2")


def test_defaults_are_within_their_own_bounds() -> None:
    for settings in (ServeSettings(), EnvSettings()):
        assert type(settings).model_validate(settings.model_dump()) == settings


def test_settings_do_not_change() -> None:
    settings = ServeSettings()
    with pytest.raises(ValidationError, match="frozen"):
        settings.port = 1  # type: ignore[misc]


@pytest.mark.parametrize("model", [ServeSettings, EnvSettings])
def test_every_setting_says_what_it_is_and_what_it_accepts(model: type[Settings]) -> None:
    for key, field in model.model_fields.items():
        assert field.description, key
        assert form_of(field).accepted, key


def test_secrets_are_in_no_text_of_the_settings_or_their_errors() -> None:
    held = ServeSettings.model_validate({"secret": "hush" * 4, "env_token": "hush", "token": "hush" * 4})
    with pytest.raises(ValidationError) as refusal:
        ServeSettings.model_validate({"secret": "hush", "env_token": "hush hush", "admin_token": "hush"})
    assert "hush" not in f"{held!r} {held} {held.model_dump_json()} {refusal.value}"


def test_settings_are_pure() -> None:
    code = "import sys, gymserve.settings; sys.exit(bool({'trio', 'quart', 'hypercorn', 'httpx'} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(
    "header", ["Content-Length: 5", "host: x", "Upgrade: h2c", "connection: close", "Sec-WebSocket-Version: 8", "TE: x"]
)
def test_a_header_that_is_the_connections_own_cannot_be_set(header: str) -> None:
    with pytest.raises(ValueError, match="connection's own"):
        ServeSettings(env_header=(header,))
