"""Getting an episode with patience: a busy environment server is waited out, a hopeless one fails at once."""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import structlog
import trio

from gymserve import wire
from gymserve.address import EnvironmentAddress
from gymserve.descriptors import OutOfDescriptors
from gymserve.door import FAILURES, Door, Lesson
from gymserve.episode import Episode, Refused
from gymserve.errors import BadArguments, EnvironmentFailed, GymserveError, NoRoom
from gymserve.gate import Gate
from gymserve.handovers import HandOvers
from gymserve.line import Line, MustWait
from gymserve.pool import Pool
from gymserve.resets import ResetFailed, ResetRules
from gymserve.ticket import Ticket
from gymserve.toolbox import Toolbox, is_mcp, listed_tools
from gymserve.verdict import Verdict, sentence, verdict

_log = structlog.get_logger()

_HOPELESS_AT_ONCE = 16
_HELD_BACK_SECONDS = 1.0
_SCHEMA_RETRY_SECONDS = 1.0
_WARNING_SECONDS = 60.0  # between two warnings that the line is too long

Waits = Callable[[str, int], None]


def _nobody_watches(why: str, place: int) -> None:
    """The default of `Progress.on_wait`."""


def _nobody_counts(in_line: bool) -> None:
    """The default of `Progress.on_turn`."""


