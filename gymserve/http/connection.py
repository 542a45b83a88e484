"""HTTP/1.1 on one stream, in the seat of hypercorn's per-connection class."""

import math
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from typing import Any

import structlog
import trio
from hypercorn.config import Config
from hypercorn.typing import AppWrapper, WorkerContext
from hypercorn.utils import parse_socket_addr

from gymserve.http.answer import Answer
from gymserve.http.crowd import LATE_EXTENSION, Crowd
from gymserve.http.exchange import Exchange
from gymserve.http.head import Head, build_scope
from gymserve.http.inbox import HungUp, Inbox
from gymserve.http.incoming import Incoming
from gymserve.http.limits import DEFAULT_LIMITS, Limits
from gymserve.http.outbox import Outbox
from gymserve.http.quick import QuickAnswer
from gymserve.http.refusal import Refusal, Refused
from gymserve.http.reminder import Reminder
from gymserve.http.watch import Watch
from gymserve.sending import close_at_once

REFUSAL_EXTENSION = "gymserve.refusal"
#: Awaited, it returns when the server accepts no more connections, and closes each with the answer to its request.
STOPPED_EXTENSION = "gymserve.stopped"
#: The request's `Exchange`, for an app that does not want to spend a task on waiting for `http.disconnect`.
EXCHANGE_EXTENSION = "gymserve.exchange"

_log = structlog.get_logger()


