"""What an MCP client may list and call: the tools of the session that its token names.

The sentences are NeMo Gym's own (``nemo_gym/mcp_auto_exposure.py``). Every failure of a call is a result and no error
of the protocol: a model can learn from a result, and a client's library may repeat a call that got an error.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from gymserve.errors import BadArguments, GymserveError, GymserveFailed
from gymserve.gateway import Gateway
from gymserve.http.tools import call_tool
from gymserve.identity import TOKEN_HEADER, SessionToken, session_fields
from gymserve.nesting import MAX_DEPTH, is_too_deep
from gymserve.session import Session
from gymserve.strict_json import written
from gymserve.toolbox import Function, Toolbox, observation_function

_log = structlog.get_logger()

_SHOWN_CHARACTERS = 100  # of a name that somebody made up


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a call came to: the text that its route would answer, or a sentence that says why there is none."""

    text: str
    is_error: bool = False


class McpTools:
    """The tools of all sessions, each found by its token: the value of `TOKEN_HEADER`, None without one."""

    def __init__(self, gateway: Gateway, token: SessionToken, observation_tool: str | None) -> None:
        self._gateway = gateway
        self._token = token
        self._observation_tool = observation_tool

    async def functions(self, token: str | None) -> Sequence[Function]:
        """The session's tools; where the token names no session, those that a session would have.

        :raises GymserveError: what they are could not be learned, as `Opener.learn`.
        """
        try:
            toolbox = self._session(token).toolbox
        except (_NotCalled, GymserveError):
            toolbox = self._known() or await self._learned()
        looking = [observation_function(self._observation_tool)] if self._observation_tool else []
        return (*toolbox.functions, *looking)

    def schema(self, tool: str) -> Mapping[str, Any] | None:
        """The schema of that tool's arguments, where it is known."""
        known = self._known()
        functions = known.functions if known is not None else ()
        return next((function.parameters for function in functions if function.name == tool), None)

    async def call(
        self, token: str | None, tool: str, arguments: Mapping[str, Any], *, traceparent: str | None = None
    ) -> ToolResult:
        """What ``tool`` answers in the session. Cancelled, only the waiting ends.

        :param traceparent: of the request, normalised.
        """
        try:
            return await self._call(token, tool, arguments)
        except _NotCalled as exc:
            return ToolResult(str(exc), is_error=True)
        except GymserveError as refusal:
            return _refused(tool, refusal)
        except Exception as fault:  # for the caller to know of, as at the routes
            fields = session_fields(self._token.session_id(token), None, traceparent)
            _log.error("a tool call failed by a fault of ours", tool=tool[:_SHOWN_CHARACTERS], **fields, exc_info=fault)
            return _refused(tool, GymserveFailed())

    async def _call(self, token: str | None, tool: str, arguments: Mapping[str, Any]) -> ToolResult:
        try:
            session = self._session(token)
        except (_NotCalled, GymserveError):
            self._check(tool, self._known())  # a name that cannot be is told before anything else
            raise
        self._check(tool, session.toolbox)
        answer = await call_tool(session, tool, _text(arguments), self._observation_tool)
        return ToolResult(written(answer), is_error=session.toolbox.is_failure(answer))

    def _session(self, token: str | None) -> Session:
        """:raises _NotCalled: the token names none. :raises GymserveError: as `Gateway.find`."""
        if not token:
            raise _NotCalled(f"Missing {TOKEN_HEADER} for Gym MCP tool call.")
        session_id = self._token.session_id(token)
        if session_id is None:
            raise _NotCalled("Invalid Gym MCP session token.")
        return self._gateway.find(session_id)

    def _known(self) -> Toolbox | None:
        """What sessions have, if one was ever opened."""
        return self._gateway.pool.toolbox

    async def _learned(self) -> Toolbox:
        return await self._gateway.learn_tools()

    def _check(self, tool: str, toolbox: Toolbox | None) -> None:
        """:raises _NotCalled: there is no such tool. A server that could not list its tools may have any."""
        if toolbox is None or toolbox.names is None:
            return
        names = sorted({*toolbox.names, *([self._observation_tool] if self._observation_tool else [])})
        if tool not in names:
            raise _NotCalled(f"Unknown tool: {tool[:_SHOWN_CHARACTERS]!r}. Available tools: {names}")


class _NotCalled(Exception):
    """A call that no session gets, in NeMo Gym's words."""


def _refused(tool: str, refusal: GymserveError) -> ToolResult:
    said = refusal.detail
    detail = said.encode(errors="replace").decode() if isinstance(said, str) else json.dumps(said)
    return ToolResult(f"HTTP {refusal.status} from POST /{tool[:_SHOWN_CHARACTERS]}: {detail}", is_error=True)


def _text(arguments: Mapping[str, Any]) -> str:
    """:raises BadArguments: they are not JSON (RFC 8259), though Python can read them, or nested deeper than a route
    takes.
    """
    try:
        text = json.dumps(arguments, separators=(",", ":"), allow_nan=False)
    except ValueError:
        sentence = "the arguments have a number that JSON cannot say: NaN, an infinity, or beyond a double's range"
        raise BadArguments.because("json_invalid", sentence) from None
    except RecursionError:
        raise _too_deep() from None
    if is_too_deep(text):
        raise _too_deep()
    return text


def _too_deep() -> BadArguments:
    return BadArguments.because("json_invalid", f"the arguments are nested too deep, beyond {MAX_DEPTH} levels")
