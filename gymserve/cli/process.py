"""What every serving command does with its process: signals, and the line that says where it listens."""

import signal
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import trio

_ENDING = (signal.SIGINT, signal.SIGTERM)


class EndingSignal:
    """The first SIGINT or SIGTERM."""

    def __init__(self, signals: AsyncIterator[int]) -> None:
        self._signals = signals

    async def wait(self) -> None:
        """Return at the first signal; from then on another kills the process."""
        await anext(self._signals)
        for number in _ENDING:
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def ending_signal() -> Iterator[EndingSignal]:
    """Within the block the first signal is only noted."""
    with trio.open_signal_receiver(*_ENDING) as signals:
        yield EndingSignal(signals)


def tell_listening(url: str) -> None:
    """The one line that scripts wait for."""
    tell(f"listening on {url}")


def tell_not_bound(url: str, exc: OSError) -> None:
    tell(f"cannot listen on {url}: {exc.strerror or exc}; choose another address with --host and --port")


def http_url(host: str, port: int) -> str:
    host = host.removeprefix("[").removesuffix("]")
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def tell(line: str) -> None:
    """A line for whoever started us, on stderr."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
