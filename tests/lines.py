"""Lines before fake environment servers, in virtual time: who gets a slot where and when, and who knocks for it."""

from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial

import trio
from trio.testing import wait_all_tasks_blocked

from gymserve.gate import Gate
from gymserve.line import Line
from gymserve.shares import Shares, parse_share
from gymserve.ticket import Stage, Ticket

EVER_PATIENT = float("inf")


class Full(Exception):
    """The server's refusal; it says how many slots it has."""


class Connection:
    """What an answered handshake gives: whether there is a slot with it, the first answer says."""

    def __init__(self, *, has_slot: bool) -> None:
        self.has_slot = has_slot


class FakeServer:
    """As many slots as it is told to have; each opening takes ``reset_seconds``. ``others`` hold slots without our
    line. It drops handshakes unless it ``answers``, has its port closed if it ``refuses``, and after `freeze` keeps
    them until `thaw`.
    """

    def __init__(self, slots: int, *, reset_seconds: float = 0.0, tells_capacity: bool = True) -> None:
        self.slots = slots
        self.others = 0
        self.taken = 0
        self.most_taken = 0
        self.answers = True
        self.refuses = False
        self.handshake_seconds = 0.0
        self.knocks: list[float] = []
        self.refusals = 0
        self.reset_seconds = reset_seconds
        self._tells_capacity = tells_capacity
        self._running = trio.Event()
        self._running.set()

    @property
    def capacity(self) -> int | None:
        return self.slots if self._tells_capacity else None

    def freeze(self) -> None:
        self._running = trio.Event()

    def thaw(self) -> None:
        self._running.set()

    async def shake_hands(self) -> Connection:
        """:raises ConnectionResetError: it does not answer. :raises ConnectionRefusedError: its port is closed."""
        self.knocks.append(round(trio.current_time(), 6))
        await self._running.wait()
        await trio.sleep(self.handshake_seconds)
        if self.refuses:
            raise ConnectionRefusedError
        if not self.answers:
            raise ConnectionResetError
        has_slot = self.taken + self.others < self.slots
        self.taken += has_slot
        self.refusals += not has_slot
        self.most_taken = max(self.most_taken, self.taken + self.others)
        return Connection(has_slot=has_slot)

    async def reset(self, connection: Connection) -> None:
        """:raises Full: it has no slot."""
        if not connection.has_slot:
            raise Full
        try:
            await trio.sleep(self.reset_seconds)
        except BaseException:
            self.end(connection)
            raise

    def end(self, connection: Connection) -> None:
        self.taken -= connection.has_slot


class Pool:
    """A line before several servers, by name, and its visitors: ``(name, server, time)`` for each seat. What a server
    says of its room, it says in answer to the knock.
    """

    def __init__(self, nursery: trio.Nursery, *shares: str, max_handshakes: int = 16) -> None:
        self.servers: dict[str, FakeServer] = {}
        self.gates: dict[str, Gate] = {}
        self.gone: list[tuple[str, float]] = []
        self.seated: list[tuple[str, str, float]] = []
        self.most_seated: Counter[str] = Counter()  # of the labels of a share together, by its pattern
        self.turned_away: list[tuple[str, float]] = []
        self.dismissed: list[tuple[str, float]] = []
        self.told: list[tuple[str, float]] = []
        self.goodbye_seconds = 0.0
        self._shares = Shares(map(parse_share, shares))
        self.line = Line(self._shares)
        self._sitting: Counter[str] = Counter()
        self._max_handshakes = max_handshakes
        self._nursery = nursery
        nursery.start_soon(self.line.watch)

    def add(self, name: str, server: FakeServer, *, slots: int | None = None) -> Gate:
        gate = Gate(
            self.line,
            knock=partial(self._nursery.start_soon, self._shake_hands, name),
            dismiss=partial(self._nursery.start_soon, self._dismiss, name),
            jitter=lambda: 1.0,
            max_handshakes=self._max_handshakes,
            slots=slots,
            name=name,
        )
        gate.on_gone = lambda: self.gone.append((name, trio.current_time()))
        self.servers[name], self.gates[name] = server, gate
        self.line.add(gate)
        return gate

    async def _shake_hands(self, name: str) -> None:
        gate, server = self.gates[name], self.servers[name]
        try:
            connection = await server.shake_hands()
        except ConnectionResetError as exc:
            gate.knocked_in_vain(exc)
        except ConnectionRefusedError as exc:
            gate.knock_hopeless(exc)
        else:
            if connection.has_slot:
                gate.let_in(connection)
            else:
                gate.knock_refused(Full(), server.capacity)

    async def _dismiss(self, name: str, connection: Connection, ticket: Ticket) -> None:
        self.dismissed.append((name, trio.current_time()))
        await trio.sleep(self.goodbye_seconds)
        self.servers[name].end(connection)
        self.line.leave(ticket)

    async def visit(
        self,
        name: str,
        *,
        stay_seconds: float = 1000.0,
        patience_seconds: float = EVER_PATIENT,
        label: str | None = None,
        patient: bool = True,
    ) -> None:
        """Wait for a seat no longer than the patience, have it, leave."""
        ticket = self.line.join(label, on_wait=lambda: self.told.append((name, trio.current_time())), patient=patient)
        try:
            with trio.move_on_after(patience_seconds) as patience:
                connection = await self._open(ticket)
                patience.deadline = float("inf")
                server = self._server(ticket)
                self.seated.append((name, server, round(trio.current_time(), 6)))
                try:
                    await trio.sleep(stay_seconds)
                finally:
                    self.servers[server].end(connection)
        except Exception:
            self.turned_away.append((name, round(trio.current_time(), 6)))
        finally:
            self._sit(ticket, -(ticket.stage in (Stage.ANSWER, Stage.OPEN)))
            self.line.leave(ticket)

    def _sit(self, ticket: Ticket, more: int) -> None:
        pattern = self._shares.of(ticket.label).pattern
        self._sitting[pattern] += more
        self.most_seated[pattern] = max(self.most_seated[pattern], self._sitting[pattern])

    async def _open(self, ticket: Ticket) -> Connection:
        self.line.enqueue(ticket)
        connection = await self.line.connection(ticket)
        assert ticket.stage is Stage.ANSWER
        self._sit(ticket, 1)
        await self.servers[self._server(ticket)].reset(connection)
        self.line.opened(ticket)
        return connection

    def _server(self, ticket: Ticket) -> str:
        assert ticket.gate is not None
        return ticket.gate.name

    async def come(self, *names: str, **how: float | str | bool | None) -> None:
        """Visitors, one after the other, all in this moment."""
        for name in names:
            self._nursery.start_soon(lambda name=name: self.visit(name, **how))
            await wait_all_tasks_blocked()

    def held(self) -> dict[str, int]:
        return {name: gate.held for name, gate in self.gates.items()}

    def assert_empty(self) -> None:
        assert (self.line.held, self.line.waiting) == (0, 0)
        assert [server.taken for server in self.servers.values()] == [0] * len(self.servers)


@asynccontextmanager
async def pool_of(
    *servers: FakeServer, shares: Sequence[str] = (), slots: Mapping[str, int] | None = None, max_handshakes: int = 16
) -> AsyncIterator[Pool]:
    """A pool of servers called a, b, c."""
    async with trio.open_nursery() as nursery:
        pool = Pool(nursery, *shares, max_handshakes=max_handshakes)
        for name, server in zip("abc", servers, strict=False):
            pool.add(name, server, slots=(slots or {}).get(name))
        yield pool
        nursery.cancel_scope.cancel()


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
