"""What can be set: names, defaults and bounds, and the words in which a bound is told.

Pure data. Where a value comes from (flag, variable, file) is the command line's business; nothing below it takes
a settings object.
"""

import json
import re
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, SecretStr
from pydantic.fields import FieldInfo

from gymserve.address import ACCEPTED_FORMS, ACCEPTED_SERVERS, parse_address, parse_server
from gymserve.resets import parse_failed_observation
from gymserve.rows import ACCEPTED_SEEDS, parse_seeds
from gymserve.shares import ACCEPTED_SHARES, parse_share
from gymserve.toolbox import ROUTE_NAMES

_TAKEN_NAMES = ROUTE_NAMES | {"step"}

SECRET_CHARACTERS = 16
"""The shortest secret accepted for signing cookies, and the shortest token that clients may have to send."""
ACCEPTED_TOKENS = f"{SECRET_CHARACTERS} or more visible ASCII characters without white space"

_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e]*")  # RFC 9110 sections 5.1 and 5.5, ASCII only
_OWN_HEADERS = frozenset(
    {"connection", "content-length", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade"}
)
_TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_TOKEN = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True)
class Form:
    """How a setting is written down.

    ``metavar`` stands for its value in help, ``accepted`` completes "...is not accepted:", ``absent`` is the word for
    no value. ``shown`` tells how much of a value may be printed: all of it, only a header's name, or only that it is
    set; what is of the last kind is a secret, and comes from an environment variable only.
    """

    metavar: str
    accepted: str
    absent: str = "none"
    shown: Literal["value", "name", "set"] = "value"


def form_of(field: FieldInfo) -> Form:
    """The form of a field of one of the models below."""
    return next(mark for mark in field.metadata if isinstance(mark, Form))


# A validator that raises an empty ValueError means: say what the field's form accepts. One with a sentence: say that.


def _number(value: object) -> object:
    if isinstance(value, bool):  # else pydantic reads true as 1
        raise ValueError
    return value


def _off(value: object) -> object:
    return None if value is False or value == "off" else value  # YAML 1.1 reads a bare off as false


def _lines(value: object) -> object:
    return tuple(line for line in value.split("\n") if line) if isinstance(value, str) else value


def _printable(text: str) -> str:
    if not text.isprintable():
        raise ValueError
    return text


def _address(text: str) -> str:
    parse_address(text)
    return text


def _servers(value: object) -> object:
    """As lines of text, from a file's tables too: ``{url = "http://a:8000", slots = 8}``."""
    values = _lines(value)
    return tuple(_server(item) for item in values) if isinstance(values, list | tuple) else values


def _server(value: object) -> object:
    if not isinstance(value, dict):
        return value
    match value:
        case {"url": str(url), "slots": int(slots), **more} if not more and not isinstance(slots, bool):
            return f"{url} slots={slots}"
        case {"url": str(url), **more} if not more:
            return url
    raise ValueError


def _server_text(text: str) -> str:
    parse_server(text)
    return text


def _distinct(servers: tuple[str, ...]) -> tuple[str, ...]:
    addresses = [parse_server(text).address for text in servers]
    for address in addresses:
        if addresses.count(address) > 1:
            raise ValueError(f"{address} is given twice")
    return servers


