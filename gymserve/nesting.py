"""How deep JSON may be nested: in every version of Python the same, whose own readers stop where their stack ends."""

from itertools import accumulate

MAX_DEPTH = 128

_BRACKETS_AND_QUOTES = b'[]{}"'
_OTHERS = bytes(set(range(256)) - set(_BRACKETS_AND_QUOTES))
_STEPS = [0] * 256
for _byte, _step in zip(b"[{]}", (1, 1, -1, -1), strict=True):
    _STEPS[_byte] = _step


def is_too_deep(json: bytes | str, *, levels: int = MAX_DEPTH) -> bool:
    """Whether a JSON text has more than so many arrays and objects within each other.

    What is no JSON may count as either; nothing that is said to be shallow enough exhausts a reader's stack.
    """
    if isinstance(json, str):
        if json.count("[") + json.count("{") <= levels:
            return False
        json = json.encode("utf-8", "surrogatepass")
    return json.count(b"[") + json.count(b"{") > levels and _depth(json) > levels


def _depth(json: bytes) -> int:
    """Without a loop in Python but the last, over the brackets alone: most of JSON are strings."""
    if b'\\"' in json:
        if b"\\\\" in json:  # in this order: only an odd backslash escapes a quote
            json = json.replace(b"\\\\", b"")
        json = json.replace(b'\\"', b"")
    structure = json.translate(None, _OTHERS).replace(b'""', b"")
    outside_strings = b"".join(structure.split(b'"')[::2])
    return max(accumulate(map(_STEPS.__getitem__, outside_strings)), default=0)
