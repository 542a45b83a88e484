"""Whose trace a request belongs to: the header ``traceparent`` of W3C Trace Context, by which a log line is found."""

import re
from collections.abc import Iterable

_NAME = b"traceparent"
_VALUE = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_VERSION = "00"
_NO_VERSION = "ff"
_NO_TRACE, _NO_PARENT = "0" * 32, "0" * 16
_SAMPLED = 0x01


def traceparent_in(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The request's, in version 00's form; None where it has none, a malformed one or several, which all count as none
    (https://www.w3.org/TR/trace-context/#traceparent-header).

    :param headers: their names in lower case, their values without white space around.
    """
    values = [value for name, value in headers if name == _NAME]
    return _read(values[0].decode("latin-1")) if len(values) == 1 else None


def _read(value: str) -> str | None:
    found = _VALUE.fullmatch(value)
    if found is None:
        return None
    version, trace, parent, flags, more = found.groups()
    if version == _NO_VERSION or trace == _NO_TRACE or parent == _NO_PARENT:
        return None
    if version == _VERSION:
        return None if more is not None else value
    # Of a later version no more is understood than this (#versioning-of-traceparent).
    return f"{_VERSION}-{trace}-{parent}-{int(flags, 16) & _SAMPLED:02x}"
