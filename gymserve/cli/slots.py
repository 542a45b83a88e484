"""The slots of the environment servers as bars: a cell for each slot, or for so many."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from rich.text import Text

from gymserve.cli.columns import Column, counted, cut, flowed, room_beside, shown, table
from gymserve.cli.listing import Listing, Server

_MOST_LINES = 3  # of one bar

#: Glyph and style of a slot, by what it is held for: told apart without colours too.
_GLYPHS = {
    "busy": ("#", "green"),
    "idle": ("=", "yellow"),
    "opening": ("+", "cyan"),
    "closing": ("x", "magenta"),
    "free": (".", "dim"),
}
STYLES = {state: style for state, (_, style) in _GLYPHS.items()}
_TROUBLED = {"aside": "bold red", "restarting": "bold red", "draining": "magenta"}
_COLUMNS = (Column("SERVER"), Column("STATE"), Column("HELD", is_number=True))


def legend(listing: Listing, width: int) -> list[Text]:
    """How many sessions there are of each kind, with the glyphs of their slots."""
    counts = Counter({**listing.counts, "free": sum(_free(server) for server in listing.servers)})
    sessions = counts.total() - counts["free"] - counts["waiting"]
    parts = [Text(counted(sessions, "session"), "bold")]
    parts += [Text(f"{glyph} {counts[of]:,} {of}", style) for of, (glyph, style) in _GLYPHS.items() if counts[of]]
    if counts["done"]:
        parts.append(Text(f"{counts['done']:,} done"))
    if listing.reclaimed_alive:
        parts.append(Text(f"{listing.reclaimed_alive:,} reclaimed alive", "bold red"))
    return flowed(parts, width)


def bars(listing: Listing, width: int, most_lines: int) -> list[Text]:
    """A line or more for each server, below a line of titles; the last line tells of those there is no room for."""
    servers = listing.servers
    if len(servers) >= most_lines:
        servers = servers[: max(0, most_lines - 2)]
    names = [_names(server, width) for server in servers]
    room = room_beside(_COLUMNS, names, width)
    lines_each = max(1, min(_MOST_LINES, (most_lines - 1) // max(1, len(servers))))
    slots = [Counter({**server.slots, "free": _free(server)}) for server in servers]
    scale = max((_slots_a_cell(each.total(), room * lines_each) for each in slots), default=1)
    rows = [row for name, each in zip(names, slots, strict=True) for row in _rows(name, _bar(each, scale), room)]
    title = Column("SLOTS" if scale == 1 else f"SLOTS ({scale:,} a cell)")
    return [*table((*_COLUMNS, title), rows, width), *_others(listing.servers[len(servers) :], width)]


def _names(server: Server, width: int) -> list[Text]:
    state = Text(shown(server.state), _TROUBLED.get(server.state, ""))
    capacity = "?" if server.capacity is None else f"{server.capacity:,}"
    return [cut(Text(shown(server.url)), width // 2), state, Text(f"{server.held:,}/{capacity}")]


def _rows(names: Sequence[Text], bar: Text, room: int) -> Iterator[list[Text]]:
    first, *others = bar.divide(range(room, len(bar), room))
    yield [*names, first]
    yield from ([Text(), Text(), Text(), more] for more in others)


def _others(servers: Sequence[Server], width: int) -> Iterator[Text]:
    if servers:
        states = ", ".join(f"{count:,} {shown(state)}" for state, count in Counter(s.state for s in servers).items())
        yield cut(Text(f"and {counted(len(servers), 'more server')}: {states}", "dim"), width)


def _free(server: Server) -> int:
    return 0 if server.capacity is None else max(0, server.capacity - server.held)


def _slots_a_cell(slots: int, room: int) -> int:
    if slots <= room:
        return 1
    return math.ceil(slots / max(1, room - len(_GLYPHS)))  # as what makes less than a cell gets one all the same


def _bar(slots: Mapping[str, int], scale: int) -> Text:
    bar = Text()
    for of, (glyph, style) in _GLYPHS.items():
        bar.append(glyph * math.ceil(slots[of] / scale), style)
    return bar
