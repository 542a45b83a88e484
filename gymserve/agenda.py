"""What a session has been asked and not yet taken up."""

from collections.abc import Iterator

import trio

from gymserve.call import Call, Verify


class Agenda:
    """Calls and verifies in order of arrival; one task takes them up."""

    def __init__(self) -> None:
        self._items: list[Call | Verify] = []
        self._waiting: trio.lowlevel.Task | None = None

    def add(self, item: Call | Verify) -> None:
        self._items.append(item)
        self.wake()

    async def next(self) -> Call | Verify | None:
        """Wait for the next one; None where `wake` is called before one comes."""
        if self._items:
            await trio.lowlevel.checkpoint()
        else:
            self._waiting = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._stop_waiting)
        return self._items.pop(0) if self._items else None

    def wake(self) -> None:
        if self._waiting is not None:
            trio.lowlevel.reschedule(self._waiting)
            self._waiting = None

    def clear(self) -> Iterator[Call | Verify]:
        """Take up all, those too that are added meanwhile."""
        while self._items:
            yield self._items.pop(0)

    def _stop_waiting(self, _raise_cancel: object) -> trio.lowlevel.Abort:
        self._waiting = None
        return trio.lowlevel.Abort.SUCCEEDED
