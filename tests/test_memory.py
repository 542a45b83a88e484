"""What is remembered for a while, and the names that clients give their sessions."""

import pytest
import trio

from gymserve.errors import SeedConflict
from gymserve.memory import Memory
from gymserve.names import Names

# -- memory ----------------------------------------------------------------------------------------------------------


async def test_each_value_is_forgotten_after_its_time(autojump_clock):
    memory: Memory[int] = Memory(kept_seconds=10)
    memory.put("a", 1)
    await trio.sleep(4)
    memory.put("b", 2)
    assert (memory.get("a"), memory.get("b"), memory.get("c"), len(memory)) == (1, 2, None, 2)
    await trio.sleep_until(10 - 1e-6)
    assert (memory.get("a"), len(memory)) == (1, 2)
    await trio.sleep_until(10)
    assert (memory.get("a"), memory.get("b"), len(memory)) == (None, 2, 1)
    await trio.sleep_until(14)
    assert (len(memory), memory.get("b")) == (0, None)


async def test_what_is_put_again_is_kept_from_then_on_and_no_longer_the_oldest(autojump_clock):
    memory: Memory[int] = Memory(kept_seconds=10)
    memory.put("a", 1)
    memory.put("b", 2)
    await trio.sleep(5)
    memory.put("a", 3)
    await trio.sleep_until(10)
    assert (memory.get("a"), memory.get("b"), len(memory)) == (3, None, 1)
    await trio.sleep_until(15)
    assert memory.get("a") is None


async def test_to_be_asked_for_keeps_nothing(autojump_clock):
    memory: Memory[int] = Memory(kept_seconds=10)
    memory.put("a", 1)
    await trio.sleep(9)
    assert memory.get("a") == 1
    await trio.sleep(1)
    assert memory.get("a") is None


async def test_beyond_the_greatest_number_the_oldest_go_first(autojump_clock):
    memory: Memory[int] = Memory(kept_seconds=10, most=3)
    for number, key in enumerate("abca"):
        memory.put(key, number)
    assert [memory.get(key) for key in "abc"] == [3, 1, 2]
    memory.put("d", 4)
    assert [memory.get(key) for key in "abcd"] == [3, None, 2, 4]
    assert len(memory) == 3


async def test_what_is_kept_for_no_time_is_not_kept(autojump_clock):
    memory: Memory[int] = Memory(kept_seconds=0)
    memory.put("a", 1)
    assert (memory.get("a"), len(memory)) == (None, 0)


# -- names -----------------------------------------------------------------------------------------------------------


async def test_a_name_is_its_sessions_until_it_is_over_and_for_a_while_after(autojump_clock):
    names = Names(kept_seconds=10)
    assert names.find("a", {"row": 1}) is None
    names.put("a", "session", {"row": 1})
    await trio.sleep(100)
    assert names.find("a", {"row": 1}) == "session"
    names.end("session", may_be_seeded_again=False)
    await trio.sleep(10 - 1e-6)
    assert names.find("a", {"row": 1}) == "session"
    with pytest.raises(SeedConflict, match="another payload"):
        names.find("a", {"row": 2})
    await trio.sleep_until(110)
    assert names.find("a", {"row": 1}) is names.find("a", {"row": 2}) is None


async def test_a_session_that_never_opened_leaves_its_name_to_any_payload(autojump_clock):
    names = Names(kept_seconds=10)
    names.put("a", "first", {"row": 1})
    names.end("first", may_be_seeded_again=True)
    assert names.find("a", {"row": 2}) is None
    names.put("a", "second", {"row": 2})
    assert names.find("a", {"row": 2}) == "second"


async def test_a_closed_name_has_its_session_until_that_is_over(autojump_clock):
    names = Names(kept_seconds=10)
    names.put("a", "session", {"row": 1})
    assert (names.close("a"), names.close("a"), names.close("b")) == ("session", "session", None)
    for payload in ({"row": 1}, {"row": 2}):
        with pytest.raises(SeedConflict, match="has been closed"):
            names.find("a", payload)
    names.end("session", may_be_seeded_again=False)
    assert names.close("a") is None
    await trio.sleep(10)
    assert names.find("a", {"row": 1}) is names.find("b", {}) is None


async def test_a_closed_name_stays_closed_if_its_session_never_opened(autojump_clock):
    names = Names(kept_seconds=10)
    names.put("a", "session", {})
    names.close("a")
    names.end("session", may_be_seeded_again=True)
    with pytest.raises(SeedConflict, match="has been closed"):
        names.find("a", {})


async def test_the_end_of_a_session_without_a_name_is_no_matter(autojump_clock):
    names = Names(kept_seconds=10)
    names.put("a", "named", {})
    names.end("nameless", may_be_seeded_again=False)
    assert names.find("a", {}) == "named"
    names.end("named", may_be_seeded_again=False)
    names.end("named", may_be_seeded_again=True)
    assert names.find("a", {}) == "named"


async def test_a_payload_is_told_by_what_it_says(autojump_clock):
    names = Names(kept_seconds=10)
    names.put("a", "session", {"x": 1, "y": {"b": [1, 2], "a": None}})
    assert names.find("a", {"y": {"a": None, "b": [1, 2]}, "x": 1}) == "session"
    for other in ({"x": 1, "y": {"b": [2, 1], "a": None}}, {"x": "1", "y": {"b": [1, 2], "a": None}}, {"x": 1}):
        with pytest.raises(SeedConflict):
            names.find("a", other)