def _seeds(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value  # YAML and TOML: seeds 5


def _checked_seeds(text: str) -> str:
    parse_seeds(text)
    return text


def _header(text: str) -> str:
    if not _HEADER.fullmatch(text):
        raise ValueError
    name = text.partition(":")[0].lower()
    if name in _OWN_HEADERS or name.startswith("sec-websocket-"):
        raise ValueError("this header is the connection's own (RFC 9110 section 7.6.1, RFC 6455) and cannot be set")
    return text


def _failed_observation(text: str) -> str:
    parse_failed_observation(text)
    return text


def _share(text: str) -> str:
    parse_share(text)
    return text


def _tool_name(text: str) -> str:
    if text in _TAKEN_NAMES:
        raise ValueError(f"a route of the server has this name; taken are {', '.join(sorted(_TAKEN_NAMES))}")
    if not _TOOL_NAME.fullmatch(text):
        raise ValueError
    return text


def _parsed(value: object) -> object:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        raise ValueError from None


def _finite(value: dict[str, JsonValue]) -> dict[str, JsonValue]:
    try:
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        raise ValueError from None
    return value


def _action(value: dict[str, JsonValue]) -> dict[str, JsonValue]:
    if not value:
        raise ValueError("an action has at least one field")
    if "tool_name" in value:
        tool, arguments = value["tool_name"], value.get("arguments")
        if len(value) != 2 or not (isinstance(tool, str) and tool and isinstance(arguments, dict)):
            raise ValueError('a tool call has "tool_name", a text, and "arguments", an object, and nothing else')
    return value


def _split(value: object) -> object:
    return tuple(value.split(",")) if isinstance(value, str) else value


def _secrets(secrets: tuple[SecretStr, ...]) -> tuple[SecretStr, ...]:
    if len(secrets) > 2 or any(len(secret.get_secret_value()) < SECRET_CHARACTERS for secret in secrets):
        raise ValueError
    return secrets


def _token(token: SecretStr) -> SecretStr:
    if not _TOKEN.fullmatch(token.get_secret_value()):
        raise ValueError
    return token


def is_own_token(text: str) -> bool:
    """Whether clients may have to send it: see `ACCEPTED_TOKENS`."""
    return len(text) >= SECRET_CHARACTERS and _TOKEN.fullmatch(text) is not None


def _own_token(token: SecretStr) -> SecretStr:
    if not is_own_token(token.get_secret_value()):
        raise ValueError
    return token


_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False), BeforeValidator(_number)]
_AtLeastOne = Annotated[int, Field(ge=1), BeforeValidator(_number)]
_NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False), BeforeValidator(_number)]

