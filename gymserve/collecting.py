"""When Python looks for garbage that refers to itself, which stops everything for as long as it takes.

A full collection walks all objects that there are: a quarter of a millisecond for each open session, seconds where
there are ten thousand. It would find next to nothing: an ended session leaves no cycles, and what else does, an error
with its traceback for one, mostly dies young. So the young are collected as ever; what was there at the start is never
looked at again; and all the rest only while no session is open, or after some hundred thousand sessions in one go.
"""

import gc
from collections.abc import Callable

import trio

_FULL_THRESHOLD = 10_000  # collections of the second generation, each of 7,000 objects that outlived the first
_LOOK_SECONDS = 60.0


def tame_collector() -> None:
    """To be called once everything is loaded, of which next to nothing is garbage."""
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _FULL_THRESHOLD)


async def collect_in_quiet(is_quiet: Callable[[], bool]) -> None:
    """A task, for ever: make the full collections that are due, at moments when nobody is there to wait for them."""
    while True:
        await trio.sleep(_LOOK_SECONDS)
        if is_quiet() and any(gc.get_count()[1:]):
            gc.collect()


def spare_last_collection() -> None:
    """To be called before the process exits: the interpreter would walk all that the kernel frees anyway, which is a
    good part of a stop.
    """
    gc.freeze()
