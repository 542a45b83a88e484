"""``gymserve config``: every setting of ``gymserve serve``, and where its value comes from."""

import json
import sys
from dataclasses import dataclass

from pydantic import JsonValue

from gymserve.cli.refusals import printable
from gymserve.cli.sources import Resolved
from gymserve.settings import Form, ServeSettings, form_of


@dataclass(frozen=True, slots=True)
class Row:
    """One setting. ``value`` holds of a secret only that it is set, and of a header only its name."""

    key: str
    value: JsonValue
    source: str
    form: Form

    @property
    def text(self) -> str:
        return written(self.value, self.form)


def written(value: JsonValue, form: Form) -> str:
    """A setting's value for people: as it would be given, or the word for having none."""
    if value is None or value == [] or value == {}:
        return form.absent
    match value:
        case bool() | dict():
            return printable(json.dumps(value, ensure_ascii=False))
        case list():
            return ", ".join(printable(str(item)) for item in value)
        case float():
            return repr(value).removesuffix(".0")
        case _:
            return printable(str(value))


def rows(resolved: Resolved[ServeSettings]) -> list[Row]:
    """The settings in their order, without what must not be shown."""
    values = resolved.settings.model_dump(mode="json")
    forms = {key: form_of(field) for key, field in ServeSettings.model_fields.items()}
    return [Row(key, _shown(values[key], form), resolved.source(key), form) for key, form in forms.items()]


def _shown(value: JsonValue, form: Form) -> JsonValue:
    if form.shown == "set":
        return "set" if value else None
    if form.shown == "name" and isinstance(value, list):
        return [f"{str(header).partition(':')[0]}: set" for header in value]
    return value


def write_json(table: list[Row]) -> None:
    """``{setting: {"value": ..., "from": ...}}`` to stdout."""
    document = {row.key: {"value": row.value, "from": row.source} for row in table}
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


def write_text(table: list[Row]) -> None:
    """A table on a terminal; aligned lines of setting, value and source into a pipe or a file."""
    if sys.stdout.isatty():
        _write_table(table)
    else:
        _write_lines(table)


def _write_lines(table: list[Row]) -> None:
    keys = max(len(row.key) for row in table)
    values = max(len(row.text) for row in table)
    sys.stdout.writelines(f"{row.key:<{keys}}  {row.text:<{values}}  {row.source}\n" for row in table)


def _write_table(table: list[Row]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table("setting", "value", "from")
    for row in table:
        # Text, not str: rich would read [brackets] in a str as markup.
        grid.add_row(
            Text(row.key), Text(row.text), Text(row.source, style="dim" if row.source == "default" else "bold")
        )
    Console(file=sys.stdout).print(grid)
