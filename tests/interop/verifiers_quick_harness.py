"""verifiers' null harness without a process of its own.

Its program imports for four seconds, longer than the idle timeouts that tests can wait for. Here the same program's
chat loop is a task of whoever runs the rollout; all else, the tool server's process too, is as verifiers has it.
"""

from argparse import Namespace
from contextlib import AsyncExitStack
from types import ModuleType
from typing import Any

import httpx
from openai import AsyncOpenAI
from verifiers.v1.clients import ModelContext
from verifiers.v1.dialects.chat import message_to_wire
from verifiers.v1.harnesses.null.harness import NullHarness
from verifiers.v1.harnesses.utils.launch import CHAT_PROGRAM_SOURCE
from verifiers.v1.runtimes import ProgramResult, Runtime
from verifiers.v1.task import TaskData
from verifiers.v1.trace import Trace

__all__ = ["QuickHarness"]

_program: Any = ModuleType("chat_program")
exec(compile(CHAT_PROGRAM_SOURCE, "chat_program", "exec"), vars(_program))


class QuickHarness(NullHarness):
    async def setup(self, runtime: Runtime) -> None:
        pass  # nothing is to be installed

    async def launch(
        self,
        ctx: ModelContext,
        trace: Trace,
        runtime: Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: TaskData,
        tool_interception_url: str | None = None,
    ) -> ProgramResult:
        servers = {name: {"url": url, "timeout": self.config.tool_timeout} for name, url in mcp_urls.items()}
        messages = [message_to_wire(message) for message in data.prompt]
        http = httpx.AsyncClient(verify=False, timeout=None)  # it is on this machine: no certificates to be loaded
        async with (
            AsyncOpenAI(base_url=endpoint, api_key=secret, http_client=http) as client,
            AsyncExitStack() as stack,
        ):
            tools, dispatch, connections = await _program.connect_mcp({"mcpServers": servers}, stack)
            compactor = _program.Compactor(client, ctx.model, tools, False, None)
            compactor.note_good(messages)
            arguments = Namespace(bash=False, edit=False, search=False, tool_interception_url="")
            await _program.run_chat_loop(arguments, compactor, messages, dispatch, connections, None)
        return ProgramResult(0, "", "")
