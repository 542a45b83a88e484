"""A disk that is full, for one process."""

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def full_at(size_bytes: int) -> Iterator[Callable[[], None]]:
    """No file of ours can grow beyond that size; call it to end that."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, before[1]))
    try:
        yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, before)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
