"""OpenEnv's wire, both roles: every message as text, every error, and whose turn it is."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymserve.wire import (
    Answer,
    BadQuestion,
    Close,
    Conversation,
    Mcp,
    McpAnswer,
    Observation,
    OutOfTurn,
    Question,
    Refusal,
    Reset,
    StateAnswer,
    StateQuery,
    Step,
    Turn,
    WireError,
    action,
    call_tool,
    decode_answer,
    decode_question,
)

PING = Mcp("ping", 1)
PONG = McpAnswer(1, error={"code": -32601, "message": "Method not found: ping", "data": None})
SEEN = Observation({"metadata": {}}, 0.5)

# -- what a client asks ----------------------------------------------------------------------------------------------

QUESTIONS: list[tuple[Question, str]] = [
    (Reset(), '{"type":"reset","data":{}}'),
    (Reset({"seed": 7}), '{"type":"reset","data":{"seed":7}}'),
    (Step('{"by":1}'), '{"type":"step","data":{"by":1}}'),
    (StateQuery(), '{"type":"state"}'),
    (PING, '{"type":"mcp","data":{"jsonrpc":"2.0","method":"ping","id":1}}'),
    (
        Mcp("tools/call", "a", {"name": "add"}),
        '{"type":"mcp","data":{"jsonrpc":"2.0","method":"tools/call","id":"a","params":{"name":"add"}}}',
    ),
    (Close(), '{"type":"close"}'),
]


@pytest.mark.parametrize(("question", "text"), QUESTIONS)
def test_a_question_is_written_and_read(question: Question, text: str) -> None:
    assert question.encode() == text
    assert decode_question(text) == question


def test_an_action_is_forwarded_to_the_letter() -> None:
    text = '{ "x": 1.50, "x": 1E400,\t"n": 123456789012345678901234567890, "s": "\\u00e9\\/" }'
    assert Step(text).encode() == f'{{"type":"step","data":{text}}}'


def test_a_tool_is_called_by_a_step() -> None:
    step = call_tool('a"b', '{"x": 1.50}')
    assert step.encode() == ('{"type":"step","data":{"type":"call_tool","tool_name":"a\\"b","arguments":{"x": 1.50}}}')
    assert step.parsed() == {"type": "call_tool", "tool_name": 'a"b', "arguments": {"x": 1.5}}


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"evaluate": True, "by": [1.5, None, {"a": "\u00e9\ud800"}]},
        {"tool_name": "score"},
        {"arguments": {}},
        {"tool_name": "score", "arguments": {}, "more": 1},
        {"tool_name": "score", "arguments": "{}"},
        {"tool_name": "score", "arguments": None},
        {"tool_name": 5, "arguments": {}},
    ],
)
def test_an_action_given_as_values_is_its_fields(value: dict[str, Any]) -> None:
    assert decode_question(action(value).encode()) == Step(json.dumps(value, separators=(",", ":")))


def test_an_action_given_as_a_tool_and_its_arguments_is_a_tool_call() -> None:
    value = {"arguments": {"strict": True, "tool_name": "x"}, "tool_name": 'a"b'}
    assert action(value).parsed() == {"type": "call_tool", **value}
    assert action(value) == call_tool('a"b', '{"strict": true, "tool_name": "x"}')


def test_a_reset_needs_no_data() -> None:
    assert decode_question('{"type":"reset"}') == Reset()


@pytest.mark.parametrize(
    ("text", "code", "sentence"),
    [
        ("", "INVALID_JSON", "Invalid JSON: Expecting value: line 1 column 1 (char 0)"),
        (
            "{",
            "INVALID_JSON",
            "Invalid JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        ),
        ("{} {}", "INVALID_JSON", "Invalid JSON: Extra data: line 1 column 4 (char 3)"),
        ("{}", "UNKNOWN_TYPE", "Unknown message type: "),
        ('{"type":null}', "UNKNOWN_TYPE", "Unknown message type: None"),
        ('{"type":5}', "UNKNOWN_TYPE", "Unknown message type: 5"),
        ('{"type":{"a":1}}', "UNKNOWN_TYPE", "Unknown message type: {'a': 1}"),
        ('{"type":"bogus"}', "UNKNOWN_TYPE", "Unknown message type: bogus"),
        (b'{"type":"reset"}', "SESSION_ERROR", "'text'"),
        ("[1]", "SESSION_ERROR", "'list' object has no attribute 'get'"),
        ('"x"', "SESSION_ERROR", "'str' object has no attribute 'get'"),
        ("5", "SESSION_ERROR", "'int' object has no attribute 'get'"),
        ("1.5", "SESSION_ERROR", "'float' object has no attribute 'get'"),
        ("true", "SESSION_ERROR", "'bool' object has no attribute 'get'"),
        ("null", "SESSION_ERROR", "'NoneType' object has no attribute 'get'"),
    ],
)
def test_what_cannot_be_read_gets_openenvs_answer(text: str | bytes, code: str, sentence: str) -> None:
    with pytest.raises(BadQuestion) as raised:
        decode_question(text)
    assert raised.value.answer == Refusal(code, sentence)
    assert raised.value.ends_the_episode == (code == "SESSION_ERROR")


@pytest.mark.parametrize(
    "message",
    ['{"type":%s}', '{"type":"reset","x":%s}', '{"type":"step","data":{"x":%s}}', '{"type":"mcp","data":{"id":%s}}'],
)
def test_a_question_of_any_depth_has_an_answer(message: str) -> None:
    for depth in (130, 490, 510, *range(900, 1_000, 3), 2_490, 9_990, 100_000):
        try:
            decode_question(message % ("[" * depth + "]" * depth))
        except BadQuestion as bad:
            assert bad.ends_the_episode is (depth > 500)
        else:
            assert depth < 500


@pytest.mark.parametrize("text", ["[" * 200_000, "1" * 5000])
def test_what_python_cannot_read_ends_the_session(text: str) -> None:
    with pytest.raises(BadQuestion) as raised:
        decode_question(text)
    assert isinstance(raised.value.answer, Refusal)
    assert raised.value.answer.code == "SESSION_ERROR"


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ('{"type":"reset","data":null}', [("dict_type", "data", "Input should be a valid dictionary", None)]),
        ('{"type":"reset","data":7}', [("dict_type", "data", "Input should be a valid dictionary", 7)]),
        ('{"type":"reset","x":1}', [("extra_forbidden", "x", "Extra inputs are not permitted", 1)]),
        (
            '{"type":"reset","x":1,"y":2,"data":7}',
            [
                ("dict_type", "data", "Input should be a valid dictionary", 7),
                ("extra_forbidden", "x", "Extra inputs are not permitted", 1),
                ("extra_forbidden", "y", "Extra inputs are not permitted", 2),
            ],
        ),
        ('{"type":"step"}', [("missing", "data", "Field required", {"type": "step"})]),
        ('{"type":"step","data":null}', [("dict_type", "data", "Input should be a valid dictionary", None)]),
        ('{"type":"step","data":[]}', [("dict_type", "data", "Input should be a valid dictionary", [])]),
        ('{"type":"step","data":{},"id":1}', [("extra_forbidden", "id", "Extra inputs are not permitted", 1)]),
        ('{"type":"state","data":{}}', [("extra_forbidden", "data", "Extra inputs are not permitted", {})]),
        ('{"type":"close","x":1}', [("extra_forbidden", "x", "Extra inputs are not permitted", 1)]),
        ('{"type":"mcp"}', [("missing", "data", "Field required", {"type": "mcp"})]),
        ('{"type":"mcp","data":7}', [("dict_type", "data", "Input should be a valid dictionary", 7)]),
    ],
)
def test_a_message_of_the_wrong_shape_is_a_validation_error(text: str, faults: list[tuple[Any, ...]]) -> None:
    with pytest.raises(BadQuestion) as raised:
        decode_question(text)
    errors = [{"type": kind, "loc": [key], "msg": sentence, "input": value} for kind, key, sentence, value in faults]
    assert raised.value.answer == Refusal("VALIDATION_ERROR", "Invalid message", errors=errors)
    assert not raised.value.ends_the_episode


@pytest.mark.parametrize(
    ("request_json", "faults"),
    [
        ('{"method":"ping","id":7}', "jsonrpc should be '2.0'"),
        ('{"jsonrpc":"2.0","id":7}', "method should be a string"),
        ('{"jsonrpc":"2.0","method":"ping","params":null}', "params should be an object"),
        ('{"jsonrpc":"2.0","method":"ping","params":[1]}', "params should be an object"),
        ('{"jsonrpc":"2.0","method":"ping","id":1.5}', "id should be a string or an integer"),
        ('{"jsonrpc":"2.0","method":"ping","x":1}', "x is not permitted"),
        ("{}", "jsonrpc should be '2.0'; method should be a string"),
    ],
)
def test_what_is_no_json_rpc_is_answered_in_json_rpc(request_json: str, faults: str) -> None:
    with pytest.raises(BadQuestion) as raised:
        decode_question(f'{{"type":"mcp","data":{request_json}}}')
    assert raised.value.answer == McpAnswer(None, error={"code": -32600, "message": f"Invalid request: {faults}"})
    assert not raised.value.ends_the_episode


# -- what a server answers -------------------------------------------------------------------------------------------

ANSWERS: list[tuple[Answer, str]] = [
    (SEEN, '{"type":"observation","data":{"observation":{"metadata":{}},"reward":0.5,"done":false}}'),
    (
        Observation({"metadata": {"a": 1}}, True, True),
        '{"type":"observation","data":{"observation":{"metadata":{"a":1}},"reward":true,"done":true,'
        '"metadata":{"a":1}}}',
    ),
    (StateAnswer({"step_count": 1}), '{"type":"state","data":{"step_count":1}}'),
    (McpAnswer(1, {"tools": []}), '{"type":"mcp","data":{"jsonrpc":"2.0","id":1,"result":{"tools":[]}}}'),
    (
        PONG,
        '{"type":"mcp","data":{"jsonrpc":"2.0","id":1,'
        '"error":{"code":-32601,"message":"Method not found: ping","data":null}}}',
    ),
    (Refusal("EXECUTION_ERROR", ""), '{"type":"error","data":{"message":"","code":"EXECUTION_ERROR"}}'),
    (
        Refusal("CAPACITY_REACHED", "full", active_sessions=0, max_sessions=1),
        '{"type":"error","data":{"message":"full","code":"CAPACITY_REACHED","active_sessions":0,"max_sessions":1}}',
    ),
    (
        Refusal("FACTORY_ERROR", "no", factory_name="Env"),
        '{"type":"error","data":{"message":"no","code":"FACTORY_ERROR","factory_name":"Env"}}',
    ),
    (
        Refusal("VALIDATION_ERROR", "Invalid message", errors=[{"loc": ["x"]}]),
        '{"type":"error","data":{"message":"Invalid message","code":"VALIDATION_ERROR","errors":[{"loc":["x"]}]}}',
    ),
]


@pytest.mark.parametrize(("answer", "text"), ANSWERS)
def test_an_answer_is_written_and_read(answer: Answer, text: str) -> None:
    assert answer.encode() == text
    assert decode_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ('{"type":"observation","data":{"observation":{}}}', Observation({})),
        ('{"type":"observation","data":{"observation":{},"done":1,"new":2}}', Observation({})),
        ('{"type":"observation","data":{"observation":{},"reward":NaN}}', Observation({})),
        ('{"type":"observation","data":{"observation":{},"reward":-1e999}}', Observation({})),
        ('{"type":"observation","data":{"observation":{},"reward":0}}', Observation({}, 0)),
        (
            '{"type":"mcp","data":{"jsonrpc":"2.0","error":{"code":-32601,"message":"no"},"id":1}}',  # 0.2.1
            McpAnswer(1, error={"code": -32601, "message": "no"}),
        ),
        (
            '{"type":"error","data":{"code":"CAPACITY_REACHED","message":"full","active_sessions":true,"max_sessions":-1}}',
            Refusal("CAPACITY_REACHED", "full"),
        ),
        ('{"type":"error","data":{"errors":"x","factory_name":1}}', Refusal("None", "None")),
    ],
)
def test_an_answer_of_another_version_is_read(text: str, answer: Answer) -> None:
    assert decode_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"12345", "a binary frame of 5 bytes"),
        ("<html>", "not JSON: '<html>'"),
        ("x" * 121, f"not JSON: '{'x' * 120}'..."),
        ("[" * 200_000, "JSON nested beyond 128 levels"),
        ("[]", "not a JSON object: '[]'"),
        ("{}", "an answer without data: '{}'"),
        ('{"type":"state","data":[]}', 'an answer without data: \'{"type":"state","data":[]}\''),
        ('{"data":{}}', "an answer of unknown type None"),
        ('{"type":"reset","data":{}}', "an answer of unknown type 'reset'"),
        (f'{{"type":"{"x" * 1000}","data":{{}}}}', f"an answer of unknown type '{'x' * 119}"),
        (
            '{"type":"observation","data":{"observation":[]}}',
            'an observation that is not an object: \'{"type":"observation","data":{"observation":[]}}\'',
        ),
    ],
)
def test_what_is_no_answer_is_an_error(text: str | bytes, sentence: str) -> None:
    with pytest.raises(WireError) as raised:
        decode_answer(text)
    assert str(raised.value) == sentence


@pytest.mark.parametrize(
    ("code", "ends"),
    [
        ("CAPACITY_REACHED", True),
        ("FACTORY_ERROR", True),
        ("SESSION_ERROR", True),
        ("EXECUTION_ERROR", False),
        ("INVALID_JSON", False),
        ("UNKNOWN_TYPE", False),
        ("VALIDATION_ERROR", False),
    ],
)
def test_which_refusals_end_the_episode(code: str, ends: bool) -> None:
    assert Refusal(code, "").ends_the_episode is ends


# -- round trips -----------------------------------------------------------------------------------------------------

scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3), max_leaves=8
)
objects = st.dictionaries(st.text(), values, max_size=3)
ids = st.none() | st.integers() | st.text()


@given(
    st.builds(Reset, objects)
    | st.builds(lambda action: Step(json.dumps(action, separators=(",", ":"))), objects)
    | st.builds(Mcp, st.text(), ids, objects)
)
def test_the_server_reads_what_the_client_wrote(question: Question) -> None:
    assert decode_question(question.encode()) == question


@given(
    st.builds(Observation, objects, st.none() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False))
    | st.builds(StateAnswer, objects)
    | st.builds(McpAnswer, ids, values)
    | st.builds(Refusal, st.text(), st.text(), st.none() | st.lists(objects, max_size=2), st.none() | st.integers(0))
)
def test_the_client_reads_what_the_server_wrote(answer: Answer) -> None:
    assert decode_answer(answer.encode()) == answer


@given(
    st.text() | st.binary() | values.map(json.dumps) | objects.map(lambda data: json.dumps({**data, "type": "step"}))
)
def test_a_server_refuses_all_else_in_words(text: str | bytes) -> None:
    try:
        question = decode_question(text)
    except BadQuestion as bad:
        assert decode_answer(bad.answer.encode())
    else:
        assert decode_question(question.encode()) == question


@given(
    st.text()
    | st.binary()
    | values.map(json.dumps)
    | objects.map(lambda data: json.dumps({"type": "observation", **data}))
)
def test_a_client_takes_all_else_for_nonsense(text: str | bytes) -> None:
    try:
        answer = decode_answer(text)
    except WireError as error:
        assert len(str(error)) < 1_000
    else:
        assert decode_answer(answer.encode()) == answer


HEARD = (SEEN, PONG, StateAnswer({}), Refusal("SESSION_ERROR", ""), Refusal("EXECUTION_ERROR", ""))


@given(
    question=st.sampled_from([None, Reset(), Step("{}"), StateQuery(), PING, Close()]),
    heard=st.lists(st.sampled_from([answer.encode() for answer in HEARD]) | st.text(), max_size=3),
)
def test_whatever_is_heard_no_two_answers_belong_to_one_question(question: Question | None, heard: list[str]) -> None:
    conversation = Conversation()
    if question is not None:
        conversation.ask(question)
    belonged = 0
    for text in heard:
        try:
            answer = conversation.hear(text)
        except WireError:
            assert conversation.turn is Turn.LOST
        else:
            belonged += not (isinstance(answer, Refusal) and answer.ends_the_episode)
    assert belonged <= (question is not None and not isinstance(question, Close))


# -- whose turn it is ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("question", "answer"),
    [(Reset(), SEEN), (Step("{}"), SEEN), (StateQuery(), StateAnswer({})), (PING, PONG)],
)
def test_a_question_and_its_answer(question: Question, answer: Answer) -> None:
    conversation = Conversation()
    turns = [conversation.turn]
    assert conversation.ask(question) == question.encode()
    turns.append(conversation.turn)
    assert conversation.hear(answer.encode()) == answer
    turns.append(conversation.turn)
    assert turns == [Turn.READY, Turn.AWAITING, Turn.READY]


@pytest.mark.parametrize("question", [Reset(), Step("{}"), StateQuery(), PING])
def test_a_refusal_answers_any_question(question: Question) -> None:
    conversation = Conversation()
    conversation.ask(question)
    refusal = Refusal("EXECUTION_ERROR", "no")
    assert conversation.hear(refusal.encode()) == refusal
    assert conversation.turn is Turn.READY


@pytest.mark.parametrize("code", ["CAPACITY_REACHED", "FACTORY_ERROR", "SESSION_ERROR"])
@pytest.mark.parametrize("asked", [True, False])
def test_an_ending_refusal_may_come_unasked(code: str, asked: bool) -> None:
    conversation = Conversation()
    if asked:
        conversation.ask(Reset())
    assert conversation.hear(Refusal(code, "").encode()) == Refusal(code, "")
    assert conversation.turn is Turn.LOST


@pytest.mark.parametrize(
    ("question", "answer", "sentence"),
    [
        (None, SEEN.encode(), f"an answer to nothing we asked: {SEEN.encode()!r}"),
        (None, Refusal("EXECUTION_ERROR", "").encode(), "an answer to nothing we asked: "),
        (Reset(), StateAnswer({}).encode(), "a StateAnswer in answer to a Reset"),
        (Step("{}"), PONG.encode(), "a McpAnswer in answer to a Step"),
        (StateQuery(), SEEN.encode(), "a Observation in answer to a StateQuery"),
        (PING, McpAnswer(2, {}).encode(), "a McpAnswer in answer to a Mcp"),
        (PING, SEEN.encode(), "a Observation in answer to a Mcp"),
        (Reset(), "<html>", "not JSON: '<html>'"),
    ],
)
def test_nonsense_loses_the_conversation(question: Question | None, answer: str, sentence: str) -> None:
    conversation = Conversation()
    if question is not None:
        conversation.ask(question)
    with pytest.raises(WireError) as raised:
        conversation.hear(answer)
    assert str(raised.value).startswith(sentence)
    assert conversation.turn is Turn.LOST


def awaiting(conversation: Conversation) -> None:
    conversation.ask(Reset())


def lost(conversation: Conversation) -> None:
    conversation.lose()


def closed(conversation: Conversation) -> None:
    assert conversation.ask(Close()) == '{"type":"close"}'


@pytest.mark.parametrize("question", [Reset(), Step("{}"), StateQuery(), PING, Close()])
@pytest.mark.parametrize(("get_there", "turn"), [(awaiting, Turn.AWAITING), (lost, Turn.LOST), (closed, Turn.CLOSED)])
def test_nobody_speaks_out_of_turn(question: Question, get_there: Callable[[Conversation], None], turn: Turn) -> None:
    conversation = Conversation()
    get_there(conversation)
    with pytest.raises(OutOfTurn) as raised:
        conversation.ask(question)
    assert str(raised.value) == f"cannot send {type(question).__name__} while {turn.value}"
    assert conversation.turn is turn


def test_a_late_answer_is_no_answer() -> None:
    conversation = Conversation()
    conversation.ask(Step("{}"))
    conversation.lose()
    with pytest.raises(WireError, match=r"^an answer to nothing we asked"):
        conversation.hear(SEEN.encode())
    assert conversation.turn is Turn.LOST


def test_an_answer_after_the_goodbye_is_no_answer() -> None:
    conversation = Conversation()
    conversation.ask(Close())
    with pytest.raises(WireError, match=r"^an answer to nothing we asked"):
        conversation.hear(SEEN.encode())
    assert conversation.turn is Turn.LOST
