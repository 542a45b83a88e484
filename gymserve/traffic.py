"""How many calls are in flight in all sessions together, and the moment when none is."""

import trio


class Traffic:
    """A count that can be waited on."""

    def __init__(self) -> None:
        self._in_flight = 0
        self._quiet = trio.Event()
        self._quiet.set()

    @property
    def in_flight(self) -> int:
        return self._in_flight

    def begin(self) -> None:
        if self._in_flight == 0:
            self._quiet = trio.Event()
        self._in_flight += 1

    def end(self) -> None:
        self._in_flight -= 1
        if self._in_flight == 0:
            self._quiet.set()

    async def quiet(self) -> None:
        """Wait until nothing is in flight."""
        while self._in_flight:
            await self._quiet.wait()
