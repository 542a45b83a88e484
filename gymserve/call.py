"""What a request hands to a session: the question, and a place to wait for the answer."""

from typing import Generic, TypeVar

import trio

from gymserve import wire

T = TypeVar("T")


class Reply(Generic[T]):
    """An answer to wait for. The first outcome counts; whoever no longer waits leaves the work undisturbed."""

    __slots__ = ("_came", "_error", "_is_there", "_value", "abandoned")

    def __init__(self) -> None:
        self._is_there = False
        self._came: trio.Event | None = None  # while somebody waits
        self._value: T | None = None
        self._error: Exception | None = None
        self.abandoned = False

    def answer(self, value: T) -> None:
        if not self._is_there:
            self._value = value
            self._come()

    def fail(self, error: Exception) -> None:
        if not self._is_there:
            self._error = error
            self._come()

    def _come(self) -> None:
        self._is_there = True
        if self._came is not None:
            self._came.set()
            self._came = None

    @property
    def value(self) -> T | None:
        """What `answer` was given; None before, or where it failed."""
        return self._value

    async def wait(self) -> T:
        """The answer. :raises Exception: what `fail` was given. Cancelled, the reply is `abandoned`."""
        try:
            return await self.outcome()
        except trio.Cancelled:
            self.abandoned = True
            raise
        finally:
            del self  # an error's traceback holds this frame, and it the error

    async def outcome(self) -> T:
        """The answer, for one of several who want it: the others go on waiting. :raises Exception: as `wait`."""
        if self._is_there:
            await trio.lowlevel.checkpoint()
        else:
            if self._came is None:
                self._came = trio.Event()
            await self._came.wait()
        error, value = self._error, self._value
        if error is None:
            return value  # type: ignore[return-value]  # None is a T where answer(None) was right
        try:
            raise error
        finally:
            del self, error  # as above


class Call(Reply[wire.Observation]):
    """One tool call: a step to send and the observation to come."""

    __slots__ = ("step",)

    def __init__(self, step: wire.Step) -> None:
        super().__init__()
        self.step = step


class Verify(Reply[None]):
    """The client's word that the rollout is over, in its turn behind the calls before it."""

    __slots__ = ()
