"""The edges of JSON, as one table: what each becomes in each direction.

A value stands in the arguments of a tool, over HTTP and over MCP (its older and its newer version, whose readers
differ), in the row of a verify, which is echoed, and in an observation, whose answer is the same text over HTTP and
over MCP. Where the environment or the client gets it, the text that it gets is told, else who refuses it.
"""

import json
from dataclasses import dataclass
from typing import Any

import pytest
from scripted import ScriptedServer, agreeable
from stage import Client
from test_mcp import LEGACY, MODERN, McpClient, failure_of, is_json, scene, text_of
from trio_websocket import WebSocketConnection

import gymserve.http.mcp_server  # noqa: F401  # loaded here, not in a thread while the clock jumps

AS_IT_IS = "as it is"
REFUSED = "422"
NO_MCP = "an error of MCP"
LOST = "the episode is lost"


@dataclass(frozen=True)
class Edge:
    """A value as JSON text. ``newer``: over MCP's newer version, where that is not as over the older."""

    text: str
    arguments: str = AS_IT_IS
    mcp: str = AS_IT_IS
    newer: str | None = None
    row: str = AS_IT_IS
    shown: str = AS_IT_IS


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


EDGES = {
    # Numbers: to the letter in arguments over HTTP; as Python reads them everywhere else.
    "beyond 64 bits": Edge("-123456789012345678901234567890"),
    "4,300 digits": Edge("9" * 4300),
    "5,000 digits": Edge("9" * 5000, arguments=REFUSED, mcp=NO_MCP, row=REFUSED, shown=LOST),
    "5,000 digits after the point": Edge("0." + "3" * 5000, mcp="0.3333333333333333", row="0.3333333333333333",
                                         shown="0.3333333333333333"),
    "beyond a double": Edge("1e400", mcp=REFUSED, row="null", shown="null"),
    "below it": Edge("-1e400", mcp=REFUSED, row="null", shown="null"),
    "too small": Edge("1e-400", mcp="0.0", row="0.0", shown="0.0"),
    "negative zero": Edge("-0.0"),
    "negative zero, whole": Edge("-0", mcp="0", row="0", shown="0"),
    "an exponent": Edge("1.50E+2", mcp="150.0", row="150.0", shown="150.0"),
    "more digits than a double": Edge("0.10000000000000000001", mcp="0.1", row="0.1", shown="0.1"),
    # What is no JSON, but Python reads and writes it.
    "NaN": Edge("NaN", arguments=REFUSED, mcp=REFUSED, row=REFUSED, shown="null"),
    "Infinity": Edge("Infinity", arguments=REFUSED, mcp=REFUSED, row=REFUSED, shown="null"),
    "-Infinity": Edge("[-Infinity]", arguments=REFUSED, mcp=REFUSED, row=REFUSED, shown="[null]"),
    # Objects
    "a key twice": Edge('{"k":1,"k":2}', mcp='{"k":2}', row='{"k":2}', shown='{"k":2}'),
    "the empty key": Edge('{"":null}'),
    "a key of Python's": Edge('{"__class__":{"__init__":[]}}'),
    # Strings: escaped to ASCII wherever gymserve writes.
    "an escape": Edge('"\\u0041\\/"', mcp='"A/"', row='"A/"', shown='"A/"'),
    "a pair": Edge('"\\ud83d\\ude00"'),
    "not ASCII": Edge('"ä"', mcp='"\\u00e4"', row='"\\u00e4"', shown='"\\u00e4"'),
    "half a pair": Edge('"\\ud800"', mcp=NO_MCP, newer=AS_IT_IS),
    "half a pair as a key": Edge('{"\\udfff":1}', mcp=NO_MCP, newer=AS_IT_IS),
    "NUL": Edge('"\\u0000"'),
    "a control": Edge('"\x01"', arguments=REFUSED, mcp=NO_MCP, row=REFUSED, shown=LOST),
    "an unknown escape": Edge('"\\x41"', arguments=REFUSED, mcp=NO_MCP, row=REFUSED, shown=LOST),
    # Depth: 128 levels of the arguments, of the row, and of the environment's whole message
    "126 levels of 128": Edge(nested(125)),
    "128 levels of 128": Edge(nested(127), shown=LOST),
    "129 levels of 128": Edge(nested(128), arguments=REFUSED, mcp=REFUSED, row=REFUSED, shown=LOST),
    "100,000 levels": Edge(nested(100_000), arguments=REFUSED, mcp=NO_MCP, row=REFUSED, shown=LOST),
    # Syntax
    "a comma too many": Edge("[1,]", arguments=REFUSED, mcp=NO_MCP, row=REFUSED, shown=LOST),
    "a comment": Edge("1/**/", arguments=REFUSED, mcp=NO_MCP, row=REFUSED, shown=LOST),
    "single quotes": Edge("'x'", arguments=REFUSED, mcp=NO_MCP, row=REFUSED, shown=LOST),
    "a leading zero": Edge("01", arguments=REFUSED, mcp=NO_MCP, row=REFUSED, shown=LOST),
    "hexadecimal": Edge("0x1", arguments=REFUSED, mcp=NO_MCP, row=REFUSED, shown=LOST),
    "nothing": Edge("", arguments=REFUSED, mcp=NO_MCP, row=REFUSED, shown=LOST),
}  # fmt: skip


