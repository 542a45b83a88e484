"""A terminal that is drawn on and gives single keys, until it is given back as it was."""

import os
import signal
import sys
import termios
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self

import trio
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

# A word that the terminal takes for wider than we do must not begin another line, and scroll the screen (DECAWM).
_NO_WRAPPING, _WRAPPING = "\x1b[?7l", "\x1b[?7h"
_USUAL_SIZE = (80, 24)  # for one that does not know its own
_MOST_BYTES = 1024


class Terminal:
    """The one of stdin and stdout; within the block it is ours."""

    def __init__(self) -> None:
        self._stdin, self._stdout = sys.stdin.fileno(), sys.stdout.fileno()
        self._modes: list[Any] = termios.tcgetattr(self._stdin)
        self._console = Console(file=sys.stdout, force_terminal=True, force_interactive=True)
        self._live = Live(
            console=self._console, screen=True, auto_refresh=False, redirect_stdout=False, redirect_stderr=False
        )
        self._drawn: object = None

    @staticmethod
    def is_there() -> bool:
        """Whether there is one, and one that can be drawn on."""
        return sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")

    def __enter__(self) -> Self:
        self._take()
        return self

    def __exit__(self, *_: object) -> None:
        self._give_back()

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines."""
        with suppress(OSError):
            columns, lines = os.get_terminal_size(self._stdout)
            if columns and lines:
                return columns, lines
        return _USUAL_SIZE

    def show(self, lines: Sequence[Text]) -> None:
        """Draw them, if they are not there already. :raises OSError: the terminal is gone."""
        self._console.size = self.size
        if (lines, self._console.size) != self._drawn:
            self._live.update(Group(*lines), refresh=True)
            self._drawn = (lines, self._console.size)

    async def typed(self) -> str:
        """What is typed next; nothing once the terminal is gone."""
        while True:
            await trio.lowlevel.wait_readable(self._stdin)
            try:
                return os.read(self._stdin, _MOST_BYTES).decode("latin-1")
            except BlockingIOError:  # somebody else has read it, and left it in a mode in which that does not block us
                continue
            except OSError:
                return ""

    def suspend(self) -> None:
        """Stop this process, as Ctrl-Z does, with the terminal given back until it goes on."""
        self._give_back()
        handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, handler)
        self._take()

    def _take(self) -> None:
        self._modes = termios.tcgetattr(self._stdin)
        self._drawn = None
        try:
            termios.tcsetattr(self._stdin, termios.TCSADRAIN, _key_by_key(self._modes))
            self._live.start()
            self._console.file.write(_NO_WRAPPING)
        except BaseException:
            self._give_back()
            raise

    def _give_back(self) -> None:
        try:
            self._console.file.write(_WRAPPING)
            self._live.stop()
        except OSError:  # it is gone; and what is left to be written would fail again at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stdout)
        finally:
            with suppress(termios.error):
                termios.tcsetattr(self._stdin, termios.TCSADRAIN, self._modes)


def _key_by_key(modes: Sequence[Any]) -> list[Any]:
    """Modes in which a key can be read at once and is not echoed, while Ctrl-C and Ctrl-Z stay signals."""
    iflag, oflag, cflag, lflag, ispeed, ospeed, characters = modes
    characters = [*characters]
    characters[termios.VMIN], characters[termios.VTIME] = 1, 0
    return [iflag, oflag, cflag, lflag & ~(termios.ECHO | termios.ICANON), ispeed, ospeed, characters]
