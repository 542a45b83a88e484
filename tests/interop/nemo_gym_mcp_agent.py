"""An agent server whose tools come over MCP alone, on NeMo Gym's own base class for agents with sessions.

The agents in the wheel that take MCP access in an episode's session need packages that no index has.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from fastapi import Request
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from nemo_gym.base_resources_server import BaseRunRequest, BaseVerifyResponse
from nemo_gym.base_responses_api_agent import (
    AgentCloseSessionResponse,
    AgentSeedSessionRequest,
    AgentSessionState,
    BaseResponsesAPIAgentConfig,
    SimpleResponsesAPIAgent,
)
from nemo_gym.config_types import ModelServerRef
from nemo_gym.openai_utils import (
    NeMoGymFunctionCallOutput,
    NeMoGymResponse,
    NeMoGymResponseCreateParamsNonStreaming,
    accumulate_response_usage,
)
from nemo_gym.server_utils import get_response_json, raise_for_status
from nemo_gym.tool_access import MCPToolAccess


class McpAgentConfig(BaseResponsesAPIAgentConfig):
    model_server: ModelServerRef


@dataclass
class McpSessionState(AgentSessionState):
    """``tools``: the functions offered to the model, as ``mcp__<server>__<tool>``."""

    access: MCPToolAccess
    tools: list[dict[str, Any]] = field(default_factory=list)


class McpAgent(SimpleResponsesAPIAgent):
    ray_enabled = False
    config: McpAgentConfig

    async def _seed_agent_session_state(self, body: AgentSeedSessionRequest) -> McpSessionState:
        (access,) = self.effective_tool_accesses(body)
        assert isinstance(access, MCPToolAccess), f"not MCP: {access}"
        async with _connected(access) as (session, _):
            listed = await session.list_tools()
        functions = [
            {
                "type": "function",
                "name": f"{_prefix(access)}{tool.name}",
                "description": tool.description,
                "parameters": tool.inputSchema,
                "strict": False,
            }
            for tool in listed.tools
        ]
        return McpSessionState(request=body, access=access, tools=functions)

    async def _close_agent_session_state(self, state: AgentSessionState) -> AgentCloseSessionResponse:
        return AgentCloseSessionResponse(agent_session_id=state.request.agent_session_id)

    async def responses(self, request: Request, body: NeMoGymResponseCreateParamsNonStreaming) -> NeMoGymResponse:
        session_id = self._agent_session_id_from_request(request)
        assert session_id is not None, "no agent session"
        state = self._require_agent_session(session_id)
        assert isinstance(state, McpSessionState)
        async with _connected(state.access) as (session, server_name):
            response = await self._play(session, state, body)
        response.metadata = {"mcp_server": server_name, "offered": " ".join(tool["name"] for tool in state.tools)}
        return response

    async def _play(
        self, session: ClientSession, state: McpSessionState, body: NeMoGymResponseCreateParamsNonStreaming
    ) -> NeMoGymResponse:
        made: list[Any] = []
        usage = None
        while True:
            response = await self._ask_the_model(
                body.model_dump(exclude_unset=True)
                | {"tools": state.tools, "input": [*_plain(body.input), *_plain(made)]}
            )
            usage = accumulate_response_usage(usage, response.usage)
            made.extend(response.output)
            calls = [item for item in response.output if item.type == "function_call"]
            if not calls:
                response.output, response.usage = made, usage
                return response
            for call in calls:
                result = await session.call_tool(
                    call.name.removeprefix(_prefix(state.access)), json.loads(call.arguments)
                )
                output = result.model_dump_json(exclude_none=True)
                made.append(NeMoGymFunctionCallOutput(type="function_call_output", call_id=call.call_id, output=output))

    async def _ask_the_model(self, asked: dict[str, Any]) -> NeMoGymResponse:
        answered = await self.server_client.post(
            server_name=self.config.model_server.name, url_path="/v1/responses", json=asked
        )
        await raise_for_status(answered)
        return NeMoGymResponse.model_validate(await get_response_json(answered))

    async def run(self, body: BaseRunRequest) -> BaseVerifyResponse:
        raise NotImplementedError("this agent has sessions only")


def _prefix(access: MCPToolAccess) -> str:
    return f"mcp__{access.name}__"


def _plain(items: Any) -> list[Any]:
    return [item.model_dump(exclude_unset=True) if hasattr(item, "model_dump") else item for item in items]


@asynccontextmanager
async def _connected(access: MCPToolAccess) -> AsyncIterator[tuple[ClientSession, str]]:
    async with (
        httpx.AsyncClient(headers=access.connection.headers, timeout=30, trust_env=False) as http,
        streamable_http_client(str(access.connection.url), http_client=http) as (receive, send, _),
        ClientSession(receive, send) as session,
    ):
        initialized = await session.initialize()
        yield session, initialized.serverInfo.name


if __name__ == "__main__":
    McpAgent.run_webserver()
