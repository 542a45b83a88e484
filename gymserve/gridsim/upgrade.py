"""A stream whose first request was read by somebody else, for trio-websocket to begin with."""

import trio


class UpgradeStream(trio.abc.Stream):
    """``stream``, but ``head`` is received first, and ``rest`` (what came behind it) once the upgrade is `accepted`.

    trio-websocket 0.12 does not look at frames that it reads before it has answered the upgrade, until others come.
    """

    def __init__(self, stream: trio.abc.Stream, head: bytes, rest: bytes) -> None:
        self._stream = stream
        self._head = head
        self._rest = rest
        self._accepted = trio.Event()

    def accepted(self) -> None:
        self._accepted.set()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        if self._head:
            received, self._head = _split(self._head, max_bytes)
        else:
            await self._accepted.wait()
            if not self._rest:
                return await self._stream.receive_some(max_bytes)
            received, self._rest = _split(self._rest, max_bytes)
        await trio.lowlevel.checkpoint()
        return received

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        self._accepted.set()  # whoever waits learns it from the closed stream
        await self._stream.aclose()


def _split(data: bytes, max_bytes: int | None) -> tuple[bytes, bytes]:
    size = len(data) if max_bytes is None else max_bytes
    return data[:size], data[size:]
