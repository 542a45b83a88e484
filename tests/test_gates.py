"""One line before several environment servers, in virtual time: where a session goes, what is waited for and what is
not, and that nobody starves and no slot is lost.
"""

from functools import partial

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from lines import EVER_PATIENT, Connection, FakeServer, Full, Pool, pool_of, wakeups_of
from trio.testing import MockClock, wait_all_tasks_blocked

from gymserve.gate import Gate
from gymserve.shares import parse_share

PAUSES = [0, 1, 3, 7, 15, 31, 63, 123, 183]
"""When a hopeless server is knocked at: pauses of 1, 2, 4 ... 60 s."""


def full(slots: int = 1) -> FakeServer:
    """A server all of whose slots are others'."""
    server = FakeServer(slots)
    server.others = slots
    return server


def refusing(slots: int = 1) -> FakeServer:
    server = FakeServer(slots)
    server.refuses = True
    return server


# -- where a session goes --------------------------------------------------------------------------------------------


async def test_the_server_of_which_the_fewest_are_held_is_next(autojump_clock):
    async with pool_of(FakeServer(9), FakeServer(9), FakeServer(9)) as pool:
        await pool.come("1", "2", "3", "4", stay_seconds=10)
        assert pool.seated == [("1", "a", 0), ("2", "b", 0), ("3", "c", 0), ("4", "a", 0)]
        await trio.sleep(5)
        await pool.come("5", "6", stay_seconds=1)
        assert pool.seated[4:] == [("5", "b", 5), ("6", "c", 5)]


async def test_knocks_under_way_count_as_held(autojump_clock):
    slow, quick = FakeServer(9), FakeServer(9)
    slow.handshake_seconds = quick.handshake_seconds = 0.5
    async with pool_of(slow, quick) as pool:
        await pool.come("1", "2", "3")
        assert pool.held() == {"a": 2, "b": 1}


async def test_a_server_whose_slots_are_known_to_be_free_is_preferred(autojump_clock):
    async with pool_of(FakeServer(9), FakeServer(2), slots={"b": 2}) as pool:
        await pool.come("1", "2", "3")
        assert [server for _, server, _ in pool.seated] == ["b", "b", "a"]


async def test_a_server_that_may_have_room_is_preferred_to_the_probe_of_a_full_one(autojump_clock):
    a, b = FakeServer(1), FakeServer(9)
    async with pool_of(a, b) as pool:
        await pool.come("1", "2", "3", stay_seconds=10)
        assert (pool.held(), a.knocks, b.knocks) == ({"a": 1, "b": 2}, [0, 0], [0, 0])
        await trio.sleep(5)
        await pool.come("4", stay_seconds=100)  # known to be full
        await trio.sleep(6)
        await pool.come("5", stay_seconds=100)  # and free again
        assert pool.seated[3:] == [("4", "b", 5), ("5", "a", 11)]
        await trio.sleep(29)
        await pool.come("6")  # a probe is due
        assert (pool.seated[5:], a.knocks) == ([("6", "b", 40)], [0, 0, 11])


async def test_whoever_is_next_gets_the_first_slot_anywhere(autojump_clock):
    async with pool_of(FakeServer(1), FakeServer(1)) as pool:
        await pool.come("on a", stay_seconds=9)
        await pool.come("on b", stay_seconds=4)
        await pool.come("1", "2", "3", stay_seconds=10)
        await trio.sleep(100)
        assert pool.seated[2:] == [("1", "b", 4), ("2", "a", 9), ("3", "b", 14)]
        pool.assert_empty()


async def test_labels_have_their_turns_across_all_servers(autojump_clock):
    async with pool_of(FakeServer(1), FakeServer(1)) as pool:
        await pool.come(*"1234", label="flood", stay_seconds=10)
        await pool.come("x", "y", label="small", stay_seconds=10)
        await trio.sleep(25)
        seated = sorted((name, at) for name, _, at in pool.seated)  # of each two slots, one to each label
        assert seated == [("1", 0), ("2", 0), ("3", 10), ("4", 20), ("x", 10), ("y", 20)]


