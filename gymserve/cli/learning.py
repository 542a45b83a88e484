"""What an environment server's tools are: asked for there, with patience."""

import trio

from gymserve.address import EnvironmentAddress
from gymserve.door import open_door
from gymserve.errors import EnvironmentFailed, GymserveError
from gymserve.network import TcpNetwork
from gymserve.opening import Lesson, Opener, Progress
from gymserve.resets import ResetRules
from gymserve.rows import Tool, mcp_tools, observation_tool, step_tool
from gymserve.toolbox import is_mcp, with_reward

_GOODBYE_SECONDS = 5.0


def learn_tools(
    address: EnvironmentAddress,
    *,
    headers: list[tuple[str, str]],
    patience_seconds: float,
    connect_timeout_seconds: float,
    observation_name: str | None,
) -> list[Tool]:
    """The tools of the environment at ``address``, as gymserve serves them, the observation tool among them.

    :raises GymserveError: the server cannot be used, or had no room within the patience.
    """
    lesson = trio.run(_ask, address, headers, patience_seconds, connect_timeout_seconds)
    return served_tools(lesson, observation_name)


async def _ask(
    address: EnvironmentAddress,
    headers: list[tuple[str, str]],
    patience_seconds: float,
    connect_timeout_seconds: float,
) -> Lesson:
    learned: Lesson | GymserveError
    async with open_door(
        TcpNetwork(connect_timeout_seconds=connect_timeout_seconds),
        address,
        headers=headers,
        connect_timeout_seconds=connect_timeout_seconds,
        close_timeout_seconds=_GOODBYE_SECONDS,
        answer_timeout_seconds=patience_seconds or connect_timeout_seconds,
        restart_patience_seconds=0,
        max_handshakes=1,
        taken_names=frozenset(),
        show=with_reward,
    ) as door:
        opener = Opener(
            door,
            patience_seconds=patience_seconds,
            connect_timeout_seconds=connect_timeout_seconds,
            reset_kwargs={},
            resets=ResetRules(),
        )
        try:
            learned = await learn(opener)
        except GymserveError as error:  # raised outside, so that the door's nursery does not wrap it
            learned = error
    if isinstance(learned, GymserveError):
        raise learned
    return learned


async def learn(opener: Opener) -> Lesson:
    """The opener's lesson. :raises GymserveError: as `Opener.learn`."""
    async with trio.open_nursery() as nursery:
        try:
            learned: Lesson | GymserveError = await opener.learn(nursery, Progress())
        except GymserveError as error:  # raised outside, so that the nursery does not wrap it
            learned = error
        nursery.cancel_scope.cancel()
    if isinstance(learned, GymserveError):
        raise learned
    return learned


def served_tools(lesson: Lesson, observation_name: str | None) -> list[Tool]:
    """The tools that gymserve serves of an environment. :raises EnvironmentFailed: it does not list them."""
    looking = [observation_tool(observation_name)] if observation_name else []
    if not is_mcp(lesson.schema):
        return [step_tool(lesson.schema["action"]), *looking]
    if lesson.tools is None:
        raise EnvironmentFailed(
            "the environment server does not list its tools over its WebSocket; OpenEnv servers do from 0.2.1 on"
        )
    return [*mcp_tools(lesson.tools, observation_name), *looking]