Timeout = Annotated[_Positive, Form("SECONDS", "a number of seconds greater than 0")]
Duration = Annotated[_NotNegative, Form("SECONDS", "a number of seconds, 0 or more")]
OptionalTimeout = Annotated[
    _Positive | None,
    BeforeValidator(_off),
    Form("SECONDS|off", "a number of seconds greater than 0, or off", absent="off"),
]
Host = Annotated[str, Field(pattern=r"^[^\s/]{1,255}$"), Form("HOST", "a host name or an IP address, without a port")]
Port = Annotated[
    int, Field(ge=0, le=65535), BeforeValidator(_number), Form("PORT", "a whole number from 0 to 65535 (0 = any)")
]
Switch = Annotated[bool, Form("", "true or false")]
LogFormat = Annotated[Literal["text", "json"], Form("text|json", "text or json")]
Address = Annotated[
    Annotated[str, AfterValidator(_address)] | None, Form("URL", ACCEPTED_FORMS, absent="the embedded GridSim server")
]
Servers = Annotated[
    tuple[Annotated[str, AfterValidator(_server_text)], ...],
    BeforeValidator(_servers),
    AfterValidator(_distinct),
    Form("'URL [slots=COUNT]'", ACCEPTED_SERVERS, absent="the embedded GridSim server"),
]
Header = Annotated[str, AfterValidator(_header)]
Headers = Annotated[
    tuple[Header, ...],
    BeforeValidator(_lines),
    Form("'NAME: VALUE'", "NAME: VALUE, of visible ASCII characters and on one line", shown="name"),
]
FailedObservations = Annotated[
    tuple[Annotated[str, AfterValidator(_failed_observation)], ...],
    BeforeValidator(_lines),
    Form("FIELD=VALUE", "FIELD=VALUE, the value JSON or text"),
]
Title = Annotated[
    str,
    Field(min_length=1, max_length=100),
    AfterValidator(_printable),
    Form("NAME", "1 to 100 printable characters"),
]
ToolName = Annotated[
    Annotated[str, AfterValidator(_tool_name)] | None,
    BeforeValidator(_off),
    Form("NAME|off", "1 to 64 of A-Z a-z 0-9 _ -, or off", absent="off"),
]
Seeds = Annotated[
    Annotated[str, AfterValidator(_checked_seeds)] | None, BeforeValidator(_seeds), Form("SEEDS", ACCEPTED_SEEDS)
]
FileName = Annotated[Annotated[str, Field(min_length=1)] | None, Form("FILE", "the name of a file")]
DirectoryName = Annotated[Annotated[str, Field(min_length=1)] | None, Form("DIR", "the name of a directory")]
Label = Annotated[
    Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_printable)] | None,
    Form("TEXT", "1 to 200 printable characters"),
]
AgentName = Annotated[
    Annotated[str, Field(min_length=1, max_length=100), AfterValidator(_printable)] | None,
    Form("NAME", "1 to 100 printable characters"),
]
Limit = Annotated[
    Annotated[int, Field(ge=1)] | None,
    BeforeValidator(_number),
    Form("COUNT", "a whole number, 1 or more", absent="all of them"),
]
Count = Annotated[_AtLeastOne, Form("COUNT", "a whole number, 1 or more")]
OptionalCount = Annotated[
    _AtLeastOne | None, BeforeValidator(_off), Form("COUNT|off", "a whole number, 1 or more, or off", absent="off")
]
Size = Annotated[
    float, Field(gt=0, le=1024), BeforeValidator(_number), Form("MIB", "a number of MiB greater than 0, at most 1024")
]
Bytes = Annotated[
    int,
    Field(ge=0, le=2**30),
    BeforeValidator(_number),
    Form("BYTES", "a whole number of bytes from 0 to 1073741824"),
]
JsonObject = Annotated[
    dict[str, JsonValue],
    BeforeValidator(_parsed),
    AfterValidator(_finite),
    Form("JSON", 'a JSON object such as {"level": 2}'),
]
Action = Annotated[
    Annotated[dict[str, JsonValue], AfterValidator(_finite), AfterValidator(_action)] | None,
    BeforeValidator(_parsed),
    Form("JSON", 'a JSON object such as {"evaluate": true} or {"tool_name": "score", "arguments": {}}'),
]
FailureClass = Annotated[
    Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}$")] | None,
    Form("NAME", "1 to 100 of A-Z a-z 0-9 _ . : -, beginning with a letter or a digit"),
]
FieldName = Annotated[
    Annotated[str, Field(min_length=1, max_length=100), AfterValidator(_printable)] | None,
    Form("FIELD", "1 to 100 printable characters"),
]
Labels = Annotated[
    tuple[Annotated[str, AfterValidator(_share)], ...],
    BeforeValidator(_lines),
    Form("SHARE", ACCEPTED_SHARES),
]
Secrets = Annotated[
    tuple[SecretStr, ...],
    BeforeValidator(_split),
    AfterValidator(_secrets),
    Form(
        "",
        f"one secret, or two separated by a comma, each of {SECRET_CHARACTERS} characters or more",
        absent="not set",
        shown="set",
    ),
]
Token = Annotated[
    Annotated[SecretStr, AfterValidator(_token)] | None,
    Form("", "visible ASCII characters without white space", absent="not set", shown="set"),
]
OwnToken = Annotated[
    Annotated[SecretStr, AfterValidator(_own_token)] | None,
    Form("", ACCEPTED_TOKENS, absent="not set", shown="set"),
]
HostNames = Annotated[
    tuple[Annotated[str, Field(pattern=r"^[^\s/:@\[\]]{1,255}$")], ...],
    BeforeValidator(_lines),
    Form("NAME", "a host name, without a port"),
]


