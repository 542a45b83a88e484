"""A directory of trajectories, a file for each episode, written by a thread that may wait for the disk.

A file is open only while lines are added to it, and gets all lines of a batch or none: where the disk is full it is cut
back to what it had. One that was removed, or could not be made, is begun anew.
"""

import os
import tempfile
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gymserve.contents import Acted, Began, Seeded
from gymserve.telemetry import Ended
from gymserve.transcript import end_line, reset_line, seed_line, step_line

MOST_NEVER_OPENED = 1000
"""Files of sessions that never had an episode; beyond them the oldest goes."""

_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW

Told = Seeded | Began | Acted | Ended


class RecordingFailed(Exception):
    """The directory cannot be used; the message is a sentence."""


@dataclass(slots=True, eq=False)
class Trajectory:
    """An episode, and its file."""

    session: str
    label: str | None
    seeded_at_epoch_seconds: float
    seeded_at_seconds: float  # in Trio's time
    has_begun: bool = False
    steps: int = 0
    dropped: int = 0  # lines that never came here

    # What follows is the thread's.
    path: Path | None = None
    lines: int = 0
    lost: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """A line to be. ``step`` as `step_line` has it; ``size_bytes`` is a guess at what is held for it."""

    trajectory: Trajectory
    told: Told
    at_seconds: float
    step: int | None
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Written:
    """What became of a batch: how many lines were lost, those included that others have removed, and why."""

    lost: int
    reason: str | None


class Trajectories:
    """The directory."""

    def __init__(self, directory: Path, instance: str, *, max_observation_bytes: int) -> None:
        """:param instance: this process's own.
        :raises RecordingFailed: it cannot be made, or nothing can be written there.
        """
        self._directory = directory.absolute()
        self._instance = instance
        self._max_observation_bytes = max_observation_bytes
        self._never_opened: deque[Path] = deque()
        try:
            self._directory.mkdir(exist_ok=True)
            tempfile.TemporaryFile(dir=self._directory).close()
        except OSError as exc:
            raise RecordingFailed(f"the directory {directory} cannot be used: {_why(exc, self._directory)}") from exc

    def write(self, batch: Iterable[Entry]) -> Written:
        """Add the lines to their files. Those of an episode that cannot be written are lost, and cost no other's."""
        lost, reason = 0, None
        for trajectory, entries in _by_trajectory(batch).items():
            before = trajectory.lost
            try:
                self._add(trajectory, entries)
            except (OSError, TypeError, ValueError, RecursionError) as exc:
                trajectory.lost += len(entries)
                reason = reason or _said_by(exc)
            lost += trajectory.lost - before
        return Written(lost, reason or ("files were removed" if lost else None))

    def _add(self, trajectory: Trajectory, entries: Sequence[Entry]) -> None:
        file = self._opened(trajectory)
        try:
            lines = [self._line(entry) for entry in entries]
            if not trajectory.lines and not isinstance(entries[0].told, Seeded):
                lines.insert(0, self._seed_line(trajectory, None))
            _append(file, "".join(f"{line}\n" for line in lines).encode("ascii"))
        except BaseException:
            if not trajectory.lines:
                self._discard(trajectory)
            raise
        finally:
            os.close(file)
        trajectory.lines += len(entries)
        if isinstance(entries[-1].told, Ended) and not trajectory.has_begun:
            self._keep_few(trajectory)

    # -- files -----------------------------------------------------------------------------------------------------

    def _opened(self, trajectory: Trajectory) -> int:
        if trajectory.path is not None:
            try:
                return os.open(trajectory.path, _FLAGS)
            except FileNotFoundError:
                trajectory.lost += trajectory.lines
                trajectory.lines, trajectory.path = 0, None
        try:
            return self._made(trajectory)
        except FileNotFoundError:
            self._directory.mkdir(exist_ok=True)
            return self._made(trajectory)

    def _made(self, trajectory: Trajectory) -> int:
        """A file that was not there before."""
        number = 1
        while True:
            path = self._directory / _name(trajectory, number)
            try:
                file = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o666)
            except FileExistsError:
                number += 1
            else:
                trajectory.path = path
                return file

    def _discard(self, trajectory: Trajectory) -> None:
        assert trajectory.path is not None
        with suppress(OSError):
            trajectory.path.unlink()
        trajectory.path = None

    def _keep_few(self, trajectory: Trajectory) -> None:
        assert trajectory.path is not None
        self._never_opened.append(trajectory.path)
        if len(self._never_opened) > MOST_NEVER_OPENED:
            with suppress(OSError):
                self._never_opened.popleft().unlink()

    # -- lines -----------------------------------------------------------------------------------------------------

    def _line(self, entry: Entry) -> str:
        trajectory, at_seconds = entry.trajectory, entry.at_seconds
        match entry.told:
            case Seeded():
                return self._seed_line(trajectory, entry.told)
            case Began():
                return reset_line(at_seconds, entry.told, most_bytes=self._max_observation_bytes)
            case Acted():
                return step_line(at_seconds, entry.told, entry.step, most_bytes=self._max_observation_bytes)
            case Ended():
                return end_line(at_seconds, entry.told, dropped_lines=trajectory.dropped + trajectory.lost)

    def _seed_line(self, trajectory: Trajectory, seeded: Seeded | None) -> str:
        return seed_line(
            trajectory.session, self._instance, trajectory.label, trajectory.seeded_at_epoch_seconds, seeded
        )


def _by_trajectory(batch: Iterable[Entry]) -> dict[Trajectory, list[Entry]]:
    found: dict[Trajectory, list[Entry]] = {}
    for entry in batch:
        found.setdefault(entry.trajectory, []).append(entry)
    return found


def _name(trajectory: Trajectory, number: int) -> str:
    """In the order of the seeds, as far as names are sorted; nothing of it is the client's to choose."""
    at = datetime.fromtimestamp(trajectory.seeded_at_epoch_seconds, UTC)
    again = "" if number == 1 else f"-{number}"
    return f"{at:%Y%m%dT%H%M%S}.{at.microsecond // 1000:03}Z-{trajectory.session}{again}.jsonl"


def _append(file: int, lines: bytes) -> None:
    """All of it or nothing. :raises OSError: nothing."""
    size = os.fstat(file).st_size
    left = memoryview(lines)
    try:
        while left:
            left = left[os.write(file, left) :]
    except OSError:
        os.ftruncate(file, size)
        raise


def _why(exc: OSError, directory: Path) -> str:
    if directory.exists() and not directory.is_dir():
        return "it is a file"
    return "there is no directory to make it in" if isinstance(exc, FileNotFoundError) else exc.strerror or str(exc)


def _said_by(exc: Exception) -> str:
    return exc.strerror or str(exc) if isinstance(exc, OSError) else f"{type(exc).__name__}: {exc}"
