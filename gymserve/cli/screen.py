"""What ``gymserve top`` shows: lines of text, made of a listing and the time. Nothing here knows a terminal."""

import math
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from rich.text import Text

from gymserve.cli.columns import GAP, Column, counted, cut, duration, flowed, shown, table
from gymserve.cli.listing import Filters, Listing, Queue, Session
from gymserve.cli.refusals import masked
from gymserve.cli.slots import STYLES, bars, legend

_ROOMY_LINES = 26  # from which on the parts stand apart
_SOON_SECONDS = 10.0
_WIDEST_SERVER = 30
_WIDEST_LABEL = 30  # in the line
_LABEL_CELLS = 16  # that other columns make room for
_ALL = sys.maxsize


@dataclass(frozen=True, slots=True)
class Answer:
    """A listing, when it came (in Trio's time) and after how long."""

    listing: Listing
    at: float
    took_seconds: float


@dataclass(frozen=True, slots=True)
class Loss:
    """Why there is no answer, since when, and when it is asked for again; None: it is being asked for."""

    why: str
    since: float
    next_try_at: float | None


@dataclass(frozen=True, slots=True)
class View:
    """All that is known at one moment; times are Trio's."""

    url: str
    filters: Filters
    order: str
    now: float
    asking_since: float | None = None
    answer: Answer | None = None
    loss: Loss | None = None


#: What gymserve can sort sessions by; first comes what is reclaimed next, the oldest, the longest.
ORDERS = ("expires", "age", "steps", "label")


def next_order(order: str) -> str:
    return ORDERS[(ORDERS.index(order) + 1) % len(ORDERS)]


def screen(view: View, width: int, height: int) -> list[Text]:
    """Exactly ``height`` lines, none of them wider than ``width``."""
    lines = [_heading(view, width), *_trouble(view, width)]
    lines += _body(view, width, height - len(lines) - 1)
    lines = lines[: height - 1]
    return [*lines, *[Text()] * (height - 1 - len(lines)), _keys(view, width)]


def report(url: str, listing: Listing, filters: Filters, width: int) -> list[Text]:
    """All of a listing, for those who look once."""
    return [
        cut(_name(url, listing), width),
        *_overview(listing, width, _ALL),
        *_sessions(listing, filters, width, _ALL),
    ]


def _body(view: View, width: int, height: int) -> list[Text]:
    if view.answer is None:
        return []
    listing, known_at = view.answer.listing, view.now if view.loss is None else view.loss.since
    age_seconds = known_at - view.answer.at
    lines = _overview(listing, width, height)
    lines += _sessions(listing, view.filters, width, height - len(lines), age_seconds=age_seconds)
    if view.loss is not None:
        for line in lines:
            line.stylize("dim")
    return lines


