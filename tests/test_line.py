"""The line before one environment server, in virtual time: who knocks when, and that no place is ever lost."""

from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st
from trio.testing import MockClock, wait_all_tasks_blocked

from gymserve.line import Line, Stage, Ticket


class Full(Exception):
    """The server's refusal; it says how many slots it has."""


class FakeServer:
    """As many slots as it is told to have; each opening takes ``reset_seconds``. ``others`` hold slots without our
    line.
    """

    def __init__(self, slots: int, *, reset_seconds: float = 0.0, tells_capacity: bool = True) -> None:
        self.slots = slots
        self.others = 0
        self.taken = 0
        self.most_taken = 0
        self.answers = True
        self.knocks: list[tuple[str, float]] = []
        self._reset_seconds = reset_seconds
        self._tells_capacity = tells_capacity

    @property
    def capacity(self) -> int | None:
        return self.slots if self._tells_capacity else None

    async def open(self, name: str) -> None:
        """:raises Full: no slot is free. :raises ConnectionResetError: it does not answer."""
        self.knocks.append((name, trio.current_time()))
        await trio.lowlevel.checkpoint()
        if not self.answers:
            raise ConnectionResetError
        if self.taken + self.others >= self.slots:
            raise Full
        self.taken += 1
        self.most_taken = max(self.most_taken, self.taken + self.others)
        try:
            await trio.sleep(self._reset_seconds)
        except BaseException:
            self.taken -= 1
            raise


class Visitor:
    """What an opener does with the line, and the session after it."""

    def __init__(self, line: Line, server: FakeServer, name: str) -> None:
        self.ticket = line.join()
        self._line = line
        self._server = server
        self._name = name

    @asynccontextmanager
    async def seat(self):
        """A slot, for as long as the block lasts."""
        try:
            await self._open()
            try:
                yield
            finally:
                self._server.taken -= 1
        finally:
            self._line.leave(self.ticket)

    async def _open(self) -> None:
        while True:
            await self._line.turn(self.ticket)
            assert self.ticket.stage is Stage.HANDSHAKE
            try:
                self._line.let_in(self.ticket)
                await self._server.open(self._name)
            except Full:
                self._line.refused(self.ticket, self._server.capacity)
            except ConnectionResetError:
                self._line.failed(self.ticket)
            else:
                self._line.opened(self.ticket)
                return


class Seats:
    """Visitors of one server, and who got a seat when."""

    def __init__(self, server: FakeServer) -> None:
        self.server = server
        self.line = new_line()
        self.seated: list[tuple[str, float]] = []

    async def visit(self, name: str, *, stay_seconds: float, patience_seconds: float = float("inf")) -> None:
        visitor = Visitor(self.line, self.server, name)
        with trio.CancelScope() as patience:
            patience.deadline = trio.current_time() + patience_seconds
            async with visitor.seat():
                patience.deadline = float("inf")
                self.seated.append((name, trio.current_time()))
                await trio.sleep(stay_seconds)

    async def visit_in_order(self, nursery: trio.Nursery, *names: str, stay_seconds: float) -> None:
        for name in names:
            self.start(nursery, name, stay_seconds=stay_seconds)
            await wait_all_tasks_blocked()

    def start(self, nursery: trio.Nursery, name: str, **how: float) -> None:
        nursery.start_soon(lambda: self.visit(name, **how))

    def assert_empty(self) -> None:
        assert (self.line.held, self.line.waiting, self.server.taken) == (0, 0, 0)


async def seat(server: FakeServer, *names: str, stay_seconds: float) -> list[tuple[str, float]]:
    """Who got a seat when, of visitors that all come at once."""
    seats = Seats(server)
    async with trio.open_nursery() as nursery:
        await seats.visit_in_order(nursery, *names, stay_seconds=stay_seconds)
    seats.assert_empty()
    return sorted(seats.seated, key=lambda seated: (seated[1], seated[0]))


def new_line() -> Line:
    return Line(jitter=lambda: 1.0)


def times(knocks: list[tuple[str, float]], name: str) -> list[float]:
    return [round(at, 6) for who, at in knocks if who == name]


async def stand(line: Line) -> Ticket:
    """A ticket in the line's turn, at once."""
    ticket = line.join()
    with trio.fail_after(0):
        await line.turn(ticket)
    return ticket


