"""The collector's policy: what was there at the start is not looked at again, and a full collection waits for quiet."""

import gc

import pytest
import trio

from gymserve.collecting import collect_in_quiet, tame_collector


@pytest.fixture
def wild():
    """Restore the collector."""
    thresholds = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)
    gc.enable()


def test_the_start_is_frozen_and_only_full_collections_are_put_off(wild):
    young, middle, full = gc.get_threshold()
    tame_collector()
    assert gc.get_freeze_count() > 1000
    assert gc.get_threshold()[:2] == (young, middle)
    assert gc.get_threshold()[2] > 100 * full


async def test_full_collections_are_made_while_nobody_is_there(autojump_clock, nursery, wild):
    collected: list[float] = []

    def hear(phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2:
            collected.append(trio.current_time())

    is_quiet = False
    tame_collector()
    gc.collect(1)  # so that there is something to look through
    gc.disable()
    gc.callbacks.append(hear)
    try:
        nursery.start_soon(collect_in_quiet, lambda: is_quiet)
        await trio.sleep(150)
        assert collected == []
        is_quiet = True
        await trio.sleep(1000)
        assert collected == [180]  # there is nothing new afterwards
        gc.collect(1)
        await trio.sleep(1000)
        assert collected == [180, 1200]
    finally:
        gc.callbacks.remove(hear)