class Connection:
    """Serves HTTP/1.1 and 1.0 requests on `stream`, one after the other, until either side has had enough.

    hypercorn constructs and awaits it. Every wait has a bound (`limits`), the stop of the server ends those that serve
    no request, and no error of a client or an app leaves it. A client whose request waits gets interim answers, which
    keep it from timing out.

    A request whose head was good is always answered by the app, also if its body is refused (413, 408, 400): the app
    then finds `scope["extensions"]["gymserve.refusal"]` (`status`, `error`, `detail`) and an empty body, and must
    answer just that. It finds `"gymserve.late"` there while there are too many connections and this one came when
    there were: its request must not wait for anybody else's.
    """

    def __init__(
        self,
        app: AppWrapper,
        config: Config,
        context: WorkerContext,
        state: dict[str, Any],
        stream: trio.abc.Stream,
        *,
        limits: Limits = DEFAULT_LIMITS,
        crowd: Crowd | None = None,
    ) -> None:
        self._app = app
        self._context = context
        self._state = state
        self._stream = stream
        self._limits = limits
        self._crowd = crowd or Crowd()
        self._is_late = False
        self._inbox = Inbox(stream)
        self._outbox = Outbox(stream, stall_seconds=limits.stall_seconds)
        self._watch = Watch()
        self._reminder = Reminder(self._watch, interval_seconds=limits.interim_seconds)
        self._end_of_idling = self._watch.moment(self._close)
        self._scope = trio.CancelScope()  # of the whole connection
        self._is_idling = False
        self._waiting: trio.CancelScope | None = None
        # Who has just connected is about to ask, and would take a close for a server that fails.
        self._asks_until = trio.current_time() + limits.arrival_seconds

    def __await__(self) -> Generator[Any, Any, None]:
        return self.run().__await__()

    async def run(self) -> None:
        """Serve, then close the stream. Raises nothing but cancellation."""
        self._is_late = self._crowd.join()
        try:
            async with trio.open_nursery() as nursery:
                self._scope = nursery.cancel_scope
                nursery.start_soon(self._attend)
                if await self._shook_hands():
                    nursery.start_soon(self._inbox.fill)
                    await self._serve()
                self._scope.cancel()
        except* Exception as group:
            _log.error("an HTTP connection failed", exc_info=group)
        finally:
            self._crowd.leave()
            await close_at_once(self._stream)

    async def _shook_hands(self) -> bool:
        """Whether the stream is ready to be read: TLS needs its handshake first."""
        if not isinstance(self._stream, trio.SSLStream):
            return True
        with self._unless_stopping(self._limits.handshake_seconds) as waiting:
            try:
                await self._stream.do_handshake()
            except trio.BrokenResourceError:  # no TLS, no common version, or gone
                return False
        return not waiting.cancelled_caught

    def _peers(self) -> dict[str, Any]:
        """The part of the scope that all its requests share. Raises HungUp if the client has left already."""
        tls = self._stream if isinstance(self._stream, trio.SSLStream) else None
        sock = getattr(tls.transport_stream if tls else self._stream, "socket", None)
        try:
            return {
                "scheme": "https" if tls else "http",
                "client": sock and parse_socket_addr(sock.family, sock.getpeername()),
                "server": sock and parse_socket_addr(sock.family, sock.getsockname()),
            }
        except OSError:
            raise HungUp from None

    async def _serve(self) -> None:
        leftover = b""
        with suppress(HungUp):
            peers = self._peers()
            while True:
                incoming = Incoming(self._inbox, self._limits)
                if not await self._serve_one(incoming, leftover, peers):
                    return
                leftover = incoming.leftover
                if leftover:  # whoever sends faster than we answer lets others have their turn
                    await trio.lowlevel.checkpoint()

    async def _serve_one(self, incoming: Incoming, leftover: bytes, peers: dict[str, Any]) -> bool:
        """Answer one request; True if another may follow. Raises HungUp if the client leaves meanwhile."""
        try:
            request = await self._next_request(incoming, leftover)
        except Refused as exc:
            await self._outbox.send(Answer(incoming.protocol, method=incoming.method).refuse(exc.refusal))
            await self._linger()
            return False
        return await self._answer(incoming, request, peers)

    async def _next_request(self, incoming: Incoming, leftover: bytes) -> Head:
        """Its head, if it comes in time: else this connection is cancelled. No scope, which would be one a request."""
        self._begin_idling(self._limits.idle_seconds)
        try:
            await incoming.begin(leftover)
            # A head that has begun has a time of its own, but for a stop.
            self._end_of_idling.set(self._asks_until if self._context.terminated.is_set() else math.inf)
            return await incoming.head()
        finally:
            self._end_idling()
            self._asks_until = -math.inf

    def _begin_idling(self, seconds: float) -> None:
        """From now on no request depends on this connection: it is closed after these, at the server's stop (a new one
        when its first request should have come), or where there are too many.
        """
        until = trio.current_time() + seconds
        self._end_of_idling.set(min(until, self._asks_until) if self._context.terminated.is_set() else until)
        self._crowd.begin_idling(self._scope)
        self._is_idling = True

    def _end_idling(self) -> None:
        self._is_idling = False
        self._end_of_idling.at = math.inf
        self._crowd.end_idling(self._scope)

    async def _answer(self, incoming: Incoming, request: Head, peers: dict[str, Any]) -> bool:
        answer = _answer_to(incoming)
        body, refusal = await self._read_body(incoming, request, answer)
        is_late = self._is_late = self._is_late and self._crowd.is_too_large
        exchange = Exchange(
            answer,
            self._inbox,
            self._outbox,
            self._reminder,
            cancel=self._scope.cancel,
            is_closing=lambda: refusal is not None or is_late or self._context.terminated.is_set(),
        )
        extensions: dict[str, Any] = {
            STOPPED_EXTENSION: self._context.terminated.wait,
            EXCHANGE_EXTENSION: exchange,
        }
        if refusal is not None:
            extensions[REFUSAL_EXTENSION] = asdict(refusal)
        if is_late:
            extensions[LATE_EXTENSION] = {}
        scope = build_scope(request, **peers, state=self._state.copy(), extensions=extensions)
        await exchange.run(self._app, scope, body)
        if exchange.answered and answer.closes:
            await self._linger()
        return exchange.answered and answer.may_be_followed

    async def _read_body(
        self, incoming: Incoming, request: Head, answer: Answer | QuickAnswer
    ) -> tuple[bytes, Refusal | None]:
        try:
            incoming.check_declared(request)
            if incoming.awaits_continue:
                await self._outbox.send(answer.interim())
            return await incoming.body(), None
        except Refused as exc:
            return b"", exc.refusal

    async def _linger(self) -> None:
        """Close our side and let the client close its own.

        A close on unread input is a reset, which may overtake the answer (RFC 9112 section 9.6).
        """
        if not await self._outbox.send_eof():
            return
        discarded = 0
        self._begin_idling(self._limits.linger_seconds)  # no scope, which each of a client's connections would pay for
        try:
            while discarded < self._limits.linger_bytes:
                discarded += len(await self._inbox.take())
        finally:
            self._end_idling()

    @contextmanager
    def _unless_stopping(self, seconds: float) -> Iterator[trio.CancelScope]:
        """Bound a wait that no request depends on: the server's stop ends it at once, on a new connection as soon as
        its first request should have come; and a crowd may.
        """
        with trio.move_on_after(seconds) as self._waiting, self._crowd.idling(self._waiting):
            if self._context.terminated.is_set():
                self._hurry()
            try:
                yield self._waiting
            finally:
                self._waiting = None

    async def _attend(self) -> None:
        """Remind clients that wait, close when it is time, and at the server's stop leave clients that do not wait."""
        await self._watch.during(self._context.terminated.wait)
        self._hurry()
        await self._watch.during(trio.sleep_forever)  # the stop grants a request under way some more time to wait

    def _hurry(self) -> None:
        if self._waiting is not None:
            self._waiting.deadline = min(self._waiting.deadline, self._asks_until)
        if self._is_idling:
            self._end_of_idling.set(min(self._end_of_idling.at, self._asks_until))

    async def _close(self) -> None:
        self._scope.cancel()


def _answer_to(incoming: Incoming) -> Answer | QuickAnswer:
    def by_h11() -> Answer:
        return Answer(incoming.protocol, method=incoming.method)

    return by_h11() if incoming.plain is None else QuickAnswer(by_h11, closes=incoming.plain.closes)
