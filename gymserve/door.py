"""The door of one environment server: its line, the knocks that belong to it, and what it says of its environment."""

import math
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import structlog
import trio

from gymserve import wire
from gymserve.address import EnvironmentAddress
from gymserve.episode import AnswerTimedOut, Episode, EpisodeError, Refused
from gymserve.knocking import HandshakeLost, HandshakeUnanswered, Health, shake_hands
from gymserve.line import Line, Ticket
from gymserve.network import Network, NotAnEnvironmentServer
from gymserve.resets import ResetFailed
from gymserve.toolbox import Show, Toolbox, is_mcp, listed_tools, make_toolbox
from gymserve.verdict import Verdict, is_refused, verdict
from gymserve.websocket import MAX_MESSAGE_BYTES, HandshakeFailed

_log = structlog.get_logger()

#: What an opening can fail with through no fault of ours.
FAILURES = (
    EpisodeError,
    HandshakeFailed,
    HandshakeLost,
    NotAnEnvironmentServer,
    OSError,
    trio.TooSlowError,
    httpx.RequestError,
)

_TROUBLE_SECONDS = 30.0  # for which a failure is held against a server that nobody has tried since


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a server tells of its environment without a reset: its ``/schema`` and, of an MCP environment that lists
    them, its tools as ``tools/list`` has them.
    """

    schema: Mapping[str, Any]
    tools: Sequence[Mapping[str, Any]] | None = None


def _jitter() -> float:
    return random.uniform(0.75, 1.25)


@asynccontextmanager
async def open_door(
    network: Network,
    address: EnvironmentAddress,
    *,
    headers: Sequence[tuple[str, str]] = (),
    connect_timeout_seconds: float,
    close_timeout_seconds: float,
    answer_timeout_seconds: float,
    restart_patience_seconds: float,
    max_handshakes: int,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
    max_connections: float = math.inf,
    taken_names: frozenset[str],
    show: Show,
    jitter: Callable[[], float] = _jitter,
) -> AsyncIterator["Door"]:
    """A door whose connections live in a nursery of its own; leaving drops those that are left.

    It is opened around the sessions: a handshake outlasts the session that began it, and serves the next.

    :param answer_timeout_seconds: for the first answer on a connection; it may have to wait for an environment.
    :param restart_patience_seconds: how long a server that has opened episodes may refuse before it counts as hopeless.
    :param max_connections: as `Line` has ``max_held``.
    :param taken_names: names that no tool can have.
    :param jitter: as `Line` has it.
    """
    async with trio.open_nursery() as nursery:
        door = Door(
            nursery,
            network,
            address,
            headers=headers,
            connect_timeout_seconds=connect_timeout_seconds,
            close_timeout_seconds=close_timeout_seconds,
            answer_timeout_seconds=answer_timeout_seconds,
            restart_patience_seconds=restart_patience_seconds,
            max_handshakes=max_handshakes,
            max_message_bytes=max_message_bytes,
            max_connections=max_connections,
            taken_names=taken_names,
            show=show,
            jitter=jitter,
        )
        nursery.start_soon(door.line.watch)
        yield door
        nursery.cancel_scope.cancel()


class Door:
    """One environment server as its openers see it."""

    def __init__(
        self,
        nursery: trio.Nursery,
        network: Network,
        address: EnvironmentAddress,
        *,
        headers: Sequence[tuple[str, str]],
        connect_timeout_seconds: float,
        close_timeout_seconds: float,
        answer_timeout_seconds: float,
        restart_patience_seconds: float,
        max_handshakes: int,
        max_message_bytes: int,
        max_connections: float,
        taken_names: frozenset[str],
        show: Show,
        jitter: Callable[[], float],
    ) -> None:
        self.address = address
        self.line = Line(
            knock=self._begin_to_knock,
            dismiss=self._begin_to_dismiss,
            jitter=jitter,
            max_handshakes=max_handshakes,
            max_held=max_connections,
        )
        self.lesson: Lesson | None = None
        self.toolbox: Toolbox | None = None
        self.trouble: Exception | None = None
        self._trouble_at = -math.inf
        self._nursery = nursery
        self._network = network
        self._headers = headers
        self._connect_timeout_seconds = connect_timeout_seconds
        self._close_timeout_seconds = close_timeout_seconds
        self._answer_timeout_seconds = answer_timeout_seconds
        self._restart_patience_seconds = restart_patience_seconds
        self._max_message_bytes = max_message_bytes
        self._taken_names = taken_names
        self._show = show
        self._health = Health(lambda: network.is_alive(address, headers))
        self._schema: Mapping[str, Any] | None = None
        self._learning = trio.Lock()
        self.has_opened = False
        self._refusing_since: float | None = None
        self._refused_at = -math.inf

    # -- knocks ----------------------------------------------------------------------------------------------------

    def _begin_to_knock(self) -> None:
        self._nursery.start_soon(self._knock)

    async def _knock(self) -> None:
        try:
            episode = await self._shake_hands()
        except HandshakeLost as exc:
            self.in_trouble(exc)
            _log.warning("a handshake was lost by a server that is alive", env=str(self.address))
            self.line.knock_lost()
        except ResetFailed as exc:
            self.line.knock_hopeless(exc)  # for the session that is next to decide
        except FAILURES as exc:
            self._judge(exc)
        except Exception as exc:  # a fault of ours belongs to the session that is next, not to all of them
            _log.exception("a knock failed by a fault of ours", env=str(self.address))
            self.line.knock_hopeless(exc)
        else:
            self._refusing_since = None
            self.line.let_in(episode)

    async def _shake_hands(self) -> Episode:
        await self.learn_schema()
        episode = await shake_hands(
            self._nursery,
            self._network,
            self.address,
            self._headers,
            self._health,
            connect_timeout_seconds=self._connect_timeout_seconds,
            max_message_bytes=self._max_message_bytes,
            on_silence=self._on_silence,
        )
        try:
            await self._prove(episode)
        except BaseException:
            episode.drop()
            raise
        return episode

    async def _prove(self, episode: Episode) -> None:
        """:raises ResetFailed: there is room, but no environment, though there have been some."""
        with trio.move_on_after(self._answer_timeout_seconds):
            try:
                return await episode.prove()
            except Refused as exc:
                if exc.refusal.code == wire.FACTORY_ERROR and self.has_opened:
                    raise ResetFailed(exc.refusal.message) from exc
                raise
        raise AnswerTimedOut(
            f"the server accepted a connection, but said nothing for {self._answer_timeout_seconds:g} s"
        )

    def _on_silence(self) -> None:
        sentence = f"it has not answered a WebSocket upgrade for {self._connect_timeout_seconds:g} s or more"
        self.in_trouble(HandshakeUnanswered(sentence))
        self.line.knock_unanswered()

    def _judge(self, exc: Exception) -> None:
        self.in_trouble(exc)
        match verdict(exc):
            case Verdict.FULL:
                self.line.knock_refused(exc, exc.refusal.max_sessions if isinstance(exc, Refused) else None)
            case Verdict.BUSY:
                self.line.knocked_in_vain(exc)
            case _ if self._is_restarting(exc):
                assert self._refusing_since is not None
                self.line.knocked_in_vain(exc, again_by=self._refusing_since + self._restart_patience_seconds)
            case _:
                self.line.knock_hopeless(exc)

    def _is_restarting(self, exc: Exception) -> bool:
        """A server that has opened episodes and refuses: its pod restarts, and a trainer must not burn its tasks."""
        if not (self.has_opened and is_refused(exc) and self._restart_patience_seconds):
            return False
        now = trio.current_time()
        last, self._refused_at = self._refused_at, now
        if self._refusing_since is None or now > last + self._restart_patience_seconds:  # else it is another restart
            self._refusing_since = now
            _log.warning(
                "the environment server refuses, though it has opened episodes: it may be restarting",
                env=str(self.address),
                waited_for_seconds=self._restart_patience_seconds,
            )
        return now < self._refusing_since + self._restart_patience_seconds

    # -- how it goes -----------------------------------------------------------------------------------------------

    def opened(self, ticket: Ticket) -> None:
        """An episode was opened."""
        self.has_opened = True
        self.trouble = None
        self.line.opened(ticket)

    def in_trouble(self, exc: Exception) -> None:
        """An opening failed."""
        self.trouble = exc
        self._trouble_at = trio.current_time()

    @property
    def is_well(self) -> bool:
        """Whether nothing but a want of room is known against the server; who only asks must not wait for a try."""
        if self.trouble is None or verdict(self.trouble) is Verdict.FULL:
            return True
        return trio.current_time() >= self._trouble_at + _TROUBLE_SECONDS

    # -- connections that nobody wants any more --------------------------------------------------------------------

    def _begin_to_dismiss(self, episode: Episode, ticket: Ticket) -> None:
        self._nursery.start_soon(self._dismiss, episode, ticket)

    async def _dismiss(self, episode: Episode, ticket: Ticket) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(episode.read)
                try:
                    await self.say_goodbye(episode)
                finally:
                    self.line.leave(ticket)
                await episode.leave()
                nursery.cancel_scope.cancel()
        except* Exception:  # the firewall of this connection
            _log.exception("a goodbye failed by a fault of ours", env=str(self.address))

    async def say_goodbye(self, episode: Episode) -> None:
        """Bounded by the close timeout; `Episode.leave` must follow."""
        await episode.goodbye(timeout_seconds=self._close_timeout_seconds)

    # -- what the server says of its environment -------------------------------------------------------------------

    async def learn_schema(self) -> Mapping[str, Any]:
        """The server's ``/schema``, asked for once. :raises Exception: as `Network.fetch_schema`."""
        async with self._learning:  # one asks, the others wait for what it learns
            if self._schema is None:
                self._schema = await self._network.fetch_schema(self.address, self._headers)
            return self._schema

    async def learn_tools(self, episode: Episode) -> Toolbox:
        """From the first episode's own connection, before its reset (``POST /mcp`` would build another environment)."""
        if self.toolbox is not None:
            return self.toolbox
        schema = await self.learn_schema()
        return self.know(Lesson(schema, listed_tools(await episode.list_tools()) if is_mcp(schema) else None))

    def know(self, lesson: Lesson) -> Toolbox:
        """The toolbox that the server's first lesson makes."""
        if self.toolbox is None:
            self.lesson = lesson
            self.toolbox = make_toolbox(lesson.schema, lesson.tools, self._taken_names, self._show)
            if self.toolbox.renamed:
                renamed = dict(self.toolbox.renamed)
                _log.warning("tools renamed, their names are routes", env=str(self.address), renamed=renamed)
        return self.toolbox
