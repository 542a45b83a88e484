"""What stands in a command line beside settings: addresses, durations, counts. Each raises `Refused` with what is
accepted.
"""

import re

from gymserve.address import EnvironmentAddress, parse_address
from gymserve.cli.refusals import Refused, printable, quoted

_LONGEST_SECONDS = 7 * 24 * 3600.0  # as the routes take it
_DURATION = re.compile(r"(\d+(?:\.\d+)?|\.\d+)([smhd]?)", re.ASCII)
_UNIT_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def gymserve_url(text: str) -> str:
    """The address of a running gymserve."""
    try:
        if text.startswith(("ws://", "wss://")):
            raise ValueError
        return parse_address(text).url
    except ValueError:
        raise Refused(f"URL: {quoted(text)} is not accepted: host:port or http(s)://host[:port][/prefix]") from None


def environment_server(text: str) -> EnvironmentAddress:
    try:
        return parse_address(text)
    except ValueError as exc:
        raise Refused(f"ENV: {quoted(text)} is not accepted: {printable(str(exc))}") from None


def seconds(flag: str, text: str) -> float:
    """Of a duration."""
    match = _DURATION.fullmatch(text)
    given = float(match[1]) * _UNIT_SECONDS[match[2]] if match else -1.0
    if not 0 <= given <= _LONGEST_SECONDS:
        raise Refused(f"flag {flag}: {quoted(text)} is not accepted: a duration such as 90s, 30m or 1h, at most 7d")
    return given


def count(flag: str, text: str) -> int:
    """A whole number, 1 or more."""
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text)):
        raise Refused(f"flag {flag}: {quoted(text)} is not accepted: a whole number, 1 or more")
    return int(text)
