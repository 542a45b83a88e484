"""One connection to an environment server: open, ask, say goodbye.

The protocol numbers nothing, so an episode that is once out of step is lost: a timed-out, cancelled or unreadable
exchange is never followed by another, and a lost connection is never replaced (a new one would be a new
environment).
"""

import math
from collections.abc import Awaitable, Callable, Sequence

import trio

from gymserve import wire
from gymserve.address import EnvironmentAddress
from gymserve.alarms import Alarms
from gymserve.network import Network
from gymserve.sending import close_at_once
from gymserve.websocket import MAX_MESSAGE_BYTES, MessageTooLarge, WebSocket, WebSocketEnded, open_websocket

_PROTOCOL_ERROR = 1002  # RFC 6455 section 7.4.1; here: what the server said is of no use, and would be no better again
_LAST_WORD_SECONDS = 0.5


class EpisodeError(Exception):
    """An exchange with the environment did not end in its answer."""


class Refused(EpisodeError):
    """The environment server answered with an error message."""

    def __init__(self, refusal: wire.Refusal) -> None:
        super().__init__(f"{refusal.code}: {refusal.message}")
        self.refusal = refusal


class AnswerTimedOut(EpisodeError):
    """No answer within the time for one; the episode is lost."""


class EpisodeLost(EpisodeError):
    """The connection is gone. ``close_code`` is the server's own (RFC 6455 section 7.4.1), 1006 where it sent none."""

    def __init__(self, sentence: str, close_code: int = 1006) -> None:
        super().__init__(sentence)
        self.close_code = close_code

    def again(self) -> "EpisodeLost":
        """The same, to raise: a traceback would hold whoever asked for as long as this is remembered."""
        return EpisodeLost(str(self), self.close_code)


