"""The OpenEnv WebSocket protocol as a codec: text in, messages out, no I/O, both roles.

One episode is one WebSocket at ``/ws``. The client asks (`Reset`, `Step`, `Mcp`, `Close`), the server answers in order;
nothing numbers the answers, so at most one question may be outstanding and whoever loses count must drop the
connection. `Conversation` keeps that count for the client; ``decode_answer`` and ``decode_question`` are the two
directions. Seen on the wire of openenv 0.2.0 to 0.10.0 (``openenv/core/env_server/types.py``: ``WS*Message``,
``WSErrorCode``).
"""

import enum
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gymserve.nesting import MAX_DEPTH, is_too_deep

CAPACITY_REACHED = "CAPACITY_REACHED"
EXECUTION_ERROR = "EXECUTION_ERROR"
FACTORY_ERROR = "FACTORY_ERROR"
INVALID_JSON = "INVALID_JSON"
SESSION_ERROR = "SESSION_ERROR"
UNKNOWN_TYPE = "UNKNOWN_TYPE"
VALIDATION_ERROR = "VALIDATION_ERROR"

#: After one of these the server closes the connection and destroys the environment.
ENDING_CODES = frozenset({CAPACITY_REACHED, FACTORY_ERROR, SESSION_ERROR})

# JSON-RPC 2.0, section 5.1
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603

_WRITER = json.JSONEncoder(separators=(",", ":"))  # kept: json.dumps makes a new one for each call

_SHOWN_CHARACTERS = 120  # of what a peer said

# OpenEnv's server reads what Python's stack has room for, about a thousand levels, and answers with the input in it.
_QUESTION_DEPTH = 500


class WireError(Exception):
    """The peer said something that is not OpenEnv's protocol, or not its turn: the connection is of no more use."""


class OutOfTurn(Exception):
    """We were about to say something before the last answer came, or after the end: a fault of ours."""


# -- what a client asks ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Reset:
    """Begin the episode. ``kwargs`` reach the environment's ``reset`` (names it does not know are dropped there)."""

    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def encode(self) -> str:
        return _dump({"type": "reset", "data": dict(self.kwargs)})


@dataclass(frozen=True, slots=True)
class Step:
    """Act. ``action_json`` is the action as JSON text and is forwarded to the letter: numbers, keys and escapes as
    the client wrote them.
    """

    action_json: str

    def encode(self) -> str:
        return f'{{"type":"step","data":{self.action_json}}}'

    def parsed(self) -> Any:
        """The action as Python values (for the server's side)."""
        return json.loads(self.action_json)


@dataclass(frozen=True, slots=True)
class StateQuery:
    """Ask for the environment's ``state``; not an activity in the server's eyes."""

    def encode(self) -> str:
        return '{"type":"state"}'


@dataclass(frozen=True, slots=True)
class Mcp:
    """A JSON-RPC request to the environment's MCP side: ``tools/list``, ``tools/call``, or any other as a keepalive."""

    method: str
    id: int | str | None
    params: Mapping[str, Any] = field(default_factory=dict)

    def encode(self) -> str:
        request: dict[str, Any] = {"jsonrpc": "2.0", "method": self.method, "id": self.id}
        if self.params:
            request["params"] = dict(self.params)
        return _dump({"type": "mcp", "data": request})


@dataclass(frozen=True, slots=True)
class Close:
    """Goodbye: the server destroys the environment, then sends CLOSE 1000. It sends no message in answer."""

    def encode(self) -> str:
        return '{"type":"close"}'


Question = Reset | Step | StateQuery | Mcp | Close


def call_tool(name: str, arguments_json: str) -> Step:
    """The step that calls tool ``name`` of an MCP environment with ``arguments_json`` (a JSON object as text,
    forwarded to the letter).
    """
    return Step(f'{{"type":"call_tool","tool_name":{json.dumps(name)},"arguments":{arguments_json}}}')


