"""Log lines on stderr: ours (structlog) and the libraries' (logging), rendered alike."""

import logging
import math
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

from gymserve.cli.refusals import printable

_SHARED: tuple[Processor, ...] = (
    structlog.processors.add_log_level,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
)
_BLOCKS = ("exception", "stack")
_MOST_CHARACTERS = 2000  # of a value: what an environment says of itself may be many megabytes


def configure_logging(log_format: str, *, least_level: int = logging.INFO) -> None:
    """Send every log line to stderr as ``text`` or ``json``.

    Our own from ``least_level`` on, the libraries' from WARNING on. Text is coloured only on a terminal, and not if
    ``NO_COLOR`` is set (https://no-color.org).
    """
    colours = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    style = "coloured" if log_format == "text" and colours else log_format
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(style))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("gymserve").setLevel(least_level)
    lines = _Lines(sys.stderr, style)
    structlog.configure(
        processors=[*_SHARED, _as_it_is],
        wrapper_class=structlog.make_filtering_bound_logger(least_level),
        logger_factory=lambda *_names: lines,
        cache_logger_on_first_use=True,
    )


def formatter(style: str) -> logging.Formatter:
    """What makes a line of a record: ``text``, ``coloured`` (text, for a terminal) or ``json``."""
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*_SHARED, structlog.stdlib.add_logger_name],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *_rendering(style)],
    )


def _rendering(style: str) -> tuple[Processor, ...]:
    # Python's own traceback: rich's would print local variables, and so headers and tokens.
    render: tuple[Processor, ...] = (_escape, _console(style)) if style != "json" else (_json,)
    return (structlog.processors.format_exc_info, _shorten, *render)


def _as_it_is(_logger: WrappedLogger, _name: str, event: EventDict) -> tuple[tuple[EventDict], dict[str, Any]]:
    """For `_Lines`, which renders it."""
    return (event,), {}


class _Lines:
    """Where our own lines go, in a logger's place: without logging's record, its search for the caller and its second
    round of processors, which are half of a line's cost. As with logging, a line that cannot be rendered or written
    is told of, and fails nobody.
    """

    def __init__(self, stream: TextIO, style: str) -> None:
        self._stream = stream
        self._rendering = _rendering(style)

    def write(self, event: EventDict) -> None:
        try:
            line: Any = event
            for processor in self._rendering:
                line = processor(None, "", line)
            self._stream.write(f"{line}\n")
            self._stream.flush()
        except Exception:
            with suppress(ValueError):  # stderr is closed
                logging.StreamHandler(self._stream).handleError(logging.makeLogRecord({"msg": event}))

    debug = info = warning = error = critical = write


def _console(style: str) -> Processor:
    return structlog.dev.ConsoleRenderer(
        colors=style == "coloured",
        pad_event_to=0,
        sort_keys=False,
        exception_formatter=structlog.dev.plain_traceback,
    )


def _shorten(_logger: WrappedLogger, _name: str, event: EventDict) -> Mapping[str, Any]:
    return {
        key: _cut(value) if isinstance(value, str) and key not in _BLOCKS else value for key, value in event.items()
    }


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[:_MOST_CHARACTERS]}... ({len(text)} characters)"


def _escape(_logger: WrappedLogger, _name: str, event: EventDict) -> Mapping[str, Any]:
    return {printable(str(key)): _block(value) if key in _BLOCKS else _value(value) for key, value in event.items()}


def _value(value: object) -> object:
    text = value if isinstance(value, str) else repr(value)
    return value if text.isprintable() else printable(text)


def _block(value: object) -> str:
    # Indented, so that a line in an exception's message cannot pass for a log line.
    return "\n".join(f"    {printable(line)}" for line in str(value).split("\n"))


def _json_value(value: object) -> object:
    # JSON has no infinity, which is what an absent deadline is in Trio.
    return repr(value) if isinstance(value, float) and not math.isfinite(value) else value


_render_json = structlog.processors.JSONRenderer()


def _json(logger: WrappedLogger, name: str, event: EventDict) -> str:
    line = _render_json(logger, name, {key: _json_value(value) for key, value in event.items()})
    # JSON escapes every control character but this one; it can stand in strings only.
    return str(line).replace("\x7f", "\\u007f")
