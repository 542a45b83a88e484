"""The door of one environment server: its line, the knocks that belong to it, and what it says of its environment."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import httpx
import structlog
import trio

from gymserve import wire
from gymserve.address import EnvironmentAddress
from gymserve.alarms import Alarms
from gymserve.episode import AnswerTimedOut, Episode, EpisodeError, Refused
from gymserve.gate import Gate
from gymserve.knocking import Handshake, HandshakeLost, HandshakeUnanswered, Health
from gymserve.line import Line
from gymserve.network import Network, NotAnEnvironmentServer
from gymserve.resets import ResetFailed
from gymserve.ticket import Ticket
from gymserve.toolbox import Show, Toolbox, is_mcp, listed_tools, make_toolbox, with_reward
from gymserve.verdict import Verdict, is_refused, sentence, verdict
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


@dataclass(frozen=True, slots=True)
class DoorTerms:
    """What all doors of a gymserve have in common. Seconds.

    ``answer_timeout_seconds`` is for the first answer on a connection, which may have to wait for an environment;
    ``restart_patience_seconds``: how long a server that has opened episodes may refuse before it counts as hopeless.
    ``taken_names`` are names that no tool can have; ``jitter``: as `Gate` has it.
    """

    headers: Sequence[tuple[str, str]] = ()
    connect_timeout_seconds: float = 10.0
    close_timeout_seconds: float = 60.0
    answer_timeout_seconds: float = 600.0
    restart_patience_seconds: float = 60.0
    max_handshakes: int = 16
    max_message_bytes: int = MAX_MESSAGE_BYTES
    taken_names: frozenset[str] = frozenset()
    show: Show = with_reward
    jitter: Callable[[], float] = _jitter


class Door:
    """One environment server as its openers see it."""

    def __init__(
        self,
        nursery: trio.Nursery,
        network: Network,
        address: EnvironmentAddress,
        line: Line,
        terms: DoorTerms,
        *,
        alarms: Alarms,
        slots: int | None = None,
    ) -> None:
        """:param nursery: for its connections; it outlasts the sessions, as a handshake outlasts the session that began
        it, and serves the next.
        :param alarms: for its handshakes.
        :param slots: as `Gate` has it.
        """
        self.address = address
        self.gate = Gate(
            line,
            knock=self._begin_to_knock,
            dismiss=self._begin_to_dismiss,
            jitter=terms.jitter,
            max_handshakes=terms.max_handshakes,
            slots=slots,
            name=str(address),
        )
        self.gate.on_aside = self._tell_aside
        self.trouble: Exception | None = None
        self.trouble_at = -math.inf
        self._nursery = nursery
        self._network = network
        self._line = line
        self._terms = terms
        self._alarms = alarms
        self._health = Health(lambda: network.is_alive(address, terms.headers))
        self._schema: Mapping[str, Any] | None = None
        self._learning = trio.Lock()
        self.lesson: Lesson | None = None
        self.toolbox: Toolbox | None = None
        self.has_opened = False
        self._refusing_since: float | None = None
        self._refused_at = -math.inf

    # -- knocks ----------------------------------------------------------------------------------------------------

    def _begin_to_knock(self) -> None:
        self._nursery.start_soon(self._knock)

    async def _knock(self) -> None:
        """A connection's whole life, in one task: where it is let in, that is the one that holds it."""
        try:
            await self.learn_schema()
            await self._connect()
        except Exception as exc:
            self._failed(exc)

    async def _connect(self) -> None:
        episode = Episode(
            self._network,
            self.address,
            self._terms.headers,
            max_message_bytes=self._terms.max_message_bytes,
            alarms=self._alarms,
        )
        handshake = Handshake(
            self._nursery,
            self._alarms,
            self._health,
            connect_timeout_seconds=self._terms.connect_timeout_seconds,
            on_silence=self._on_silence,
            give_up=episode.drop,
        )
        try:
            await episode.hold(partial(self._let_in, episode, handshake))
        finally:
            handshake.end()
        if handshake.is_lost:
            raise HandshakeLost("the server is alive, but does not answer the WebSocket upgrade")

    async def _let_in(self, episode: Episode, handshake: Handshake) -> bool:
        """Whether there is room behind that connection; a refusal is known before anything else is done about it."""
        handshake.end()
        try:
            await self._prove(episode)
        except Exception as exc:
            self._failed(exc)
            return False
        self._refusing_since = None
        self.gate.let_in(episode)
        return True

    def _failed(self, exc: Exception) -> None:
        """A knock came to nothing; to be told as it is handled."""
        match exc:
            case HandshakeLost():
                self.in_trouble(exc)
                _log.warning("a handshake was lost by a server that is alive", env=str(self.address))
                self.gate.knock_lost()
            case ResetFailed():
                self.gate.knock_failed(exc)
            case _ if isinstance(exc, FAILURES):
                self._judge(exc)
            case _:  # a fault of ours belongs to the session that is next, not to all of them
                _log.exception("a knock failed by a fault of ours", env=str(self.address))
                self.gate.knock_failed(exc)

    async def _prove(self, episode: Episode) -> None:
        """:raises ResetFailed: there is room, but no environment, though there have been some."""
        with trio.move_on_after(self._terms.answer_timeout_seconds):
            try:
                return await episode.prove()
            except Refused as exc:
                if exc.refusal.code == wire.FACTORY_ERROR and self.has_opened:
                    raise ResetFailed(exc.refusal.message) from exc
                raise
        raise AnswerTimedOut(
            f"the server accepted a connection, but said nothing for {self._terms.answer_timeout_seconds:g} s"
        )

    def _on_silence(self) -> None:
        sentence = f"it has not answered a WebSocket upgrade for {self._terms.connect_timeout_seconds:g} s or more"
        self.in_trouble(HandshakeUnanswered(sentence))
        self.gate.knock_unanswered()

    def _judge(self, exc: Exception) -> None:
        self.in_trouble(exc)
        match verdict(exc):
            case Verdict.FULL:
                self.gate.knock_refused(exc, exc.refusal.max_sessions if isinstance(exc, Refused) else None)
            case Verdict.BUSY:
                self.gate.knocked_in_vain(exc)
            case _ if self._is_restarting(exc):
                assert self._refusing_since is not None
                self.gate.knocked_in_vain(exc, again_by=self._refusing_since + self._terms.restart_patience_seconds)
            case _:
                self.gate.knock_hopeless(exc)

    def _is_restarting(self, exc: Exception) -> bool:
        """A server that has opened episodes and refuses: its pod restarts, and a trainer must not burn its tasks."""
        if not (self.has_opened and is_refused(exc) and self._terms.restart_patience_seconds):
            return False
        now = trio.current_time()
        unasked_since = max(self._refused_at, self.gate.aside_until)
        self._refused_at = now
        if self._refusing_since is None or now > unasked_since + self._terms.restart_patience_seconds:
            self._refusing_since = now  # where nobody asked for so long, it is another restart
            _log.warning(
                "the environment server refuses, though it has opened episodes: it may be restarting",
                env=str(self.address),
                restart_patience_seconds=self._terms.restart_patience_seconds,
            )
        return now < self._refusing_since + self._terms.restart_patience_seconds

    # -- how it goes -----------------------------------------------------------------------------------------------

    def opened(self, ticket: Ticket) -> None:
        """An episode was opened."""
        self.has_opened = True
        self.trouble = None
        self._line.opened(ticket)

    def in_trouble(self, exc: Exception) -> None:
        """An opening failed."""
        self.trouble = exc
        self.trouble_at = trio.current_time()

    def _tell_aside(self) -> None:
        assert self.trouble is not None, "it is told before the gate is"
        _log.warning("an environment server is set aside", env=str(self.address), reason=sentence(self.trouble))

    @property
    def state(self) -> str:
        """In a word, for whoever looks: what keeps new sessions away from it, if anything."""
        if self.gate.is_leaving:
            return "draining"
        if self.gate.is_aside:
            return "aside"
        if self._refusing_since is not None:
            return "restarting"
        return "full" if self.gate.is_full else "ready"

    @property
    def is_well(self) -> bool:
        """Whether nothing but a want of room is known against the server; who only asks must not wait for a try."""
        if self.trouble is None or verdict(self.trouble) is Verdict.FULL:
            return True
        return trio.current_time() >= self.trouble_at + _TROUBLE_SECONDS

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
                    self._line.leave(ticket)
                await episode.leave()
                nursery.cancel_scope.cancel()
        except* Exception:  # the firewall of this connection
            _log.exception("a goodbye failed by a fault of ours", env=str(self.address))

    async def say_goodbye(self, episode: Episode) -> None:
        """Bounded by the close timeout; `Episode.leave` must follow."""
        await episode.goodbye(timeout_seconds=self._terms.close_timeout_seconds)

    # -- what the server says of its environment -------------------------------------------------------------------

    async def learn_schema(self) -> Mapping[str, Any]:
        """The server's ``/schema``, asked for once. :raises Exception: as `Network.fetch_schema`."""
        if self._schema is not None:  # no lock then: that is a turn of the loop for each knock
            return self._schema
        async with self._learning:  # one asks, the others wait for what it learns
            if self._schema is None:
                self._schema = await self._network.fetch_schema(self.address, self._terms.headers)
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
            self.toolbox = make_toolbox(lesson.schema, lesson.tools, self._terms.taken_names, self._terms.show)
            if self.toolbox.renamed:
                renamed = dict(self.toolbox.renamed)
                _log.warning("tools renamed, their names are routes", env=str(self.address), renamed=renamed)
        return self.toolbox
