"""Lines of text in columns, as wide as there is room for; and how numbers and strangers' words stand in them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.text import Text

from gymserve.cli.refusals import printable

GAP = "  "

_MINUTE, _HOUR, _DAY = 60, 3600, 86400


@dataclass(frozen=True, slots=True)
class Column:
    """``least_cells``: a width that it has even if nothing in it is so wide. ``expendable``: of the columns that there
    is no room for, the one with the highest goes first; with 0 it stays.
    """

    title: str
    is_number: bool = False
    least_cells: int = 0
    expendable: int = 0


Row = Sequence[Text]


def table(columns: Sequence[Column], rows: Sequence[Row], width: int) -> list[Text]:
    """A line of titles, and one for each row. The last column has what the others leave, which is at least its
    ``least_cells`` as long as one of the others is expendable.
    """
    widths = _widths(columns, rows)
    kept = _kept(columns, widths, width)
    titles = [Text(column.title, "bold") for column in columns]
    return [_line([(columns[n], row[n], widths[n]) for n in kept], width) for row in (titles, *rows)]


def room_beside(columns: Sequence[Column], rows: Sequence[Row], width: int) -> int:
    """The cells that are left for one more column."""
    return max(1, width - sum(_widths(columns, rows)) - len(GAP) * len(columns))


def _widths(columns: Sequence[Column], rows: Sequence[Row]) -> list[int]:
    return [
        max(len(column.title), column.least_cells, *(row[n].cell_len for row in rows), 0)
        for n, column in enumerate(columns)
    ]


def _kept(columns: Sequence[Column], widths: Sequence[int], width: int) -> list[int]:
    last = len(columns) - 1
    kept = list(range(len(columns)))
    for n in sorted(range(last), key=lambda n: -columns[n].expendable):
        taken = sum(widths[other] + len(GAP) for other in kept if other != last) + columns[last].least_cells
        if taken > width and columns[n].expendable:
            kept.remove(n)
    return kept


def _line(cells: Sequence[tuple[Column, Text, int]], width: int) -> Text:
    *first, (_, last, _) = cells
    return cut(joined([*(_aligned(*each) for each in first), last]), width)


def _aligned(column: Column, cell: Text, cells: int) -> Text:
    aligned = cell.copy()
    aligned.align("right" if column.is_number else "left", cells)
    return aligned


def cut(text: Text, width: int) -> Text:
    """What of the text is not too wide."""
    text.truncate(max(0, width), overflow="ellipsis")
    return text


def flowed(parts: Sequence[Text], width: int) -> list[Text]:
    """The parts in a row, or in as many rows as it takes."""
    lines: list[list[Text]] = [[]]
    for part in parts:
        if lines[-1] and joined([*lines[-1], part]).cell_len > width:
            lines.append([])
        lines[-1].append(part)
    return [cut(joined(line), width) for line in lines]


def joined(parts: Iterable[Text]) -> Text:
    return Text(GAP).join(parts)


def shown(word: str | None) -> str:
    """What a stranger wrote, so that it does no harm to a terminal."""
    return "-" if word is None else printable(word)


def counted(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def duration(seconds: float) -> str:
    """In one or two units: 59s, 1m05s, 2h00m, 3d04h."""
    whole = max(0, int(seconds))
    if whole < _MINUTE:
        return f"{whole}s"
    if whole < _HOUR:
        return f"{whole // _MINUTE}m{whole % _MINUTE:02}s"
    if whole < _DAY:
        return f"{whole // _HOUR}h{whole % _HOUR // _MINUTE:02}m"
    return f"{whole // _DAY}d{whole % _DAY // _HOUR:02}h"
