"""Shares of labels: what is read, what each may take, and the line's choice by it, in virtual time."""

import math
from functools import partial
from typing import Any

import pytest
import trio
from lines import FakeServer, pool_of, wakeups_of
from structlog.testing import capture_logs
from trio.testing import wait_all_tasks_blocked

from gymserve.shares import ACCEPTED_SHARES, EVERYBODY, Allotment, Share, Shares, parse_share

# -- what is read ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("eval*=weight:4,reserve:8,max:32", Share("eval*", 4.0, 8, 32)),
        ("eval=max:32 , weight: 0.5", Share("eval", 0.5, 0, 32)),
        ("eval=reserve:8", Share("eval", 1.0, 8, math.inf)),
        ("eval=reserve:8,max:8", Share("eval", 1.0, 8, 8)),
        ("run=7=weight:2", Share("run=7", 2.0)),  # a label may hold anything
        ("[ab]?=weight:2", Share("[ab]?", 2.0)),
        ("eval=reserve:0", Share("eval")),
        ("*=weight:1", EVERYBODY),
    ],
)
def test_a_share_is_read(text, share):
    assert parse_share(text) == share


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", ACCEPTED_SHARES),
        ("eval", ACCEPTED_SHARES),
        ("eval=", ACCEPTED_SHARES),
        ("=weight:4", ACCEPTED_SHARES),
        ("eval=4", ACCEPTED_SHARES),
        ("eval=weight:4,", ACCEPTED_SHARES),
        ("eval=weight:4,weight:5", ACCEPTED_SHARES),
        ("eval=least:4", ACCEPTED_SHARES),
        ("eval=weight", "weight must be a number greater than 0"),
        ("eval=weight:0", "weight must be a number greater than 0"),
        ("eval=weight:-1", "weight must be a number greater than 0"),
        ("eval=weight:nan", "weight must be a number greater than 0"),
        ("eval=weight:inf", "weight must be a number greater than 0"),
        ("eval=weight:much", "weight must be a number greater than 0"),
        ("eval=reserve:-1", "reserve and max must be whole numbers"),
        ("eval=reserve:1.5", "reserve and max must be whole numbers"),
        ("eval=reserve:²", "reserve and max must be whole numbers"),
        ("eval=max:1000000000", "reserve and max must be whole numbers"),
        ("eval=max:", "reserve and max must be whole numbers"),
        ("eval=max:0", "max must be 1 or more"),
        ("eval=reserve:9,max:8", "reserve is more than max: those slots could never be used"),
    ],
)
def test_what_is_no_share_is_refused_in_a_sentence(text, sentence):
    with pytest.raises(ValueError) as refusal:
        parse_share(text)
    assert str(refusal.value) == sentence


def test_the_first_pattern_that_matches_counts():
    shares = Shares(map(parse_share, ["eval-7=max:1", "eval*=weight:4", "[tT]rain?=weight:2"]))
    of = {label: shares.of(label).pattern for label in ("eval-7", "eval-8", "eval", "Train1", "train12", "Eval", None)}
    assert of == {
        "eval-7": "eval-7",
        "eval-8": "eval*",
        "eval": "eval*",
        "Train1": "[tT]rain?",
        "train12": "*",
        "Eval": "*",
        None: "*",
    }


def test_sessions_without_a_label_match_the_empty_pattern_and_the_star():
    assert Shares([Share("?*", 2.0)]).of(None) is EVERYBODY
    assert Shares([Share("*", 2.0)]).of(None).weight == 2.0


# -- what each may take ----------------------------------------------------------------------------------------------


EVAL, TEST, REST = Share("eval", reserve=3), Share("test", reserve=2, most=4), EVERYBODY


