"""Bytes on their way to a client, with a bound on its silence."""

import trio

from gymserve.http.inbox import HungUp
from gymserve.http.limits import SLICE_BYTES
from gymserve.sending import send_at_once


class Outbox:
    """Sends slice by slice; a client that does not take one within `stall_seconds` is given up.

    One `send` waits for the end of the one before, so two tasks may use it: no bytes of one get among the other's.
    """

    def __init__(self, stream: trio.abc.Stream, *, stall_seconds: float) -> None:
        self._stream = stream
        self._stall_seconds = stall_seconds
        self._broken = False
        self._sending = False
        # Not a trio.Lock, whose every acquire is a round of the scheduler, also when it is free.
        self._free = trio.lowlevel.ParkingLot()

    async def send(self, data: bytes) -> None:
        """Send all of `data`.

        Raises HungUp if the connection broke or the client stopped reading, now or in an earlier call: part of a
        slice may be out, so nothing can follow it.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        while self._sending:
            await self._free.park()
        sent = 0 if self._broken else send_at_once(self._stream, data)
        if sent < len(data):
            await self._send_slices(memoryview(data)[sent:])

    async def _send_slices(self, view: memoryview) -> None:
        self._sending = True
        try:
            for start in range(0, len(view), SLICE_BYTES):
                await self._send_slice(view[start : start + SLICE_BYTES])
        finally:
            self._sending = False
            if self._free:
                self._free.unpark()

    async def _send_slice(self, piece: memoryview) -> None:
        if self._broken:
            raise HungUp
        self._broken = True  # until the slice is out whole, whatever ends it: error, deadline, cancellation
        with trio.move_on_after(self._stall_seconds):
            try:
                await self._stream.send_all(piece)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                raise HungUp from None
            self._broken = False
        if self._broken:
            raise HungUp

    async def send_eof(self) -> bool:
        """Close our side only; False if this stream cannot or the client is gone.

        TLS has no half-close that all clients take, but the TCP under it has: an answer tells its own length.
        """
        stream = self._stream.transport_stream if isinstance(self._stream, trio.SSLStream) else self._stream
        if self._broken or not isinstance(stream, trio.abc.HalfCloseableStream):
            return False
        try:
            await stream.send_eof()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return False
        return True
