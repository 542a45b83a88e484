"""One request in an ASGI app's hands."""

from collections.abc import Callable
from typing import Any

import structlog
import trio
from hypercorn.typing import AppWrapper

from gymserve.http.answer import Answer
from gymserve.http.fields import request_fields
from gymserve.http.inbox import HungUp, Inbox
from gymserve.http.outbox import Outbox
from gymserve.http.quick import QuickAnswer
from gymserve.http.refusal import Refusal
from gymserve.http.reminder import Reminder
from gymserve.http.tally import UNCOUNTED, Tally

INTERNAL_ERROR = Refusal(500, "internal_error", "gymserve failed to answer this request; its log says why")

_log = structlog.get_logger()


class Exchange:
    """Runs the app for one request, in the connection's own task.

    The client's hang-up reaches the app as `http.disconnect`, but not while the last part of the answer is on its way:
    frameworks cancel their handler on it, and that would cut off an answer that is as good as given. Where a send
    finds the client gone, the app is cancelled there. Until the answer begins, `reminder` has interim answers sent.

    `answered` tells whether a complete answer went out.
    """

    def __init__(
        self,
        answer: Answer | QuickAnswer,
        inbox: Inbox,
        outbox: Outbox,
        reminder: Reminder,
        *,
        cancel: Callable[[], None],
        is_closing: Callable[[], bool],
    ) -> None:
        """:param cancel: ends the connection, whose client is gone, and so the app."""
        self._answer = answer
        self._inbox = inbox
        self._outbox = outbox
        self._reminder = reminder
        self._is_closing = is_closing
        self._body: bytes | None = None
        self.cancel = cancel
        self._last_part_begun = False
        self._over = trio.Event()
        self._notice: Callable[[], object] | None = None
        self._tally: Tally = UNCOUNTED
        self._route = ""
        self._since = trio.current_time()
        self.answered = False

    def count(self, tally: Tally, route: str) -> None:
        """Have `tally` told what becomes of this request, and that its client has left, if it has."""
        self._tally, self._route = tally, route
        if self._over.is_set():
            tally.hung_up(route)

    async def run(self, app: AppWrapper, scope: Any, body: bytes) -> None:
        """Have `app` answer, or answer 500 for it. No error of it escapes; raises HungUp if the 500 finds nobody."""
        self._body = body
        self._inbox.when_closed(self._hung_up)
        self._reminder.start(self._remind)
        try:
            await app(scope, self._receive, self._send, trio.to_thread.run_sync, trio.from_thread.run)
        except* Exception as group:
            _log.error("the app failed", **request_fields(scope), exc_info=group)
        finally:
            self._inbox.when_closed(None)  # no cycle for the collector, one per request
            self._reminder.stop()
            self._notice = None
        if not self.answered and not self._over.is_set():
            await self._give_up(scope)

    def when_hung_up(self, notice: Callable[[], object]) -> None:
        """Call `notice` when `http.disconnect` would come, at once if it has."""
        self._notice = notice
        if self._over.is_set():
            notice()

    async def _receive(self) -> Any:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self._over.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        match message["type"]:
            case "http.response.start":
                self._answer.start(message["status"], list(message.get("headers", ())))
            case "http.response.body":
                await self._send_part(message.get("body", b""), is_last=not message.get("more_body", False))
            case other:
                raise ValueError(f"an app may not send {other!r} here: no ASGI extension was offered")

    async def _send_part(self, data: bytes, *, is_last: bool) -> None:
        if self.answered:  # a body that HEAD, 204 or 304 leaves no room for
            return await trio.lowlevel.checkpoint()
        rendered = self._answer.part(data, is_last=is_last, is_closing=self._is_closing())
        self._last_part_begun = self._answer.is_whole
        try:
            await self._outbox.send(rendered)
        except HungUp:
            self._abandon()
            return await trio.lowlevel.checkpoint()
        if self._answer.is_complete:
            self._note_answered()
            self._over.set()

    def _note_answered(self) -> None:
        self.answered = True
        self._tally.answered(self._route, trio.current_time() - self._since)

    async def _remind(self) -> None:
        if self._over.is_set():
            return
        interim = self._answer.interim()
        try:
            await self._outbox.send(interim)
        except HungUp:
            self._abandon()
        else:
            if interim:
                self._tally.reminded(self._route)

    def _hung_up(self) -> None:
        if not self._last_part_begun:
            self._note_left()
            if self._notice is not None:
                self._notice()

    def _abandon(self) -> None:
        """A send found the client gone."""
        self._note_left()
        self.cancel()

    def _note_left(self) -> None:
        if not self._over.is_set():
            self._over.set()
            self._tally.hung_up(self._route)

    async def _give_up(self, scope: Any) -> None:
        """The app ended without a complete answer and the client still waits."""
        if self._answer.begun:
            _log.error("an answer was cut off; the client sees a broken one", **request_fields(scope))
            return
        _log.error("no answer from the app: 500", **request_fields(scope))
        await self._outbox.send(self._answer.refuse(INTERNAL_ERROR))
        self._note_answered()
