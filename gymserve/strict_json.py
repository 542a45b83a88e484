"""JSON as everybody reads it."""

import json
from typing import Any

# Kept: json.dumps makes a new one for each call that wants anything unusual of it.
_WRITER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)


def written(value: Any) -> str:
    """``value`` as compact JSON in ASCII."""
    try:
        return _WRITER.encode(value)
    except ValueError:
        # A number beyond a float's range (1e400) reads as infinity, which JSON cannot say; OpenEnv says null there,
        # and so do we.
        return json.dumps(json.loads(json.dumps(value), parse_constant=lambda _: None), separators=(",", ":"))
