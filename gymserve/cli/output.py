"""Where results go: stdout, or a file that is written whole or not at all."""

import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from gymserve.cli.refusals import Refused, printable


@contextmanager
def opened_output(path: str | None, where: str) -> Iterator[BinaryIO]:
    """stdout, or a file which appears at ``path`` when the block has ended well; ``where`` tells what names the path.

    :raises Refused: the file cannot be written.
    """
    if path is None:
        yield sys.stdout.buffer
        return
    try:
        with _replacement(Path(path).resolve()) as file:
            yield file
    except OSError as error:
        raise Refused(f"{where}: {printable(path)} cannot be written: {error.strerror}") from None
    except _NotAFile:
        raise Refused(f"{where}: {printable(path)} is not a file; without --output rows go to stdout") from None


class _NotAFile(Exception):
    """What is there cannot be replaced by a file: a directory, a device, a pipe."""


@contextmanager
def _replacement(target: Path) -> Iterator[BinaryIO]:
    if target.exists() and not target.is_file():
        raise _NotAFile
    # Beside the target, as a rename works within one file system only; with the mode that any new file gets.
    draft = target.with_name(f"{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        with draft.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
