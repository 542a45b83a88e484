"""The command line: composes everything, and is the only reader of settings."""

import errno
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from types import TracebackType

from cyclopts import App
from cyclopts.exceptions import CycloptsError

from gymserve.cli.commands import build_app
from gymserve.cli.flags import refusal
from gymserve.cli.refusals import Refused, printable

_INTERRUPTED = 130  # as a shell reports SIGINT
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main() -> None:
    """The entry point of ``gymserve`` and ``python -m gymserve``: exits with the command's status, 2 for bad input."""
    sys.excepthook = _tell_of_a_crash
    sys.exit(interruptible(lambda: run(build_app(os.environ), sys.argv[1:])))


def interruptible(command: Callable[[], int]) -> int:
    """The command's status, or that of a program that SIGINT ended."""
    status = _INTERRUPTED
    try:
        status = command()
    except* KeyboardInterrupt:  # alone, or in the group that a nursery makes of it
        pass
    return status


def run(app: App, arguments: Sequence[str]) -> int:
    """Run a command line; bad input is one line on stderr and the status 2."""
    try:
        status = app(arguments, print_error=False, exit_on_error=False, result_action="return_value")
        sys.stdout.flush()
    except CycloptsError as error:
        return refuse(refusal(error))
    except Refused as refused:
        return refuse(refused)
    except BrokenPipeError:  # `gymserve config | head -1`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the flush at exit fails again
        return 0
    except OSError as error:
        if error.errno not in _NO_SPACE:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.stderr.write(f"gymserve: cannot write the output: {error.strerror}\n")
        return 1
    return status or 0


def refuse(refused: Refused) -> int:
    """Tell it in one line on stderr; the status 2."""
    sys.stderr.write(f"gymserve: {printable(str(refused))}\n")
    return 2


def _tell_of_a_crash(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """The traceback as Python prints it, but for what an environment's words in it could do to a terminal."""
    lines = "".join(traceback.format_exception(kind, error, trace)).splitlines()
    sys.stderr.writelines(f"{printable(line)}\n" for line in lines)