def action(value: Mapping[str, Any]) -> Step:
    """The step of an action given as values: its fields, or ``{"tool_name", "arguments"}`` for a tool of an MCP
    environment, by the environment's own name.
    """
    match value:
        case {"tool_name": str(name), "arguments": dict(arguments)} if len(value) == 2:
            return call_tool(name, json.dumps(arguments))
    return Step(json.dumps(value))


# -- what a server answers -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Observation:
    """The answer to reset and step alike. ``reward`` is as received: a number, a boolean or None (NaN and infinities
    arrive as None). ``characters``: of the message that it was received in.
    """

    fields: Mapping[str, Any]
    reward: Any = None
    done: bool = False
    characters: int = field(default=0, compare=False, repr=False)

    def encode(self) -> str:
        data = {"observation": dict(self.fields), "reward": _finite(self.reward), "done": self.done}
        if self.fields.get("metadata"):
            data["metadata"] = self.fields["metadata"]  # said twice since 0.4.0, for clients that look there
        return _dump({"type": "observation", "data": data})


@dataclass(frozen=True, slots=True)
class StateAnswer:
    """The answer to `StateQuery`."""

    fields: Mapping[str, Any]

    def encode(self) -> str:
        return _dump({"type": "state", "data": dict(self.fields)})


@dataclass(frozen=True, slots=True)
class McpAnswer:
    """The answer to `Mcp`: ``result``, or ``error`` as JSON-RPC's object with ``code`` and ``message``."""

    id: int | str | None
    result: Any = None
    error: Mapping[str, Any] | None = None

    def encode(self) -> str:
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": self.id}
        if self.error is None:
            answer["result"] = self.result
        else:
            answer["error"] = {**self.error, "data": self.error.get("data")}
        return _dump({"type": "mcp", "data": answer})


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error message. It does not say "not executed": an answer that could not be serialised comes after the step
    ran.

    ``errors`` is the validator's list of a VALIDATION_ERROR; ``active_sessions`` and ``max_sessions`` come with
    CAPACITY_REACHED.
    """

    code: str
    message: str
    errors: Sequence[Any] | None = None
    active_sessions: int | None = None
    max_sessions: int | None = None
    factory_name: str | None = None

    @property
    def ends_the_episode(self) -> bool:
        return self.code in ENDING_CODES

    def encode(self) -> str:
        data: dict[str, Any] = {"message": self.message, "code": self.code}
        for name in ("errors", "active_sessions", "max_sessions", "factory_name"):
            value = getattr(self, name)
            if value is not None:
                data[name] = value
        return _dump({"type": "error", "data": data})


Answer = Observation | StateAnswer | McpAnswer | Refusal


def decode_answer(text: str | bytes) -> Answer:
    """What a server sent.

    :raises WireError: it is not one of OpenEnv's four answers. Keys unknown to us are ignored, as versions add them.
    """
    message = _load_object(text)
    data = message.get("data")
    if not isinstance(data, dict):
        raise WireError(f"an answer without data: {_shorten(text)}")
    match message.get("type"):
        case "observation":
            return _observation(data, text)
        case "state":
            return StateAnswer(data)
        case "mcp":
            error = data.get("error")
            return McpAnswer(data.get("id"), data.get("result"), error if isinstance(error, dict) else None)
        case "error":
            return _refusal(data)
        case other:
            raise WireError(f"an answer of unknown type {repr(other)[:_SHOWN_CHARACTERS]}")


def _observation(data: Mapping[str, Any], text: str | bytes) -> Observation:
    fields = data.get("observation")
    if not isinstance(fields, dict):
        raise WireError(f"an observation that is not an object: {_shorten(text)}")
    return Observation(fields, _finite(data.get("reward")), data.get("done") is True, len(text))


def _finite(reward: Any) -> Any:
    """``reward``, or None where JSON has no word for it: pydantic, and so OpenEnv, writes null."""
    return None if isinstance(reward, float) and not math.isfinite(reward) else reward


def _refusal(data: Mapping[str, Any]) -> Refusal:
    errors = data.get("errors")
    return Refusal(
        code=str(data.get("code")),
        message=str(data.get("message")),
        errors=errors if isinstance(errors, list) else None,
        active_sessions=_count(data.get("active_sessions")),
        max_sessions=_count(data.get("max_sessions")),
        factory_name=name if isinstance(name := data.get("factory_name"), str) else None,
    )


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


# -- what a server is asked ------------------------------------------------------------------------------------------


class BadQuestion(Exception):
    """What a client sent cannot be served; `answer` is OpenEnv's answer to it."""

    def __init__(self, answer: Refusal | McpAnswer) -> None:
        super().__init__(answer.encode())
        self.answer = answer

    @property
    def ends_the_episode(self) -> bool:
        return isinstance(self.answer, Refusal) and self.answer.ends_the_episode


