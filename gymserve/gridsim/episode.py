"""One episode, seen from the server: questions from a WebSocket, answers of an environment, strictly in order."""

from collections.abc import Awaitable, Callable
from typing import Any

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection

from gymserve.gridsim.environment import Environment, InvalidAction, known_arguments
from gymserve.gridsim.faults import FaultPlan
from gymserve.gridsim.tools import answer_mcp
from gymserve.wire import (
    EXECUTION_ERROR,
    VALIDATION_ERROR,
    Answer,
    BadQuestion,
    Close,
    Mcp,
    Observation,
    Question,
    Refusal,
    Reset,
    StateAnswer,
    StateQuery,
    Step,
    decode_question,
)

_GARBAGE = "<html>502 Bad Gateway</html>"


class HostedEpisode:
    """An environment and the client that plays it.

    ``drop`` ends the client's TCP connection without a word (the fault ``drop-mid-step``).
    """

    def __init__(
        self,
        ws: WebSocketConnection,
        environment: Environment,
        faults: FaultPlan,
        drop: Callable[[], Awaitable[None]],
    ) -> None:
        self._ws = ws
        self._environment = environment
        self._faults = faults
        self._drop = drop
        self._episode_id: Any = None
        self._messages = 0
        self._steps = 0

    async def run(self) -> None:
        """Answer until the client says goodbye, is gone, or says what ends a session; then close the environment.

        A client that leaves during a step is noticed after it, as in OpenEnv: steps are never cut short.
        """
        try:
            while await self._exchange():
                pass
        except ConnectionClosed:
            pass  # left or dropped: the end of an episode like any other
        finally:
            await self._close()

    async def _exchange(self) -> bool:
        """One question and its answer; False if it was the last."""
        text = await self._ws.get_message()
        self._messages += 1
        try:
            question = decode_question(text)
        except BadQuestion as exc:
            await self._say(exc.answer.encode())
            return not exc.ends_the_episode
        if isinstance(question, Close):
            return False
        answer = await self._answer(question)
        if isinstance(question, Step) and self._steps == self._faults.dropped_step:
            await self._drop()
            return False
        await self._say(answer)
        return True

    async def _say(self, text: str) -> None:
        await self._ws.send_message(_GARBAGE if self._messages == self._faults.garbage_message else text)

    async def _answer(self, question: Question) -> str:
        try:
            return (await self._ask(question)).encode()
        except InvalidAction as exc:
            return Refusal(VALIDATION_ERROR, "Invalid message", errors=exc.errors).encode()
        except Exception as exc:  # the environment's failure, or an answer that JSON cannot say: the client's to know
            return Refusal(EXECUTION_ERROR, str(exc)).encode()

    async def _ask(self, question: Question) -> Answer:
        match question:
            case Reset():
                return await self._reset(question)
            case Step():
                return await self._step(question)
            case StateQuery():
                return StateAnswer({"episode_id": self._episode_id, "step_count": self._steps})
            case Mcp():
                return answer_mcp(self._environment, question)
            case Close():
                raise AssertionError("a goodbye has no answer")

    async def _reset(self, reset: Reset) -> Observation:
        await trio.sleep(self._faults.slow_reset_seconds)
        if self._faults.reset_fails():
            raise RuntimeError("this reset was told to fail")
        observation = self._environment.reset(**known_arguments(self._environment.reset, reset.kwargs))
        self._episode_id = reset.kwargs.get("episode_id")
        self._steps = 0
        return observation

    async def _step(self, step: Step) -> Observation:
        await trio.sleep(self._faults.slow_step_seconds)
        observation = self._environment.step(step.parsed())
        self._steps += 1
        return observation

    async def _close(self) -> None:
        try:
            await trio.sleep(self._faults.slow_close_seconds)
        finally:
            self._environment.close()