@pytest.mark.parametrize(
    ("held", "free", "left"),
    [
        ({}, math.inf, (math.inf, 4, math.inf)),
        ({}, 10, (8, 4, 5)),
        ({REST: 5}, 5, (3, 2, 0)),  # all that is free is kept
        ({REST: 8}, 2, (3, 2, 0)),  # less is free than is kept
        ({EVAL: 3}, 7, (5, 4, 5)),
        ({EVAL: 3, TEST: 2}, 5, (math.inf, 2, math.inf)),  # nothing is kept any more
        ({TEST: 4}, 6, (6, 0, 3)),
    ],
)
def test_what_is_kept_for_others_is_left_to_them(held, free, left):
    allotment = Allotment(Shares([EVAL, TEST]), held, free)
    assert tuple(map(allotment.left_for, (EVAL, TEST, REST))) == left


@pytest.mark.parametrize(
    ("waiting", "free", "admitted"),
    [
        ({REST: 9}, math.inf, 9),
        ({REST: 9}, 10, 5),
        ({REST: 9, Share("other"): 9}, 10, 5),  # together, not each
        ({REST: 9, EVAL: 1}, 10, 6),
        ({REST: 9, EVAL: 9, TEST: 9}, 10, 10),
        ({TEST: 9}, math.inf, 4),
        ({EVAL: 2, REST: 2}, 0, 2),  # if there were a slot, it would be eval's
        ({}, 10, 0),
    ],
)
def test_how_many_of_the_waiting_may_have_a_slot(waiting, free, admitted):
    assert Allotment(Shares([EVAL, TEST]), {}, free).admitted(waiting) == admitted


# -- weight ----------------------------------------------------------------------------------------------------------


async def test_four_slots_to_one_where_the_weights_are_so(autojump_clock):
    async with pool_of(FakeServer(10), shares=["eval=weight:4"], slots={"a": 10}) as pool:
        await pool.come("holder", stay_seconds=1000)
        pool.gates["a"].stay(slots=1)
        await pool.come(*(f"t{number}" for number in range(20)), label="train")
        await pool.come(*(f"e{number}" for number in range(20)), label="eval")
        for slots in range(2, 12):  # one more at a time
            pool.gates["a"].stay(slots=slots)
            await wait_all_tasks_blocked()
        order = "".join(name[0] for name, _, _ in pool.seated[1:])
        assert order == "teeeeteee"  # the tenth has no place on the server
        assert pool.line.held == 10


async def test_weights_count_for_each_label_of_a_pattern_by_itself(autojump_clock):
    async with pool_of(FakeServer(99), shares=["eval*=weight:2"], slots={"a": 1}) as pool:
        await pool.come("holder")
        for label in ("train", "eval-1", "eval-2"):
            await pool.come(*[label] * 9, label=label)
        for slots in range(2, 12):
            pool.gates["a"].stay(slots=slots)
            await wait_all_tasks_blocked()
        seated = [name for name, _, _ in pool.seated[1:]]
        assert [seated.count(label) for label in ("train", "eval-1", "eval-2")] == [2, 4, 4]


async def test_with_equal_weights_the_slots_are_shared_alike_across_servers(autojump_clock):
    async with pool_of(FakeServer(3), FakeServer(3), shares=["eval=weight:1"]) as pool:
        await pool.come(*["train"] * 20, label="train", stay_seconds=10)
        await trio.sleep(5)
        await pool.come(*["eval"] * 6, label="eval", stay_seconds=10)
        await trio.sleep(5.5)
        seated = [name for name, _, _ in pool.seated]
        assert (seated[:6], sorted(seated[6:])) == (["train"] * 6, ["eval"] * 3 + ["train"] * 3)


# -- reserve ---------------------------------------------------------------------------------------------------------


async def test_a_reserve_is_kept_while_nobody_of_that_label_waits(autojump_clock):
    async with pool_of(FakeServer(4), FakeServer(4), shares=["eval*=reserve:3"], slots={"a": 4, "b": 4}) as pool:
        await pool.come(*["train"] * 9, label="train", stay_seconds=1000)
        assert pool.line.held == 5
        await trio.sleep(60)
        await pool.come("eval", "eval", label="eval-1")
        await pool.come("eval", "eval", label="eval-2")
        assert [seat for seat in pool.seated if seat[0] == "eval"] == [("eval", at, 60) for at in ("b", "a", "b")]
        assert pool.line.waiting == 4 + 1
        assert [len(server.knocks) for server in pool.servers.values()] == [4, 4]  # none for who may not enter