class Mirror(ScriptedServer):
    """Keeps the text of every step, and answers each with ``observation``, which is text too."""

    def __init__(self, observation: str = "{}") -> None:
        super().__init__()
        self.steps: list[str] = []
        self.observation = observation

    async def _converse(self, websocket: WebSocketConnection) -> None:
        while True:
            text = str(await websocket.get_message())
            if text.startswith('{"type":"step","data":'):
                self.steps.append(text.removeprefix('{"type":"step","data":').removesuffix("}"))
                await websocket.send_message(
                    f'{{"type":"observation","data":{{"observation":{self.observation},"reward":1.0}}}}'
                )
            elif text == '{"type":"close"}':
                return await websocket.aclose()
            else:
                await websocket.send_message(json.dumps(await agreeable(json.loads(text))))


async def post_arguments(client: Client, arguments: bytes) -> str | None:
    """How a call with so many arguments is refused; None where it is not."""
    answer = await client.call("step", arguments)
    if answer.status == 200:
        return None
    assert answer.body["error"] == "bad_arguments"
    return str(answer.status)


async def call_over_mcp(mcp: McpClient, arguments: bytes) -> str | None:
    """The same over MCP."""
    body, headers = mcp.request("tools/call", {"name": "step", "arguments": "?"})
    reply = await mcp.post(body.replace(b'"?"', arguments), headers)
    answer = is_json(reply)
    if "error" in answer:
        assert (reply.status, answer["error"]["code"]) == (400, -32700)
        return NO_MCP
    if answer["result"]["isError"]:
        said = failure_of({key: value for key, value in answer["result"].items() if key not in ("resultType", "_meta")})
        assert said.startswith("HTTP 422 from POST /step: ")
        return REFUSED
    return None


@pytest.mark.parametrize("edge", EDGES.values(), ids=EDGES)
async def test_in_a_tools_arguments(autojump_clock: Any, edge: Edge) -> None:
    arguments = f'{{"x":{edge.text}}}'.encode()
    mirror = Mirror()
    async with scene(mirror) as play:
        client, mcp = await play.seeded()
        for version, expected in ((None, edge.arguments), (LEGACY, edge.mcp), (MODERN, edge.newer or edge.mcp)):
            mirror.steps.clear()
            mcp.version = version or LEGACY
            refusal = await (post_arguments(client, arguments) if version is None else call_over_mcp(mcp, arguments))
            if expected in (REFUSED, NO_MCP):
                assert (refusal, mirror.steps) == (expected, []), version
            else:
                seen = edge.text if expected == AS_IT_IS else expected
                assert (refusal, mirror.steps) == (None, [f'{{"x":{seen}}}']), version


@pytest.mark.parametrize("edge", EDGES.values(), ids=EDGES)
async def test_in_the_row_of_a_verify(autojump_clock: Any, edge: Edge) -> None:
    row = f'{{"x":{edge.text}}}'.encode()
    async with scene(Mirror()) as play:
        client, _ = await play.seeded()
        await client.send("POST", "/verify", row)
        assert client.peer is not None
        reply = await client.peer.reply()
        if edge.row == REFUSED:
            assert (reply.status, json.loads(reply.body)["error"]) == (422, "bad_arguments")
            assert (await client.step()).status == 200
        else:
            seen = edge.text if edge.row == AS_IT_IS else edge.row
            assert reply.status == 200
            assert reply.body.startswith(f'{{"x":{seen},"reward":'.encode())


