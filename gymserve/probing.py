"""What an environment server is like, found out as its clients would: episodes are opened, reset and given back."""

import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import trio

from gymserve import wire
from gymserve.address import EnvironmentAddress
from gymserve.door import FAILURES
from gymserve.episode import AnswerTimedOut, Episode, Refused
from gymserve.network import Network
from gymserve.resets import ResetFailed, ResetRules
from gymserve.toolbox import is_mcp, listed_tools
from gymserve.verdict import Verdict, sentence, verdict

_NORMAL_CLOSURE = 1000  # RFC 6455 section 7.4.1


class Found(Exception):
    """Something is not as it should be. ``passes``: gymserve would wait until it is over."""

    def __init__(self, sentence: str, *, passes: bool) -> None:
        super().__init__(sentence)
        self.passes = passes


@dataclass(slots=True)
class Probe:
    """What was found; seconds are one for each episode that came so far.

    ``failures`` are by the name of what was tried: a sentence, and whether gymserve would wait until it is over.
    ``fields`` of the action are None where it is an MCP environment; ``tools`` where they are not listed, or were not
    asked for: ``has_asked_for_tools``.
    """

    url: str
    episodes: int
    is_openenv: bool = False
    is_mcp: bool = False
    fields: Sequence[str] | None = None
    tools: Sequence[str] | None = None
    has_asked_for_tools: bool = False
    failed_resets: int = 0
    understands_keepalive: bool | None = None
    handshake_seconds: list[float] = field(default_factory=list)
    reset_seconds: list[float] = field(default_factory=list)
    close_seconds: list[float] = field(default_factory=list)
    failures: dict[str, Found] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        return not self.failures

    @property
    def passes(self) -> bool:
        """Whether all that is wrong is of the kind that gymserve waits out."""
        return all(found.passes for found in self.failures.values())


class Prober:
    """Looks at one server, from the outside in; what failed is not gone beyond."""

    def __init__(
        self,
        network: Network,
        address: EnvironmentAddress,
        headers: Sequence[tuple[str, str]],
        *,
        timeout_seconds: float,
    ) -> None:
        """:param timeout_seconds: for each handshake, answer and goodbye."""
        self._network = network
        self._address = address
        self._headers = headers
        self._timeout_seconds = timeout_seconds
        self._trying = ""

    async def probe(self, episodes: int) -> Probe:
        """:param episodes: to open, one after the other."""
        probe = Probe(str(self._address), episodes)
        if not await self._tried(probe, self._learn):
            return probe
        for _ in range(episodes):
            if not await self._tried(probe, self._visit):
                break
        return probe

    async def _tried(self, probe: Probe, look: Callable[[Probe], Awaitable[None]]) -> bool:
        """Whether it came to its end."""
        is_through = False
        try:
            await look(probe)
            is_through = True
        except* Found as group:
            probe.failures[self._trying] = _first(group)
        except* FAILURES as group:
            failure = _first(group)
            probe.failures[self._trying] = Found(self._said(failure), passes=verdict(failure) is not Verdict.HOPELESS)
        return is_through

    async def _learn(self, probe: Probe) -> None:
        with self._step("schema"):
            schema = await self._network.fetch_schema(self._address, self._headers)
            probe.is_openenv, probe.is_mcp = True, is_mcp(schema)
            probe.fields = None if probe.is_mcp else _fields(schema["action"])

    async def _visit(self, probe: Probe) -> None:
        async with trio.open_nursery() as nursery:
            episode = Episode(self._network, self._address, self._headers)
            with self._step("handshake", probe.handshake_seconds):
                await nursery.start(episode.connect)
            nursery.start_soon(episode.read)
            with self._step("room"):
                probe.understands_keepalive = await self._is_pinged(episode)
            with self._step("reset", probe.reset_seconds):
                await self._reset(probe, episode)
            if probe.is_mcp:
                with self._step("tools"):
                    listed = listed_tools(await episode.list_tools())
                    probe.has_asked_for_tools = True
                    probe.tools = None if listed is None else [tool["name"] for tool in listed]
            with self._step("close", probe.close_seconds):
                await episode.goodbye(timeout_seconds=math.inf)
            if episode.lost is None or episode.lost.close_code != _NORMAL_CLOSURE:
                raise Found(f"not with a CLOSE of its own: {episode.lost}", passes=False)
            nursery.cancel_scope.cancel()

    async def _is_pinged(self, episode: Episode) -> bool:
        """:raises Refused: there is no room, or no environment."""
        try:
            await episode.ask(wire.Mcp("ping", 1))
        except Refused as exc:
            if exc.refusal.ends_the_episode:
                raise
            return False
        return True

    async def _reset(self, probe: Probe, episode: Episode) -> None:
        """A reset that fails is tried again in the next episode, as gymserve does."""
        try:
            await _reset(episode)
        except ResetFailed as exc:
            probe.failed_resets += 1
            every = probe.failed_resets == probe.episodes
            said = f"failed in {probe.failed_resets} of {probe.episodes} episodes: {exc}"
            probe.failures["reset"] = Found(said, passes=not every)

    @contextmanager
    def _step(self, name: str, seconds: list[float] | None = None) -> Iterator[None]:
        self._trying = name
        started = trio.current_time()
        with trio.move_on_after(self._timeout_seconds) as waiting:
            yield
        if waiting.cancelled_caught:
            raise Found(f"not done within {self._timeout_seconds:g} s", passes=True)
        if seconds is not None:
            seconds.append(trio.current_time() - started)

    def _said(self, failure: BaseException) -> str:
        if isinstance(failure, Refused) and failure.refusal.code == wire.CAPACITY_REACHED:
            return _full(failure.refusal)
        if isinstance(failure, AnswerTimedOut | trio.TooSlowError):
            return f"no answer within {self._timeout_seconds:g} s"
        return sentence(failure)


async def _reset(episode: Episode) -> None:
    """:raises ResetFailed: it gave no episode to play. :raises EpisodeError: as `Episode.ask`."""
    rules = ResetRules()
    try:
        observation = await episode.ask(wire.Reset())
    except Refused as exc:
        rules.check_refusal(exc.refusal, has_opened=True)
        raise
    assert isinstance(observation, wire.Observation)
    rules.check(observation)


def _full(refusal: wire.Refusal) -> str:
    if refusal.active_sessions is None or refusal.max_sessions is None:
        return "it has no room"
    return f"it has no room: {refusal.active_sessions} of {refusal.max_sessions} slots are taken"


def _fields(action: Mapping[str, Any]) -> list[str]:
    properties = action.get("properties")
    return list(properties) if isinstance(properties, dict) else []


def _first(group: BaseExceptionGroup[Any]) -> Any:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first