async def test_a_limit_of_its_own_is_never_exceeded_not_even_by_probes(autojump_clock):
    server = FakeServer(5)
    async with pool_of(server, slots={"a": 2}) as pool:
        await pool.come(*"1234", stay_seconds=200)
        await trio.sleep(100)
        assert (server.knocks, server.most_taken, pool.line.capacity) == ([0, 0], 2, 2)
        await trio.sleep(150)
        assert [at for _, _, at in pool.seated] == [0, 0, 200, 200]
        assert server.most_taken == 2


async def test_a_server_that_grows_is_used_up_to_its_limit(autojump_clock):
    server = FakeServer(1)
    async with pool_of(server, slots={"a": 3}) as pool:
        await pool.come(*"12345")
        await trio.sleep(45)
        assert (server.knocks, pool.line.capacity) == ([0, 0, 30], 1)
        server.slots = 10
        await trio.sleep(200)
        assert [at for _, _, at in pool.seated] == [0, 60, 60]
        assert (server.knocks[3:], pool.line.capacity, pool.held()) == ([60, 60], 3, {"a": 3})


async def test_a_limit_can_be_set_anew(autojump_clock):
    async with pool_of(FakeServer(9), slots={"a": 1}) as pool:
        await pool.come("1", "2", "3", stay_seconds=100)
        await trio.sleep(10)
        pool.gates["a"].stay(slots=2)
        await wait_all_tasks_blocked()
        assert pool.seated == [("1", "a", 0), ("2", "a", 10)]
        pool.gates["a"].stay(slots=1)
        await trio.sleep(90.5)
        assert pool.held() == {"a": 1}  # the first left, its slot with it
        await trio.sleep(10)
        assert pool.seated[2:] == [("3", "a", 110)]


# -- servers that do not answer --------------------------------------------------------------------------------------


async def test_a_knock_is_waited_for_no_longer_than_a_second_where_another_server_has_room(autojump_clock):
    stopped, well = FakeServer(9), FakeServer(9)
    stopped.freeze()
    async with pool_of(stopped, well) as pool:
        await pool.come("1")
        await trio.sleep(1.5)
        assert pool.seated == [("1", "b", 1)]
        await trio.sleep(10)
        await pool.come("2")  # at once: what does not answer comes last
        assert pool.seated[1:] == [("2", "b", 11.5)]
        stopped.thaw()
        await wait_all_tasks_blocked()
        assert (stopped.knocks, well.knocks, pool.dismissed) == ([0], [1, 11.5], [("a", 11.5)])
        await pool.come("3")
        assert pool.seated[2:] == [("3", "a", 11.5)]


async def test_all_who_wait_for_a_stopped_server_are_served_elsewhere_after_a_second(autojump_clock):
    stopped, well = FakeServer(9), FakeServer(9)
    stopped.freeze()
    async with pool_of(stopped, well, slots={"a": 9}) as pool:
        await pool.come(*"1234567")
        await trio.sleep(2)
        assert sorted(pool.seated) == [(name, "b", 1) for name in "1234567"]


async def test_before_one_server_that_does_not_answer_no_second_knock_is_made(autojump_clock):
    stopped = FakeServer(1)
    stopped.freeze()
    async with pool_of(stopped) as pool:
        await pool.come("1")
        assert await wakeups_of(partial(trio.sleep, 1000)) <= 2
        assert stopped.knocks == [0]
        stopped.thaw()
        await wait_all_tasks_blocked()
        assert pool.seated == [("1", "a", 1000)]


async def test_before_servers_that_do_not_answer_each_has_one_knock_for_each_who_waits(autojump_clock):
    servers = [FakeServer(9), FakeServer(9), FakeServer(9)]
    for server in servers:
        server.freeze()
    async with pool_of(*servers) as pool:
        await pool.come("1", "2")
        await trio.sleep(3)
        assert [server.knocks for server in servers] == [[0, 2], [0, 2], [1, 1]]
        assert await wakeups_of(partial(trio.sleep, 1000)) <= 2


async def test_a_connection_of_a_server_that_was_slow_serves_whoever_is_next(autojump_clock):
    stopped, busy = FakeServer(1), FakeServer(1)
    stopped.freeze()
    busy.others = 1
    async with pool_of(stopped, busy) as pool:
        await pool.come("1", patience_seconds=5)
        await trio.sleep(10)
        await pool.come("2")
        stopped.thaw()
        await wait_all_tasks_blocked()
        assert pool.seated == [("2", "a", 10)]
        assert stopped.knocks == [0]


