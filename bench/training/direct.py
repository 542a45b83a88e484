"""How verifiers' own OpenEnv taskset (0.4.0, ``v1/tasksets/openenv``) comes to its episodes: a client of OpenEnv for
each rollout.

The handshake has 10 s, nothing is tried twice, and the client is closed when the rollout ends or is cancelled
(``async with client``). That taskset's ``GET /schema`` for every rollout is left out.
"""

import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio

from gymserve.address import EnvironmentAddress
from gymserve.episode import Episode, EpisodeError, Refused
from gymserve.network import TcpNetwork
from gymserve.websocket import HandshakeFailed
from gymserve.wire import Answer, Observation, Question, Reset, call_tool
from training.incident import CLIENT_HANDSHAKE_SECONDS, Pace
from training.playing import RolloutFailed, Seat

_LEAVE_SECONDS = 1.0


class DirectTools:
    def __init__(self, episode: Episode, seat: Seat) -> None:
        self._episode = episode
        self._seat = seat
        self._reward = 0.0

    async def reset(self) -> None:
        """:raises RolloutFailed"""
        await self._ask(Reset({"day": self._seat.day, "rollout": self._seat.rollout}))
        self._seat.has_episode = True

    async def call(self, name: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        answer = await self._ask(call_tool(name, json.dumps(arguments)))
        assert isinstance(answer, Observation) and answer.fields["error"] is None, answer
        self._reward += answer.reward or 0.0
        data: Mapping[str, Any] = answer.fields["result"]["data"]
        self._seat.note(name, data)
        return data

    async def score(self) -> float:
        self._seat.is_over = True
        return self._reward

    async def _ask(self, question: Question) -> Answer:
        try:
            answer = await self._episode.ask(question)
        except Refused as exc:
            raise RolloutFailed("at capacity" if exc.refusal.active_sessions else "refused", str(exc)) from exc
        except EpisodeError as exc:
            self._seat.is_over = True
            raise RolloutFailed("lost", str(exc)) from exc
        self._seat.answered_at = time.monotonic()
        return answer


class Direct:
    """Opens episodes on the environment server at ``address``."""

    def __init__(self, address: EnvironmentAddress, pace: Pace) -> None:
        self._address = address
        self._handshake_seconds = pace.seconds(CLIENT_HANDSHAKE_SECONDS)
        self._network = TcpNetwork(connect_timeout_seconds=self._handshake_seconds)

    @asynccontextmanager
    async def open(self, seat: Seat) -> AsyncIterator[DirectTools]:
        """:raises RolloutFailed"""
        failure: RolloutFailed | None = None
        episode = Episode(self._network, self._address)
        async with trio.open_nursery() as nursery:
            try:
                began = trio.current_time()
                await self._connect(nursery, episode)
                nursery.start_soon(episode.read)
                tools = DirectTools(episode, seat)
                await tools.reset()
                seat.waited_seconds = trio.current_time() - began
                yield tools
            except RolloutFailed as exc:  # raised outside, so that the nursery does not wrap it
                failure = exc
            finally:
                with trio.move_on_after(_LEAVE_SECONDS, shield=True):  # cancelled, it closes its socket all the same
                    await episode.leave()
                nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure

    async def _connect(self, nursery: trio.Nursery, episode: Episode) -> None:
        try:
            with trio.fail_after(self._handshake_seconds):
                await nursery.start(episode.connect)
        except trio.TooSlowError as exc:
            raise RolloutFailed("handshake timed out") from exc
        except (OSError, HandshakeFailed) as exc:
            raise RolloutFailed("connection refused", str(exc)) from exc
