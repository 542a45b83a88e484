"""Scores that a restart does not lose: a file to which every ended session is appended.

One JSON object a line: this process's instance, and a line for each session that is done or ended. A line is written at
once, so that it outlives the process, and brought to the disk in batches, so that it outlives the machine but for the
last moment. Sessions stand there by the hash of their id: the file opens nothing.

The file has one process at a time (a lock that ends with it). What nobody asks for any more is left out at each start;
in between, a file that has grown large becomes ``FILE.old``, and the one before that goes.
"""

import fcntl
import hashlib
import json
import os
import stat
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import structlog
import trio

from gymserve.memory import Memory
from gymserve.score import Tombstone

_log = structlog.get_logger()

_BATCH_SECONDS = 0.1
_RETRY_SECONDS = 1.0
_REMEMBERED_INSTANCES_SECONDS = 7 * 24 * 3600.0
_PREDECESSOR_SECONDS = 5.0
_LOOK_AGAIN_SECONDS = 0.1
_LARGE_BYTES = 32 * 2**20
_MOST_UNWRITTEN_BYTES = 16 * 2**20


class JournalFailed(Exception):
    """The file cannot be used; the message is a sentence."""


@asynccontextmanager
async def open_journal(path: Path, instance: str, *, kept_seconds: float) -> AsyncIterator["Journal"]:
    """The journal at ``path``, with what the processes before this one wrote into it in the last ``kept_seconds``. One
    that is about to end is waited for.

    :raises JournalFailed: the file cannot be used.
    """
    try:
        file = await _alone(path)
        try:
            journal = Journal(path, file, instance, kept_seconds=kept_seconds)
        finally:
            os.close(file)  # the journal's own file has taken its place, locked
    except OSError as exc:
        raise JournalFailed(f"the journal {path} cannot be used: {exc.strerror or exc}") from exc
    try:
        yield journal
    finally:
        journal.close()


async def _alone(path: Path) -> int:
    """The file, locked by this process. :raises JournalFailed: another one goes on using it."""
    with trio.move_on_after(_PREDECESSOR_SECONDS):
        while True:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            if _locks(file) and os.path.samestat(os.fstat(file), os.stat(path)):  # and not one just replaced
                return file
            os.close(file)
            await trio.sleep(_LOOK_AGAIN_SECONDS)
    raise JournalFailed(f"the journal {path} is in use by another gymserve; each needs one of its own")


