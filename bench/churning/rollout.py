"""One rollout's client: it plays its episode, or leaves without a word where its fate says so."""

import random
from collections.abc import Mapping
from typing import Any

import trio

from churning.commons import Commons
from churning.habits import Habits, Phase
from churning.links import Answer, Link, Unanswered
from churning.records import Churn, Outcome, RolloutRecord


class Left(Exception):
    """The client has left; the text is the phase."""


class Refused(Exception):
    """gymserve answered what ends the rollout."""

    def __init__(self, path: str, answer: Answer) -> None:
        super().__init__(f"/{path} answered {answer.status}: {answer.body}")
        self.kind = answer.body.get("error")


class Rollout:
    """:param commons: what it has in common with the other rollouts."""

    def __init__(
        self, churn: Churn, record: RolloutRecord, habits: Habits, commons: Commons, link: Link, chance: random.Random
    ) -> None:
        self._churn = churn
        self._record = record
        self._habits = habits
        self._commons = commons
        self._link = link
        self._chance = chance
        self._fate = habits.fate(chance)
        record.is_to_finish = self._fate is None
        self._thinks = habits.thinks(chance)
        self._answered_at: float | None = None

    async def run(self) -> None:
        record = self._record
        try:
            record.outcome = await self._play()
        except Left as left:
            record.outcome, record.phase = Outcome.ABANDONED, str(left)
        except Refused as exc:
            record.outcome = Outcome.RECLAIMED if exc.kind == "session_expired" else Outcome.LOST
            self._complain(exc)
        except (Unanswered, OSError) as exc:
            record.outcome = Outcome.LOST
            self._complain(exc)
        except trio.Cancelled:
            record.outcome = Outcome.CANCELLED
            raise
        finally:
            record.left_at = self._commons.now()
            self._commons.left(silently=record.went_silent)
            await self._link.hang_up()

    def _complain(self, exc: Exception) -> None:
        if self._record.outcome is Outcome.LOST:
            self._churn.complaints.append(f"rollout {self._record.number}: {exc}")

    async def _play(self) -> Outcome:
        await self._seed()
        last = self._chance.randrange(self._habits.calls)
        for number in range(self._habits.calls):
            if number == last and self._fate is Phase.THINKING:
                raise Left(Phase.THINKING)
            await self._think()
            await self._call(leaves=number == last and self._fate is Phase.CALL)
        if self._fate is Phase.VERIFY:
            raise Left(Phase.VERIFY)
        await self._think()
        return await self._verify()

    async def _seed(self) -> None:
        body = {"responses_create_params": {"input": []}, "reset_kwargs": {"rollout": self._record.number}}
        leaving = trio.CancelScope()
        if self._fate is Phase.LINE:
            leaving.deadline = trio.current_time() + self._chance.uniform(0, self._commons.usual_wait_seconds)
        is_to_be_opened = self._fate is Phase.OPENING
        with self._commons.in_line(self._record.number, leaving if is_to_be_opened else None), leaving:
            await self._ask("seed_session", body)
        if leaving.cancelled_caught:
            raise Left(self._fate)
        self._record.opened_at = self._commons.now()
        self._commons.waited(self._record.opened_at - self._record.seeded_at)
        if self._fate in (Phase.LINE, Phase.OPENING):  # it was served too soon
            raise Left(Phase.THINKING)

    async def _call(self, *, leaves: bool) -> None:
        with trio.CancelScope() as leaving:
            if leaves:
                leaving.deadline = trio.current_time() + self._chance.uniform(0, self._habits.step_seconds)
            await self._ask("step", {})
        if leaves:
            raise Left(Phase.CALL)

    async def _verify(self) -> Outcome:
        self._record.verified = True
        result = (
            await self._ask("verify", {"responses_create_params": {"input": []}, "response": {"output": []}})
        ).body
        if result.get("mask_sample"):
            return Outcome.RECLAIMED if result["failure_kind"] == "session_expired" else Outcome.MASKED
        if result["reward"] != self._habits.calls:
            self._churn.complaints.append(f"{self._habits.calls} steps are rewarded with {result['reward']}")
        return Outcome.FINISHED

    async def _think(self) -> None:
        await trio.sleep(next(self._thinks))
        await self._commons.not_paused()

    async def _ask(self, path: str, body: Mapping[str, Any]) -> Answer:
        self._churn.requests += 1
        if self._answered_at is not None:
            silence_seconds = self._commons.now() - self._answered_at
            self._record.longest_silence_seconds = max(self._record.longest_silence_seconds, silence_seconds)
        answer = await self._link.ask(path, body)
        self._answered_at = self._commons.now()
        if answer.status != 200:
            raise Refused(path, answer)
        return answer
