"""All clients of a load, in one thread: whose answer is there, or whose turn it is, goes on."""

import math
import select
import time
from collections import deque

from loading.client import Client
from loading.plan import Plan
from loading.tally import Tally

_GIVE_UP_SECONDS = 120.0


class Stuck(Exception):
    """Nothing was answered for two minutes."""


class Player:
    """Plays a plan, once."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self.tally = Tally()
        self._epoll = select.epoll()
        self._clients = [Client(plan, self) for _ in range(plan.at_once)]
        self._asking: dict[int, Client] = {}
        self._in_turn: deque[Client] = deque()
        self._playing = 0
        self._left: float = 0
        self._stops_at = math.inf

    def warm_up(self) -> None:
        """Play what does not count. :raises Stuck"""
        self._left = self._plan.warm_up
        self._play()
        self.tally = Tally()

    def play(self) -> Tally:
        """:raises Stuck"""
        started = time.perf_counter()
        self._left = math.inf if self._plan.rollouts is None else self._plan.rollouts
        self._stops_at = started + (math.inf if self._plan.seconds is None else self._plan.seconds)
        self._play()
        self.tally.seconds = time.perf_counter() - started
        for client in self._clients:
            client.peer.close()
        self._epoll.close()
        return self.tally

    # -- for the clients -------------------------------------------------------------------------------------------

    def may_begin(self) -> bool:
        if self._left <= 0 or time.perf_counter() >= self._stops_at:
            return False
        self._left -= 1
        return True

    def await_answer(self, client: Client, *, is_new: bool) -> None:
        descriptor = client.peer.fileno()
        if is_new:
            self._epoll.register(descriptor, select.EPOLLIN)
        self._asking[descriptor] = client

    def await_turn(self, client: Client) -> None:
        self._in_turn.append(client)

    # --------------------------------------------------------------------------------------------------------------

    def _play(self) -> None:
        self._playing = sum(client.begin() for client in self._clients)
        due, is_late = math.inf, False
        while self._playing:
            if self._plan.rate is not None:
                if due == math.inf and len(self._in_turn) == self._playing:
                    due = time.perf_counter()  # all have their sessions: the crowd of seeds is over
                due, is_late = self._give_turns(self._plan.rate, due, is_late)
            for descriptor, _ in self._ready(due):
                self._playing -= not self._asking[descriptor].readable()

    def _give_turns(self, rate: float, due: float, is_late: bool) -> tuple[float, bool]:
        """Begin the calls that are due; when the next one is, and whether it waits for a client already.

        The time of a call that had to wait for a client counts from when it was due; else from when it was sent, as
        our own waking up late is not the server's fault.
        """
        while due <= (now := time.perf_counter()):
            if not self._in_turn:
                return due, True
            self._playing -= not self._in_turn.popleft().go_on(due if is_late else now)
            due, is_late = due + 1 / rate, False
        return due, False

    def _ready(self, due: float) -> list[tuple[int, int]]:
        seconds = _GIVE_UP_SECONDS
        if self._in_turn:
            seconds = min(seconds, max(0.0, due - time.perf_counter()))
        if select.select([self._epoll], [], [], seconds)[0]:  # epoll itself knows no less than a millisecond
            return self._epoll.poll(0)
        if seconds == _GIVE_UP_SECONDS:
            raise Stuck(f"nothing was answered for {_GIVE_UP_SECONDS:g} s; errors before: {dict(self.tally.errors)}")
        return []
