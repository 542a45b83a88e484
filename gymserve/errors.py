"""What a client is told when there is no result: a kind, a status, a sentence, and whether any further call can
succeed.

The sentence says whose fault it is, what was tried, for how long, and what to change. Where ``done`` is true it
only says that the episode is over: tool answers go straight into a model's context, and the reason belongs in the
log.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

EPISODE_IS_OVER = "The episode is over; no further call can succeed."
_SHOWN_CHARACTERS = 100  # of a name that somebody made up


class GymserveError(Exception):
    """A refusal that a client gets as JSON. ``str(error)`` is its sentence."""

    status: ClassVar[int]
    kind: ClassVar[str]
    done: bool = False
    retry_after_seconds: int | None = None

    @property
    def detail(self) -> Any:
        return str(self)

    def body(self) -> Mapping[str, Any]:
        """``{"error", "detail", "done"}``, the shape of every refusal."""
        return {"error": self.kind, "detail": self.detail, "done": self.done}


class NoSession(GymserveError):
    """The request names no session, or one that this gymserve does not know."""

    status = 404
    kind = "no_session"
    done = True


class UnknownTool(GymserveError):
    """The environment has no tool of that name; the sentence names those it has."""

    status = 404
    kind = "unknown_tool"

    def __init__(self, tool: str, names: Iterable[str]) -> None:
        self.names = sorted(names)
        super().__init__(f"there is no tool {tool[:_SHOWN_CHARACTERS]!r}; the tools are {', '.join(self.names)}")


class NoSuchServer(GymserveError):
    """This gymserve has no environment server of that address."""

    status = 404
    kind = "no_such_server"

    def __init__(self, address: str, addresses: Iterable[str]) -> None:
        super().__init__(f"there is no environment server {address}; there are {', '.join(addresses) or 'none'}")


class EpisodeOver(GymserveError):
    """The episode is done: it can be verified, no longer acted in."""

    status = 409
    kind = "episode_over"
    done = True

    def __init__(self) -> None:
        super().__init__(EPISODE_IS_OVER)


class SeedConflict(GymserveError):
    """The name that a client gave its session cannot be seeded so."""

    status = 409
    kind = "seed_conflict"


class LabelClosed(GymserveError):
    """The run of that label was closed; a seed is a straggler's."""

    status = 409
    kind = "label_closed"

    def __init__(self, label: str, seconds: float) -> None:
        super().__init__(
            f"the run {label[:_SHOWN_CHARACTERS]!r} was closed and takes no seeds for another {math.ceil(seconds)} s; "
            "another label is another run"
        )


class SessionGone(GymserveError):
    """The session has ended; a tombstone remembers why."""

    status = 410
    done = True

    def __init__(self) -> None:
        super().__init__(EPISODE_IS_OVER)


class SessionExpired(SessionGone):
    """The idle timeout or the lifetime ran out."""

    kind = "session_expired"


class SessionClosed(SessionGone):
    """The client closed or verified it, seeded again, or gymserve is stopping."""

    kind = "session_closed"


class SessionLost(SessionGone):
    """Its environment server dropped it, never opened it, or no longer answers."""

    kind = "session_lost"


class BadArguments(GymserveError):
    """The body cannot be used: not JSON, not an object, or refused by the environment's validator.

    ``errors`` is the validator's list, each with at least ``type``, ``loc`` and ``msg``.
    """

    status = 422
    kind = "bad_arguments"

    def __init__(self, errors: Sequence[Any]) -> None:
        super().__init__(
            "; ".join(str(error.get("msg", error)) if isinstance(error, dict) else str(error) for error in errors)
        )
        self.errors = list(errors)

    @property
    def detail(self) -> Any:
        return self.errors

    @classmethod
    def because(cls, kind: str, sentence: str, *loc: str | int) -> "BadArguments":
        return cls([{"type": kind, "loc": ["body", *loc], "msg": sentence}])


class EnvironmentFailed(GymserveError):
    """The environment or its server failed. ``done`` tells whether the episode is lost with it."""

    status = 502
    kind = "environment_error"

    def __init__(self, sentence: str, *, done: bool = False) -> None:
        super().__init__(sentence)
        self.done = done


class NoRoom(GymserveError):
    """No environment server had room within the patience."""

    status = 503
    kind = "no_room"
    retry_after_seconds = 10


class TooManySessions(GymserveError):
    """There are as many sessions as there may be."""

    status = 503
    kind = "too_many_sessions"
    retry_after_seconds = 10

    def __init__(self, most: int) -> None:
        super().__init__(
            f"gymserve has {most} sessions, as many as it may; verify or close sessions that are over, "
            "have fewer rollouts at once, or raise --max-sessions"
        )


class LineFull(GymserveError):
    """As many sessions wait for an episode as may."""

    status = 503
    kind = "line_full"
    retry_after_seconds = 10

    def __init__(self, most: int) -> None:
        super().__init__(
            f"{most} sessions wait for an environment already, as many as may; "
            "have fewer rollouts at once, give the environment server more slots, or raise --max-waiting"
        )


class TooManyConnections(GymserveError):
    """There are so many connections that what this one asks for cannot be waited for."""

    status = 503
    kind = "too_many_connections"
    retry_after_seconds = 10

    def __init__(self) -> None:
        super().__init__(
            "gymserve has as many connections as it may, or as there are file descriptors for; "
            "have fewer rollouts at once, or raise --max-connections or the limit on open files (ulimit -n)"
        )


class ShuttingDown(GymserveError):
    """This gymserve takes no new sessions."""

    status = 503
    kind = "shutting_down"
    retry_after_seconds = 5

    def __init__(self) -> None:
        super().__init__("gymserve is shutting down and takes no new sessions; try again in a moment")


class GymserveFailed(GymserveError):
    """A fault of ours; the log has it."""

    status = 500
    kind = "internal_error"

    def __init__(self) -> None:
        super().__init__("gymserve failed; its log says why")
