"""What happened to each session: a short record, for whoever asks after one."""

from array import array
from collections.abc import Iterator, Mapping
from typing import Any

from gymserve.events import Event, Events
from gymserve.memory import Memory
from gymserve.telemetry import Called, Ended, LinesLost, SessionOpened, Stepped, Stopping, Waiting

_BEGINNINGS = (Waiting, SessionOpened, Ended)  # a session whose seed was refused does nothing but end
_MOST_ENDED = 4096
_MOST_STEPS = 32
_MOST_OTHERS = 32
_FIRST_OTHERS = 8  # of them, which are kept whatever follows

_STEP = ("number", "at_epoch_seconds", "think_seconds", "step_seconds", "steps", "reward", "done")


class Timeline:
    """One session's. Of the steps the last are kept, and of what else there was the first and the last."""

    __slots__ = ("_others", "_steps", "_thinking", "left_out")

    def __init__(self) -> None:
        self._others: list[Event] = []
        self._steps: array[float] | None = None  # rows of numbers: there may be ten thousand sessions
        self._thinking = 0.0
        self.left_out = 0

    def note(self, event: Event) -> None:
        match event.fact:
            case Called(think_seconds=seconds):
                self._thinking = seconds
            case Stepped() as fact:
                self._note_step(event, fact)
            case _:
                self._note_other(event)

    def entries(self) -> list[Mapping[str, Any]]:
        """In order, as JSON can say them."""
        entries = [*((event.number, _other(event)) for event in self._others), *self._step_entries()]
        return [entry for _, entry in sorted(entries, key=lambda entry: entry[0])]

    def _note_step(self, event: Event, fact: Stepped) -> None:
        if self._steps is None:
            self._steps = array("d")
        if len(self._steps) >= _MOST_STEPS * len(_STEP):
            del self._steps[: len(_STEP)]
            self.left_out += 1
        self._steps.extend(
            (
                event.number,
                event.at_epoch_seconds,
                self._thinking,
                fact.step_seconds,
                fact.steps,
                fact.reward,
                fact.done,
            )
        )
        self._thinking = 0.0

    def _note_other(self, event: Event) -> None:
        if len(self._others) >= _MOST_OTHERS:
            del self._others[_FIRST_OTHERS]
            self.left_out += 1
        self._others.append(event)

    def _step_entries(self) -> Iterator[tuple[int, Mapping[str, Any]]]:
        steps = self._steps or array("d")
        for start in range(0, len(steps), len(_STEP)):
            row = dict(zip(_STEP, steps[start : start + len(_STEP)], strict=True))
            number = int(row.pop("number"))
            entry = {name: round(value, 6) for name, value in row.items()}
            yield number, {"event": "stepped", **entry, "steps": int(row["steps"]), "done": bool(row["done"])}


def _other(event: Event) -> Mapping[str, Any]:
    data = event.data()
    del data["session"], data["label"]
    return {"event": event.name, **data}


class Timelines:
    """Those of all sessions, and, for a while, of the last that ended."""

    def __init__(self, events: Events, *, kept_seconds: float) -> None:
        self._living: dict[str, Timeline] = {}
        self._ended: Memory[Timeline] = Memory(kept_seconds=kept_seconds, most=_MOST_ENDED)
        events.listen(self._note)

    def get(self, session: str) -> Timeline | None:
        """By the short id."""
        return self._living.get(session) or self._ended.get(session)

    def _note(self, event: Event) -> None:
        fact = event.fact
        if isinstance(fact, Stopping | LinesLost) or fact.session is None:
            return
        timeline = self._living.get(fact.session)
        if timeline is None:
            timeline = self._ended.get(fact.session)
        if timeline is None and isinstance(fact, _BEGINNINGS):
            timeline = self._living[fact.session] = Timeline()
        if timeline is None:
            return
        timeline.note(event)
        if isinstance(fact, Ended):
            self._ended.put(fact.session, self._living.pop(fact.session, timeline))