class Settings(BaseModel):
    """What the models of all commands have in common."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class ServeSettings(Settings):
    """The settings of ``gymserve serve``. Durations are in seconds."""

    env: Servers = Field(
        default=(), description="Environment server to open episodes on, and its limit if it has one; repeatable."
    )
    env_header: Headers = Field(default=(), description="Header for the environment servers; repeatable.")
    host: Host = Field(default="127.0.0.1", description="Address to listen on.")
    port: Port = Field(default=8100, description="Port to listen on; 0 = any free one.")
    name: Title = Field(default="gymserve", description="This server's name; its cookie's name comes from it.")
    token_file: FileName = Field(default=None, description="File with the token that clients must send.")
    admin_token_file: FileName = Field(
        default=None, description="File with the token that it takes to act on sessions."
    )
    allowed_host: HostNames = Field(default=(), description="Name a browser may know this server by; repeatable.")
    tls_cert: FileName = Field(default=None, description="File with the certificate chain (PEM), for HTTPS.")
    tls_key: FileName = Field(default=None, description="File with the certificate's private key (PEM).")
    idle_timeout: Timeout = Field(
        default=600.0, description="Reclaim a session after this many seconds without a request in flight."
    )
    patience: Duration = Field(
        default=600.0,
        description="Wait this many seconds in all for an episode, 0 = one attempt; in files also reset_timeout.",
    )
    idle_timeout_max: Timeout = Field(
        default=3600.0,
        description="The longest idle timeout that a client may ask for, and that --reclaim when-wanted grants.",
    )
    reclaim: Annotated[Literal["strict", "when-wanted"], Form("strict|when-wanted", "strict or when-wanted")] = Field(
        default="strict",
        description="When a session beyond its idle timeout ends: at once, or when its slot is wanted.",
    )
    max_lifetime: OptionalTimeout = Field(
        default=None, description="End a session this many seconds after it opened, requests or not."
    )
    connect_timeout: Timeout = Field(
        default=10.0, description="Seconds for a TCP connection, and of a silent handshake before /health is asked."
    )
    label: Labels = Field(
        default=(), description="What labels get, such as 'eval*=weight:4,reserve:8,max:32'; repeatable."
    )
    restart_patience: Duration = Field(
        default=60.0, description="Seconds for which a server that has opened episodes may refuse; 0 = not at all."
    )
    max_handshakes: Annotated[
        int, Field(ge=1), BeforeValidator(_number), Form("COUNT", "a whole number, 1 or more")
    ] = Field(default=16, description="Unanswered handshakes with the environment server at one time.")
    reset_retries: Annotated[int, Field(ge=0), BeforeValidator(_number), Form("COUNT", "a whole number, 0 or more")] = (
        Field(default=2, description="Fresh episodes after a failed reset.")
    )
    reset_failed: FailedObservations = Field(
        default=(), description="Observation of a failed reset, such as reward_type=reset_error; repeatable."
    )
    step_timeout: Timeout = Field(default=600.0, description="Seconds for one step of an episode.")
    close_timeout: Timeout = Field(
        default=60.0, description="Seconds a slot counts as held while the environment closes."
    )
    keepalive: Duration = Field(
        default=30.0,
        description="Seconds of silence before an episode is kept alive, against the server's reaper; 0 = off.",
    )
    interim: Duration = Field(
        default=15.0,
        description="Seconds between interim answers (100 Continue) to a request that waits; 0 = off.",
    )
    grace: Duration = Field(default=3.0, description="Seconds that calls in flight may take when stopping.")
    tombstone: Duration = Field(default=900.0, description="Seconds for which an ended session is remembered.")
    reward: Annotated[Literal["sum", "last", "max"], Form("sum|last|max", "sum, last or max")] = Field(
        default="sum", description="How an episode's rewards become its score."
    )
    hide_reward: Switch = Field(default=False, description="Leave rewards out of what tools answer.")
    observation_tool: ToolName = Field(
        default="observation", description="Tool that answers the latest observation again."
    )
    masked_as_error: Annotated[
        Literal["never", "always", "auto"], Form("never|always|auto", "never, always or auto")
    ] = Field(default="auto", description="Answer verify with 503 where the result is masked; auto: verifiers.")
    failure_class: FailureClass = Field(
        default=None, description="Failure class of masked results (_ng_failure_class), for NeMo Gym's retries."
    )
    verify_action: Action = Field(
        default=None,
        description="Action sent at verify to an episode that is not done: its fields, or a tool call.",
    )
    on_step_timeout: Annotated[Literal["mask", "score"], Form("mask|score", "mask or score")] = Field(
        default="mask", description="What an episode is worth whose step timed out."
    )
    reset_kwargs: JsonObject = Field(default_factory=dict, description="Arguments of every episode's reset.")
    derive_seed: Switch = Field(
        default=False, description="Give a reset without a seed one made from its row, the same for a whole group."
    )
    mcp: Annotated[Literal["auto", "always", "never"], Form("auto|always|never", "auto, always or never")] = Field(
        default="auto", description="Offer a session's tools over MCP at /mcp; auto: where its row lists none."
    )
    text_action: FieldName = Field(
        default=None, description="Field of the action that a gymnasium agent's plain message fills."
    )
    max_sessions: Count = Field(default=100_000, description="Sessions at one time that have not ended.")
    max_waiting: Count = Field(default=100_000, description="Sessions at one time that wait for an episode.")
    max_connections: OptionalCount = Field(
        default=None, description="Client connections at one time; off: half of the file descriptors, never more."
    )
    max_body: Size = Field(default=64.0, description="Largest body of a request, in MiB.")
    max_observation: Size = Field(default=100.0, description="Largest message of the environment server, in MiB.")
    client_timeout: Timeout = Field(
        default=60.0, description="Seconds for a request's head, and for each 64 KiB of a body or of an answer."
    )
    partition_timeout: Annotated[
        float,
        Field(ge=0, le=3600),
        BeforeValidator(_number),
        Form("SECONDS", "a number of seconds from 0 to 3600 (0 = off)"),
    ] = Field(default=60.0, description="Seconds until a connection whose other end is cut off is given up; 0 = never.")
    journal: FileName = Field(
        default=None, description="File of final scores, so that a restarted gymserve can tell them."
    )
    record: DirectoryName = Field(
        default=None, description="Directory that gets a file of each episode: its row, actions, observations, rewards."
    )
    record_max_bytes: Bytes = Field(
        default=65_536, description="Longest observation (bytes of JSON) that is recorded whole."
    )
    log_format: LogFormat = Field(default="text", description="How log lines are written.")
    secret: Secrets = Field(
        default=(), description="Signs session cookies; of two, the first signs and both are accepted."
    )
    token: OwnToken = Field(default=None, description="Token that clients must send.")
    admin_token: OwnToken = Field(default=None, description="Token that it takes to act on sessions.")
    env_token: Token = Field(default=None, description="Bearer token for the environment server.")


class EnvSettings(Settings):
    """The settings of ``gymserve env``. The faults are held as text; who knows the faults checks them."""

    host: Host = Field(default="127.0.0.1", description="Address to listen on.")
    port: Port = Field(default=8200, description="Port to listen on; 0 = any free one.")
    capacity: Annotated[int, Field(ge=1), BeforeValidator(_number), Form("COUNT", "a whole number, 1 or more")] = Field(
        default=8, description="Episodes at one time."
    )
    fault: Annotated[tuple[str, ...], BeforeValidator(_lines), Form("NAME[:VALUE]", "NAME or NAME:VALUE")] = Field(
        default=(), description="Something that goes wrong; repeatable."
    )
    log_format: LogFormat = Field(default="text", description="How log lines are written.")


class RowsSettings(Settings):
    """The settings of ``gymserve rows``. Durations are in seconds."""

    split: Annotated[Literal["train", "eval"], Form("train|eval", "train or eval")] = Field(
        default="train", description="GridSim's days to write a row for each of."
    )
    env: Address = Field(default=None, description="Environment server to write rows for.")
    env_header: Headers = Field(default=(), description="Header for the environment server; repeatable.")
    seeds: Seeds = Field(
        default=None, description="Seeds for the environment server, a row for each: 5, 0..999 or 0..9,20..29."
    )
    prompt: FileName = Field(
        default=None, description="File with the text that tells a model its task; GridSim has one built in."
    )
    agent: AgentName = Field(default=None, description="NeMo Gym's agent for the rows (agent_ref).")
    label: Label = Field(default=None, description="Label of the rows' sessions (gymserve_label).")
    limit: Limit = Field(default=None, description="Write no more than this many rows.")
    output: FileName = Field(
        default=None, description="File to write, whole or not at all; without it rows go to stdout."
    )
    observation_tool: ToolName = Field(
        default="observation", description="The tool of gymserve serve that answers the latest observation again."
    )
    patience: Duration = Field(
        default=60.0, description="Wait this many seconds in all for an environment server, 0 = one attempt."
    )
    connect_timeout: Timeout = Field(
        default=10.0, description="Seconds for one TCP connection to the environment server."
    )
    env_token: Token = Field(default=None, description="Bearer token for the environment server.")
