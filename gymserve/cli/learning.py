"""What an environment server's tools are: asked for there, with patience."""

import trio

from gymserve.address import EnvironmentAddress
from gymserve.door import DoorTerms, Lesson
from gymserve.errors import EnvironmentFailed, GymserveError
from gymserve.network import TcpNetwork
from gymserve.opening import Opener
from gymserve.pool import open_pool
from gymserve.resets import ResetRules
from gymserve.rows import Tool, as_tool
from gymserve.toolbox import make_toolbox, observation_function, taken_names, with_reward

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
    terms = DoorTerms(
        headers=headers,
        connect_timeout_seconds=connect_timeout_seconds,
        close_timeout_seconds=_GOODBYE_SECONDS,
        answer_timeout_seconds=patience_seconds or connect_timeout_seconds,
        restart_patience_seconds=0,
        max_handshakes=1,
    )
    async with open_pool(TcpNetwork(connect_timeout_seconds=connect_timeout_seconds), terms) as pool:
        pool.add(address)
        opener = Opener(
            pool,
            patience_seconds=patience_seconds,
            connect_timeout_seconds=connect_timeout_seconds,
            reset_kwargs={},
            resets=ResetRules(),
        )
        try:
            learned = await opener.learn()
        except GymserveError as error:  # raised outside, so that the pool's nursery does not wrap it
            learned = error
    if isinstance(learned, GymserveError):
        raise learned
    return learned


def served_tools(lesson: Lesson, observation_name: str | None) -> list[Tool]:
    """The tools that gymserve serves of an environment. :raises EnvironmentFailed: it does not list them."""
    toolbox = make_toolbox(lesson.schema, lesson.tools, taken_names(observation_name), with_reward)
    if toolbox.names is None:
        raise EnvironmentFailed(
            "the environment server does not list its tools over its WebSocket; OpenEnv servers do from 0.2.1 on"
        )
    looking = [observation_function(observation_name)] if observation_name else []
    return [as_tool(function) for function in (*toolbox.functions, *looking)]
