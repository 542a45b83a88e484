"""NeMo Gym's gymnasium protocol: ``/reset``, ``/step`` and ``/close``, as ``gymnasium_agent`` calls them
(``responses_api_agents/gymnasium_agent/app.py``).

The agent adds up what the steps answer and hears nothing else of the score, so a step's reward is what the session's
score grew by since the last answer, and what a verify would say of the session's end is told in ``info``.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from gymserve import wire
from gymserve.call import Call
from gymserve.errors import BadArguments, GymserveError
from gymserve.gateway import Gateway
from gymserve.http.bodies import read_object
from gymserve.http.tools import begin_call
from gymserve.memory import Memory
from gymserve.session import Session
from gymserve.strict_json import written
from gymserve.toolbox import Toolbox

_REQUEST_ID = "_ng_step_request_id"
_REQUEST_ID_CHARACTERS = 128

Item = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _ToolCall:
    """A function call of the model: under way in ``call``, refused with ``refusal``, or with neither a look at the
    latest observation.
    """

    call_id: Any
    call: Call | None = None
    refusal: GymserveError | None = None


@dataclass(slots=True)
class _Turn:
    """One step: what was begun for it, and its answer once there is one, for whoever repeats it."""

    request_id: str | None
    seen: wire.Observation | None = None
    toolbox: Toolbox | None = None
    tool_calls: list[_ToolCall] = field(default_factory=list)
    action: Call | None = None
    ends: bool = False
    answer: Mapping[str, Any] | None = None


@dataclass(slots=True)
class _Play:
    """A session as this protocol sees it. ``told`` is what the rewards it answered add up to."""

    told: float = 0.0
    last: _Turn | None = None


class Gymnasium:
    """The protocol over the sessions of a gateway."""

    def __init__(
        self, gateway: Gateway, *, observation_tool: str | None, text_action: str | None, kept_seconds: float
    ) -> None:
        """:param text_action: the field of the action that a plain message fills; without one it ends the episode.
        :param kept_seconds: for which a step of an ended session can be repeated.
        """
        self._gateway = gateway
        self._observation_tool = observation_tool
        self._text_action = text_action
        self._plays: WeakKeyDictionary[Session, _Play] = WeakKeyDictionary()
        # A session may end between two requests of one step, or by itself, and its score is asked for afterwards.
        self._recent: Memory[_Play] = Memory(kept_seconds=kept_seconds)

    @staticmethod
    def began(session: Session) -> Mapping[str, Any]:
        """The answer to ``/reset``."""
        assert session.latest is not None, "an open session has been reset"
        return {
            "observation": _text(session.latest),
            "info": {"supports_explicit_close": True, "supports_step_idempotency": True},
        }

    async def step(self, session_id: str | None, row: Mapping[str, Any]) -> Mapping[str, Any]:
        """The answer to ``/step``; repeated with its request id, the same, and nothing is done twice.

        :raises BadArguments: the body is not the protocol's.
        """
        request_id, output = _request_id(row), _output(row)
        session = self._live(session_id)
        play = self._play(session, session_id)
        turn = play.last
        if turn is None or request_id is None or turn.request_id != request_id:
            turn = play.last = self._begin(session, request_id, output)
        self._remember(session_id, play)
        if turn.answer is None:
            await self._finish(turn, play, session_id)
            self._remember(session_id, play)
        assert turn.answer is not None
        return turn.answer

    def _live(self, session_id: str | None) -> Session | None:
        try:
            return self._gateway.find(session_id)
        except GymserveError:
            return None

    def _play(self, session: Session | None, session_id: str | None) -> _Play:
        if session is not None:
            return self._plays.setdefault(session, _Play())
        return (self._recent.get(session_id) if session_id is not None else None) or _Play()

    def _remember(self, session_id: str | None, play: _Play) -> None:
        if session_id is not None:
            self._recent.put(session_id, play)

    # -- beginning -------------------------------------------------------------------------------------------------

    def _begin(self, session: Session | None, request_id: str | None, output: list[Item]) -> _Turn:
        """All that the model wants stands in the session's queue at once, so that a client that hangs up and repeats
        its step tears nothing.
        """
        turn = _Turn(request_id)
        calls = [item for item in output if item.get("type") == "function_call"]
        said = "".join(_said(output))
        if session is None or session.is_done or not (calls or (self._text_action and said)):
            turn.ends = True
        elif calls:
            turn.seen, turn.toolbox = session.latest, session.toolbox
            turn.tool_calls = [self._begin_call(session, item) for item in calls]
        else:
            turn.action = session.begin(wire.Step(written({self._text_action: said})))
        return turn

    def _begin_call(self, session: Session, item: Item) -> _ToolCall:
        call_id, name = item.get("call_id"), item.get("name")
        if name is not None and name == self._observation_tool:
            return _ToolCall(call_id)
        try:
            if not isinstance(name, str):
                raise BadArguments.because("string_type", "a function call needs a name", "response", "output")
            arguments = read_object(_arguments(item).encode("utf-8", "surrogatepass")).text
            return _ToolCall(call_id, begin_call(session, name, arguments, self._observation_tool))
        except GymserveError as refusal:
            return _ToolCall(call_id, refusal=refusal)

    # -- finishing -------------------------------------------------------------------------------------------------

    async def _finish(self, turn: _Turn, play: _Play, session_id: str | None) -> None:
        outputs = await _tool_outputs(turn)
        observation = None if turn.action is None else await _observed(turn.action)
        session = self._live(session_id)
        if turn.ends or session is None or session.is_done:
            verified = await self._gateway.verify(session_id, {})
            reward = 0.0 if verified.masked else verified.body["reward"] - play.told
            info = {key: value for key, value in verified.body.items() if key != "reward"}
            if outputs:
                info["tool_outputs"] = outputs
            over = True
        else:
            reward, info, over = session.reward - play.told, {"tool_outputs": outputs}, False
        if turn.answer is not None:
            return  # another request of the same step was sooner
        play.told += reward
        turn.answer = {
            "observation": observation,
            "reward": reward,
            "terminated": over,
            "truncated": False,
            "info": info,
        }


def _arguments(item: Item) -> str:
    """The call's arguments, which are JSON text in OpenAI's Responses API; nothing is ``{}``."""
    arguments = item.get("arguments") or ""
    return arguments if isinstance(arguments, str) else written(arguments)


async def _tool_outputs(turn: _Turn) -> list[Item]:
    """What each call of the turn answered, in order, as its route would."""
    outputs: list[Item] = []
    seen = turn.seen
    for tool_call in turn.tool_calls:
        assert turn.toolbox is not None and seen is not None
        refusal = tool_call.refusal
        if tool_call.call is not None:
            try:
                seen = await tool_call.call.outcome()
            except GymserveError as exc:
                refusal = exc
        shown = turn.toolbox.render(seen) if refusal is None else refusal.body()
        outputs.append({"call_id": tool_call.call_id, "output": written(shown)})
    return outputs


async def _observed(action: Call) -> str | None:
    try:
        return _text(await action.outcome())
    except GymserveError as exc:
        return written(exc.body())


def _text(observation: wire.Observation) -> str | None:
    """An observation for a model to read: its one text, or else all its fields as JSON; None where it has none."""
    fields = {key: value for key, value in observation.fields.items() if key != "metadata"}
    match list(fields.values()):
        case []:
            return None
        case [str(text)]:
            return text
    return written(fields)


def _request_id(row: Mapping[str, Any]) -> str | None:
    request_id = row.get(_REQUEST_ID)
    if request_id is None or (isinstance(request_id, str) and 0 < len(request_id) <= _REQUEST_ID_CHARACTERS):
        return request_id
    raise BadArguments.because("string_type", f"must be text of 1 to {_REQUEST_ID_CHARACTERS} characters", _REQUEST_ID)


def _output(row: Mapping[str, Any]) -> list[Item]:
    response = row.get("response")
    output = response.get("output") if isinstance(response, dict) else None
    if not isinstance(output, list):
        raise BadArguments.because("list_type", "response.output must be a list", "response", "output")
    return [item for item in output if isinstance(item, dict)]


def _said(output: list[Item]) -> Iterator[str]:
    """The text of the model's messages (OpenAI's Responses API: ``output_text`` parts of ``message`` items)."""
    for item in output:
        if item.get("type", "message") != "message":
            continue
        content = item.get("content")
        if isinstance(content, str):
            yield content
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                yield part["text"]
