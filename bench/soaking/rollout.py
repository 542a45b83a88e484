"""One rollout's client, which knows what it has done and so what it must be told."""

import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio

from soaking.http import Answer, Unanswered, Wire, dial, encoded
from soaking.ledger import Ledger, Wrong
from soaking.scripts import Turn, any_script

_LABELS = (None, "train", "eval", "sweep")

# What an environment server that fails can be the reason of. Anything else is a fault of gymserve's.
_SEED_ERRORS = {410: {"session_lost", "session_expired"}, 502: {"environment_error"}, 503: {"no_room"}}
_CALL_ERRORS = {410: {"session_lost", "session_expired"}, 502: {"environment_error"}}
_MASKS = {"session_lost", "session_expired"}


class Rollout:
    """Plays a day turn by turn, over one connection or a new one for each request.

    ``turns_taken`` were answered; ``turns_in_doubt`` were sent and their answer not waited for. ``failure`` is the
    refusal that ended it, if one did.
    """

    def __init__(self, url: str, ledger: Ledger, chance: random.Random) -> None:
        self.url = url
        self.ledger = ledger
        self.chance = chance
        self.script = any_script(chance)
        self.cookie: str | None = None
        self.turns_taken = 0
        self.turns_in_doubt = 0
        self.failure: str | None = None
        self.was_opened = False
        self.was_closed = False
        self._label = chance.choice(_LABELS)
        self._keeps_its_connection = chance.random() < 0.5
        self._kept: Wire | None = None

    def __str__(self) -> str:
        session = "none" if self.cookie is None else self.cookie.partition("=")[2][:12]  # as the log has it
        return f"session {session}, day {self.script.day}, {self.turns_taken}+{self.turns_in_doubt} turns"

    @property
    def is_played_out(self) -> bool:
        return self.turns_taken == len(self.script.turns)

    @property
    def next_turn(self) -> Turn:
        return self.script.turns[self.turns_taken]

    @property
    def row(self) -> dict[str, Any]:
        return {"responses_create_params": {"input": []}, "reset_kwargs": {"day": self.script.day}}

    @property
    def result_row(self) -> dict[str, Any]:
        return {**self.row, "response": {"output": []}}

    @property
    def headers(self) -> list[tuple[str, str]]:
        cookie = [] if self.cookie is None else [("Cookie", f"other=1; {self.cookie}")]
        label = [] if self._label is None else [("X-Gymserve-Label", self._label)]
        return [*cookie, *label]

    async def aclose(self) -> None:
        """Leave without a word."""
        if self._kept is not None:
            await self._kept.stream.aclose()

    # -- what a client in good faith does --------------------------------------------------------------------------

    async def seed(self) -> bool:
        """Whether there is a session now. :raises Wrong"""
        return self.was_seeded(await self.ask("seed_session", self.row))

    async def play(self, turns: int | None = None) -> bool:
        """Take so many turns, or all; False as soon as the rollout has failed. :raises Wrong"""
        until = len(self.script.turns) if turns is None else self.turns_taken + turns
        while self.turns_taken < until:
            if not self.took_turn(await self.ask(self.next_turn.tool, self.next_turn.arguments)):
                return False
        return True

    async def verify(self) -> Mapping[str, Any]:
        """The result, which says the truth. :raises Wrong"""
        answer = await self.ask("verify", self.result_row)
        self.check(answer)
        body: Mapping[str, Any] = answer.body
        return body

    async def ask(self, path: str, body: Mapping[str, Any]) -> Answer:
        """:raises Wrong: there is no answer."""
        async with self.asking(path) as wire:
            return self.heard(await wire.ask(path, encoded(body), self.headers))

    @asynccontextmanager
    async def asking(self, path: str) -> AsyncIterator[Wire]:
        """A connection for one request, of which the block hears the answer. :raises Wrong: there is none."""
        self.ledger.requests += 1
        wire, self._kept = self._kept, None
        try:
            wire = wire or await dial(self.url)
            yield wire
        except (Unanswered, OSError) as exc:
            self.ledger.unanswered += 1
            raise Wrong(f"{self}: {path} was not answered: {exc}") from exc
        else:
            if self._keeps_its_connection and self._kept is None and wire.may_be_used_again:
                self._kept, wire = wire, None
        finally:
            if wire is not None:
                await trio.aclose_forcefully(wire.stream)

    # -- what it must hear -----------------------------------------------------------------------------------------

    def heard(self, answer: Answer) -> Answer:
        if answer.status == 500:
            raise Wrong(f"{self}: 500 {answer.body}")
        if answer.cookie is not None:
            self.cookie = answer.cookie
        return answer

    def was_seeded(self, answer: Answer) -> bool:
        self.was_opened = answer.status == 200
        return self.was_opened or self._failed("seed", answer, _SEED_ERRORS)

    def took_turn(self, answer: Answer) -> bool:
        turn = self.next_turn
        if answer.status != 200:
            return self._failed(turn.tool, answer, _CALL_ERRORS)
        if answer.body != {"result": turn.result, "error": None}:
            raise Wrong(f"{self}: {turn.tool} answered {answer.body}, not {turn.result}")
        self.turns_taken += 1
        return True

    def _failed(self, what: str, answer: Answer, errors: Mapping[int, set[str]]) -> bool:
        allowed = errors.get(answer.status, set()) | ({"session_closed"} if self.was_closed else set())
        if answer.error not in allowed or (self.was_opened and not answer.body["done"]):
            raise Wrong(f"{self}: {what} answered {answer.status} {answer.body}")
        self.failure = answer.error
        return False

    def check(self, verified: Answer) -> None:
        """:raises Wrong: the result is not one that this rollout can have."""
        wrong = self._fault_of(verified)
        if wrong is not None:
            self.ledger.wrong_scores += 1
            raise Wrong(f"{self}, failure {self.failure}: {wrong}: {verified.status} {verified.body}")
        masked, over = "mask_sample" in verified.body, verified.body["done"]
        became = f"masked, {verified.body['failure_kind']}" if masked else "finished" if over else "verified early"
        self.ledger.outcomes[became] += 1

    def _fault_of(self, verified: Answer) -> str | None:
        if verified.status != 200:
            return "a verify was refused"
        if verified.body["reset_kwargs"] != self.row["reset_kwargs"]:
            return "another rollout's row"
        if verified.body.get("mask_sample"):
            return self._fault_of_the_mask(verified.body)
        return self._fault_of_the_score(verified.body)

    def _fault_of_the_mask(self, result: Mapping[str, Any]) -> str | None:
        if self.is_played_out:
            return "a finished rollout was masked"
        kinds = _MASKS | ({"cancelled"} if self.was_closed else set())
        if not self.was_opened:
            kinds = {"provider_unavailable"}
        if result["failure_kind"] not in kinds:
            return "a mask without its reason"
        return "a mask with a reward" if result["reward"] != 0.0 else None

    def _fault_of_the_score(self, result: Mapping[str, Any]) -> str | None:
        steps = result["steps"]
        is_over = steps == len(self.script.turns)
        if steps not in range(self.turns_taken, self.turns_taken + self.turns_in_doubt + 1):
            return "turns were lost or invented"
        if (result["done"], result["reward"]) != (is_over, self.script.reward if is_over else 0.0):
            return "a wrong score"
        if not is_over and (self.was_closed or self.failure is not None):
            return "a lost rollout was scored"
        return "a score with a failure" if "failure_kind" in result else None