async def test_only_those_whom_no_other_server_may_answer_hear_that_they_wait(autojump_clock):
    stopped, slow = FakeServer(9), FakeServer(9)
    stopped.freeze()
    slow.handshake_seconds = 0.5
    async with pool_of(stopped, slow, slots={"a": 1}) as pool:
        await pool.come("1")
        await trio.sleep(0.75)
        await pool.come("2", patient=False)
        assert pool.held() == {"a": 1, "b": 1}
        pool.gates["a"].knock_unanswered()
        assert pool.told == [("2", 0.75)]  # one knock may be answered any moment, and it is the first one's
        await trio.sleep(1)
        assert (pool.seated, pool.turned_away) == ([("1", "b", 1.25)], [("2", 0.75)])


async def test_a_restarting_server_holds_up_nobody(autojump_clock):
    restarting, well = FakeServer(9), FakeServer(9)
    restarting.answers = False
    async with pool_of(restarting, well, slots={"a": 9}) as pool:
        for _ in range(5):
            await pool.come("x")
            await trio.sleep(1)
        assert pool.seated == [("x", "b", at) for at in range(5)]
        restarting.answers = True
        await trio.sleep(3)
        await pool.come("y")
        assert pool.seated[5:] == [("y", "a", 8)]


# -- hopeless servers ------------------------------------------------------------------------------------------------


async def test_a_hopeless_server_is_set_aside_with_growing_pauses(autojump_clock):
    hopeless = refusing()
    async with pool_of(hopeless, FakeServer(1)) as pool:
        await pool.come("1", stay_seconds=1000)
        await pool.come("2")
        await trio.sleep(200)
        assert (hopeless.knocks, pool.turned_away) == (PAUSES, [])
        hopeless.refuses = False
        await trio.sleep(100)
        assert pool.seated == [("1", "b", 0), ("2", "a", 243)]


async def test_who_waits_for_a_hopeless_server_gets_a_slot_of_another_meanwhile(autojump_clock):
    hopeless = refusing()
    async with pool_of(hopeless, FakeServer(1)) as pool:
        await pool.come("1", stay_seconds=10)
        await pool.come("2", stay_seconds=10)
        await trio.sleep(15)
        assert pool.seated == [("1", "b", 0), ("2", "b", 10)]
        assert hopeless.knocks == [0, 1, 3, 7]


async def test_the_pauses_begin_anew_after_an_opening(autojump_clock):
    hopeless = refusing()
    async with pool_of(hopeless, FakeServer(1)) as pool:
        await pool.come("holder")
        await pool.come("1", stay_seconds=5)
        await trio.sleep(5)
        hopeless.refuses = False
        await trio.sleep(5)
        assert pool.seated[1:] == [("1", "a", 7)]
        await trio.sleep(10)
        hopeless.refuses = True
        await pool.come("2")
        await trio.sleep(10)
        assert hopeless.knocks[4:] == [20, 21, 23, 27]


async def test_a_server_that_lets_in_and_then_fails_for_good_has_growing_pauses_too(autojump_clock):
    async with pool_of(FakeServer(9), full()) as pool:
        gate = pool.gates["a"]
        ticket = pool.line.join(None)
        tried: list[float] = []
        while len(tried) < 5:
            pool.line.enqueue(ticket)
            await pool.line.connection(ticket)
            tried.append(trio.current_time())
            assert pool.line.give_up_on_server(ticket)
            assert gate.is_aside
        assert tried == [0, 1, 3, 7, 15]
        pool.line.leave(ticket)


async def test_a_seed_fails_only_when_every_server_is_hopeless(autojump_clock):
    servers = [refusing(), refusing(), refusing()]
    async with pool_of(*servers) as pool:
        await pool.come("1")
        assert (pool.turned_away, [server.knocks for server in servers]) == ([("1", 0)], [[0], [0], [0]])
        await trio.sleep(0.5)
        await pool.come("2")  # the pauses keep nobody from trying
        assert (pool.turned_away[1:], [len(server.knocks) for server in servers]) == ([("2", 0.5)], [2, 2, 2])


