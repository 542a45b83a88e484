"""One connection to an environment server: open, ask, say goodbye.

The protocol numbers nothing, so an episode that is once out of step is lost: a timed-out, cancelled or unreadable
exchange is never followed by another, and a lost connection is never replaced (a new one would be a new
environment).
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress

import trio
import trio_websocket

from gymserve import wire
from gymserve.address import EnvironmentAddress
from gymserve.network import Network
from gymserve.websocket import MAX_MESSAGE_BYTES, handshake_failure, open_websocket

_OVERSIZE = "Exceeded maximum message size"  # how trio-websocket explains a close of its own (trio_websocket/_impl.py)
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
    """A client's side of one episode. One task holds the connection (`connect`), one reads all the time, so that a drop
    is seen at once (`read`), one asks.
    """

    def __init__(
        self,
        network: Network,
        address: EnvironmentAddress,
        headers: Sequence[tuple[str, str]] = (),
        *,
        max_message_bytes: int = MAX_MESSAGE_BYTES,
    ) -> None:
        self._network = network
        self._max_message_bytes = max_message_bytes
        self._address = address
        self._headers = headers
        self._conversation = wire.Conversation()
        self._scope = trio.CancelScope()
        self._websocket: trio_websocket.WebSocketConnection | None = None
        self._heard = trio.Event()
        self._answer: wire.Answer | None = None
        self._asking = False
        self._questions = 0
        self._ended = trio.Event()
        self._left: trio.Event | None = None  # while a close handshake of ours is under way
        self._closing = trio.CancelScope()
        self.lost: EpisodeLost | None = None
        self.on_lost: Callable[[EpisodeLost], None] = _nobody_to_tell

    async def connect(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Connect, report ``started`` when the WebSocket is open, then hold it open until `drop`.

        Whoever runs this owns the handshake, which may outlast the client that asked for it; the conversation is
        `read`'s.

        :raises OSError: before ``started``: refused, unreachable.
        :raises trio.TooSlowError: before ``started``: no TCP connection in time.
        :raises HandshakeFailed: before ``started``: no WebSocket there.
        """
        failure: Exception | None = None
        with self._scope:
            stream = await self._network.open_stream(self._address)
            try:
                try:
                    async with trio.open_nursery() as nursery:  # trio-websocket's own reader lives here
                        self._websocket = await open_websocket(
                            nursery, stream, self._address, self._headers, max_message_bytes=self._max_message_bytes
                        )
                        task_status.started()
                        del task_status  # it holds the task that waited for it
                        await trio.sleep_forever()
                except* Exception as group:  # the firewall of this connection
                    failure = _first(group)
                if failure is not None:
                    await self._fail(failure, stream)
            finally:
                self._ended.set()
                self._closing.cancel()  # trio-websocket would wait for a reader that is no more
                await trio.aclose_forcefully(stream)

    async def _fail(self, failure: Exception, stream: trio.abc.Stream) -> None:
        if self._websocket is None:
            raise handshake_failure(failure)
        if self._left is None:
            return self._lose(EpisodeLost(f"the connection broke: {failure!r}"))
        # trio-websocket's reader fails at a ping between our CLOSE and the server's: the slot is still held.
        await _end_of(stream)

    async def prove(self) -> None:
        """Learn whether the server has room for this connection; before `read`.

        It accepts every connection and greets none: only an answer tells. The question is the keepalive's; it touches
        no environment, so that the answer to it is the word of welcome that the protocol lacks.

        :raises Refused: there is no room, or no environment. :raises EpisodeLost: the connection ended first.
        """
        assert self._websocket is not None, "the connection is not open"
        self._questions += 1
        text = self._conversation.ask(wire.Mcp("ping", self._questions))
        try:
            await self._send(text)
            answer = self._conversation.hear(await self._websocket.get_message())
        except trio_websocket.ConnectionClosed as exc:
            self._conversation.lose()
            raise _closed(exc.reason) from None
        except wire.WireError as exc:
            raise EpisodeLost(f"the server broke the protocol: {exc}", _PROTOCOL_ERROR) from exc
        if isinstance(answer, wire.Refusal) and answer.ends_the_episode:
            raise Refused(answer)

    async def read(self) -> None:
        """Hear what the server says until the connection ends, then drop it. A task of the session's nursery."""
        try:
            lost = await self._read()
            if self._left is None:
                self._lose(lost)
            else:
                await self._left.wait()  # our own aclose() ends get_message at once: the handshake has yet to end
        finally:
            self.drop()

    async def _read(self) -> EpisodeLost:
        """Hear what the server says until the connection is of no more use; why."""
        assert self._websocket is not None, "the connection is not open"
        try:
            while True:
                self._hear(await self._websocket.get_message())
        except trio_websocket.ConnectionClosed as exc:
            return _closed(exc.reason)
        except wire.WireError as exc:
            return EpisodeLost(f"the server broke the protocol: {exc}", _PROTOCOL_ERROR)

    def _hear(self, message: str | bytes) -> None:
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
        text = self._conversation.ask(question)
        self._heard = trio.Event()
        self._asking = True
        try:
            with trio.move_on_after(timeout_seconds):
                await self._send(text)
                await self._heard.wait()
        finally:
            self._asking = False
            answer, self._answer = self._answer, None
            if answer is None:
                self._conversation.lose()
        if answer is not None:
            return answer
        raise self.lost.again() if self.lost else AnswerTimedOut(f"no answer within {timeout_seconds:g} s")

    def _unasked(self) -> wire.Answer | None:
        """A refusal that came before we asked anything (a full server's), or the loss that followed it."""
        answer, self._answer = self._answer, None
        if answer is None and self.lost is not None:
            raise self.lost.again()
        return answer

    async def _send(self, text: str) -> None:
        assert self._websocket is not None
        try:
            await self._websocket.send_message(text)
        except trio_websocket.ConnectionClosed:
            pass  # what the server said before it closed may still be unread: the reader tells

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
            if self._conversation.turn is wire.Turn.READY:
                await self._send(self._conversation.ask(wire.Close()))
                await self._ended.wait()
            else:
                await self._close()

    async def leave(self) -> None:
        """End the connection, with a CLOSE frame if it is still open; the answer to it is hardly waited for."""
        try:
            with trio.move_on_after(_LAST_WORD_SECONDS):
                await self._close()
        finally:
            self.drop()

    async def _close(self) -> None:
        if self._websocket is None or self._ended.is_set():
            return
        self._left = trio.Event()
        try:
            with trio.CancelScope() as self._closing:
                await self._websocket.aclose()
        finally:
            self._left.set()

    def drop(self) -> None:
        """End the connection now, without a word."""
        self._scope.cancel()


def _closed(reason: trio_websocket.CloseReason | None) -> EpisodeLost:
    if reason is None:
        return EpisodeLost("the connection was closed")
    said = f" ({reason.reason})" if reason.reason else ""
    if reason.code == 1009 and (reason.reason or "").startswith(_OVERSIZE):
        return EpisodeLost(f"the server's message was larger than --max-observation allows{said}", _PROTOCOL_ERROR)
    if reason.code == 1006:
        return EpisodeLost("the server dropped the connection")
    return EpisodeLost(f"the server closed the connection with code {reason.code}{said}", reason.code)


async def _end_of(stream: trio.abc.Stream) -> None:
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        while await stream.receive_some():
            pass


def _first(group: BaseExceptionGroup[Exception]) -> Exception:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def _nobody_to_tell(lost: EpisodeLost) -> None:
    """Until somebody is set to hear it, `Episode.lost` remembers."""
