"""A tool call, as every way in makes it: its route, MCP, and the gymnasium protocol."""

from typing import Any

from gymserve.call import Call
from gymserve.errors import UnknownTool
from gymserve.session import Session
from gymserve.toolbox import MakeStep


async def call_tool(session: Session, tool: str, arguments: str, observation_tool: str | None) -> dict[str, Any]:
    """What ``tool`` answers to ``arguments``, the text of a JSON object. Cancelled before its turn, it is not called.

    :param observation_tool: the name of the tool that shows the latest observation again, if there is one.
    :raises UnknownTool: the session has no such tool. :raises GymserveError: as `Session.call`.
    """
    if tool == observation_tool:
        return _latest(session)
    return session.toolbox.render(await begin_call(session, tool, arguments, observation_tool).wait())


def begin_call(session: Session, tool: str, arguments: str, observation_tool: str | None) -> Call:
    """The same of any tool but the one that looks, for whoever waits later. :raises GymserveError: as `call_tool`."""
    return session.begin(_tool(session, tool, observation_tool)(arguments))


def _tool(session: Session, name: str, observation_tool: str | None) -> MakeStep:
    try:
        return session.toolbox.tool(name)
    except UnknownTool as unknown:
        if observation_tool is None:
            raise
        raise UnknownTool(name, [*unknown.names, observation_tool]) from None


def _latest(session: Session) -> dict[str, Any]:
    assert session.latest is not None, "an open session has been reset"
    return session.toolbox.render(session.latest)