async def test_who_comes_after_all_were_hopeless_finds_the_one_that_is_back(autojump_clock):
    servers = [refusing(), refusing(), refusing(2)]
    async with pool_of(*servers) as pool:
        for _ in range(8):
            await pool.come("early")
            await trio.sleep(10)
        servers[2].refuses = False
        await pool.come("1", "2")
        assert sorted(pool.seated) == [("1", "c", 80), ("2", "c", 80)]


async def test_many_at_hopeless_servers_all_fail_at_once(autojump_clock):
    async with pool_of(refusing(), refusing()) as pool:
        await pool.come(*(f"{number}" for number in range(40)))
        assert pool.turned_away == [(f"{number}", 0) for number in range(40)]
        assert (pool.line.waiting, pool.line.held) == (0, 0)


async def test_before_one_hopeless_server_each_has_a_try_of_its_own_and_no_pause(autojump_clock):
    server = refusing()
    server.handshake_seconds = 3
    async with pool_of(server, max_handshakes=4) as pool:
        await pool.come(*"12345678")
        await trio.sleep(7)
        assert sorted(pool.turned_away) == [(name, 3) for name in "1234"] + [(name, 6) for name in "5678"]
        assert server.knocks == [0] * 4 + [3] * 4


async def test_where_one_is_hopeless_and_one_does_not_answer_there_is_waiting_and_no_busy_loop(autojump_clock):
    hopeless, stopped = refusing(), refusing()
    async with pool_of(hopeless, stopped) as pool:
        await pool.come("fails")
        await trio.sleep(10)
        stopped.freeze()
        await pool.come("1")
        assert await wakeups_of(partial(trio.sleep, 300)) <= 60
        assert (pool.turned_away, stopped.knocks) == ([("fails", 0)], [0, 10])
        assert len(hopeless.knocks) <= 12
        stopped.refuses = False
        stopped.thaw()
        await wait_all_tasks_blocked()
        assert pool.seated == [("1", "b", 310)]


async def test_a_server_that_is_full_is_not_hopeless(autojump_clock):
    async with pool_of(refusing(), full()) as pool:
        await pool.come("1", patience_seconds=20)
        await trio.sleep(30)
        assert (pool.turned_away, pool.line.waiting) == ([], 0)


async def test_a_server_that_has_refused_and_now_drops_handshakes_is_waited_out(autojump_clock):
    server, other = refusing(), refusing()
    async with pool_of(server, other) as pool:
        await pool.come("fails")
        server.refuses, server.answers = False, False
        await trio.sleep(10)
        await pool.come("1")
        await trio.sleep(5)
        assert (pool.turned_away, pool.line.waiting) == ([("fails", 0)], 1)
        server.answers = True
        await trio.sleep(2.5)
        assert pool.seated == [("1", "a", 15.15)]


# -- servers that come and go ----------------------------------------------------------------------------------------


async def test_a_server_that_is_added_serves_those_who_wait_at_once(autojump_clock):
    async with pool_of(FakeServer(1)) as pool:
        await pool.come("1", "2", "3", "4")
        await trio.sleep(7)
        pool.add("b", FakeServer(2))
        await wait_all_tasks_blocked()
        assert sorted(pool.seated) == [("1", "a", 0), ("2", "b", 7), ("3", "b", 7)]


async def test_a_drained_server_gets_nothing_new_and_is_gone_when_its_last_session_ends(autojump_clock):
    server = FakeServer(2)
    async with pool_of(server, FakeServer(1)) as pool:
        await pool.come("1", stay_seconds=10)
        await pool.come("2", stay_seconds=100)
        await pool.come("3", stay_seconds=20)
        pool.gates["a"].leave()
        await pool.come("4", stay_seconds=100)
        await trio.sleep(15)
        assert (server.taken, pool.gone, pool.gates["a"].is_leaving) == (1, [], True)
        await trio.sleep(10)
        assert (pool.gone, pool.line.gates) == ([("a", 20)], [pool.gates["b"]])
        await trio.sleep(80)
        assert pool.seated[3:] == [("4", "b", 100)]
        assert len(server.knocks) == 2


