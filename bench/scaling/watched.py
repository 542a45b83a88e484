"""``gymserve ARGUMENTS``, whose collector is watched: ``python bench/scaling/watched.py FILE ARGUMENTS``.

Each collection that takes long becomes a line of JSON in FILE. At SIGUSR1 it makes a full collection by itself and
writes that down as ``forced``.
"""

import gc
import json
import os
import signal
import sys
import time
from types import FrameType
from typing import Any

_LONG_SECONDS = 0.0005


class Watch:
    """The pauses, as they end."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._began = 0.0
        gc.callbacks.append(self._hear)
        signal.signal(signal.SIGUSR1, self._force)

    def _hear(self, phase: str, info: dict[str, Any]) -> None:
        now = time.monotonic()
        if phase == "start":
            self._began = now
        elif now - self._began >= _LONG_SECONDS:
            self._write(
                {
                    "at": now,
                    "seconds": now - self._began,
                    "generation": info["generation"],
                    "collected": info["collected"],
                }
            )

    def _force(self, number: int, frame: FrameType | None) -> None:
        objects = len(gc.get_objects())
        gc.callbacks.remove(self._hear)
        began = time.monotonic()
        collected = gc.collect()
        seconds = time.monotonic() - began
        gc.callbacks.append(self._hear)
        self._write({"forced": True, "seconds": seconds, "objects": objects, "collected": collected})

    def _write(self, line: dict[str, Any]) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")


if __name__ == "__main__":
    watch = Watch(sys.argv[1])
    sys.argv = ["gymserve", *sys.argv[2:]]
    from gymserve.cli import main

    main()