def _locks(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class Journal:
    """What the file holds, and what is added to it."""

    def __init__(self, path: Path, file: int, instance: str, *, kept_seconds: float) -> None:
        """:param file: as it was found, locked. :raises OSError, JournalFailed: it cannot be used."""
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise JournalFailed(f"the journal {path} cannot be used: it is no file")
        self._path = path = path.resolve()  # a link is followed, not replaced
        self._old = path.with_name(f"{path.name}.old")
        self._fresh = path.with_name(f"{path.name}.new")
        self._kept_seconds = kept_seconds
        self._instances: dict[str, float] = {}
        self._stones: Memory[Tombstone] = Memory(kept_seconds=kept_seconds)
        self._unwritten = bytearray()
        self._left: set[int] = set()  # files that others have taken the place of
        self._unsynced = trio.Event()
        self._trouble: str | None = None
        kept = [line for source in (self._old, path) for line in self._read(source)]
        self._instances[instance] = time.time()
        self._file = self._draft(kept)
        os.fsync(self._file)
        self._fresh.replace(path)
        self._old.unlink(missing_ok=True)
        self._turned_over_at = trio.current_time()

    def close(self) -> None:
        self._write()
        self._sync([self._file, *self._left])
        for file in (self._file, *self._left):
            os.close(file)

    # -- what there is ---------------------------------------------------------------------------------------------

    def get(self, session_id: str) -> Tombstone | None:
        """Of a session of an earlier process."""
        return self._stones.get(_hash(session_id))

    def knows_instance(self, instance: str) -> bool:
        return instance in self._instances

    def _read(self, path: Path) -> Iterator[bytes]:
        """The lines of sessions that are still of use; a last one that was cut off by a crash is none."""
        lines = path.read_bytes().splitlines() if path.exists() else []
        understood = 0
        for line in lines:
            try:
                is_kept = self._take(json.loads(line), time.time())
            except (ValueError, KeyError, TypeError, RecursionError):
                continue
            understood += 1
            if is_kept:
                yield line + b"\n"
        if lines and not understood:
            raise JournalFailed(f"{path} is no journal of gymserve, and would be overwritten; name another file")
        if understood < len(lines):
            _log.warning("lines of the journal are not understood", journal=str(path), lines=len(lines) - understood)

    def _take(self, entry: Mapping[str, Any], now: float) -> bool:
        if "instance" in entry:
            self._remember(str(entry["instance"]), float(entry["started"]), now)
            return False  # written anew
        stone = Tombstone.from_fields(entry["stone"])
        if not now - stone.at_epoch_seconds < self._kept_seconds:  # what a clock that was set back dates later is kept
            return False
        self._stones.put(str(entry["session"]), stone)
        return True

    def _remember(self, instance: str, started: float, now: float) -> None:
        if now - started < _REMEMBERED_INSTANCES_SECONDS:
            self._instances[instance] = started

    # -- what is added ---------------------------------------------------------------------------------------------

    def append(self, session_id: str, stone: Tombstone) -> None:
        """A session's score is final, or it ended."""
        self._stay_in_place()
        if len(self._unwritten) < _MOST_UNWRITTEN_BYTES:
            self._unwritten += _line({"session": _hash(session_id), "stone": stone.fields()})
        self._write()

    def _stay_in_place(self) -> None:
        """A file that somebody removed or renamed is followed by a new one: a restart reads only what has the name."""
        try:
            if self._path.exists() and os.path.samestat(os.fstat(self._file), self._path.stat()):
                return
            draft = self._draft([])
            self._fresh.replace(self._path)
        except OSError as exc:
            return self._tell(exc)
        _log.error("the journal was removed or replaced, and is begun anew; a restart would lose what it held")
        self._left.add(self._file)
        self._file = draft

    def _write(self) -> None:
        """All that is to be written; what there is no room for stays, and is tried again."""
        try:
            while self._unwritten:
                del self._unwritten[: os.write(self._file, self._unwritten)]
        except OSError as exc:
            self._tell(exc)
        self._unsynced.set()

    async def run(self) -> None:
        """Bring it to the disk in batches. A task, for ever."""
        while True:
            await self._unsynced.wait()
            await trio.sleep(_RETRY_SECONDS if self._unwritten else _BATCH_SECONDS)
            self._unsynced = trio.Event()
            if self._unwritten:
                self._write()
            before, self._file = self._file, self._turned_over()
            self._left |= {before} - {self._file}
            left = set(self._left)
            await trio.to_thread.run_sync(self._sync, {self._file, *left})
            for over in left:
                os.close(over)
            self._left -= left

    def _sync(self, files: Iterable[int]) -> None:
        try:
            for file in files:
                os.fsync(file)
        except OSError as exc:
            self._tell(exc)
        else:
            if not self._unwritten:
                self._trouble = None

    def _tell(self, exc: OSError) -> None:
        """Once for each trouble, not for each line."""
        reason = exc.strerror or str(exc)
        if reason != self._trouble:
            self._trouble = reason
            _log.error("the journal cannot be written; a restart would lose scores", reason=reason)

    def _turned_over(self) -> int:
        """The file to go on with: a new one where this one is large, and the one before it of no use any more."""
        now = trio.current_time()
        is_large = os.fstat(self._file).st_size >= _LARGE_BYTES
        if not is_large or self._unwritten or now < self._turned_over_at + self._kept_seconds:
            return self._file
        try:
            draft = self._draft([])
            self._path.replace(self._old)
            self._fresh.replace(self._path)
        except OSError as exc:
            self._tell(exc)
            return self._file
        self._turned_over_at = now
        return draft

    def _draft(self, lines: Iterable[bytes]) -> int:
        """A fresh file with those lines, locked; it is to be renamed."""
        instances = (_line({"instance": instance, "started": at}) for instance, at in self._instances.items())
        with self._fresh.open("wb") as file:
            file.writelines([*instances, *lines])
        draft = os.open(self._fresh, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        _locks(draft)
        return draft


def _line(entry: Mapping[str, Any]) -> bytes:
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"


def _hash(session_id: str) -> str:
    return hashlib.sha256(session_id.encode()).hexdigest()
