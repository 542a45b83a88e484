"""What rollouts consist of, written down: a file for each episode.

Who tells of a session waits for nothing: what is heard is put into a queue as it is, without a copy, and a thread makes
lines of it, some moments later. When the queue is full, lines are dropped and counted, and no rollout is slower for it.
"""

import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from gymserve import wire
from gymserve.contents import Acted, Began, Content, Failure, Seeded
from gymserve.losses import Losses
from gymserve.telemetry import Ended, Fact, LinesLost
from gymserve.trajectories import Entry, Told, Trajectories, Trajectory, Written

_BATCH_SECONDS = 0.5
_LAST_SECONDS = 2.0  # for what is queued at the end
_MOST_LINES = 16_384
_MOST_BYTES = 64 * 2**20
_LINE_BYTES = 512  # held for a line beside what was said

Write = Callable[[Sequence[Entry]], Written]
InThread = Callable[[Write, Sequence[Entry]], Awaitable[Written]]


def _nobody_counts(lost: LinesLost) -> None:
    """The default of ``tell``."""


async def _in_thread(write: Write, batch: Sequence[Entry]) -> Written:
    # A disk may hang for ever; nobody else waits for this one's thread.
    return await trio.to_thread.run_sync(write, batch, abandon_on_cancel=True)


@asynccontextmanager
async def open_recorder(
    directory: Path,
    instance: str,
    *,
    max_observation_bytes: int,
    most_lines: int = _MOST_LINES,
    most_bytes: int = _MOST_BYTES,
    in_thread: InThread = _in_thread,
    epoch_seconds: Callable[[], float] = time.time,
    tell: Callable[[LinesLost], None] = _nobody_counts,
) -> AsyncIterator["Recorder"]:
    """A recorder into ``directory``, which is made if there is none. Leaving writes what is queued, for some moments.

    :param instance: this process's own, which the files name.
    :param max_observation_bytes: of JSON; of a longer observation only the beginning is written.
    :param most_lines: that wait to be written, or are being written. :param most_bytes: about what is held for them.
    :param epoch_seconds: the time of day. :param tell: of lines that were lost.
    :raises RecordingFailed: the directory cannot be used.
    """
    trajectories = Trajectories(directory, instance, max_observation_bytes=max_observation_bytes)
    recorder = Recorder(
        trajectories,
        Losses(tell),
        most_lines=most_lines,
        most_bytes=most_bytes,
        in_thread=in_thread,
        epoch_seconds=epoch_seconds,
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(recorder.run)
        try:
            yield recorder
        finally:
            recorder.finish()


class Recorder:
    """What the telemetry tells on its way to the files."""

    def __init__(
        self,
        trajectories: Trajectories,
        losses: Losses,
        *,
        most_lines: int,
        most_bytes: int,
        in_thread: InThread,
        epoch_seconds: Callable[[], float],
    ) -> None:
        self._trajectories = trajectories
        self._most_lines = most_lines
        self._most_bytes = most_bytes
        self._in_thread = in_thread
        self._epoch_seconds = epoch_seconds
        self._under_way: dict[str, Trajectory] = {}
        self._queue: deque[Entry] = deque()
        self._held_lines = 0  # in the queue and in the thread
        self._held_bytes = 0
        self._filled = trio.Event()
        self._finishing = trio.Event()
        # It outlives whoever is cancelled around it, but no longer than `finish` allows.
        self._life = trio.CancelScope(shield=True)
        self._losses = losses

    # -- what is heard ---------------------------------------------------------------------------------------------

    def hear(self, told: Fact | Content) -> None:
        """Take note of what belongs to an episode; it is a listener of the telemetry, for contents too."""
        match told:
            case Seeded():
                trajectory: Trajectory | None = self._begin(told)
            case Began() | Acted():
                trajectory = self._under_way.get(told.session)
            case Ended():
                trajectory = self._under_way.pop(told.session, None)
            case _:
                return
        if trajectory is not None:
            self._put(self._entry(trajectory, told))

    def _begin(self, seeded: Seeded) -> Trajectory:
        trajectory = Trajectory(seeded.session, seeded.label, self._epoch_seconds(), trio.current_time())
        self._under_way[seeded.session] = trajectory
        return trajectory

    def _entry(self, trajectory: Trajectory, told: Told) -> Entry:
        step = None
        if isinstance(told, Began):
            trajectory.has_begun = True
        elif isinstance(told, Acted) and told.purpose == "step" and not isinstance(told.outcome, Failure):
            trajectory.steps += 1
            step = trajectory.steps
        at_seconds = trio.current_time() - trajectory.seeded_at_seconds
        return Entry(trajectory, told, at_seconds, step, _LINE_BYTES + _said_bytes(told))

    def _put(self, entry: Entry) -> None:
        if self._has_room_for(entry):
            self._queue.append(entry)
            self._held_lines += 1
            self._held_bytes += entry.size_bytes
            self._filled.set()
        else:
            entry.trajectory.dropped += 1
            self._losses.drop()

    def _has_room_for(self, entry: Entry) -> bool:
        if isinstance(entry.told, Ended):  # small, and without it an episode seems to be under way for ever
            return self._held_lines < 2 * self._most_lines
        return self._held_lines < self._most_lines and self._held_bytes + entry.size_bytes <= self._most_bytes

    # -- what is written -------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Write what is heard, in batches. A task, until some moments after `finish`."""
        with self._life:
            while self._queue or not self._finishing.is_set():
                await self._filled.wait()
                with trio.move_on_after(_BATCH_SECONDS):
                    await self._finishing.wait()
                await self._write()
        self._losses.tell_last(unwritten=self._held_lines)

    def finish(self) -> None:
        """Nothing more will be heard."""
        self._life.deadline = trio.current_time() + _LAST_SECONDS
        self._finishing.set()
        self._filled.set()

    async def _write(self) -> None:
        batch, self._queue = self._queue, deque()
        if not self._finishing.is_set():
            self._filled = trio.Event()
        try:
            written = await self._in_thread(self._trajectories.write, batch)
        except Exception as exc:  # a thread too many for this machine, or a fault of ours: it must not end rollouts
            written = Written(len(batch), f"{type(exc).__name__}: {exc}")
        self._held_lines -= len(batch)
        self._held_bytes -= sum(entry.size_bytes for entry in batch)
        self._losses.note(written)


def _said_bytes(told: Told) -> int:
    """About what is held in memory of what was said, by the JSON it came as."""
    match told:
        case Seeded():
            return told.row_bytes
        case Began():
            return told.observation.characters
        case Acted(outcome=wire.Observation(characters=characters)):
            return len(told.action.action_json) + characters
        case Acted():
            return len(told.action.action_json)
        case Ended():
            return 0