async def test_a_full_server_is_first_come_first_served(autojump_clock):
    server = FakeServer(slots=1, reset_seconds=3)
    assert await seat(server, "a", "b", "c", stay_seconds=9.5) == [("a", 3), ("b", 15.5), ("c", 28)]
    assert server.knocks == [("a", 0), ("b", 0), ("b", 12.5), ("c", 25)]  # c learned from b's refusal


async def test_two_slots_serve_two_at_a_time(autojump_clock):
    server = FakeServer(slots=2, reset_seconds=1)
    assert await seat(server, *"abcde", stay_seconds=9) == [("a", 1), ("b", 1), ("c", 11), ("d", 11), ("e", 21)]


async def test_a_server_with_room_makes_nobody_wait(autojump_clock):
    names = [f"{number:02}" for number in range(40)]
    assert await seat(FakeServer(slots=40), *names, stay_seconds=5) == [(name, 0) for name in names]


async def test_the_capacity_is_learned_from_a_refusal(autojump_clock):
    line = new_line()
    tickets = [await stand(line) for _ in range(3)]
    assert (line.capacity, line.held) == (None, 3)
    for ticket in tickets[:2]:
        line.let_in(ticket)
        line.opened(ticket)
    line.refused(tickets[2], 2)
    assert (line.capacity, line.held) == (2, 2)
    line.refused(line.join(), None)  # one that does not say leaves what is known
    assert line.capacity == 2


async def test_a_refused_opener_keeps_its_position(autojump_clock, nursery):
    server = FakeServer(slots=1)
    seats = Seats(server)
    await seats.visit_in_order(nursery, "a", "b", stay_seconds=10)
    await trio.sleep(1)
    await seats.visit_in_order(nursery, "c", stay_seconds=10)
    server.others = 1  # somebody else's session is in a's slot before b can knock again
    await trio.sleep(9.5)
    server.others = 0
    await trio.sleep(30)
    assert [name for name, _ in seats.seated] == ["a", "b", "c"]


async def test_at_most_16_handshakes_are_unanswered_at_a_time(autojump_clock, nursery):
    line = new_line()
    tickets = [line.join() for _ in range(20)]
    for ticket in tickets:
        nursery.start_soon(line.turn, ticket)
        await wait_all_tasks_blocked()
    assert [ticket.stage for ticket in tickets] == [Stage.HANDSHAKE] * 16 + [Stage.WAITING] * 4
    line.let_in(tickets[7])
    await wait_all_tasks_blocked()
    assert (tickets[16].stage, tickets[17].stage) == (Stage.HANDSHAKE, Stage.WAITING)
    line.failed(tickets[0])
    for ticket in tickets[1:]:
        line.leave(ticket)
    assert (line.held, line.waiting) == (0, 0)


# -- giving up -------------------------------------------------------------------------------------------------------


async def test_whoever_gives_up_leaves_the_others_in_order(autojump_clock):
    seats = Seats(FakeServer(slots=1))
    async with trio.open_nursery() as nursery:
        await seats.visit_in_order(nursery, "a", stay_seconds=10)
        seats.start(nursery, "b", stay_seconds=10)
        await wait_all_tasks_blocked()
        seats.start(nursery, "gives up", stay_seconds=10, patience_seconds=5)
        await wait_all_tasks_blocked()
        seats.start(nursery, "c", stay_seconds=10)
    assert seats.seated == [("a", 0), ("b", 10), ("c", 20)]
    seats.assert_empty()


async def test_giving_up_during_the_reset_gives_the_place_back(autojump_clock):
    seats = Seats(FakeServer(slots=1, reset_seconds=3))
    async with trio.open_nursery() as nursery:
        seats.start(nursery, "gives up", stay_seconds=10, patience_seconds=2)
        await wait_all_tasks_blocked()
        seats.start(nursery, "b", stay_seconds=10)
    assert seats.seated == [("b", 5)]
    seats.assert_empty()


@pytest.mark.parametrize("leaves_first", [True, False])
async def test_giving_up_in_the_tick_of_a_hand_over_leaks_no_place(autojump_clock, leaves_first):
    line = new_line()
    holder = await stand(line)
    line.let_in(holder)
    line.opened(holder)
    line.refused(line.join(), 1)
    heir, next_in_line = line.join(), line.join()
    scope = trio.CancelScope()

    async def wait_in_line() -> None:
        with scope:
            await line.turn(heir)
            await trio.sleep_forever()
        line.leave(heir)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_in_line)
        await wait_all_tasks_blocked()
        nursery.start_soon(line.turn, next_in_line)
        await wait_all_tasks_blocked()
        if leaves_first:
            line.leave(holder)
            assert heir.stage is Stage.HANDSHAKE
            scope.cancel()
        else:
            scope.cancel()
            line.leave(holder)
        await wait_all_tasks_blocked()
        assert (heir.stage, next_in_line.stage) == (Stage.OUTSIDE, Stage.HANDSHAKE)
        assert (line.held, line.waiting) == (1, 0)