async def test_a_drained_server_that_nobody_uses_is_gone_at_once_and_only_once(autojump_clock):
    async with pool_of(FakeServer(1), FakeServer(1)) as pool:
        await pool.come("1", stay_seconds=5)
        await trio.sleep(6)
        pool.gates["a"].leave()
        pool.gates["a"].leave()
        assert pool.gone == [("a", 6)]


async def test_a_drained_server_that_is_added_again_stays(autojump_clock):
    async with pool_of(FakeServer(2)) as pool:
        await pool.come("1", stay_seconds=10)
        pool.gates["a"].leave()
        await pool.come("2", stay_seconds=10)
        await trio.sleep(5)
        assert pool.seated == [("1", "a", 0)]
        pool.gates["a"].stay(slots=None)
        await trio.sleep(20)
        assert (pool.seated, pool.gone) == ([("1", "a", 0), ("2", "a", 5)], [])


OUTCOMES = {
    "connection": lambda gate: gate.let_in(Connection(has_slot=True)),
    "drop": lambda gate: gate.knocked_in_vain(ConnectionResetError()),
    "full": lambda gate: gate.knock_refused(Full(), 1),
    "lost": lambda gate: gate.knock_lost(),
    "hopeless": lambda gate: gate.knock_hopeless(ConnectionRefusedError()),
    "failure": lambda gate: gate.knock_failed(EOFError()),
}


@pytest.mark.parametrize("patient", [True, False])
@pytest.mark.parametrize("outcome", OUTCOMES)
async def test_a_knock_under_way_at_a_drained_server_is_nobodys(autojump_clock, outcome, patient):
    slow = FakeServer(1)
    slow.handshake_seconds = 0.5
    async with pool_of() as pool:
        line, dismissed, gone = pool.line, [], []
        how = {"jitter": lambda: 1.0, "max_handshakes": 1}
        leaving = Gate(line, knock=lambda: None, dismiss=lambda *unwanted: dismissed.append(unwanted[1]), **how)
        leaving.on_gone = lambda: gone.append(trio.current_time())
        line.add(leaving)
        gives_up = line.join(None)
        line.enqueue(gives_up)
        line.leave(gives_up)
        leaving.leave()
        pool.add("b", slow)
        await pool.come("1", patient=patient)
        assert (leaving.held, gone, slow.knocks) == (1, [], [0])
        OUTCOMES[outcome](leaving)
        if dismissed:
            assert (leaving.held, gone) == (1, [])
            await trio.sleep(0.25)
            line.leave(*dismissed)
        assert (gone, line.gates) == ([trio.current_time()], [pool.gates["b"]])
        await trio.sleep(10)
        assert (pool.seated, pool.turned_away) == ([("1", "b", 0.5)], [])
        assert (len(gone), outcome == "connection") == (1, bool(dismissed))


async def test_who_waits_for_a_knock_at_a_server_that_is_drained_goes_elsewhere_at_once(autojump_clock):
    slow, other = FakeServer(1), FakeServer(1)
    slow.handshake_seconds = 100
    async with pool_of(slow, other) as pool:
        await pool.come("1")
        await trio.sleep(0.25)
        pool.gates["a"].leave()
        await wait_all_tasks_blocked()
        assert pool.seated == [("1", "b", 0.25)]


async def test_who_was_turned_away_by_a_server_that_has_left_waits_for_the_others(autojump_clock):
    async with pool_of(FakeServer(9), FakeServer(1)) as pool:
        ticket = pool.line.join(None)
        pool.line.enqueue(ticket)
        await pool.line.connection(ticket)
        pool.line.refused(ticket, 9)
        pool.gates["a"].leave()
        assert pool.gone == [("a", 0)]
        pool.line.enqueue(ticket)
        await pool.line.connection(ticket)
        assert (ticket.gate, pool.gone) == (pool.gates["b"], [("a", 0)])
        pool.line.leave(ticket)


async def test_without_any_server_seeds_wait_for_one(autojump_clock):
    async with pool_of() as pool:
        await pool.come("1")
        assert await wakeups_of(partial(trio.sleep, 100)) <= 2
        pool.add("a", FakeServer(1))
        await wait_all_tasks_blocked()
        assert pool.seated == [("1", "a", 100)]


