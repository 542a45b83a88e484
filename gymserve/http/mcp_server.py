"""The official SDK's MCP server over our tools.

Not to be imported where a program starts: the SDK takes a second or more, and 30 MiB.
"""

import json
import logging
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from pydantic_core import from_json

from gymserve import __version__
from gymserve.errors import GymserveError
from gymserve.http.limits import DEFAULT_LIMITS
from gymserve.http.mcp_tools import McpTools
from gymserve.identity import TOKEN_HEADER
from gymserve.toolbox import Function
from gymserve.traceparent import traceparent_in

Context = ServerRequestContext[Any, Any]


def make_manager(tools: McpTools, server_name: str) -> StreamableHTTPSessionManager:
    """What answers MCP's requests: each by itself, in JSON, without sessions of the protocol's own."""
    logging.getLogger("mcp").setLevel(logging.ERROR)  # its warnings are about what clients sent
    return StreamableHTTPSessionManager(
        _server(tools, server_name),
        json_response=True,
        stateless=True,
        security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
        max_request_body_size=DEFAULT_LIMITS.body_bytes,
    )


def _server(tools: McpTools, name: str) -> Server[Any]:
    async def list_tools(context: Context, params: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        try:
            functions = await tools.functions(_token(context))
        except GymserveError as refusal:
            raise MCPError(types.INTERNAL_ERROR, str(refusal)) from None
        return types.ListToolsResult(tools=[_tool(function) for function in functions])

    async def call_tool(context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        result = await tools.call(
            _token(context), params.name, params.arguments or {}, traceparent=_traceparent(context)
        )
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=result.text)],
            structured_content=None if result.is_error else _structured(result.text),
            is_error=result.is_error,
        )

    return Server(
        name, version=__version__, on_list_tools=list_tools, on_call_tool=call_tool, get_tool_input_schema=tools.schema
    )


def _token(context: Context) -> str | None:
    assert context.request is not None, "the transport is HTTP"
    value: str | None = context.request.headers.get(TOKEN_HEADER)
    return value


def _traceparent(context: Context) -> str | None:
    assert context.request is not None, "the transport is HTTP"
    return traceparent_in(context.request.headers.raw)


def _structured(text: str) -> Any:
    """The object that ``text`` is; None where the SDK could not write it again: nested too deep, half a surrogate
    pair.
    """
    try:
        return from_json(text)
    except ValueError:
        return None


def _tool(function: Function) -> types.Tool:
    return types.Tool(
        name=_in_utf8(function.name),
        description=_in_utf8(function.description) or None,
        input_schema=_in_utf8(dict(function.parameters)),
    )


def _in_utf8(value: Any) -> Any:
    """``value`` with a question mark for half of a surrogate pair, on which the SDK fails: one tool's would take all
    tools with it.
    """
    return from_json(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