async def test_a_reserve_is_not_kept_before_the_capacity_of_all_is_known(autojump_clock):
    async with pool_of(FakeServer(2), FakeServer(2), shares=["eval=reserve:1"], slots={"a": 2}) as pool:
        await pool.come("1", "2", "3", "4", label="train", stay_seconds=10)
        assert pool.line.held == 4
        await pool.come("5", "6", "7", "8", label="train", stay_seconds=10)
        assert pool.line.capacity == 4  # the refusal told it
        await trio.sleep(10.5)
        assert len(pool.seated) == 7
        await pool.come("x", label="eval")
        assert pool.seated[7:] == [("x", pool.seated[7][1], 10.5)]


async def test_a_given_back_slot_of_the_reserve_stays_in_it(autojump_clock):
    async with pool_of(FakeServer(2), shares=["eval=reserve:1"], slots={"a": 2}) as pool:
        await pool.come("x", label="eval", stay_seconds=5)
        await pool.come("1", "2", label="train", stay_seconds=20)
        await trio.sleep(10)
        await pool.come("y", label="eval", stay_seconds=50)
        await trio.sleep(30)
        assert pool.seated == [("x", "a", 0), ("1", "a", 0), ("y", "a", 10), ("2", "a", 20)]


async def test_two_shares_without_a_reserve_have_the_rest_together_and_no_knock_is_made_in_vain(autojump_clock):
    server = FakeServer(4)
    async with pool_of(server, shares=["eval=reserve:2", "train=weight:2"], slots={"a": 4}) as pool:
        await pool.come(*["train"] * 3, label="train")
        await pool.come(*["other"] * 3)
        assert await wakeups_of(partial(trio.sleep, 100)) <= 2
        assert (server.knocks, pool.dismissed, pool.line.held) == ([0, 0], [], 2)


async def test_where_more_is_kept_than_there_is_whoever_has_a_reserve_gets_the_next_slot(autojump_clock):
    async with pool_of(FakeServer(2), shares=["eval=reserve:2", "test=reserve:2"]) as pool:
        await pool.come("1", "2", "3", label="train", stay_seconds=10)  # the capacity is known from now on
        await pool.come("x", label="eval")
        await pool.come("y", label="test")
        await trio.sleep(20)
        assert sorted(name for name, _, at in pool.seated if at == 10) == ["x", "y"]


async def test_sessions_on_a_server_that_leaves_take_nothing_from_what_the_others_have(autojump_clock):
    async with pool_of(FakeServer(4), shares=["eval=reserve:1"], slots={"a": 4}) as pool:
        await pool.come(*["old"] * 3, label="train")
        pool.add("b", FakeServer(4), slots=4)
        pool.gates["a"].leave()
        await pool.come(*["new"] * 4, label="train")
        assert [server for name, server, _ in pool.seated if name == "new"] == ["b"] * 3


async def test_growth_is_found_out_where_all_that_waits_has_a_reserve(autojump_clock):
    server = FakeServer(1)
    async with pool_of(server, shares=["eval=reserve:4"]) as pool:
        await pool.come("1", "2", label="train")
        await pool.come("x", label="eval")
        server.slots = 3
        await trio.sleep(35)
        assert pool.seated[1:] == [("x", "a", 30)]


# -- max -------------------------------------------------------------------------------------------------------------


async def test_a_max_is_never_exceeded_and_others_pass_by(autojump_clock):
    server = FakeServer(9)
    async with pool_of(server, shares=["train*=max:2"]) as pool:
        await pool.come("1", "2", label="train-1", stay_seconds=10)
        await pool.come("3", "4", label="train-2", stay_seconds=10)
        await trio.sleep(1)
        await pool.come("x", "y", label="eval", stay_seconds=10)
        assert (pool.seated[2:], server.knocks) == ([("x", "a", 1), ("y", "a", 1)], [0, 0, 1, 1])
        await trio.sleep(12)
        assert sorted((name, at) for name, _, at in pool.seated[4:]) == [("3", 10), ("4", 10)]
        assert pool.most_seated == {"train*": 2, "*": 2}


