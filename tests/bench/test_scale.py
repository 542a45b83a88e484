"""The scale bench: it measures what it says, at a small scale."""

import json
from pathlib import Path

import pytest
import trio
from scale import main
from scaling.environment import EnvironmentServer
from scaling.opening import Deadlines, TooSlow
from scaling.seeds import overtaken_by
from trio_websocket import ConnectionClosed, wrap_client_stream

from gymserve import wire


def test_every_goodbye_is_seen_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "scale.json"
    arguments = ["--quick", "--sessions", "12", "--seconds-per-session", "0.1", "--only", "storm", "--json", str(file)]
    monkeypatch.setattr("sys.argv", ["scale.py", *arguments])
    assert main() == 0
    document = json.loads(file.read_text())
    figures = document["figures"]
    assert (figures["storm: sessions"], figures["storm: lost"]) == (12, 0)
    assert 0 < figures["storm: CLOSE late, p50 (ms)"] < 1000 * figures["storm: the last after (s)"] < 5000
    assert figures["storm: others' calls, p50 (ms)"] > 0
    met = {target["name"]: target["met"] for target in document["targets"]}
    assert met["12 deadlines at one instant: goodbyes lost"] is True
    assert met["12 deadlines at one instant: others' calls, p99"] is None


def test_who_was_overtaken_and_by_how_much() -> None:
    assert overtaken_by([(10, 1), (11, 2), (12, 3)]) == [0, 0, 0]
    assert overtaken_by([(12, 1), (10, 2.5), (11, 3), (13, 4)]) == [0, 0, 2, 0]


def test_deadlines_are_chosen_from_where_the_clock_stands() -> None:
    clock = iter([10.0, 11.5, 103.0])
    deadlines = Deadlines(100.0, 0.5, clock=lambda: next(clock))
    assert [deadlines.choose(0), deadlines.choose(1)] == [90, 89]
    with pytest.raises(TooSlow):
        deadlines.choose(2)
    assert deadlines.idle_timeout_seconds == [90, 89]


async def test_the_environment_server_speaks_as_openenv_does(nursery: trio.Nursery) -> None:
    server = EnvironmentServer()
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(trio.serve_listeners, server.serve, [listener])
    port = listener.socket.getsockname()[1]
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    websocket = await wrap_client_stream(nursery, stream, f"127.0.0.1:{port}", "/ws")
    conversation = wire.Conversation()
    for question, answer in (
        (wire.Mcp("ping", 1), wire.McpAnswer),
        (wire.Reset({"episode": "a"}), wire.Observation),
        (wire.Step('{"by":1}'), wire.Observation),
    ):
        await websocket.send_message(conversation.ask(question))
        assert isinstance(conversation.hear(await websocket.get_message()), answer)
    assert server.moments["a"].goodbye is server.moments["a"].closed is None
    await websocket.send_message(conversation.ask(wire.Close()))
    with pytest.raises(ConnectionClosed) as closed:
        await websocket.get_message()
    assert closed.value.reason is not None and closed.value.reason.code == 1000
    moments = server.moments["a"]
    while moments.closed is None:  # noqa: ASYNC110 - our answer is on its way to a real socket
        await trio.sleep(0.01)
    await stream.aclose()
    assert moments.goodbye is not None and moments.reset <= moments.answered <= moments.goodbye <= moments.closed
