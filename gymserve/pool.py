"""The environment servers behind one line: added, drained and gone while the sessions go on."""

import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog
import trio

from gymserve.address import EnvironmentAddress
from gymserve.alarms import Alarms
from gymserve.door import Door, DoorTerms, Lesson
from gymserve.errors import NoSuchServer
from gymserve.line import Line
from gymserve.network import Network
from gymserve.shares import Shares
from gymserve.ticket import Ticket
from gymserve.toolbox import Toolbox

_log = structlog.get_logger()


@asynccontextmanager
async def open_pool(
    network: Network, terms: DoorTerms, shares: Shares | None = None, *, max_held: float = math.inf
) -> AsyncIterator["Pool"]:
    """A pool, at first without servers, whose connections live in a nursery of its own; leaving drops those that are
    left.

    It is opened around the sessions: a handshake outlasts the session that began it, and serves the next.
    """
    async with trio.open_nursery() as nursery:
        pool = Pool(nursery, network, terms, Line(shares, max_held=max_held))
        nursery.start_soon(pool.line.watch)
        nursery.start_soon(pool.alarms.run)
        yield pool
        nursery.cancel_scope.cancel()


class Pool:
    """The doors of one line, in the order in which they were added."""

    def __init__(self, nursery: trio.Nursery, network: Network, terms: DoorTerms, line: Line) -> None:
        self.line = line
        self.alarms = Alarms()  # of its connections; sessions have their own, which end before
        self._nursery = nursery
        self._network = network
        self._terms = terms
        self._doors: dict[EnvironmentAddress, Door] = {}

    @property
    def doors(self) -> tuple[Door, ...]:
        return tuple(self._doors.values())

    @property
    def serving(self) -> tuple[Door, ...]:
        """Those that take new sessions."""
        return tuple(door for door in self._doors.values() if not door.gate.is_leaving)

    @property
    def trouble(self) -> Exception | None:
        """The last failure that is held against a server that takes sessions; None where one is well."""
        troubled = [door for door in self.serving if door.trouble is not None]
        if not troubled or len(troubled) < len(self.serving):
            return None
        return max(troubled, key=lambda door: door.trouble_at).trouble

    @property
    def toolbox(self) -> Toolbox | None:
        """What one of the servers has; they are taken to have the same."""
        return next((door.toolbox for door in self.serving if door.toolbox is not None), None)

    @property
    def lesson(self) -> Lesson | None:
        """What that server has told of its environment."""
        return next((door.lesson for door in self.serving if door.lesson is not None), None)

    @property
    def has_room(self) -> bool:
        """Whether who came now would not wait for anybody, at a server that is well."""
        return (
            self.line.waiting == 0
            and not self.line.is_spent
            and any(door.gate.has_room and door.is_well for door in self.serving)
        )

    def door(self, ticket: Ticket) -> Door:
        """The one that the ticket came through, or was sent away from, last."""
        return next(door for door in self._doors.values() if door.gate is ticket.gate)

    def add(self, address: EnvironmentAddress, *, slots: int | None = None) -> Door:
        """A server for new sessions from now on; one that was leaving stays.

        :param slots: the most that may be held there, whatever it has; None for as many as it has.
        """
        door = self._doors.get(address)
        if door is None:
            door = Door(self._nursery, self._network, address, self.line, self._terms, alarms=self.alarms, slots=slots)
            door.gate.on_gone = lambda: self._remove(address)
            self._doors[address] = door
            self.line.add(door.gate)
        else:
            door.gate.stay(slots=slots)
        return door

    def drain(self, address: EnvironmentAddress) -> int:
        """No new sessions for that server; it is gone when its last one ends. How much of it is held.

        :raises NoSuchServer: there is none.
        """
        door = self._doors.get(address)
        if door is None:
            raise NoSuchServer(str(address), map(str, self._doors))
        _log.info("environment server drains", env=str(address), held=door.gate.held)
        door.gate.leave()
        return door.gate.held

    def _remove(self, address: EnvironmentAddress) -> None:
        del self._doors[address]
        _log.info("environment server left", env=str(address))