async def test_who_waits_below_a_max_only_costs_nothing(autojump_clock):
    server = FakeServer(9)
    async with pool_of(server, FakeServer(9), shares=["train=max:1"], slots={"a": 9}) as pool:
        await pool.come(*["train"] * 20, label="train", stay_seconds=100)
        assert await wakeups_of(partial(trio.sleep, 99)) <= 2
        assert (server.knocks, pool.line.waiting) == ([0], 19)


async def test_who_waits_below_a_max_at_a_full_server_makes_no_probe(autojump_clock):
    server = FakeServer(2)
    async with pool_of(server, shares=["train=max:1"]) as pool:
        await pool.come("1", "2", label="train")
        await pool.come("x", label="eval", stay_seconds=50)
        await pool.come("y", label="eval", patience_seconds=10)
        assert await wakeups_of(partial(trio.sleep, 49)) <= 6  # y comes, and goes
        assert (server.knocks, server.taken, pool.line.waiting) == ([0, 0, 0], 2, 1)


async def test_a_connection_that_nobody_may_have_is_not_one_of_the_shares(autojump_clock):
    server = FakeServer(9)
    server.handshake_seconds = 2
    async with pool_of(server, shares=["*=max:1"]) as pool:
        pool.goodbye_seconds = 10
        await pool.come("gives up", patience_seconds=1)
        await trio.sleep(2.5)
        assert (pool.dismissed, pool.held()) == ([("a", 2)], {"a": 1})
        await pool.come("1")
        await trio.sleep(3)
        assert pool.seated == [("1", "a", 4.5)]


async def test_who_has_no_patience_is_sent_away_by_a_max_and_others_are_not(autojump_clock):
    server = FakeServer(9)
    server.handshake_seconds = 0.5
    async with pool_of(server, shares=["train=max:1"]) as pool:
        await pool.come("1", "2", "3", label="train", patient=False)
        await pool.come("x", label="eval", patient=False)
        assert pool.turned_away == [("2", 0), ("3", 0)]
        await trio.sleep(1)
        assert sorted(pool.seated) == [("1", "a", 0.5), ("x", "a", 0.5)]


async def test_who_waits_below_a_max_hears_that_it_waits(autojump_clock):
    async with pool_of(FakeServer(9), shares=["train=max:1"]) as pool:
        await pool.come("1", "2", label="train")
        assert pool.told == [("2", 0)]


async def test_slots_of_a_server_that_does_not_answer_are_no_part_of_a_reserve(autojump_clock):
    alive, dead = FakeServer(4), FakeServer(4)
    dead.refuses = True
    async with pool_of(alive, dead, shares=["eval=reserve:4"], slots={"a": 4, "b": 4}) as pool:
        await pool.come("1", "2", "3", label="train", stay_seconds=1000)
        assert pool.seated == [("1", "a", 0)]  # the others wait: what is left is kept
        await trio.sleep(20)
        await pool.come("x", "y", "z", label="eval", stay_seconds=1000)
        assert [seat for seat in pool.seated if seat[0] in "xyz"] == [(name, "a", 20) for name in "xyz"]
        dead.refuses = False
        await trio.sleep(60)
        assert {name for name, server, _ in pool.seated if server == "b"} == {"2", "3"}
        await pool.come("w", label="eval", stay_seconds=1000)
        assert pool.seated[-1] == ("w", "b", 80)


async def test_beside_a_reserve_a_connection_of_a_server_that_takes_long_to_answer_is_somebodys(autojump_clock):
    prompt, slow = FakeServer(1), FakeServer(3)
    slow.handshake_seconds = 12
    async with pool_of(prompt, slow, shares=["eval=reserve:1"], slots={"a": 1, "b": 3}) as pool:
        await pool.come("1", "2", "3", "4", label="train", stay_seconds=1000)
        await trio.sleep(100)
        assert sorted(pool.seated) == [("1", "a", 0), ("2", "b", 12), ("3", "b", 12)]
        assert (slow.knocks, pool.dismissed) == ([0, 0], [])  # no third: that slot is kept
        await pool.come("x", label="eval")
        await trio.sleep(13)
        assert pool.seated[-1] == ("x", "b", 112)