async def test_leaving_twice_does_no_harm(autojump_clock):
    line = new_line()
    first, second = await stand(line), await stand(line)
    line.leave(first)
    line.leave(first)
    assert (line.held, second.stage) == (1, Stage.HANDSHAKE)


# -- what others decide: backoffs and the probe ----------------------------------------------------------------------


async def test_only_the_head_backs_off_when_others_share_the_server(autojump_clock, nursery):
    server = FakeServer(slots=2)
    server.others = 2
    seats = Seats(server)
    await seats.visit_in_order(nursery, "a", "b", stay_seconds=100)
    await trio.sleep(10)
    assert times(server.knocks, "a") == [0, 0.05, 0.15, 0.35, 0.75, 1.55, 3.15, 5.15, 7.15, 9.15]
    assert times(server.knocks, "b") == []
    server.others = 0
    await trio.sleep(2)
    assert [(name, round(at, 6)) for name, at in seats.seated] == [("a", 11.15), ("b", 11.15)]


async def test_a_busy_backoff_doubles_from_50_ms_to_2_s(autojump_clock, nursery):
    server = FakeServer(slots=1)
    server.answers = False
    seats = Seats(server)
    seats.start(nursery, "a", stay_seconds=1)
    await trio.sleep(9)
    assert times(server.knocks, "a") == [0, 0.05, 0.15, 0.35, 0.75, 1.55, 3.15, 5.15, 7.15]


async def test_an_opening_ends_the_backoff(autojump_clock, nursery):
    server = FakeServer(slots=3)
    server.answers = False
    seats = Seats(server)
    await seats.visit_in_order(nursery, "a", "b", "c", stay_seconds=100)
    await trio.sleep(1)
    server.answers = True
    await trio.sleep(2)
    assert len({at for _, at in seats.seated}) == 1
    server.answers = False
    seats.start(nursery, "d", stay_seconds=1)
    await trio.sleep(0.07)
    assert len(times(server.knocks, "d")) == 2  # 50 ms apart again


async def test_the_jitter_stretches_each_backoff(autojump_clock, nursery):
    server = FakeServer(slots=1)
    server.answers = False
    seats = Seats(server)
    seats.line = Line(jitter=iter([0.5, 2.0, 1.0, 1.0]).__next__)
    seats.start(nursery, "a", stay_seconds=1)
    await trio.sleep(0.5)
    assert times(server.knocks, "a") == [0, 0.025, 0.225, 0.425]


async def test_a_slot_of_ours_ends_the_waiting_for_others(autojump_clock):
    server = FakeServer(slots=2)
    server.others = 1
    seats = Seats(server)
    async with trio.open_nursery() as nursery:
        await seats.visit_in_order(nursery, "a", "b", stay_seconds=4)
    assert seats.seated == [("a", 0), ("b", 4)]


async def test_a_server_that_has_grown_is_found_out_by_a_probe_after_30_s(autojump_clock, nursery):
    server = FakeServer(slots=1)
    seats = Seats(server)
    await seats.visit_in_order(nursery, *"abcd", stay_seconds=1000)
    await trio.sleep(10)
    server.slots = 3
    await trio.sleep(60)
    assert seats.seated == [("a", 0), ("b", 30), ("c", 30)]
    assert times(server.knocks, "d") == [30, 60]
    assert (seats.line.capacity, seats.line.held) == (3, 3)


async def test_a_failed_probe_does_not_open_the_server_to_endless_knocking(autojump_clock, nursery):
    server = FakeServer(slots=1)
    seats = Seats(server)
    await seats.visit_in_order(nursery, "a", "b", stay_seconds=1000)
    await trio.sleep(29)
    server.answers = False
    await trio.sleep(1.02)
    server.answers = True
    await trio.sleep(61)  # knocking without a pause, virtual time would stand still
    assert times(server.knocks, "b") == [0, 30, 30.05, 60.05, 90.05]


