"""Bad input, told in one line."""

import difflib
import json
import re
from collections.abc import Iterable

_SHOWN_CHARACTERS = 80
_CREDENTIALS = re.compile(r"""(?<=//)[^\s"]*@|[^\s/"]+@""")


class Refused(Exception):
    """Something given by the user is not accepted; the text is one line: where, what, and what would be accepted."""


def printable(text: str) -> str:
    """``text`` with everything that could steer a terminal or break the line (controls, bidi marks) escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def masked(text: str) -> str:
    """``text`` without what precedes an ``@`` in it, as a URL's user and password do (RFC 3986 section 3.2.1)."""
    return _CREDENTIALS.sub("***@", text)


def quoted(value: object) -> str:
    """``value`` as it may stand in a refusal: one line, not too long, masked."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):  # a date from YAML, a mapping that contains itself
        text = f'"{value}"'
    text = printable(masked(text))
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def suggestion(word: str, known: Iterable[str], *, prefix: str = "") -> str:
    """``; did you mean ...?`` with the nearest of the known words, or nothing when none is near.

    A ``prefix`` that all of them share counts for nothing.
    """
    near = difflib.get_close_matches(word.removeprefix(prefix), [each.removeprefix(prefix) for each in known], n=1)
    return f"; did you mean {prefix}{near[0]}?" if near else ""