class Episode:
    """A client's side of one episode. One task holds the connection (`hold`), one reads all the time, so that a drop is
    seen at once (`read`), one asks.
    """

    def __init__(
        self,
        network: Network,
        address: EnvironmentAddress,
        headers: Sequence[tuple[str, str]] = (),
        *,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
        alarms: Alarms | None = None,
    ) -> None:
        """:param alarms: for answers that do not come in time; without them each question has a scope of its own, a
        tenth of what it costs.
        """
        self._network = network
        self._max_message_bytes = max_message_bytes
        self._address = address
        self._headers = headers
        self._conversation = wire.Conversation()
        self._scope = trio.CancelScope()
        self._websocket: WebSocket | None = None
        self._heard = trio.Event()
        self._alarm = None if alarms is None else alarms.alarm(self._is_too_late)
        self._answer: wire.Answer | None = None
        self._asking = False
        self._questions = 0
        self._ended = trio.Event()
        self._left = False  # we have said CLOSE
        self._is_over = False
        self.lost: EpisodeLost | None = None
        self.on_lost: Callable[[EpisodeLost], None] = _nobody_to_tell

    async def connect(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """As `hold`, with a report of ``started`` when the WebSocket is open."""

        async def report() -> bool:
            nonlocal task_status
            task_status.started()
            del task_status  # it holds the task that waited for it
            return True

        await self.hold(report)

    async def hold(self, admit: Callable[[], Awaitable[bool]]) -> None:
        """Connect, and when the WebSocket is open await ``admit()``; where that is true, hold it open until `drop`.

        Whoever runs this owns the handshake, which may outlast the client that asked for it; the conversation is
        `read`'s.

        :raises OSError: refused, unreachable. :raises trio.TooSlowError: no TCP connection in time.
        :raises HandshakeFailed: no WebSocket there. :raises Exception: what ``admit`` failed with.
        """
        with self._scope:
            stream = await self._network.open_stream(self._address)
            try:
                self._websocket = await open_websocket(
                    stream, self._address, self._headers, max_message_bytes=self._max_message_bytes
                )
                is_admitted = await admit()
                del admit  # what the opening needed is not held on to
                if is_admitted:
                    await trio.sleep_forever()
            finally:
                if self.lost is None and not self._left:
                    self._lose(EpisodeLost("the connection was closed"))
                self._ended.set()
                self._is_over = True
                if self._alarm is not None:
                    self._alarm.stop()
                await close_at_once(stream)

    async def prove(self) -> None:
        """Learn whether the server has room for this connection; as ``admit`` of `hold`.

        It accepts every connection and greets none: only an answer tells. The question is the keepalive's; it touches
        no environment, so that the answer to it is the word of welcome that the protocol lacks.

        :raises Refused: there is no room, or no environment. :raises EpisodeLost: the connection ended first.
        """
        assert self._websocket is not None, "the connection is not open"
        self._questions += 1
        text = self._conversation.ask(wire.Mcp("ping", self._questions))
        try:
            await self._websocket.send(text)
            answer = self._conversation.hear(await self._websocket.receive())
        except (WebSocketEnded, wire.WireError) as exc:
            self._conversation.lose()
            raise _lost(exc) from None
        if isinstance(answer, wire.Refusal) and answer.ends_the_episode:
            raise Refused(answer)

    async def read(self) -> None:
        """Hear what the server says until the connection is of no more use, then drop it. A task of the session's
        nursery.
        """
        assert self._websocket is not None, "the connection is not open"
        try:
            while True:
                self._hear(await self._websocket.receive())
        except Exception as exc:  # the firewall of this connection: whoever asks is told
            if not self._left:
                self._lose(_lost(exc))
        finally:
            self.drop()

    def _hear(self, message: str | bytes) -> None:
        if self._left:
            return  # it crossed with our CLOSE
        answer = self._conversation.hear(message)
        self._answer = answer
        self._heard.set()

    def _lose(self, lost: EpisodeLost) -> None:
        expected = self._asking or self._conversation.turn is wire.Turn.CLOSED
        self._conversation.lose()
        self.lost = lost
        self._heard.set()
        self._ended.set()
        if not expected:
            self.on_lost(lost)

    async def ask(self, question: wire.Question, *, timeout_seconds: float = math.inf) -> wire.Answer:
        """The answer to ``question``. Cancelled or failed, the episode is lost.

        :raises Refused: an error message; its `wire.Refusal.ends_the_episode` tells whether the episode goes on.
        :raises AnswerTimedOut: not sent and answered within ``timeout_seconds``.
        :raises EpisodeLost: the connection ended, or what came was no answer.
        """
        answer = self._unasked() or await self._exchange(question, timeout_seconds)
        if isinstance(answer, wire.Refusal):
            raise Refused(answer)
        return answer

    async def _exchange(self, question: wire.Question, timeout_seconds: float) -> wire.Answer:
        assert self._websocket is not None, "the connection is not open"
        text = self._conversation.ask(question)
        self._heard = trio.Event()
        self._asking = True
        try:
            if self._alarm is None:
                with trio.move_on_after(timeout_seconds):
                    await self._websocket.send(text)
                    await self._heard.wait()
            else:
                until = trio.current_time() + timeout_seconds
                self._alarm.set(until)
                await self._websocket.send(text, until=until)
                await self._heard.wait()
        finally:
            if self._alarm is not None:
                self._alarm.set(math.inf)
            self._asking = False
            answer, self._answer = self._answer, None
            if answer is None:
                self._conversation.lose()
        if answer is not None:
            return answer
        raise self.lost.again() if self.lost else AnswerTimedOut(f"no answer within {timeout_seconds:g} s")

    def _is_too_late(self) -> None:
        """Whoever asks finds no answer."""
        self._heard.set()

    def _unasked(self) -> wire.Answer | None:
        """A refusal that came before we asked anything (a full server's), or the loss that followed it."""
        answer, self._answer = self._answer, None
        if answer is None and self.lost is not None:
            raise self.lost.again()
        return answer

    async def stay_alive(self, *, timeout_seconds: float) -> None:
        """Be active in the eyes of the server's reaper.

        OpenEnv reaps an idle session under its open WebSocket and says nothing; an unknown MCP method touches no
        environment and counts as activity (0.2.2 and later; earlier ones have no reaper and answer an error).

        :raises EpisodeError: as `ask`, except that any answer will do.
        """
        self._questions += 1
        try:
            await self.ask(wire.Mcp("ping", self._questions), timeout_seconds=timeout_seconds)
        except Refused as exc:
            if exc.refusal.ends_the_episode:
                raise

    async def list_tools(self) -> wire.McpAnswer | wire.Refusal:
        """The answer to MCP's ``tools/list``, or the refusal of a server that knows no ``mcp`` message."""
        self._questions += 1
        try:
            answer = await self.ask(wire.Mcp("tools/list", self._questions))
        except Refused as exc:
            if exc.refusal.ends_the_episode:
                raise
            return exc.refusal
        assert isinstance(answer, wire.McpAnswer)
        return answer

    async def goodbye(self, *, timeout_seconds: float) -> None:
        """Give the environment back: returns when the server has said CLOSE or ended the connection, or at the timeout.

        With nothing outstanding a ``close`` message asks for the environment's end before the CLOSE. With an answer
        outstanding only a CLOSE frame can be sent: a second message would stop some servers from reading it (uvicorn
        0.50 and later). `leave` must follow.
        """
        with trio.move_on_after(timeout_seconds):
            if self._websocket is not None and self._conversation.turn is wire.Turn.READY:
                await self._websocket.send(self._conversation.ask(wire.Close()))
                await self._ended.wait()
            else:
                await self._close()

    async def leave(self) -> None:
        """End the connection, with a CLOSE frame if it is still open; the answer to it is hardly waited for."""
        try:
            if not self._ended.is_set():
                with trio.move_on_after(_LAST_WORD_SECONDS):
                    await self._close()
        finally:
            self.drop()

    async def _close(self) -> None:
        if self._websocket is None or self._left or self._ended.is_set():
            return
        self._left = True
        await self._websocket.close()
        await self._ended.wait()

    def drop(self) -> None:
        """End the connection now, without a word."""
        if not self._is_over:
            self._scope.cancel()


def _lost(exc: Exception) -> EpisodeLost:
    """What it means that a connection ended so."""
    match exc:
        case wire.WireError():
            return EpisodeLost(f"the server broke the protocol: {exc}", _PROTOCOL_ERROR)
        case WebSocketEnded():
            return _ended(exc)
        case _:
            return EpisodeLost(f"the connection broke: {exc!r}")


def _ended(end: WebSocketEnded) -> EpisodeLost:
    said = f" ({end.reason})" if end.reason else ""
    if isinstance(end, MessageTooLarge):
        return EpisodeLost(f"the server's message was larger than --max-observation allows{said}", _PROTOCOL_ERROR)
    if end.code == 1006:
        return EpisodeLost("the server dropped the connection")
    return EpisodeLost(f"the server closed the connection with code {end.code}{said}", end.code)


def _nobody_to_tell(lost: EpisodeLost) -> None:
    """Until somebody is set to hear it, `Episode.lost` remembers."""
