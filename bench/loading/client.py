"""One client of a load: it plays rollout after rollout over a connection of its own."""

import time
from collections.abc import Callable, Generator
from typing import Protocol

from loading.episode_peer import EpisodePeer
from loading.peer import Peer, Reply, Unanswered
from loading.plan import Plan
from loading.tally import Tally

#: It yields where it waits for an answer, or, where calls have a rate, for its turn: the moment a call counts from.
Playing = Generator[None, Reply | float, None]


class Failed(Exception):
    """An answer is not what it should be; the rest of its rollout is pointless."""


class Load(Protocol):
    """What a client is part of."""

    @property
    def tally(self) -> Tally: ...

    def may_begin(self) -> bool:
        """Whether another rollout is to be begun, which then counts as begun."""

    def await_answer(self, client: "Client", *, is_new: bool) -> None:
        """Have `Client.readable` called when there is something to read, on a new connection or the same as before."""

    def await_turn(self, client: "Client") -> None:
        """Have `Client.go_on` called when its next call is due."""


class Client:
    """Plays what it is told to when it is told to."""

    def __init__(self, plan: Plan, load: Load) -> None:
        self._plan = plan
        self._load = load
        self.peer = EpisodePeer(plan.url) if plan.url.startswith("ws:") else Peer(plan.url, closes=plan.closes)
        self._cookies: dict[bytes, bytes] = {}
        self._playing = self._play()
        self._is_asking = False

    def begin(self) -> bool:
        """Play on from the last rollout; False where there is none to be played, here as below."""
        self._playing = self._play()
        return self._step(lambda: next(self._playing))

    def go_on(self, with_what: Reply | float) -> bool:
        """The answer has come, or it is the turn of a call, whose time counts from then."""
        return self._step(lambda: self._playing.send(with_what))

    def readable(self) -> bool:
        """There is something to read, or the connection has ended."""
        if not self._is_asking:
            self.peer.close()  # nothing is due: it ended between two requests
            return True
        try:
            reply = self.peer.receive()
        except Unanswered as exc:
            unanswered = exc
            return self._step(lambda: self._playing.throw(unanswered))
        return reply is None or self.go_on(reply)

    @staticmethod
    def _step(step: Callable[[], None]) -> bool:
        try:
            step()
        except StopIteration:
            return False
        return True

    def _play(self) -> Playing:
        while self._load.may_begin():
            self._cookies.clear()
            try:
                yield from self._rollout()
                self._load.tally.rollouts += 1
            except (Unanswered, Failed) as exc:
                self.peer.close()
                self._load.tally.errors[str(exc)] += 1

    def _rollout(self) -> Playing:
        plan = self._plan
        yield from self._ask("seed", "seed_session", plan.seed, time.perf_counter())
        for _ in range(plan.calls):
            since: Reply | float = time.perf_counter()
            if plan.rate is not None:
                self._load.await_turn(self)
                since = yield
            assert isinstance(since, float)
            yield from self._ask("call", plan.tool, plan.body, since)
        yield from self._ask("verify", "verify", plan.verify, time.perf_counter())

    def _ask(self, kind: str, path: str, body: bytes, since: float) -> Playing:
        self._is_asking = True
        try:
            is_new = self.peer.ask(path, body, self._cookies)
            self._load.await_answer(self, is_new=is_new)
            reply = yield
        finally:
            self._is_asking = False
        assert isinstance(reply, Reply)
        if reply.status != 200:
            raise Failed(f"{reply.status} to a {kind}: {reply.body[:200].decode('utf-8', 'replace')}")
        self._load.tally.note(kind, time.perf_counter() - since)
        self._cookies.update(reply.cookies)
