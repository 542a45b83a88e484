"""JSON in and out: what a request's body must be, and what an answer's is."""

import json
from dataclasses import dataclass
from typing import Any

from quart import Response

from gymserve.errors import BadArguments
from gymserve.nesting import MAX_DEPTH, is_too_deep
from gymserve.strict_json import written


@dataclass(frozen=True, slots=True)
class JsonObject:
    """A JSON object as it came and as it was understood."""

    text: str
    value: dict[str, Any]


def read_object(body: bytes) -> JsonObject:
    """The JSON object in a request's body; an empty body is ``{}`` (NeMo Gym's client sends ``null`` arguments as no
    body).

    :raises BadArguments: not UTF-8, not JSON (RFC 8259: NaN and Infinity are not), not an object, or nested too deep
        (RFC 8259 section 9 leaves the depth to us).
    """
    if not body:
        return JsonObject("{}", {})
    if is_too_deep(body):
        raise BadArguments.because("json_invalid", f"the body is nested too deep, beyond {MAX_DEPTH} levels")
    try:
        text = body.decode("utf-8")
        value = _read(text)
    except UnicodeDecodeError as exc:
        raise BadArguments.because("json_invalid", f"the body is not UTF-8: {exc.reason} at byte {exc.start}") from None
    except json.JSONDecodeError as exc:
        raise BadArguments.because("json_invalid", f"the body is not JSON: {exc}") from None
    except _NotJson as exc:
        raise BadArguments.because("json_invalid", f"the body is not JSON: {exc} is not JSON") from None
    except ValueError:  # Python's own limit, against numbers that take for ever to read
        raise BadArguments.because("json_invalid", "the body has an integer of more digits than can be read") from None
    if not isinstance(value, dict):
        raise BadArguments.because("dict_type", "the body must be a JSON object")
    return JsonObject(text, value)


class _NotJson(ValueError):
    """NaN or an infinity, which Python's own reader would take."""


def _no_such_constant(name: str) -> Any:
    raise _NotJson(name)


# Kept: json.loads makes a new one for each call that wants anything unusual of it.
_READER = json.JSONDecoder(parse_constant=_no_such_constant)


def _read(text: str) -> Any:
    if text.startswith("\ufeff"):  # RFC 8259 section 8.1; the reader itself would be puzzled by something unseen
        raise json.JSONDecodeError("Unexpected UTF-8 BOM (decode using utf-8-sig)", text, 0)
    return _READER.decode(text)


def answer(value: Any, status: int = 200) -> Response:
    """``value`` as a JSON answer."""
    return Response(encoded(value), status=status, content_type="application/json")


def encoded(value: Any) -> bytes:
    """``value`` as a JSON body."""
    return written(value).encode("ascii")