@dataclass(slots=True)
class Progress:
    """How far an opening has come, for whoever watches. ``on_wait`` is told once: why, and the place in the line.
    ``on_turn`` is told whenever ``in_line`` changes. ``asked`` is the question whose answer is awaited.
    """

    on_wait: Waits = _nobody_watches
    on_turn: Callable[[bool], None] = _nobody_counts
    in_line: bool = True
    asked: str | None = None
    tries: int = 0
    last: Exception | None = None
    waits: bool = False

    def wait(self, why: str, place: int) -> None:
        if not self.waits:
            self.waits = True
            self.on_wait(why, place)

    def stop_telling(self) -> None:
        """Nobody watches any more: who did is not held on to."""
        self.on_wait, self.on_turn = _nobody_watches, _nobody_counts

    def turn(self, *, in_line: bool) -> None:
        self.in_line, self.asked = in_line, None
        self.on_turn(in_line)


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
    address: EnvironmentAddress
    place: Place
    seconds_resetting: float


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether a seed now would get a slot without waiting; seconds are None where nothing is known."""

    ready: bool
    waiting: int
    oldest_wait_seconds: float
    expected_wait_seconds: float | None


class Opener:
    """Patience before the servers of a pool."""

    def __init__(
        self,
        pool: Pool,
        *,
        patience_seconds: float,
        connect_timeout_seconds: float,
        reset_kwargs: Mapping[str, Any],
        resets: ResetRules,
    ) -> None:
        """:param patience_seconds: 0 waits nothing out: one attempt, within the connect timeout.
        :param reset_kwargs: what every reset gets; a row's own win over them.
        """
        self.pool = pool
        self.patience_seconds = patience_seconds
        self._budget_seconds = patience_seconds or connect_timeout_seconds
        self._reset_kwargs = reset_kwargs
        self._resets = resets
        self._hopeless_at: deque[float] = deque(maxlen=_HOPELESS_AT_ONCE + 1)
        self._hand_overs = HandOvers()
        self._warned_at: float | None = None
        self._learning = trio.Lock()

    @property
    def line(self) -> Line:
        return self.pool.line

    def readiness(self) -> Readiness:
        """As things stand; a server that was never tried counts as ready, and one that was not tried for a while."""
        ready = self.pool.has_room
        expected = 0.0 if ready else self._hand_overs.expected_wait_seconds(self.line.waiting + 1)
        return Readiness(
            ready=ready,
            waiting=self.line.waiting,
            oldest_wait_seconds=round(self.line.oldest_wait_seconds, 3),
            expected_wait_seconds=None if expected is None else round(expected, 3),
        )

    def all_reset_kwargs(self, own: Mapping[str, Any]) -> Mapping[str, Any]:
        """What a reset gets for a row that has its ``own``."""
        return {**self._reset_kwargs, **own}

    async def open(
        self, nursery: trio.Nursery, reset_kwargs: Mapping[str, Any], progress: Progress, *, label: str | None = None
    ) -> Opened:
        """An episode, reset, whose reader runs in ``nursery``.

        :raises NoRoom: the server was full or did not answer for as long as the patience lasts.
        :raises EnvironmentFailed: waiting would not help, or the resets failed.
        :raises BadArguments: the environment's validator refused the reset's arguments.
        """
        ticket = self._join(label, progress)
        try:
            with trio.move_on_after(self._budget_seconds):
                opened = await self._open_in_turn(nursery, self.all_reset_kwargs(reset_kwargs), ticket, progress)
                self._hand_overs.note()
                return opened
        except EnvironmentFailed:
            self.line.leave(ticket)
            await self._hold_back()
            raise
        except BaseException:
            self.line.leave(ticket)
            raise
        self.line.leave(ticket)
        raise self._no_room(progress)

    async def learn(self) -> Lesson:
        """What there is to know of the environment's tools; nothing is reset. One asks, the others wait for the answer.

        A slot is taken, with the patience of `open`, only of an MCP environment that nobody has asked yet, and given
        back with a goodbye.

        :raises NoRoom: as `open`. :raises EnvironmentFailed: waiting would not help.
        """
        learned: Lesson | GymserveError
        async with trio.open_nursery() as nursery:
            try:
                learned = await self._learn(nursery)
            except GymserveError as error:  # raised outside, so that the nursery does not wrap it
                learned = error
            nursery.cancel_scope.cancel()
        if isinstance(learned, GymserveError):
            raise learned
        return learned

    def _join(self, label: str | None, progress: Progress) -> Ticket:
        def on_wait() -> None:
            why = self._why() if self.line.may_take(label) else "its label's share of the slots is held"
            progress.wait(why, self.line.place(ticket))
            self._warn_of_a_long_line()

        ticket = self.line.join(label, on_wait=on_wait, patient=self.patience_seconds > 0)
        return ticket

    # -- in turn ---------------------------------------------------------------------------------------------------

    async def _open_in_turn(
        self, nursery: trio.Nursery, kwargs: Mapping[str, Any], ticket: Ticket, progress: Progress
    ) -> Opened:
        failed_resets = 0
        while True:
            episode = None
            try:
                episode = await self._connection(ticket, progress)
                nursery.start_soon(episode.read)
                opened = await self._reset(episode, kwargs, ticket, progress)
            except ResetFailed as exc:
                failed_resets += 1
                progress.last, progress.asked = exc, None
                if episode is not None:
                    await self._give_back(episode, ticket)
                if failed_resets > self._resets.retries:
                    raise self._reset_failed(exc, failed_resets) from exc
            except FAILURES as exc:
                assert episode is not None, "what a connection fails with is told in words of ours"
                episode.drop()
                self._judge(exc, ticket, progress)
            except BaseException:
                if episode is not None:
                    episode.drop()
                raise
            else:
                self.pool.door(ticket).opened(ticket)
                return opened

    async def _connection(self, ticket: Ticket, progress: Progress) -> Episode:
        try:
            return await self._turn(ticket, progress)
        except MustWait as exc:
            raise self._no_room(progress) from exc
        except FAILURES as exc:
            progress.last = exc
            if verdict(exc) is Verdict.HOPELESS:
                raise self._hopeless(exc, ticket.gate) from exc
            raise self._no_room(progress) from exc

    async def _turn(self, ticket: Ticket, progress: Progress) -> Episode:
        progress.turn(in_line=True)
        tried = ticket.tries
        self.line.enqueue(ticket)
        try:
            episode = await self.line.connection(ticket)
        finally:
            progress.tries += ticket.tries - tried
        progress.turn(in_line=False)
        return episode

    async def _reset(self, episode: Episode, kwargs: Mapping[str, Any], ticket: Ticket, progress: Progress) -> Opened:
        door = self.pool.door(ticket)
        progress.asked = "tools/list"
        toolbox = await door.learn_tools(episode)
        progress.asked = "reset"
        started = trio.current_time()
        try:
            observation = await episode.ask(wire.Reset(kwargs))
        except Refused as exc:
            if exc.refusal.code == wire.VALIDATION_ERROR:
                await self._give_back(episode, ticket)
                errors = exc.refusal.errors or [{"type": "value_error", "loc": [], "msg": exc.refusal.message}]
                raise BadArguments(errors) from exc
            self._resets.check_refusal(exc.refusal, has_opened=door.has_opened)
            raise
        assert isinstance(observation, wire.Observation)
        self._resets.check(observation)
        seconds = trio.current_time() - started
        return Opened(episode, observation, toolbox, door.address, Place(self.line, ticket), seconds)

    async def _give_back(self, episode: Episode, ticket: Ticket) -> None:
        await self.pool.door(ticket).say_goodbye(episode)
        await episode.leave()

    def _judge(self, exc: Exception, ticket: Ticket, progress: Progress) -> None:
        """Back to the line where waiting helps. :raises EnvironmentFailed: where it does not.
        :raises NoRoom: there is no patience.
        """
        progress.last, progress.asked = exc, None
        door = self.pool.door(ticket)
        door.in_trouble(exc)
        said = verdict(exc)
        if said is Verdict.HOPELESS:
            if not self.line.give_up_on_server(ticket):
                raise self._hopeless(exc, door.gate) from exc
        elif said is Verdict.FULL:
            self.line.refused(ticket, exc.refusal.max_sessions if isinstance(exc, Refused) else None)
        else:
            self.line.failed(ticket)
        if self.patience_seconds == 0:
            raise self._no_room(progress) from exc

    # -- learning --------------------------------------------------------------------------------------------------

    async def _learn(self, nursery: trio.Nursery) -> Lesson:
        progress, asked = Progress(), None
        ticket = self._join(None, progress)
        try:
            with trio.move_on_after(self._budget_seconds):
                async with self._learning:
                    asked = await self._ask_for_tools(nursery, ticket, progress)
            lesson = self.pool.lesson
            if lesson is None:
                raise self._no_room(progress)
            if asked is not None:
                await self._give_back(asked, ticket)
            return lesson
        finally:
            self.line.leave(ticket)

    async def _ask_for_tools(self, nursery: trio.Nursery, ticket: Ticket, progress: Progress) -> Episode | None:
        """Have a door know them; the connection that was needed for it, if any was."""
        if self.pool.lesson is not None:
            return None
        door, schema = await self._schema(progress)
        if not is_mcp(schema):
            door.know(Lesson(schema))
            return None
        episode, answer = await self._list_tools(nursery, ticket, progress)
        self.pool.door(ticket).know(Lesson(schema, listed_tools(answer)))
        return episode

    async def _schema(self, progress: Progress) -> tuple[Door, Mapping[str, Any]]:
        """Of the first server that answers. :raises EnvironmentFailed: waiting would help at none."""
        while True:
            failed: list[EnvironmentFailed] = []
            serving = self.pool.serving
            for door in serving:
                try:
                    return door, await door.learn_schema()
                except FAILURES as exc:
                    progress.tries += 1
                    progress.last = exc
                    if verdict(exc) is Verdict.HOPELESS:
                        failed.append(self._hopeless(exc, door.gate))
            if failed and len(failed) == len(serving):
                raise failed[-1]
            await trio.sleep(_SCHEMA_RETRY_SECONDS)

    async def _list_tools(
        self, nursery: trio.Nursery, ticket: Ticket, progress: Progress
    ) -> tuple[Episode, wire.McpAnswer | wire.Refusal]:
        while True:
            episode = await self._connection(ticket, progress)
            nursery.start_soon(episode.read)
            progress.asked = "tools/list"
            try:
                answer = await episode.list_tools()
            except FAILURES as exc:
                episode.drop()
                self._judge(exc, ticket, progress)
            else:
                self.pool.door(ticket).opened(ticket)
                return episode, answer

    # -- what is said of it ----------------------------------------------------------------------------------------

    async def _hold_back(self) -> None:
        """A trainer that dispatches its next task at every failure would burn its run; after many at once, slow it."""
        now = trio.current_time()
        self._hopeless_at.append(now)
        if len(self._hopeless_at) > _HOPELESS_AT_ONCE and now - self._hopeless_at[0] < 1:
            await trio.sleep(_HELD_BACK_SECONDS)

    def _why(self) -> str:
        if (want := self._want_of_our_own()) is not None:
            return want
        if not self.pool.serving:
            return "there is no environment server any more"
        if self.pool.trouble is not None:
            return sentence(self.pool.trouble)
        if self.line.capacity is not None:
            held = sum(door.gate.held for door in self.pool.serving)
            return f"{held} of the {self._whose} {self.line.capacity} slots are held"
        if self.line.waiting:
            return "others are being opened"
        return "it has not answered yet"

    def _want_of_our_own(self) -> str | None:
        """What gymserve itself lacks for another episode."""
        if self.line.is_spent:
            return f"gymserve has file descriptors for no more than its {self.line.held} episodes"
        return str(self.pool.trouble) if isinstance(self.pool.trouble, OutOfDescriptors) else None

    @property
    def _whose(self) -> str:
        return "server's" if len(self.pool.serving) == 1 else "servers'"

    @property
    def _where(self) -> str:
        addresses = [str(door.address) for door in self.pool.serving]
        if len(addresses) == 1:
            return f"the environment server at {addresses[0]}"
        return f"the {len(addresses)} environment servers ({', '.join(addresses)})"

    def _warn_of_a_long_line(self) -> None:
        expected = self._hand_overs.expected_wait_seconds(self.line.waiting)
        rate = self._hand_overs.per_second
        now = trio.current_time()
        if expected is None or rate is None or expected <= self._budget_seconds:
            return
        if self._warned_at is not None and now < self._warned_at + _WARNING_SECONDS:
            return
        self._warned_at = now
        _log.warning(
            "the line is longer than the patience: the last in it will be refused",
            env=", ".join(str(door.address) for door in self.pool.serving),
            waiting=self.line.waiting,
            expected_wait_seconds=round(expected, 1),
            patience_seconds=self._budget_seconds,
            in_flight_that_fit=self.line.let_in_already + int(rate * self._budget_seconds),
        )

    def _hopeless(self, exc: Exception, gate: Gate | None) -> EnvironmentFailed:
        assert gate is not None, "it was one of them"
        others = len(self.pool.serving) - 1
        which = "" if others < 1 else f", nor can the other {others}" if others > 1 else ", nor can the other one"
        return EnvironmentFailed(
            f"the environment server at {gate.name} cannot be used{which}: {sentence(exc)}; "
            "check that --env is right and that an OpenEnv server is running there"
        )

    def _reset_failed(self, exc: ResetFailed, times: int) -> EnvironmentFailed:
        tried = "once" if times == 1 else f"{times} times, each on a fresh episode"
        return EnvironmentFailed(
            f"the environment's reset failed {tried}: {exc}; look at the environment, or raise --reset-retries"
        )

    def _no_room(self, progress: Progress) -> NoRoom:
        within = f"within {self._budget_seconds:g} s" if self.patience_seconds else "without waiting"
        if not self.pool.serving:
            return NoRoom(f"there was no environment server {within}: all are leaving or have left; add one")
        if progress.asked is None and (want := self._want_of_our_own()) is not None:
            return NoRoom(
                f"no connection to {self._where} could be opened {within}: {want}; "
                "raise the limit on open files (ulimit -n), or have fewer rollouts at once"
            )
        last = progress.last or self.pool.trouble
        said = f"last: {sentence(last)}" if last else self._why()
        if progress.asked is not None:
            said = f"its {progress.asked} was not answered"
        return NoRoom(
            f"{self._where} had no room {within} "
            f"({progress.tries} {'try' if progress.tries == 1 else 'tries'}; {said}); "
            "raise --patience or give the server more slots"
        )