async def test_a_server_that_takes_twice_as_long_as_it_did_is_no_part_of_a_reserve(autojump_clock):
    steady, ailing = FakeServer(1), FakeServer(4)
    ailing.handshake_seconds = 3
    async with pool_of(steady, ailing, shares=["eval=reserve:2"], slots={"a": 1, "b": 4}) as pool:
        await pool.come("1", "2", label="train")
        await trio.sleep(20)
        ailing.freeze()
        await pool.come("3", label="train")
        await trio.sleep(5.9)
        assert (pool.seated, pool.line.may_take("train")) == ([("1", "a", 0), ("2", "b", 3)], True)
        await trio.sleep(0.1)
        assert not pool.line.may_take("train")
        ailing.thaw()
        await trio.sleep(4)
        assert pool.seated[-1] == ("3", "b", 29)


# -- more kept than there is -----------------------------------------------------------------------------------------


def warned(logs: list[Any]) -> list[tuple[Any, Any]]:
    """Of reserves that are too large: which, and how many slots there are."""
    event = "more slots are reserved than there are: labels without a reserve get none"
    return [(line["reserved"], line["slots"]) for line in logs if line["event"] == event]


async def test_a_reserve_beyond_all_slots_is_warned_of_when_their_number_is_known(autojump_clock):
    with capture_logs() as logs:
        async with pool_of(FakeServer(2), shares=["eval*=reserve:3"]) as pool:
            await pool.come("1", "2", label="train")
            assert warned(logs) == []
            await pool.come("3", label="train")  # the refusal tells it
            assert warned(logs) == [({"eval*": 3}, 2)]
            await pool.come("4", label="train")
            await trio.sleep(100)  # probes
    [line] = logs
    assert (line["log_level"], line["advice"]) == (
        "warning",
        "reserve fewer than 2 in all (--label), or add slots: "
        "another --env, a higher slots= or capacity of the servers",
    )


@pytest.mark.parametrize(
    ("shares", "slots", "expected"),
    [
        (["eval=reserve:8"], 8, []),
        (["eval=reserve:9"], 8, [({"eval": 9}, 8)]),
        (["eval=reserve:4", "test=reserve:4"], 8, []),
        (["eval=reserve:4", "test=reserve:5", "train=weight:2"], 8, [({"eval": 4, "test": 5}, 8)]),
        (["eval=weight:4,max:32"], 8, []),
    ],
)
async def test_reserves_count_together(autojump_clock, shares, slots, expected):
    with capture_logs() as logs:
        async with pool_of(FakeServer(99), shares=shares, slots={"a": slots}) as pool:
            await pool.come("1", label="train")
    assert warned(logs) == expected


async def test_it_is_said_again_only_when_it_was_not_so_in_between(autojump_clock):
    with capture_logs() as logs:
        async with pool_of(FakeServer(99), FakeServer(99), shares=["eval=reserve:5"], slots={"a": 2, "b": 3}) as pool:
            a, b = pool.gates.values()
            await pool.come("1", label="train")
            assert warned(logs) == []  # at no time between the first server and the last
            for slots in (1, 2, 1):
                a.stay(slots=slots)
            b.leave()
            assert warned(logs) == [({"eval": 5}, 4), ({"eval": 5}, 4)]
            a.leave()  # without servers nothing is known
            await wait_all_tasks_blocked()
            assert len(warned(logs)) == 2


async def test_where_nobody_waits_nothing_is_said(autojump_clock):
    with capture_logs() as logs:
        async with pool_of(FakeServer(4), shares=["eval=reserve:5"], slots={"a": 4}) as pool:
            pool.gates["a"].stay(slots=3)
            await trio.sleep(100)
            assert warned(logs) == []
            await pool.come("1", label="eval")
            assert (warned(logs), len(pool.seated)) == ([({"eval": 5}, 3)], 1)
