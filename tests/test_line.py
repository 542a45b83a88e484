"""The line before one environment server, in virtual time: who gets a connection when, who knocks, and that no slot
is ever lost.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from lines import Connection, FakeServer, Full, wakeups_of
from trio.testing import MockClock, wait_all_tasks_blocked

from gymserve.gate import Gate
from gymserve.line import Line
from gymserve.ticket import Stage, Ticket


class Seats:
    """Visitors of one server, and who got a seat when."""

    def __init__(
        self,
        nursery: trio.Nursery,
        server: FakeServer,
        *,
        jitter: Callable[[], float] = lambda: 1.0,
        max_handshakes: int = 16,
    ) -> None:
        self.server = server
        self.line = Line()
        self.gate = Gate(
            self.line, knock=self._knock, dismiss=self._dismiss, jitter=jitter, max_handshakes=max_handshakes
        )
        self.line.add(self.gate)
        self.seated: list[tuple[str, float]] = []
        self.dismissed: list[float] = []
        self.told: list[tuple[str, float]] = []
        self._nursery = nursery
        nursery.start_soon(self.line.watch)

    def _knock(self) -> None:
        self._nursery.start_soon(self._shake_hands)

    async def _shake_hands(self) -> None:
        try:
            connection = await self.server.shake_hands()
        except ConnectionResetError as exc:
            self.gate.knocked_in_vain(exc)
        else:
            self.gate.let_in(connection)

    def _dismiss(self, connection: Connection, ticket: Ticket) -> None:
        self.dismissed.append(trio.current_time())
        self.server.end(connection)
        self.line.leave(ticket)

    async def visit(
        self, name: str, *, stay_seconds: float, patience_seconds: float = float("inf"), label: str | None = None
    ) -> None:
        """Wait for a seat no longer than the patience, have it, leave."""
        ticket = self.line.join(label, on_wait=lambda: self.told.append((name, trio.current_time())))
        try:
            with trio.move_on_after(patience_seconds) as patience:
                connection = await self._open(ticket)
                patience.deadline = float("inf")
                self.seated.append((name, round(trio.current_time(), 6)))
                try:
                    await trio.sleep(stay_seconds)
                finally:
                    self.server.end(connection)
        finally:
            self.line.leave(ticket)

    async def _open(self, ticket: Ticket) -> Connection:
        while True:
            self.line.enqueue(ticket)
            connection = await self.line.connection(ticket)
            assert ticket.stage is Stage.ANSWER
            try:
                await self.server.reset(connection)
            except Full:
                self.line.refused(ticket, self.server.capacity)
            else:
                self.line.opened(ticket)
                return connection

    async def visit_in_order(
        self, nursery: trio.Nursery, *names: str, stay_seconds: float, label: str | None = None
    ) -> None:
        for name in names:
            self.start(nursery, name, stay_seconds=stay_seconds, label=label)
            await wait_all_tasks_blocked()

    def start(self, nursery: trio.Nursery, name: str, **how: float | str | None) -> None:
        nursery.start_soon(lambda: self.visit(name, **how))

    def assert_empty(self) -> None:
        assert (self.line.held, self.line.waiting, self.server.taken) == (0, 0, 0)


@asynccontextmanager
async def seats_at(server: FakeServer, **how: object) -> AsyncIterator[Seats]:
    async with trio.open_nursery() as nursery:
        yield Seats(nursery, server, **how)
        nursery.cancel_scope.cancel()


async def seat(server: FakeServer, *names: str, stay_seconds: float) -> list[tuple[str, float]]:
    """Who got a seat when, of visitors that all come at once."""
    async with seats_at(server) as seats:
        async with trio.open_nursery() as nursery:
            await seats.visit_in_order(nursery, *names, stay_seconds=stay_seconds)
        seats.assert_empty()
        return sorted(seats.seated, key=lambda seated: (seated[1], seated[0]))


class Hand:
    """A line whose knocks a test answers by hand."""

    def __init__(self, *, max_handshakes: int = 16) -> None:
        self.knocks = 0
        self.dismissed: list[Connection] = []
        self.line = Line()
        self.gate = Gate(
            self.line, knock=self._knock, dismiss=self._dismiss, jitter=lambda: 1.0, max_handshakes=max_handshakes
        )
        self.line.add(self.gate)

    def _knock(self) -> None:
        self.knocks += 1

    def _dismiss(self, connection: Connection, ticket: Ticket) -> None:
        self.dismissed.append(connection)
        self.line.leave(ticket)

    def stand(self, label: str | None = None, *, on_wait: Callable[[], None] = lambda: None) -> Ticket:
        """A ticket in the line."""
        ticket = self.line.join(label, on_wait=on_wait)
        self.line.enqueue(ticket)
        return ticket

    def let_in(self) -> None:
        self.gate.let_in(Connection(has_slot=True))

    def hold(self, label: str | None = None) -> Ticket:
        """A ticket that has an episode."""
        ticket = self.stand(label)
        self.let_in()
        self.line.opened(ticket)
        return ticket


async def test_a_full_server_is_first_come_first_served(autojump_clock):
    server = FakeServer(slots=1, reset_seconds=3)
    assert await seat(server, "a", "b", "c", stay_seconds=9.5) == [("a", 3), ("b", 15.5), ("c", 28)]
    assert server.knocks == [0, 0, 12.5, 25]  # c learned from b's refusal


async def test_two_slots_serve_two_at_a_time(autojump_clock):
    server = FakeServer(slots=2, reset_seconds=1)
    assert await seat(server, *"abcde", stay_seconds=9) == [("a", 1), ("b", 1), ("c", 11), ("d", 11), ("e", 21)]


async def test_a_server_with_room_makes_nobody_wait(autojump_clock):
    names = [f"{number:02}" for number in range(40)]
    assert await seat(FakeServer(slots=40), *names, stay_seconds=5) == [(name, 0) for name in names]


async def test_the_capacity_is_learned_from_a_refusal(autojump_clock):
    hand = Hand()
    holders = [hand.hold() for _ in range(2)]
    third = hand.stand()
    hand.let_in()
    assert (hand.line.capacity, hand.line.held) == (None, 3)
    hand.line.refused(third, 2)
    assert (hand.line.capacity, hand.line.held) == (2, 2)
    hand.line.refused(third, None)  # one that does not say leaves what is known
    assert (hand.line.capacity, len(holders)) == (2, 2)


async def test_a_refused_opener_keeps_its_position(autojump_clock):
    server = FakeServer(slots=1)
    async with seats_at(server) as seats, trio.open_nursery() as nursery:
        await seats.visit_in_order(nursery, "a", "b", stay_seconds=10)
        await trio.sleep(1)
        await seats.visit_in_order(nursery, "c", stay_seconds=10)
        server.others = 1  # somebody else's session is in a's slot before b's knock
        await trio.sleep(9.5)
        assert server.refusals > 1
        server.others = 0
        await trio.sleep(30)
        assert [name for name, _ in seats.seated] == ["a", "b", "c"]


@pytest.mark.parametrize("most", [1, 16])
async def test_no_more_handshakes_are_unanswered_at_a_time_than_allowed(autojump_clock, most):
    hand = Hand(max_handshakes=most)
    tickets = [hand.stand() for _ in range(20)]
    assert (hand.knocks, hand.line.waiting) == (most, 20)
    hand.let_in()
    assert (hand.knocks, tickets[0].stage, tickets[1].stage) == (most + 1, Stage.ANSWER, Stage.WAITING)
    for ticket in tickets:
        hand.line.leave(ticket)
    assert (hand.line.waiting, hand.line.held) == (0, most)  # the knocks are under way and will be answered
    for _ in range(most):
        hand.let_in()
    assert (len(hand.dismissed), hand.line.held, hand.knocks) == (most, 0, most + 1)


# -- labels ----------------------------------------------------------------------------------------------------------


async def test_the_next_connection_goes_to_the_label_that_holds_fewest(autojump_clock):
    server = FakeServer(slots=2)
    async with seats_at(server) as seats, trio.open_nursery() as nursery:
        await seats.visit_in_order(nursery, *(f"a{number}" for number in range(40)), stay_seconds=10, label="a")
        await trio.sleep(5)
        await seats.visit_in_order(nursery, *(f"b{number}" for number in range(3)), stay_seconds=10, label="b")
        await trio.sleep(40)
        by_time = sorted(seats.seated, key=lambda seated: (seated[1], seated[0]))
        assert by_time[2:] == [
            *[("a2", 10), ("b0", 10), ("a3", 20), ("b1", 20), ("a4", 30), ("b2", 30)],
            *[("a5", 40), ("a6", 40)],
        ]
        nursery.cancel_scope.cancel()


async def test_a_label_that_holds_nothing_has_the_next_slots_until_it_is_even(autojump_clock):
    hand = Hand()
    flood = [hand.hold("a") for _ in range(4)]
    hand.gate.full_said(4)
    queued = [hand.stand("a") for _ in range(3)]
    small = [hand.stand("b") for _ in range(3)]
    for holder in flood:
        hand.line.leave(holder)
        hand.let_in()
    first, second = (
        [ticket.stage is Stage.ANSWER for ticket in queued],
        [ticket.stage is Stage.ANSWER for ticket in small],
    )
    assert (first, second) == ([True, True, False], [True, True, False])


async def test_of_labels_that_hold_as_many_the_one_that_came_first_is_next(autojump_clock):
    hand = Hand()
    tickets = [hand.stand(label) for label in ("a", "b", None, "a")]
    for ticket in (*tickets[:3], tickets[3]):
        hand.let_in()
        assert ticket.stage is Stage.ANSWER


async def test_a_place_counts_those_of_the_same_label(autojump_clock):
    hand = Hand(max_handshakes=1)
    tickets = [hand.stand(label) for label in ("a", "b", "a", "a", "b")]
    assert [hand.line.place(ticket) for ticket in tickets] == [1, 1, 2, 3, 2]
    hand.line.leave(tickets[2])
    assert hand.line.place(tickets[3]) == 2


# -- giving up -------------------------------------------------------------------------------------------------------


async def test_whoever_gives_up_leaves_the_others_in_order(autojump_clock):
    async with seats_at(FakeServer(slots=1)) as seats:
        async with trio.open_nursery() as nursery:
            await seats.visit_in_order(nursery, "a", "b", stay_seconds=10)
            seats.start(nursery, "gives up", stay_seconds=10, patience_seconds=5)
            await wait_all_tasks_blocked()
            seats.start(nursery, "c", stay_seconds=10)
        assert seats.seated == [("a", 0), ("b", 10), ("c", 20)]
        seats.assert_empty()


async def test_giving_up_during_the_reset_gives_the_slot_back(autojump_clock):
    async with seats_at(FakeServer(slots=1, reset_seconds=3)) as seats:
        async with trio.open_nursery() as nursery:
            seats.start(nursery, "gives up", stay_seconds=10, patience_seconds=2)
            await wait_all_tasks_blocked()
            seats.start(nursery, "b", stay_seconds=10)
        assert seats.seated == [("b", 5)]
        seats.assert_empty()


@pytest.mark.parametrize("hangs_up_first", [True, False])
@pytest.mark.parametrize("others_wait", [True, False])
async def test_a_connection_given_in_the_tick_of_a_hang_up_goes_to_the_next(
    autojump_clock, hangs_up_first, others_wait
):
    hand = Hand()
    holder = hand.hold()
    hand.gate.full_said(1)
    heir = hand.stand()
    following = hand.stand() if others_wait else None
    scope = trio.CancelScope()

    async def wait_in_line() -> None:
        with scope:
            await hand.line.connection(heir)
            raise AssertionError("the client has hung up")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_in_line)
        await wait_all_tasks_blocked()
        hand.line.leave(holder)
        if hangs_up_first:
            scope.cancel()
        hand.let_in()
        assert heir.stage is Stage.ANSWER
        scope.cancel()
    assert (heir.stage, hand.knocks, hand.line.waiting) == (Stage.OUTSIDE, 2, 0)  # no second knock for one slot
    if following is not None:
        assert (following.stage, hand.line.held, hand.dismissed) == (Stage.ANSWER, 1, [])
    else:
        assert (hand.line.held, len(hand.dismissed)) == (0, 1)


async def test_leaving_twice_does_no_harm(autojump_clock):
    hand = Hand()
    first, second = hand.hold(), hand.hold()
    hand.line.leave(first)
    hand.line.leave(first)
    assert (hand.line.held, second.stage) == (1, Stage.OPEN)


# -- knocks belong to the line ---------------------------------------------------------------------------------------


async def test_a_knock_serves_whoever_is_first_when_it_is_answered(autojump_clock):
    server = FakeServer(slots=1)
    server.handshake_seconds = 12
    async with seats_at(server) as seats, trio.open_nursery() as nursery:
        seats.start(nursery, "hangs up", stay_seconds=1, patience_seconds=5)
        await trio.sleep(6)
        seats.start(nursery, "b", stay_seconds=1)
        await trio.sleep(7)
        assert (seats.seated, server.knocks) == ([("b", 12)], [0])


async def test_a_knock_that_nobody_wants_any_more_is_dismissed(autojump_clock):
    server = FakeServer(slots=1)
    server.handshake_seconds = 12
    async with seats_at(server) as seats:
        async with trio.open_nursery() as nursery:
            seats.start(nursery, "hangs up", stay_seconds=1, patience_seconds=5)
        assert seats.line.held == 1
        await trio.sleep(10)
        assert seats.dismissed == [12]
        seats.assert_empty()


async def test_the_tries_are_the_knocks_made_for_a_ticket(autojump_clock):
    hand = Hand()
    first, second = hand.stand(), hand.stand()
    hand.gate.knock_lost()
    hand.gate.knocked_in_vain(TimeoutError())
    hand.let_in()
    assert (first.tries, second.tries) == (3, 0)
    hand.line.opened(first)
    with trio.move_on_after(1):
        await hand.line.connection(second)
    assert (second.tries, hand.line.held) == (1, 2)  # the one under way counts, and goes on


async def test_without_patience_a_knock_in_vain_is_told(autojump_clock):
    hand = Hand()
    ticket = hand.line.join(None, patient=False)
    hand.line.enqueue(ticket)
    hand.gate.knock_refused(ConnectionResetError("refused"), None)
    with pytest.raises(ConnectionResetError, match="refused"):
        await hand.line.connection(ticket)
    assert (ticket.stage, ticket.tries, hand.line.waiting, hand.line.held) == (Stage.OUTSIDE, 1, 0, 0)


async def test_a_hopeless_knock_is_told_to_the_next_and_to_nobody_else(autojump_clock):
    hand = Hand(max_handshakes=1)
    first, second = hand.stand(), hand.stand()
    hand.gate.knock_hopeless(ConnectionRefusedError())
    with pytest.raises(ConnectionRefusedError):
        await hand.line.connection(first)
    assert (second.stage, hand.knocks) == (Stage.WAITING, 2)


async def test_whoever_must_wait_is_told_when_it_begins(autojump_clock):
    hand = Hand(max_handshakes=2)
    told: list[int] = []
    for number in range(4):
        hand.stand(on_wait=partial(told.append, number))
    assert told == [2, 3]  # a knock is under way for each of the others
    hand.gate.knock_unanswered()
    assert told == [2, 3, 0, 1]
    hand.gate.knock_unanswered()
    assert told == [2, 3, 0, 1]


async def test_a_knock_in_vain_makes_the_first_wait(autojump_clock):
    server = FakeServer(slots=1)
    server.answers = False
    async with seats_at(server) as seats, trio.open_nursery() as nursery:
        server.handshake_seconds = 3
        await seats.visit_in_order(nursery, "a", stay_seconds=1)
        assert seats.told == []
        await trio.sleep(10)
        assert seats.told == [("a", 3)]
        nursery.cancel_scope.cancel()


# -- what others decide: backoffs and the probe ----------------------------------------------------------------------


async def test_only_the_head_backs_off_when_others_share_the_server(autojump_clock):
    server = FakeServer(slots=2)
    server.others = 2
    async with seats_at(server) as seats, trio.open_nursery() as nursery:
        await seats.visit_in_order(nursery, "a", "b", stay_seconds=100)
        await trio.sleep(10)
        assert server.knocks == [0, 0.05, 0.15, 0.35, 0.75, 1.55, 3.15, 5.15, 7.15, 9.15]
        server.others = 0
        await trio.sleep(2)
        assert seats.seated == [("a", 11.15), ("b", 11.15)]
        nursery.cancel_scope.cancel()


async def test_a_busy_backoff_doubles_from_50_ms_to_2_s(autojump_clock):
    server = FakeServer(slots=1)
    server.answers = False
    async with seats_at(server) as seats, trio.open_nursery() as nursery:
        seats.start(nursery, "a", stay_seconds=1)
        await trio.sleep(9)
        assert server.knocks == [0, 0.05, 0.15, 0.35, 0.75, 1.55, 3.15, 5.15, 7.15]
        nursery.cancel_scope.cancel()


async def test_knocks_that_fail_together_double_the_backoff_once(autojump_clock):
    server = FakeServer(slots=16)
    server.answers = False
    async with seats_at(server) as seats, trio.open_nursery() as nursery:
        for number in range(16):
            seats.start(nursery, f"{number}", stay_seconds=1)
        await trio.sleep(0.2)
        assert server.knocks == [*[0] * 16, 0.05, 0.15]
        nursery.cancel_scope.cancel()


async def test_an_opening_ends_the_backoff(autojump_clock):
    server = FakeServer(slots=3)
    server.answers = False
    async with seats_at(server) as seats, trio.open_nursery() as nursery:
        await seats.visit_in_order(nursery, "a", "b", "c", stay_seconds=100)
        await trio.sleep(1)
        server.answers = True
        await trio.sleep(2)
        assert sorted(seats.seated) == [("a", 1.55), ("b", 1.55), ("c", 1.55)]
        server.answers = False
        del server.knocks[:]
        seats.start(nursery, "d", stay_seconds=1)
        await trio.sleep(0.07)
        assert server.knocks == [3, 3.05]  # 50 ms apart again
        nursery.cancel_scope.cancel()


async def test_the_jitter_stretches_each_backoff(autojump_clock):
    server = FakeServer(slots=1)
    server.answers = False
    async with seats_at(server, jitter=iter([0.5, 2.0, 1.0, 1.0]).__next__) as seats, trio.open_nursery() as nursery:
        seats.start(nursery, "a", stay_seconds=1)
        await trio.sleep(0.5)
        assert server.knocks == [0, 0.025, 0.225, 0.425]
        nursery.cancel_scope.cancel()


async def test_a_backoff_can_be_cut_short(autojump_clock):
    hand = Hand()
    hand.stand()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hand.line.watch)
        hand.gate.knocked_in_vain(TimeoutError(), again_by=0.02)
        await trio.sleep(0.02)
        await wait_all_tasks_blocked()
        assert hand.knocks == 2
        nursery.cancel_scope.cancel()


async def test_a_slot_of_ours_ends_the_waiting_for_others(autojump_clock):
    server = FakeServer(slots=2)
    server.others = 1
    async with seats_at(server) as seats:
        async with trio.open_nursery() as nursery:
            await seats.visit_in_order(nursery, "a", "b", stay_seconds=4)
        assert seats.seated == [("a", 0), ("b", 4)]


async def test_a_server_that_has_grown_is_found_out_by_a_probe_after_30_s(autojump_clock):
    server = FakeServer(slots=1)
    async with seats_at(server) as seats, trio.open_nursery() as nursery:
        await seats.visit_in_order(nursery, *"abcd", stay_seconds=1000)
        await trio.sleep(10)
        assert server.knocks == [0, 0]
        server.slots = 3
        await trio.sleep(60)
        assert seats.seated == [("a", 0), ("b", 30), ("c", 30)]
        assert server.knocks == [0, 0, 30, 30, 30, 60]
        assert (seats.line.capacity, seats.line.held) == (3, 3)
        nursery.cancel_scope.cancel()


async def test_a_failed_probe_does_not_open_the_server_to_endless_knocking(autojump_clock):
    server = FakeServer(slots=1)
    async with seats_at(server) as seats, trio.open_nursery() as nursery:
        await seats.visit_in_order(nursery, "a", "b", stay_seconds=1000)
        await trio.sleep(29)
        server.answers = False
        await trio.sleep(1.02)
        server.answers = True
        await trio.sleep(61)  # knocking without a pause, virtual time would stand still
        assert server.knocks == [0, 0, 30, 30.05, 60.05, 90.05]
        nursery.cancel_scope.cancel()


async def test_a_server_that_has_shrunk_gets_no_more_than_it_takes(autojump_clock):
    server = FakeServer(slots=2)
    async with seats_at(server) as seats, trio.open_nursery() as nursery:
        await seats.visit_in_order(nursery, "a", stay_seconds=10)
        await trio.sleep(1)
        await seats.visit_in_order(nursery, *"bcd", stay_seconds=10)
        server.slots = 1
        await trio.sleep(40)
        assert seats.seated == [("a", 0), ("b", 1), ("c", 11), ("d", 21)]
        assert server.knocks == [0, 1, 1, 10, 11, 21]
        assert seats.line.capacity == 1


# -- economy ---------------------------------------------------------------------------------------------------------


async def test_a_waiting_line_costs_nothing(autojump_clock):
    server = FakeServer(slots=1)
    async with seats_at(server) as seats, trio.open_nursery() as nursery:
        await seats.visit_in_order(nursery, *(f"{number}" for number in range(100)), stay_seconds=10_000)
        knocks = len(server.knocks)
        assert await wakeups_of(partial(trio.sleep, 29)) <= 2  # the sleeper and the test's own
        assert len(server.knocks) == knocks
        assert await wakeups_of(partial(trio.sleep, 300)) <= 100  # ten probes
        assert len(server.knocks) == knocks + 10
        nursery.cancel_scope.cancel()


# -- any schedule ----------------------------------------------------------------------------------------------------


TENTHS = st.integers(0, 200).map(lambda tenth: tenth / 10)
EVER_PATIENT = 1e6
VISITORS = st.lists(
    st.tuples(TENTHS, TENTHS, st.one_of(st.just(EVER_PATIENT), TENTHS), st.sampled_from(["x", "y", None])), max_size=12
)


class Watched(Seats):
    """Visitors of which it is known who joined the line when, and that nobody has more slots than there are."""

    def __init__(self, nursery: trio.Nursery, server: FakeServer) -> None:
        super().__init__(nursery, server)
        self.joined: dict[str | None, list[str]] = {}

    async def come(self, name: str, at: float, stay_seconds: float, patience_seconds: float, label: str | None) -> None:
        await trio.sleep(at)
        self.joined.setdefault(label, []).append(name)
        await self.visit(name, stay_seconds=stay_seconds, patience_seconds=patience_seconds, label=label)

    async def watch(self, most_held: float) -> None:
        while True:
            await trio.sleep(0.25)
            assert self.line.capacity in (None, self.server.slots)
            assert self.line.held <= most_held
            assert self.server.most_taken <= self.server.slots

    def seated_at_in_order_of_joining(self, label: str | None) -> list[float]:
        seated = dict(self.seated)
        return [seated[name] for name in self.joined[label] if name in seated]


async def play(
    visitors: list[tuple[float, float, float, str | None]], server: FakeServer, capacity_is_known: bool
) -> None:
    async with trio.open_nursery() as watching:
        seats = Watched(watching, server)
        # One more may be a probe; before the server has said how many it has, several knock at once.
        watching.start_soon(seats.watch, server.slots + 1 if capacity_is_known else float("inf"))
        if capacity_is_known:
            seats.gate.full_said(server.slots)
        async with trio.open_nursery() as nursery:
            for number, visitor in enumerate(visitors):
                nursery.start_soon(seats.come, f"{number}", *visitor)
        await trio.sleep(server.handshake_seconds)  # knocks of those who gave up are dismissed
        seats.assert_empty()
        watching.cancel_scope.cancel()
    patient = {f"{number}" for number, visitor in enumerate(visitors) if visitor[2] == EVER_PATIENT}
    assert patient <= {name for name, _ in seats.seated}
    if capacity_is_known:  # else several knock at once, and the server chooses
        for label in seats.joined:
            times_in_order = seats.seated_at_in_order_of_joining(label)
            assert times_in_order == sorted(times_in_order)


@settings(deadline=None, max_examples=60, derandomize=True)
@given(
    VISITORS,
    st.integers(1, 3),
    st.sampled_from([0.0, 0.5, 3.0]),
    st.sampled_from([0.0, 1.3, 12.0]),
    st.booleans(),
)
def test_in_any_schedule_all_are_served_in_order_and_no_slot_is_lost(visitors, slots, reset_s, handshake_s, known):
    server = FakeServer(slots, reset_seconds=reset_s)
    server.handshake_seconds = handshake_s
    trio.run(play, visitors, server, known, clock=MockClock(autojump_threshold=0))
