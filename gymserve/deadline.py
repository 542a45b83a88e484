"""When a session that hears nothing is over."""

import math

import trio

from gymserve.alarms import Alarms


class Deadline:
    """A session's deadline: infinite while calls are in flight, else the last end plus the idle timeout; never beyond
    the lifetime.

    It moves an alarm; nobody walks round looking for stale sessions. Between `hold` and the next `guard` nothing
    expires (the goodbye after ``done``).
    """

    def __init__(self, alarms: Alarms, *, idle_seconds: float, latest_seconds: float, lifetime_seconds: float) -> None:
        """:param idle_seconds: after these a session is overdue.
        :param latest_seconds: after these it is over, if nobody has ended it before; the same where it is over as soon
        as it is overdue.
        :param lifetime_seconds: from now on, requests or not; infinite for none.
        """
        self._idle_seconds = idle_seconds
        self._latest_seconds = latest_seconds
        self._outlived_at = trio.current_time() + lifetime_seconds
        self._last = trio.current_time()
        self._in_flight = 0
        self._scope: trio.CancelScope | None = None
        self._alarm = alarms.alarm(self._ring)

    @property
    def in_flight(self) -> int:
        """Calls accepted and not yet answered by the environment."""
        return self._in_flight

    @property
    def at(self) -> float:
        """The moment, in Trio's time."""
        return min(self._outlived_at, math.inf if self._in_flight else self._last + self._latest_seconds)

    @property
    def overdue_at(self) -> float:
        """The moment from which the session may be ended for another's sake; while calls are in flight, the earliest
        that it may be.
        """
        return (trio.current_time() if self._in_flight else self._last) + self._idle_seconds

    @property
    def silent_seconds(self) -> float:
        """Since the last request or answer."""
        return trio.current_time() - self._last

    @property
    def passed(self) -> bool:
        return self._scope is not None and trio.current_time() >= self.at

    @property
    def outlived(self) -> bool:
        return trio.current_time() >= self._outlived_at

    def guard(self) -> trio.CancelScope:
        """A scope to enter; it is cancelled when the deadline has passed."""
        self._scope = trio.CancelScope()
        self._apply()
        return self._scope

    def cut(self) -> None:
        """Cancel the scope now; where many are, in its turn."""
        if self._scope is not None:
            self._alarm.hasten()

    def hold(self) -> None:
        self._scope = None
        self._alarm.set(math.inf)

    def stop(self) -> None:
        """The session is over: nothing expires any more."""
        self._scope = None
        self._alarm.stop()

    def touch(self) -> None:
        """A request named the session."""
        self._last = trio.current_time()
        self._apply()

    def begin(self) -> None:
        """A call was accepted."""
        self._in_flight += 1
        self._apply()

    def end(self) -> None:
        """A call was answered by the environment, or will never be sent."""
        self._in_flight -= 1
        self.touch()

    def _apply(self) -> None:
        if self._scope is not None:
            self._alarm.set(self.at)

    def _ring(self) -> None:
        if self._scope is not None:
            self._scope.cancel()
