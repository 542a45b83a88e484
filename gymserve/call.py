"""What a request hands to a session: the question, and a place to wait for the answer."""

from typing import Generic, TypeVar

import trio

from gymserve import wire

T = TypeVar("T")


class Reply(Generic[T]):
    """An answer to wait for. The first outcome counts; whoever no longer waits leaves the work undisturbed."""

    def __init__(self) -> None:
        self._came = trio.Event()
        self._value: T | None = None
        self._error: Exception | None = None
        self.abandoned = False

    def answer(self, value: T) -> None:
        if not self._came.is_set():
            self._value = value
            self._came.set()

    def fail(self, error: Exception) -> None:
        if not self._came.is_set():
            self._error = error
            self._came.set()

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

    async def outcome(self) -> T:
        """The answer, for one of several who want it: the others go on waiting. :raises Exception: as `wait`."""
        await self._came.wait()
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # None is a T where answer(None) was right


class Call(Reply[wire.Observation]):
    """One tool call: a step to send and the observation to come."""

    def __init__(self, step: wire.Step) -> None:
        super().__init__()
        self.step = step


class Verify(Reply[None]):
    """The client's word that the rollout is over, in its turn behind the calls before it."""
