"""Getting an episode with patience: a busy environment server is waited out, a hopeless one fails at once."""

import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import httpx
import structlog
import trio

from gymserve import wire
from gymserve.address import EnvironmentAddress
from gymserve.episode import Episode, EpisodeError, Refused
from gymserve.errors import BadArguments, EnvironmentFailed, GymserveError, NoRoom
from gymserve.line import Line, Ticket
from gymserve.network import Network, NotAnEnvironmentServer
from gymserve.toolbox import McpToolbox, Show, StepToolbox, Toolbox, is_mcp, listed_names, listed_tools
from gymserve.verdict import Verdict, causes, verdict
from gymserve.websocket import HandshakeFailed

_log = structlog.get_logger()

_Outcome = TypeVar("_Outcome")

#: What an attempt can fail with through no fault of ours.
_FAILURES = (
    EpisodeError,
    HandshakeFailed,
    NotAnEnvironmentServer,
    OSError,
    trio.TooSlowError,
    httpx.TransportError,
)


@dataclass(slots=True)
class Progress:
    """How far an opening has come, for whoever watches."""

    in_line: bool = True
    tries: int = 0
    last: Exception | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """A slot as the line counts it; whoever holds it must `release` it, however the episode ended."""

    line: Line
    ticket: Ticket

    def release(self) -> None:
        self.line.leave(self.ticket)


