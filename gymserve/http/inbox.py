"""Bytes a client sent that nobody has parsed yet."""

from collections.abc import Callable

import trio

from gymserve.sending import receive_later

READ_BYTES = 64 * 1024
WAITING_BYTES = 64 * 1024


class HungUp(Exception):
    """The client is gone: it closed or reset the connection, or stopped reading. Normal, and nobody's fault."""


class Inbox:
    """Reads all the time, so that a hang-up is seen while a handler runs, also behind bytes that came too early.

    More than `WAITING_BYTES` that nobody takes stop the reading: a client that pipelines faster than we answer waits in
    its own send.
    """

    def __init__(self, stream: trio.abc.ReceiveStream) -> None:
        self._stream = stream
        self._waiting = bytearray()
        self._arrived = trio.lowlevel.ParkingLot()
        self._taken = trio.lowlevel.ParkingLot()
        self._notice: Callable[[], object] | None = None
        self.closed = False

    async def fill(self) -> None:
        """Read until the client closes its side or the connection breaks: one task, as long as the connection."""
        try:
            while data := await receive_later(self._stream, READ_BYTES):
                self._waiting += data
                self._arrived.unpark_all()
                while len(self._waiting) > WAITING_BYTES:
                    await self._taken.park()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # a reset says no more than an end of file; closed: TLS had to answer after our end of file
        self.closed = True
        self._arrived.unpark_all()
        if self._notice is not None:
            self._notice()

    async def take(self) -> bytes:
        """Everything that waits, or the next bytes to come; never empty.

        Raises HungUp if the client left and everything it sent has been taken.
        """
        while not self._waiting:
            if self.closed:
                raise HungUp
            await self._arrived.park()
        data = bytes(self._waiting)
        self._waiting.clear()
        self._taken.unpark_all()
        return data

    def when_closed(self, notice: Callable[[], object] | None) -> None:
        """Call `notice` when the client closes its side; at once if it has. Replaces the notice before."""
        self._notice = notice
        if self.closed and notice is not None:
            notice()
