"""What is written of an episode: an object of JSON a line, in ASCII, so that whatever splits lines splits these alike.

What clients and environments said stands there as Python reads it, with null for numbers that JSON cannot say; an
action to the letter, but for line breaks between its tokens and for what is not ASCII, which is escaped.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from gymserve import wire
from gymserve.contents import Acted, Began, Failure, Seeded
from gymserve.excerpt import Excerpt
from gymserve.strict_json import written
from gymserve.telemetry import Ended

_REASON_CHARACTERS = 2000  # of a sentence, in which a peer may have had its say
_LARGE_CHARACTERS = 2**16  # of a message: what is in a larger one is not written out only to be left out

_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")
_LINE_BREAKS = str.maketrans("\r\n", "  ")


def seed_line(session: str, instance: str, label: str | None, at_epoch_seconds: float, seeded: Seeded | None) -> str:
    """The first of every file. ``seeded`` is None where what the client sent was lost."""
    told: dict[str, Any] = {
        "event": "seed",
        "session": session,
        "instance": instance,
        "label": label,
        "at_epoch_seconds": round(at_epoch_seconds, 3),
    }
    if seeded is not None:
        told |= {"reset_kwargs": seeded.reset_kwargs, "row": seeded.row}
    return written(told)


def reset_line(at_seconds: float, began: Began, *, most_bytes: int) -> str:
    told = {
        "event": "reset",
        "at_seconds": round(at_seconds, 6),
        "env": began.env,
        "waited_seconds": round(began.waited_seconds, 6),
        "reset_seconds": round(began.reset_seconds, 6),
        "tries": began.tries,
    }
    return _line(told | _outcome(began.observation), **_observed(began.observation, most_bytes))


def step_line(at_seconds: float, acted: Acted, step: int | None, *, most_bytes: int) -> str:
    """:param step: which step of the episode it is; None where it is none, or was not answered."""
    told: dict[str, Any] = {"event": acted.purpose, "at_seconds": round(at_seconds, 6)}
    if step is not None:
        told["step"] = step
    told["step_seconds"] = round(acted.step_seconds, 6)
    action = _one_line(acted.action.action_json)
    if isinstance(acted.outcome, Failure):
        return _line(told, action=action, error=_failure(acted.outcome, most_bytes))
    return _line(told | _outcome(acted.outcome), action=action, **_observed(acted.outcome, most_bytes))


def end_line(at_seconds: float, ended: Ended, *, dropped_lines: int) -> str:
    """The last of every file."""
    return written(
        {
            "event": "end",
            "at_seconds": round(at_seconds, 6),
            "ending": ended.ending,
            "reason": ended.reason[:_REASON_CHARACTERS],
            "scored": ended.scored,
            "reward": ended.reward,
            "steps": ended.steps,
            "dropped_lines": dropped_lines,
        }
    )


def _line(told: Mapping[str, Any], **texts: str) -> str:
    """``told``, and behind it what is JSON already."""
    members = [written(told)[1:-1], *(f'"{name}":{text}' for name, text in texts.items())]
    return f"{{{','.join(members)}}}"


def _outcome(observation: wire.Observation) -> dict[str, Any]:
    return {"reward": observation.reward, "done": observation.done}


def _observed(observation: wire.Observation, most_bytes: int) -> dict[str, str]:
    """The observation's JSON; of one that is longer than ``most_bytes`` how long, and how it begins. A much longer one
    is as long as its message.
    """
    if observation.characters > max(2 * most_bytes, _LARGE_CHARACTERS):
        excerpt = Excerpt(most_bytes)
        text = written(excerpt.of(observation.fields))
        size = observation.characters if excerpt.is_cut else len(text)
    else:
        text = written(observation.fields)
        size = len(text)
    if size <= most_bytes:
        return {"observation": text}
    beginning = f'{{"bytes":{size},"begins":"{_escaped(text, most_bytes)}"}}'
    return {"observation": "null", "truncated": beginning}


def _escaped(text: str, most_bytes: int) -> str:
    """The beginning of an ASCII text as it stands between the quotes of a JSON string, of at most so many bytes."""
    escaped = json.dumps(text[:most_bytes])[1:-1][:most_bytes]
    torn = (len(escaped) - len(escaped.rstrip("\\"))) % 2
    return escaped[: len(escaped) - torn]


def _failure(failure: Failure, most_bytes: int) -> str:
    told = {"kind": failure.kind, "code": failure.code, "message": failure.message[:_REASON_CHARACTERS]}
    errors = "null" if failure.errors is None else written(failure.errors)
    return _line(told, errors=errors if len(errors) <= most_bytes else "null")


def _one_line(text: str) -> str:
    """JSON text without what ends a line, to one reader or another. Inside of strings JSON has no raw control
    characters (RFC 8259 section 7).
    """
    text = text.translate(_LINE_BREAKS) if "\n" in text or "\r" in text else text
    return text if text.isascii() else _NOT_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], text)
