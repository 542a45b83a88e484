"""A model server with scripts in a model's place: ``/v1/responses``, as NeMo Gym's agents ask it of theirs.

A request names its script in ``metadata``, and its ``input`` tells how far the rollout is: the server keeps no state.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any, Self

_GATE_SECONDS = 60.0
_POLL_SECONDS = 0.05  # how soon it stops
USAGE_OF_A_TURN = {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12}


@dataclass(frozen=True)
class ToolCall:
    """``arguments`` as the model wrote them, which need not be JSON."""

    name: str
    arguments: str


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(name, json.dumps(arguments))


@dataclass(frozen=True)
class Turn:
    """What a model says at one go: its tool calls, after some thought and once ``gate`` is open.

    ``reached`` is set when the first rollout has come here.
    """

    calls: tuple[ToolCall, ...]
    think_seconds: float = 0
    gate: Event | None = None
    reached: Event = field(default_factory=Event)


Script = Sequence[Turn]  # at its end the model says a last word


def turns(calls: Iterable[ToolCall]) -> list[Turn]:
    """One call a turn."""
    return [Turn((call,)) for call in calls]


class ScriptedModel:
    """The server; ``scripts`` by name, to which a test adds its own."""

    def __init__(self) -> None:
        self.scripts: dict[str, Script] = {}
        self._http = _Http(("127.0.0.1", 0), _Handler)
        self._http.scripts = self.scripts
        self._thread = Thread(
            target=self._http.serve_forever, args=(_POLL_SECONDS,), name="scripted model", daemon=True
        )

    @property
    def port(self) -> int:
        return self._http.server_port

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # an agent's idle connections stay open
    request_queue_size = 128
    scripts: dict[str, Script]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Http

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = (request.get("metadata") or {}).get("script")
        if name in self.server.scripts:
            self._answer(200, _response(request, self.server.scripts[name]))
        else:
            self._answer(500, {"error": f"there is no script {name!r}"})

    def _answer(self, status: int, body: Mapping[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _response(request: Mapping[str, Any], script: Script) -> dict[str, Any]:
    made = sum(item.get("type") == "function_call" for item in request["input"])
    turn = _next_turn(script, made)
    if turn is None:
        output = [_message("I am done.")]
    else:
        turn.reached.set()
        if turn.gate is not None:
            assert turn.gate.wait(_GATE_SECONDS), "nobody opened the gate"
        time.sleep(turn.think_seconds)
        offered = [tool["name"] for tool in request["tools"]]
        output = [_function_call(call, made + index, offered) for index, call in enumerate(turn.calls)]
    return {
        "id": f"resp-{made}",
        "object": "response",
        "created_at": 0,
        "model": "scripted",
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {
            **USAGE_OF_A_TURN,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        },
    }


def _next_turn(script: Script, made: int) -> Turn | None:
    for turn in script:
        if made == 0:
            return turn
        made -= len(turn.calls)
    return None


def _function_call(call: ToolCall, index: int, offered: Sequence[str]) -> dict[str, Any]:
    # An agent with tools of several MCP servers offers them as mcp__<server>__<tool>.
    name = next((name for name in offered if name.endswith(f"__{call.name}")), call.name)
    return {"type": "function_call", "call_id": f"call-{index}", "name": name, "arguments": call.arguments}


def _message(text: str) -> dict[str, Any]:
    return {
        "id": "msg",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": text, "annotations": []}],
    }
