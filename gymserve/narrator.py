"""What a session tells those who record it: how its episode begins, and each action with what came of it."""

import trio

from gymserve import wire
from gymserve.contents import Acted, Began, Failure
from gymserve.episode import AnswerTimedOut, EpisodeError, Refused
from gymserve.identity import short
from gymserve.opening import Opened
from gymserve.telemetry import Telemetry

_CUT_SHORT = Failure("cut_short", "the session ended before an answer came")


class Narrator:
    """Where nobody records, it says nothing and costs next to nothing."""

    __slots__ = ("_action", "_asked_at", "_label", "_session_id", "_telemetry", "_verifies")

    def __init__(self, telemetry: Telemetry, session_id: str, label: str | None) -> None:
        self._telemetry = telemetry
        self._session_id = session_id
        self._label = label
        self._action: wire.Step | None = None  # whose answer is awaited
        self._asked_at = 0.0
        self._verifies = False

    def begins(self, opened: Opened, waited_seconds: float, tries: int) -> None:
        if self._telemetry.is_recorded:
            self._telemetry.tell_content(
                Began(
                    short(self._session_id),
                    self._label,
                    str(opened.address),
                    waited_seconds,
                    opened.seconds_resetting,
                    tries,
                    opened.observation,
                )
            )

    def acts(self, action: wire.Step) -> None:
        if self._telemetry.is_recorded:
            self._action, self._asked_at = action, trio.current_time()

    def asks_for_the_score(self, action: wire.Step) -> None:
        self._verifies = True
        self.acts(action)

    def hears(self, observation: wire.Observation) -> None:
        self._tell(observation)

    def fails(self, error: EpisodeError) -> None:
        if self._action is not None:
            self._tell(_failure(error))

    def ends(self) -> None:
        """The session does, be an answer still awaited or not."""
        self._tell(_CUT_SHORT)

    def _tell(self, outcome: wire.Observation | Failure) -> None:
        action, self._action = self._action, None
        if action is not None:
            self._telemetry.tell_content(
                Acted(
                    short(self._session_id),
                    self._label,
                    "verify" if self._verifies else "step",
                    action,
                    outcome,
                    trio.current_time() - self._asked_at,
                )
            )


def _failure(error: EpisodeError) -> Failure:
    match error:
        case Refused(refusal=refusal):
            return Failure("refused", refusal.message, refusal.code, refusal.errors)
        case AnswerTimedOut():
            return Failure("timed_out", str(error))
        case _:
            return Failure("lost", str(error))