@dataclass(frozen=True, slots=True)
class Opened:
    """An episode after its reset. ``seconds_resetting`` is the time the reset took."""

    episode: Episode
    observation: wire.Observation
    toolbox: Toolbox
    place: Place
    seconds_resetting: float


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a server tells of its environment without a reset: its ``/schema`` and, of an MCP environment that lists
    them, its tools as ``tools/list`` has them.
    """

    schema: Mapping[str, Any]
    tools: Sequence[Mapping[str, Any]] | None = None


class Opener:
    """The way to one environment server: its line, its tools, and the patience for it."""

    def __init__(
        self,
        network: Network,
        address: EnvironmentAddress,
        *,
        headers: Sequence[tuple[str, str]] = (),
        patience_seconds: float,
        connect_timeout_seconds: float,
        close_timeout_seconds: float,
        reset_kwargs: Mapping[str, Any],
        taken_names: frozenset[str],
        show: Show,
    ) -> None:
        """:param patience_seconds: 0 waits nothing out: one attempt, within the connect timeout.
        :param reset_kwargs: what every reset gets; a row's own win over them.
        :param taken_names: names that no tool can have.
        """
        self.address = address
        self.line = Line(jitter=lambda: random.uniform(0.75, 1.25))
        self._network = network
        self._headers = headers
        self._patience_seconds = patience_seconds
        self._budget_seconds = patience_seconds or connect_timeout_seconds
        self._close_timeout_seconds = close_timeout_seconds
        self._reset_kwargs = reset_kwargs
        self._taken_names = taken_names
        self._show = show
        self._schema: Mapping[str, Any] | None = None
        self._learning = trio.Lock()
        self._toolbox: Toolbox | None = None

    async def open(self, nursery: trio.Nursery, reset_kwargs: Mapping[str, Any], progress: Progress) -> Opened:
        """An episode, reset, whose reader runs in ``nursery``.

        :raises NoRoom: the server was full or did not answer for as long as the patience lasts.
        :raises EnvironmentFailed: waiting would not help, or the reset failed.
        :raises BadArguments: the environment's validator refused the reset's arguments.
        """
        ticket = self.line.join()
        attempt = partial(self._attempt, nursery, {**self._reset_kwargs, **reset_kwargs}, ticket)
        try:
            return await self._patiently(attempt, ticket, progress)
        except BaseException:
            self.line.leave(ticket)
            raise

    async def learn(self, nursery: trio.Nursery, progress: Progress) -> Lesson:
        """What there is to know of the environment's tools; nothing is reset.

        A slot is taken, with the patience of `open`, only of an MCP environment, and given back with a goodbye. The
        connection's reader runs in ``nursery``.

        :raises NoRoom: as `open`. :raises EnvironmentFailed: waiting would not help.
        """
        ticket = self.line.join()
        try:
            lesson, episode = await self._patiently(partial(self._study, nursery, ticket), ticket, progress)
            if episode is not None:
                await episode.goodbye(timeout_seconds=self._close_timeout_seconds)
                await episode.leave()
            return lesson
        finally:
            self.line.leave(ticket)

    async def _patiently(
        self, attempt: Callable[[], Awaitable[_Outcome]], ticket: Ticket, progress: Progress
    ) -> _Outcome:
        with trio.move_on_after(self._budget_seconds):
            return await self._in_turn(attempt, ticket, progress)
        raise self._no_room(progress)

    async def _in_turn(
        self, attempt: Callable[[], Awaitable[_Outcome]], ticket: Ticket, progress: Progress
    ) -> _Outcome:
        while True:
            progress.in_line = True
            await self.line.turn(ticket)
            progress.in_line = False
            progress.tries += 1
            try:
                outcome = await attempt()
            except _FAILURES as exc:
                progress.last = exc
                self._judge(exc, ticket, progress)
            else:
                self.line.opened(ticket)
                return outcome

    async def _attempt(self, nursery: trio.Nursery, kwargs: Mapping[str, Any], ticket: Ticket) -> Opened:
        schema = await self._learn_schema()
        async with self._connection(nursery, ticket) as episode:
            toolbox = self._toolbox or await self._learn_tools(episode, schema)
            started = trio.current_time()
            observation = await episode.ask(wire.Reset(kwargs))
        assert isinstance(observation, wire.Observation)
        return Opened(episode, observation, toolbox, Place(self.line, ticket), trio.current_time() - started)

    async def _study(self, nursery: trio.Nursery, ticket: Ticket) -> tuple[Lesson, Episode | None]:
        schema = await self._learn_schema()
        if not is_mcp(schema):
            return Lesson(schema), None
        async with self._connection(nursery, ticket) as episode:
            answer = await episode.list_tools()
        return Lesson(schema, listed_tools(answer)), episode

    @asynccontextmanager
    async def _connection(self, nursery: trio.Nursery, ticket: Ticket) -> AsyncIterator[Episode]:
        """A connection that the server let in. It outlives the block, unless the block fails."""
        episode = Episode(self._network, self.address, self._headers)
        try:
            await nursery.start(episode.run)
            self.line.let_in(ticket)
            yield episode
        except Refused as exc:
            if not exc.refusal.ends_the_episode:
                await episode.goodbye(timeout_seconds=self._close_timeout_seconds)
            await episode.leave()
            raise
        except BaseException:
            episode.drop()
            raise

    async def _learn_schema(self) -> Mapping[str, Any]:
        async with self._learning:  # one asks, the others wait for what it learns
            if self._schema is None:
                self._schema = await self._network.fetch_schema(self.address, self._headers)
            return self._schema

    async def _learn_tools(self, episode: Episode, schema: Mapping[str, Any]) -> Toolbox:
        """From the first episode's own connection, before its reset: ``POST /mcp`` would build an environment to throw
        away.
        """
        if not is_mcp(schema):
            self._toolbox = StepToolbox(self._show)
            return self._toolbox
        names = listed_names(await episode.list_tools())
        toolbox = McpToolbox(names, self._taken_names, self._show)
        if self._toolbox is None and toolbox.renamed:
            _log.warning("tools renamed, their names are routes", env=str(self.address), renamed=dict(toolbox.renamed))
        self._toolbox = toolbox
        return toolbox

    def _judge(self, exc: Exception, ticket: Ticket, progress: Progress) -> None:
        """Back to the line where waiting helps. :raises GymserveError: where it does not, or there is no patience."""
        said = verdict(exc)
        if said is Verdict.HOPELESS:
            raise self._hopeless(exc) from exc
        if said is Verdict.FULL:
            self.line.refused(ticket, exc.refusal.max_sessions if isinstance(exc, Refused) else None)
        else:
            self.line.failed(ticket)
        if self._patience_seconds == 0:
            raise self._no_room(progress) from exc

    def _hopeless(self, exc: Exception) -> GymserveError:
        if isinstance(exc, Refused) and exc.refusal.code == wire.VALIDATION_ERROR:
            return BadArguments(exc.refusal.errors or [{"type": "value_error", "loc": [], "msg": exc.refusal.message}])
        if isinstance(exc, Refused) and not exc.refusal.ends_the_episode:
            return EnvironmentFailed(f"the environment's reset failed: {exc.refusal.message}")
        return EnvironmentFailed(
            f"the environment server at {self.address} cannot be used: {_sentence(exc)}; "
            "check that --env is right and that an OpenEnv server is running there"
        )

    def _no_room(self, progress: Progress) -> NoRoom:
        last = f"last: {_sentence(progress.last)}" if progress.last else "others are ahead in the line or being opened"
        return NoRoom(
            f"the environment server at {self.address} had no room within {self._budget_seconds:g} s "
            f"({progress.tries} {'try' if progress.tries == 1 else 'tries'}; {last}); "
            "raise --patience or give the server more slots"
        )


def _sentence(exc: BaseException) -> str:
    """What happened, in the words of the innermost cause that has some: trio and httpx only wrap it."""
    said = [str(cause) or type(cause).__name__ for cause in causes(exc) if not isinstance(cause, BaseExceptionGroup)]
    if isinstance(exc, trio.TooSlowError):
        return "no TCP connection in time"
    return said[-1] if isinstance(exc, OSError | httpx.TransportError) else said[0]