@pytest.mark.parametrize("edge", EDGES.values(), ids=EDGES)
async def test_in_an_observation(autojump_clock: Any, edge: Edge) -> None:
    async with scene(Mirror(f'{{"x":{edge.text}}}')) as play:
        client, mcp = await play.seeded()
        if edge.shown == LOST:
            assert (await client.step()).status == 502
            verified = (await client.verify()).body
            assert (verified["mask_sample"], verified["failure_kind"]) == (True, "session_lost")
            return
        shown = f'{{"x":{edge.text if edge.shown == AS_IT_IS else edge.shown},"reward":1.0,"done":false}}'
        assert await told(client) == shown
        for version in (LEGACY, MODERN):
            mcp.version = version
            assert text_of(await mcp.call("step")) == shown


async def told(client: Client) -> str:
    """The text of the answer to a step."""
    await client.send("POST", "/step", {})
    assert client.peer is not None
    reply = await client.peer.reply()
    assert reply.status == 200
    return str(reply.body, "ascii")


OBSERVED = '{"type":"observation","data":{"observation":{},"reward":1.0}}'


@pytest.mark.parametrize("text", [f"\ufeff{OBSERVED}", f"{OBSERVED}x", OBSERVED * 2, OBSERVED[:-1], "", "null", "[]"])
async def test_a_message_is_one_object(autojump_clock: Any, text: str) -> None:
    async def script(message: dict[str, Any]) -> Any:
        return text if message["type"] == "step" else await agreeable(message)

    async with scene(ScriptedServer(script)) as play:
        client, _ = await play.seeded()
        assert (await client.step()).status == 502
        verified = (await client.verify()).body
        assert (verified["failure_kind"], verified["mask_sample"]) == ("session_lost", True)
        assert "the server broke the protocol" in verified["failure_reason"]


# -- whole bodies ----------------------------------------------------------------------------------------------------

BODIES = {
    "nothing": (b"", 200),  # NeMo Gym's client sends no arguments so
    "blanks": (b" \r\n\t ", 422),
    "blanks around": (b" \r\n{}\t ", 200),
    "UTF-8 with a mark": (b"\xef\xbb\xbf{}", 422),
    "UTF-16": ("{}".encode("utf-16"), 422),
    "UTF-16 without a mark": ("{}".encode("utf-16-le"), 422),
    "UTF-32": ("{}".encode("utf-32"), 422),
    "Latin-1": ('{"x":"ä"}'.encode("latin-1"), 422),
    "half a pair, not escaped": (b'{"x":"\xed\xa0\x80"}', 422),
    "overlong": (b'{"x":"\xc0\xaf"}', 422),
    "two objects": (b"{}{}", 422),
    "garbage behind": (b"{}\x00", 422),
    "cut short": (b'{"x":', 422),
    "null": (b"null", 422),
    "a list": (b"[]", 422),
    "a string": (b'"{}"', 422),
    "a number": (b"5", 422),
    "a form": (b"x=1&y=2", 422),
}


@pytest.mark.parametrize(("body", "status"), BODIES.values(), ids=BODIES)
async def test_a_body_is_one_object_in_utf_8(autojump_clock: Any, body: bytes, status: int) -> None:
    async with scene(Mirror()) as play:
        for path in ("/step", "/verify", "/seed_session", "/reset"):
            client, _ = await play.seeded()
            answer = await client.ask("POST", path, body)
            assert answer.status == status
            if status == 422:
                assert answer.body["detail"][0]["type"] in ("json_invalid", "dict_type")
                assert (await client.step()).status == 200, "the episode that there is goes on"


@pytest.mark.parametrize(("body", "status"), BODIES.values(), ids=BODIES)
async def test_no_other_body_is_a_message_of_mcp(autojump_clock: Any, body: bytes, status: int) -> None:
    async with scene(Mirror()) as play:
        for version in (LEGACY, MODERN):
            reply = await play.mcp().post(body, {"Mcp-Protocol-Version": version})
            assert (reply.status, "error" in json.loads(reply.body)) == (400, True)