def decode_question(text: str | bytes) -> Question:
    """What a client sent.

    :raises BadQuestion: OpenEnv would answer with an error message; whether the session survives is
        `BadQuestion.ends_the_episode`.
    """
    message = _load_question(text)
    match message.get("type", ""):
        case "reset":
            return Reset(_only_data(message, default={}))
        case "step":
            return Step(_dump(_only_data(message)))
        case "state":
            _nothing_else(message)
            return StateQuery()
        case "mcp":
            return _mcp(_only_data(message))
        case "close":
            _nothing_else(message)
            return Close()
        case other:
            raise BadQuestion(Refusal(UNKNOWN_TYPE, f"Unknown message type: {other}"))


def _load_question(text: str | bytes) -> Mapping[str, Any]:
    if isinstance(text, bytes):
        raise BadQuestion(Refusal(SESSION_ERROR, "'text'"))  # OpenEnv reads only text frames and dies of the KeyError
    if is_too_deep(text, levels=_QUESTION_DEPTH):
        raise BadQuestion(Refusal(SESSION_ERROR, "maximum recursion depth exceeded"))
    try:
        message = json.loads(text)
    except json.JSONDecodeError as exc:
        raise BadQuestion(Refusal(INVALID_JSON, f"Invalid JSON: {exc}")) from exc
    except ValueError as exc:  # an integer of too many digits
        raise BadQuestion(Refusal(SESSION_ERROR, str(exc))) from exc
    if not isinstance(message, dict):
        raise BadQuestion(Refusal(SESSION_ERROR, f"{type(message).__name__!r} object has no attribute 'get'"))
    return message