async def test_a_server_that_has_shrunk_gets_no_more_than_it_takes(autojump_clock, nursery):
    server = FakeServer(slots=2)
    seats = Seats(server)
    await seats.visit_in_order(nursery, "a", stay_seconds=10)
    await trio.sleep(1)
    await seats.visit_in_order(nursery, *"bcd", stay_seconds=10)
    server.slots = 1
    await trio.sleep(40)
    assert seats.seated == [("a", 0), ("b", 1), ("c", 11), ("d", 21)]
    assert times(server.knocks, "c") == [1, 10, 11]
    assert seats.line.capacity == 1


# -- economy ---------------------------------------------------------------------------------------------------------


class Wakeups(trio.abc.Instrument):
    def __init__(self) -> None:
        self.count = 0

    def task_scheduled(self, task: object) -> None:
        self.count += 1


async def wakeups_of(action: Callable[[], Awaitable[object]]) -> int:
    """How often any task is scheduled while ``action`` runs."""
    wakeups = Wakeups()
    trio.lowlevel.add_instrument(wakeups)
    try:
        await action()
    finally:
        trio.lowlevel.remove_instrument(wakeups)
    return wakeups.count


async def test_a_waiting_line_costs_nothing(autojump_clock, nursery):
    server = FakeServer(slots=1)
    seats = Seats(server)
    await seats.visit_in_order(nursery, *(f"{number}" for number in range(100)), stay_seconds=10_000)
    knocks = len(server.knocks)
    assert await wakeups_of(partial(trio.sleep, 29)) <= 2  # the sleeper and the test's own
    assert len(server.knocks) == knocks
    assert await wakeups_of(partial(trio.sleep, 300)) <= 100  # ten probes
    assert len(server.knocks) == knocks + 10


# -- any schedule ----------------------------------------------------------------------------------------------------


TENTHS = st.integers(0, 200).map(lambda tenth: tenth / 10)
EVER_PATIENT = 1e6
VISITORS = st.lists(st.tuples(TENTHS, TENTHS, st.one_of(st.just(EVER_PATIENT), TENTHS)), max_size=12)


class Watched(Seats):
    """Visitors of which it is known who joined the line when, and that nobody has more places than there are."""

    def __init__(self, server: FakeServer) -> None:
        super().__init__(server)
        self.joined: list[str] = []

    async def come(self, name: str, at: float, stay_seconds: float, patience_seconds: float) -> None:
        await trio.sleep(at)
        self.joined.append(name)
        await self.visit(name, stay_seconds=stay_seconds, patience_seconds=patience_seconds)

    async def watch(self) -> None:
        while True:
            await trio.sleep(0.25)
            assert self.line.capacity in (None, self.server.slots)
            assert self.line.capacity is None or self.line.held <= self.server.slots + 1  # one more may be a probe
            assert self.server.most_taken <= self.server.slots

    def seated_at_in_order_of_joining(self) -> list[float]:
        seated = dict(self.seated)
        return [seated[name] for name in self.joined if name in seated]


async def play(visitors: list[tuple[float, float, float]], server: FakeServer, capacity_is_known: bool) -> None:
    seats = Watched(server)
    if capacity_is_known:
        seats.line.refused(seats.line.join(), server.slots)
    async with trio.open_nursery() as watching:
        watching.start_soon(seats.watch)
        async with trio.open_nursery() as nursery:
            for number, visitor in enumerate(visitors):
                nursery.start_soon(seats.come, f"{number}", *visitor)
        watching.cancel_scope.cancel()
    seats.assert_empty()
    patient = {f"{number}" for number, visitor in enumerate(visitors) if visitor[2] == EVER_PATIENT}
    assert patient <= {name for name, _ in seats.seated}
    if capacity_is_known:  # else several knock at once, and the server chooses
        times_in_order = seats.seated_at_in_order_of_joining()
        assert times_in_order == sorted(times_in_order)


@settings(deadline=None, max_examples=40)
@given(VISITORS, st.integers(1, 3), st.sampled_from([0.0, 0.5, 3.0]), st.booleans())
def test_in_any_schedule_all_are_served_in_order_and_no_place_is_lost(visitors, slots, reset_seconds, known):
    server = FakeServer(slots, reset_seconds=reset_seconds)
    trio.run(play, visitors, server, known, clock=MockClock(autojump_threshold=0))
