"""A model that says what it is told to: OpenAI's chat completions, one script for each name of a model."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any

HOURS = 24
HOURS_A_TURN = 6
Message = Mapping[str, Any]


@dataclass(frozen=True)
class Use:
    """One call of a tool."""

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


Turn = str | list[Use]
"""What the model does: it says something, which ends a rollout, or calls tools."""

Script = Callable[[Sequence[Message]], Turn]
"""What follows a conversation; it may take its time, each in a thread of its own."""


def trade(messages: Sequence[Message]) -> Turn:
    """Play a day of GridSim, some hours a turn: sell what the battery can give in the dearest hour, else do nothing."""
    answers = _answers(messages)
    if not answers:
        return [Use("forecast", {"hours": HOURS})]
    try:
        results = [json.loads(answer)["result"] for answer in answers]
    except ValueError:
        return f"I do not understand: {answers[-1]}"
    dispatched = len(results) - 1
    if dispatched == HOURS:
        return f"The day cost {results[-1]['status']['cost_eur']} EUR."
    prices = [hour["import_price"] for hour in results[0]["hours"]]
    dearest = prices.index(max(prices))
    hours = range(dispatched, min(dispatched + HOURS_A_TURN, HOURS))
    return [Use("dispatch", {"battery_mw": 4 if hour == dearest else 0, "generator_mw": 0}) for hour in hours]


def glance(messages: Sequence[Message]) -> Turn:
    """Use one tool and have done."""
    return "Seen." if _answers(messages) else [Use("status")]


def say(messages: Sequence[Message]) -> Turn:
    """Have done without a look."""
    return "Nothing to do."


def _answers(messages: Sequence[Message]) -> list[str]:
    return [message["content"] for message in messages if message["role"] == "tool"]


class Pause:
    """A script that uses a tool, thinks until `go_on` is set, uses the tool again, and has done."""

    def __init__(self) -> None:
        self.thinking = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, messages: Sequence[Message]) -> Turn:
        answers = _answers(messages)
        if len(answers) == 1:
            self.thinking.set()
            self.go_on.wait()
        return "Done." if len(answers) == 2 else [Use("status")]


class ScriptedModel:
    """The server; ``scripts`` may be added to while it runs."""

    def __init__(self) -> None:
        self.scripts: dict[str, Script] = {"trader": trade, "glancer": glance, "mute": say}
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.scripts = self.scripts
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    @contextmanager
    def serving(self) -> Iterator["ScriptedModel"]:
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a script may still be thinking for somebody who is gone
    scripts: dict[str, Script]
    numbers = count()


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        turn = self.server.scripts[request["model"]](request["messages"])
        number = next(self.server.numbers)
        try:
            if request.get("stream"):
                self._answer("text/event-stream", _events(request["model"], number, turn))
            else:
                self._answer("application/json", json.dumps(_completion(request["model"], number, turn)))
        except ConnectionError:
            pass  # a rollout that was cancelled meanwhile

    def _answer(self, content_type: str, text: str) -> None:
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


_USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}


def _completion(model: str, number: int, turn: Turn) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": _finish_reason(turn), "message": _message(number, turn)}
    return {"object": "chat.completion", **_head(model, number), "choices": [choice], "usage": _USAGE}


def _events(model: str, number: int, turn: Turn) -> str:
    delta = _message(number, turn)
    for index, call in enumerate(delta.get("tool_calls", ())):
        call["index"] = index
    head = {"object": "chat.completion.chunk", **_head(model, number)}
    chunks = [
        {**head, "choices": [{"index": 0, "finish_reason": None, "delta": delta}]},
        {**head, "choices": [{"index": 0, "finish_reason": _finish_reason(turn), "delta": {}}]},
        {**head, "choices": [], "usage": _USAGE},
    ]
    return "".join(f"data: {text}\n\n" for text in (*map(json.dumps, chunks), "[DONE]"))


def _head(model: str, number: int) -> dict[str, Any]:
    return {"id": f"chatcmpl-{number}", "created": 0, "model": model}


def _finish_reason(turn: Turn) -> str:
    return "stop" if isinstance(turn, str) else "tool_calls"


def _message(number: int, turn: Turn) -> dict[str, Any]:
    if isinstance(turn, str):
        return {"role": "assistant", "content": turn}
    calls = [_call(f"call_{number}_{index}", use) for index, use in enumerate(turn)]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def _call(call_id: str, use: Use) -> dict[str, Any]:
    function = {"name": use.tool, "arguments": json.dumps(use.arguments)}
    return {"id": call_id, "type": "function", "function": function}