# -- any schedule ----------------------------------------------------------------------------------------------------


TENTHS = st.integers(0, 200).map(lambda tenth: tenth / 10)
VISITORS = st.lists(
    st.tuples(
        TENTHS,
        TENTHS,
        st.one_of(st.just(EVER_PATIENT), st.just(EVER_PATIENT), TENTHS),
        st.sampled_from(["eval", "flood", "train", None]),
    ),
    max_size=14,
)
SERVERS = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.sampled_from([0.0, 0.5, 3.0]),
        st.sampled_from([0.0, 0.4, 1.7, 12.0]),
        st.sampled_from([None, 1, 2, 4]),
        st.sampled_from(["up", "back at 25", "restarts", "frozen to 25", "leaves at 10"]),
    ),
    min_size=2,
    max_size=3,
)
SHARES = st.sampled_from(
    [
        (),
        ("eval=weight:4",),
        ("eval=reserve:1", "train=weight:2,max:1"),
        ("eval=reserve:2,max:2", "flood=reserve:1"),
        ("flood=max:1", "*=max:3"),
    ]
)

Visitor = tuple[float, float, float, str | None]
Server = tuple[int, float, float, int | None, str]


async def live(pool: Pool, name: str, what: str) -> None:
    """A server's fate."""
    server = pool.servers[name]
    if what == "back at 25":
        server.refuses = True
        await trio.sleep(25)
        server.refuses = False
    elif what == "restarts":
        await trio.sleep(5)
        server.answers = False
        await trio.sleep(20)
        server.answers = True
    elif what == "frozen to 25":
        server.freeze()
        await trio.sleep(25)
        server.thaw()
    elif what == "leaves at 10":
        await trio.sleep(10)
        pool.gates[name].leave()


async def play(visitors: list[Visitor], servers: list[Server], shares: tuple[str, ...]) -> None:
    slots, reset_seconds, handshake_seconds, limit, _ = servers[0]
    kept = sum(share.reserve for share in map(parse_share, shares))
    # The first server stays, with a slot beside what is kept: without one, those who wait for it would wait for ever.
    steady = (slots + kept, reset_seconds, handshake_seconds, limit and limit + kept, "up")
    servers = [steady, *servers[1:]]
    async with pool_of(shares=shares) as pool, trio.open_nursery() as nursery:
        for name, (slots, reset_seconds, handshake_seconds, limit, what) in zip("abc", servers, strict=False):
            server = FakeServer(slots, reset_seconds=reset_seconds)
            server.handshake_seconds = handshake_seconds
            pool.add(name, server, slots=limit)
            nursery.start_soon(live, pool, name, what)
        async with trio.open_nursery() as visiting:
            visiting.cancel_scope.deadline = 10_000  # who is not served by then starves
            for number, (at, stay_seconds, patience_seconds, label) in enumerate(visitors):

                async def visit(number: int = number, at: float = at, **how: float | str | None) -> None:
                    await trio.sleep(at)
                    await pool.visit(f"{number}", **how)

                how = {"stay_seconds": stay_seconds, "patience_seconds": patience_seconds, "label": label}
                visiting.start_soon(partial(visit, **how))
        await trio.sleep(60)  # knocks of those who gave up are dismissed
        pool.assert_empty()
        nursery.cancel_scope.cancel()
    patient = {f"{number}" for number, visitor in enumerate(visitors) if visitor[2] == EVER_PATIENT}
    assert patient <= {name for name, _, _ in pool.seated}
    assert sum(len(server.knocks) for server in pool.servers.values()) <= 100  # at most 34 in 3,000 schedules
    assert pool.turned_away == []  # the first server is never hopeless
    for server, (slots, _, _, limit, _) in zip(pool.servers.values(), servers, strict=True):
        assert server.most_taken <= min(slots, limit or slots)
    for share in map(parse_share, shares):
        assert pool.most_seated[share.pattern] <= share.most


@settings(deadline=None, max_examples=100, derandomize=True)
@given(VISITORS, SERVERS, SHARES)
def test_in_any_schedule_nobody_starves_limits_hold_and_no_slot_is_lost(visitors, servers, shares):
    trio.run(play, visitors, servers, shares, clock=MockClock(autojump_threshold=0))