def _overview(listing: Listing, width: int, height: int) -> list[Text]:
    between = [Text()] if height >= _ROOMY_LINES else []
    return [
        *between,
        *legend(listing, width),
        *bars(listing, width, height // 3),
        *between,
        *_line(listing, width, height // 8),
        *between,
    ]


# -- the first lines, and the last -----------------------------------------------------------------------------------


def _name(url: str, listing: Listing | None) -> Text:
    instance = "" if listing is None else f"{GAP}instance {shown(listing.instance)}"
    return Text(f"{shown(masked(url))}{instance}", "bold")


def _heading(view: View, width: int) -> Text:
    name, freshness = _name(view.url, None if view.answer is None else view.answer.listing), _freshness(view)
    name.truncate(max(0, width - freshness.cell_len - len(GAP)), overflow="ellipsis", pad=True)
    return cut(Text.assemble(name, GAP, freshness), width)


def _freshness(view: View) -> Text:
    """How long ago it answered, and how long its next answer is waited for."""
    last = "" if view.answer is None else f"last answer {duration(view.now - view.answer.at)} ago"
    if view.loss is not None:
        return Text(f"LOST  {last}".rstrip(), "bold red")
    waited_seconds = 0.0 if view.asking_since is None else view.now - view.asking_since
    if view.answer is None or waited_seconds >= 1:
        return Text(f"{last}  asking for {duration(waited_seconds)}".lstrip())
    return Text(f"answered in {view.answer.took_seconds * 1000:.0f} ms, {duration(view.now - view.answer.at)} ago")


def _trouble(view: View, width: int) -> Iterator[Text]:
    if view.loss is None:
        return
    again = "asking again"
    if view.loss.next_try_at is not None:
        again = f"next try in {duration(math.ceil(view.loss.next_try_at - view.now))}"
    said = f"lost for {duration(view.now - view.loss.since)}, {again}: {shown(view.loss.why)}"
    yield from (Text(line, "red") for line in textwrap.wrap(said, max(1, width)))


def _keys(view: View, width: int) -> Text:
    orders = " ".join(name.upper() if name == view.order else name for name in ORDERS)
    return cut(Text(f"q leaves{GAP}s sorts: {orders}{GAP}r asks now", "dim"), width)


# -- the line --------------------------------------------------------------------------------------------------------


def _line(listing: Listing, width: int, most_lines: int) -> list[Text]:
    """Who waits: of each label how many, and the oldest for how long; first those that wait longest."""
    lines = [cut(_line_in_words(listing), width)]
    if {queue.label for queue in listing.line} - {None}:
        queues = sorted(listing.line, key=lambda queue: -queue.oldest_wait_seconds)
        lines += flowed([_queue(queue) for queue in queues], width)
    return lines[: max(1, most_lines)]


def _line_in_words(listing: Listing) -> Text:
    words = Text()
    if listing.holds_seeds:
        words.append(f"SEEDS ARE HELD{GAP}", "bold red")
    if not listing.waiting:
        return words.append("nobody waits")
    labels = f" with {counted(len(listing.line), 'label')}" if len(listing.line) > 1 else ""
    words.append(f"{listing.waiting:,} {'waits' if listing.waiting == 1 else 'wait'}", "bold")
    words.append(f"{labels}, the oldest for {duration(listing.oldest_wait_seconds)}")
    if listing.expected_wait_seconds is not None:
        words.append(f"; a seed now would wait {duration(listing.expected_wait_seconds)}")
    return words


def _queue(queue: Queue) -> Text:
    label = "without a label" if queue.label is None else shown(queue.label)
    waits = f": {queue.waiting:,} ({duration(queue.oldest_wait_seconds)})"
    return Text.assemble(cut(Text(label), _WIDEST_LABEL), waits)


# -- the sessions ----------------------------------------------------------------------------------------------------


def _sessions(listing: Listing, filters: Filters, width: int, most_lines: int, *, age_seconds: float = 0) -> list[Text]:
    """As many as there is room for; they were told ``age_seconds`` ago."""
    lines = [cut(_filters_in_words(listing, filters), width)] if filters != Filters() else []
    sessions = listing.sessions
    room = most_lines - len(lines) - 1
    if max(listing.matching, len(sessions)) > room:
        sessions = sessions[: max(0, room - 1)]
    cells = {column: cell for column, cell in _CELLS.items() if column is not _SERVER or len(listing.servers) > 1}
    rows = [[cell(session, age_seconds) for cell in cells.values()] for session in sessions]
    lines += table(list(cells), rows, width) if rows else []
    left_out = listing.matching - len(sessions)
    return [*lines, cut(Text(f"and {left_out:,} more", "dim"), width)] if left_out > 0 else lines


def _filters_in_words(listing: Listing, filters: Filters) -> Text:
    label = "" if filters.label is None else f" with label {shown(filters.label)}"
    state = "" if filters.state is None else f" in state {filters.state}"
    return Text(f"{counted(listing.matching, 'session')}{label}{state}")


def _expires(session: Session, age_seconds: float) -> Text:
    left = session.idle_deadline_in_seconds
    if left is None:
        return Text("-")
    left -= age_seconds
    return Text(duration(math.ceil(left)), "bold red" if left < _SOON_SECONDS else "")


def _server(session: Session, age_seconds: float) -> Text:
    return cut(Text(shown(session.env).removeprefix("http://")), _WIDEST_SERVER)


_SERVER = Column("SERVER", expendable=4)
_CELLS: Mapping[Column, Callable[[Session, float], Text]] = {
    Column("ID"): lambda session, _: Text(shown(session.id)),
    Column("STATE", least_cells=7): lambda session, _: Text(shown(session.state), STYLES.get(session.state, "")),
    Column("EXPIRES", is_number=True): _expires,
    Column("AGE", is_number=True, least_cells=6, expendable=2): lambda session, age_seconds: Text(
        duration(session.age_seconds + age_seconds)
    ),
    Column("STEPS", is_number=True, expendable=1): lambda session, _: Text(f"{session.steps:,}"),
    Column("REWARD", is_number=True, least_cells=7, expendable=3): lambda session, _: Text(f"{session.reward:,.3f}"),
    _SERVER: _server,
    Column("LABEL", least_cells=_LABEL_CELLS): lambda session, _: Text(shown(session.label)),
}
