"""The file descriptors of this process, of which every connection takes one: how many there may be, and whose they are.

Clients have half of them, or fewer if they are told so, and episodes the rest but an eighth, so that neither keeps
the others waiting for ever: a client that seeds needs an episode, and an episode needs clients that call it. The
eighth is for those who come while there are too many clients, and are served all the same, and for names that are
looked up.
"""

import errno
import os
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress

_MOST = 2**20  # more than one process makes use of; some systems say "unlimited" and refuse more
_MOST_ON_MACOS = 10_240  # OPEN_MAX
_LAST = 32
_ONE_THAT_IS_OPEN = 0  # unless whoever started us closed standard input

OUT_OF_DESCRIPTORS = frozenset({errno.EMFILE, errno.ENFILE})


class OutOfDescriptors(OSError):
    """There is no descriptor for another connection: nobody's fault but ours, and over when others end."""

    def __init__(self, limit: int) -> None:
        super().__init__(errno.EMFILE, f"gymserve is out of file descriptors (its limit is {limit})")

    def __str__(self) -> str:
        return str(self.strerror)


class Descriptors:
    """The shares of ``limit`` descriptors: ``clients`` and ``episodes``; from the number ``last_begin`` on they are the
    last.
    """

    def __init__(self, limit: int | None = None, *, max_clients: int | None = None) -> None:
        """:param limit: None: this process's.
        :param max_clients: what they leave of their half is for episodes.
        """
        self.limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if limit is None else limit
        self.clients = min(self.limit // 2, max_clients or self.limit)
        self.episodes = self.limit * 7 // 8 - self.clients
        self.last_begin = self.limit - min(_LAST, self.limit // 16)

    @property
    def are_out(self) -> bool:
        """Whether nothing should be opened any more: only the last few are left.

        The kernel gives out the lowest number that is free, so that the next one tells how many are taken at least.
        """
        try:
            number = os.dup(_ONE_THAT_IS_OPEN)  # a third of what a socket costs
        except OSError as exc:
            return exc.errno != errno.EBADF or self._socket_finds_none()
        os.close(number)
        return number >= self.last_begin

    def _socket_finds_none(self) -> bool:
        try:
            with socket.socket() as probe:
                return probe.fileno() >= self.last_begin
        except OSError:
            return True

    def check(self) -> None:
        """:raises OutOfDescriptors: see `are_out`."""
        if self.are_out:
            raise OutOfDescriptors(self.limit)

    @contextmanager
    def opening(self) -> Iterator[None]:
        """:raises OutOfDescriptors: what is opened in the block found none."""
        try:
            yield
        except OSError as exc:
            if exc.errno in OUT_OF_DESCRIPTORS:
                raise OutOfDescriptors(self.limit) from exc
            raise

    def check_opened(self, number: int) -> None:
        """As `check`, by a descriptor that was just opened, and is to be closed then."""
        if number >= self.last_begin:
            raise OutOfDescriptors(self.limit)


def raise_limit() -> int:
    """The number of descriptors that this process may have from now on: as many as the system grants without asking
    an administrator.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    granted = _MOST if hard == resource.RLIM_INFINITY else hard
    for wanted in (min(granted, _MOST), _MOST_ON_MACOS):
        if soft != resource.RLIM_INFINITY and soft < wanted <= granted:
            with suppress(OSError, ValueError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
                return wanted
    return soft