def _only_data(message: Mapping[str, Any], *, default: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """``data`` of a message that may have no other key (OpenEnv's models forbid extras)."""
    data = message.get("data", default)
    errors = _extras(message, "data")
    if data is None and "data" not in message:
        errors.insert(0, _fault("missing", "data", "Field required", dict(message)))
    elif not isinstance(data, dict):
        errors.insert(0, _fault("dict_type", "data", "Input should be a valid dictionary", data))
    _refuse(errors)
    return dict(data or {})


def _nothing_else(message: Mapping[str, Any]) -> None:
    _refuse(_extras(message))


def _extras(message: Mapping[str, Any], *known: str) -> list[Mapping[str, Any]]:
    sentence = "Extra inputs are not permitted"
    return [
        _fault("extra_forbidden", key, sentence, message[key]) for key in message if key != "type" and key not in known
    ]


def _fault(kind: str, key: str, sentence: str, value: Any) -> Mapping[str, Any]:
    return {"type": kind, "loc": [key], "msg": sentence, "input": value}


def _refuse(errors: Sequence[Mapping[str, Any]]) -> None:
    if errors:
        raise BadQuestion(Refusal(VALIDATION_ERROR, "Invalid message", errors=errors))


def _mcp(request: Mapping[str, Any]) -> Mcp:
    """A JSON-RPC request. One that is none is answered with ``id`` null, as JSON-RPC asks (section 5)."""
    faults = []
    if request.get("jsonrpc") != "2.0":
        faults.append("jsonrpc should be '2.0'")
    if not isinstance(request.get("method"), str):
        faults.append("method should be a string")
    if not isinstance(request.get("params", {}), dict):
        faults.append("params should be an object")
    if not isinstance(request.get("id"), str | int | None):
        faults.append("id should be a string or an integer")
    faults += [f"{key} is not permitted" for key in request if key not in ("jsonrpc", "method", "params", "id")]
    if faults:
        error = {"code": INVALID_REQUEST, "message": f"Invalid request: {'; '.join(faults)}"}
        raise BadQuestion(McpAnswer(None, error=error))
    return Mcp(request["method"], request.get("id"), request.get("params", {}))


# -- whose turn it is, for the client --------------------------------------------------------------------------------


class Turn(enum.Enum):
    READY = "nothing is outstanding"
    AWAITING = "an answer is outstanding"
    LOST = "an answer may still come that we can no longer tell from the next one"
    CLOSED = "we said goodbye"


_SAY = {Turn.READY: Turn.AWAITING}
_GOODBYE = {Turn.READY: Turn.CLOSED}

_ANSWERS: dict[type[Question], type[Answer]] = {
    Reset: Observation,
    Step: Observation,
    StateQuery: StateAnswer,
    Mcp: McpAnswer,
}


class Conversation:
    """A client's side of one episode: who may speak, and whether an answer belongs to the question.

    ::

        READY --ask--> AWAITING --answer--> READY      any state --lose, an ending refusal, nonsense--> LOST
        READY --ask(Close)--> CLOSED
    """

    def __init__(self) -> None:
        self.turn = Turn.READY
        self._asked: Question | None = None

    def ask(self, question: Question) -> str:
        """The text to send. :raises OutOfTurn: an answer is outstanding, or the episode is lost or closed."""
        allowed = _GOODBYE if isinstance(question, Close) else _SAY
        if self.turn not in allowed:
            raise OutOfTurn(f"cannot send {type(question).__name__} while {self.turn.value}")
        self.turn = allowed[self.turn]
        self._asked = question
        return question.encode()

    def hear(self, text: str | bytes) -> Answer:
        """The answer in what was received.

        A refusal that ends the episode may come unasked: a full server refuses right after the upgrade (there is no
        word of welcome).

        :raises WireError: nonsense, or an answer to nothing we asked. The conversation is lost then.
        """
        asked, self._asked = self._asked, None
        turn, self.turn = self.turn, Turn.LOST  # until it proves to be the answer
        answer = decode_answer(text)
        if isinstance(answer, Refusal) and answer.ends_the_episode:
            return answer
        if turn is not Turn.AWAITING or asked is None:
            raise WireError(f"an answer to nothing we asked: {_shorten(text)}")
        if not isinstance(answer, Refusal) and not _belongs(answer, asked):
            raise WireError(f"a {type(answer).__name__} in answer to a {type(asked).__name__}")
        self.turn = Turn.READY
        return answer

    def lose(self) -> None:
        """We stopped waiting: whatever comes now cannot be told from a later answer."""
        self.turn = Turn.LOST


def _belongs(answer: Answer, asked: Question) -> bool:
    if isinstance(asked, Mcp) and isinstance(answer, McpAnswer) and answer.id != asked.id:
        return False
    return isinstance(answer, _ANSWERS[type(asked)])


def _dump(value: Any) -> str:
    return _WRITER.encode(value)


def _load_object(text: str | bytes) -> dict[str, Any]:
    if isinstance(text, bytes):
        raise WireError(f"a binary frame of {len(text)} bytes")
    if is_too_deep(text):
        raise WireError(f"JSON nested beyond {MAX_DEPTH} levels")
    try:
        message = json.loads(text)
    except ValueError as exc:
        raise WireError(f"not JSON: {_shorten(text)}") from exc
    if not isinstance(message, dict):
        raise WireError(f"not a JSON object: {_shorten(text)}")
    return message


def _shorten(text: str | bytes) -> str:
    return repr(text[:_SHOWN_CHARACTERS]) + ("..." if len(text) > _SHOWN_CHARACTERS else "")
