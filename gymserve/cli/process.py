"""What every serving command does with its process: signals, and the line that says where it listens."""

import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import trio

_ENDING = (signal.SIGINT, signal.SIGTERM)

T = TypeVar("T")


class EndingSignal:
    """The first SIGINT or SIGTERM."""

    def __init__(self, signals: AsyncIterator[int]) -> None:
        self._signals = signals

    async def wait(self) -> str:
        """The first signal's name, when it comes; from then on another kills the process."""
        return await self._first(signal.SIG_DFL)

    async def noted(self) -> str:
        """The first signal's name, when it comes; further ones are ignored."""
        return await self._first(signal.SIG_IGN)  # one that nobody takes would be raised again in the end

    async def _first(self, then: signal.Handlers) -> str:
        first = await anext(self._signals)
        for number in _ENDING:
            signal.signal(number, then)
        return signal.Signals(first).name


@contextmanager
def ending_signal() -> Iterator[EndingSignal]:
    """Within the block the first signal is only noted."""
    with trio.open_signal_receiver(*_ENDING) as signals:
        yield EndingSignal(signals)


async def first_of(*waits: Callable[[], Awaitable[T]]) -> T:
    """What the first of ``waits`` returns; the others are cancelled."""
    returned: list[T] = []
    async with trio.open_nursery() as nursery:

        async def wait_for(wait: Callable[[], Awaitable[T]]) -> None:
            returned.append(await wait())
            nursery.cancel_scope.cancel()

        for wait in waits:
            nursery.start_soon(wait_for, wait)
    return returned[0]


def tell_listening(url: str) -> None:
    """The one line that scripts wait for."""
    tell(f"listening on {url}")


def tell_not_bound(url: str, exc: OSError) -> None:
    tell(f"cannot listen on {url}: {exc.strerror or exc}; choose another address with --host and --port")


def http_url(host: str, port: int, *, scheme: str = "http") -> str:
    host = host.removeprefix("[").removesuffix("]")
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def tell(line: str) -> None:
    """A line for whoever started us, on stderr."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
