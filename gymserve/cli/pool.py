"""``gymserve pool``: the environment servers of a running gymserve."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from gymserve.cli.refusals import printable
from gymserve.cli.remote import Remote, steer, write_json

_COLUMNS = ("url", "state", "held", "capacity")


def run_pool_add(url: str, token: str | None, env: str, *, slots: int | None, as_json: bool) -> int:
    """A server for new sessions from now on; 0, or 1 where that failed."""

    async def add(remote: Remote) -> int:
        answer = await remote.post("/gymserve/pool/add", {"env": env, "slots": slots})
        _tell(answer, f"{_text(answer['url'])} is in the pool: {_text(answer['state'])}", as_json=as_json)
        return 0

    return steer(url, token, add)


def run_pool_drain(url: str, token: str | None, env: str, *, as_json: bool) -> int:
    """No new sessions for that server; 0, or 1 where that failed."""

    async def drain(remote: Remote) -> int:
        answer = await remote.post("/gymserve/pool/drain", {"env": env})
        held = int(answer["held"])
        leaves = f"leaves when the last of {held} held slots is free" if held else "leaves, as no slot of it is held"
        _tell(answer, f"{_text(answer['url'])} gets no new sessions, and {leaves}", as_json=as_json)
        return 0

    return steer(url, token, drain)


def run_pool_list(url: str, token: str | None, *, as_json: bool) -> int:
    """The servers as a table; 0, or 1 where that failed."""

    async def show(remote: Remote) -> int:
        servers = (await remote.get("/gymserve/sessions"))["servers"]
        if as_json:
            write_json(servers)
        elif sys.stdout.isatty():
            _write_table(servers)
        else:
            _write_lines(servers)
        return 0

    return steer(url, token, show)


def _tell(answer: Mapping[str, Any], line: str, *, as_json: bool) -> None:
    if as_json:
        write_json(answer)
    else:
        sys.stdout.write(f"{line}\n")


def _write_lines(servers: Sequence[Mapping[str, Any]]) -> None:
    rows = [_COLUMNS, *map(_row, servers)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        line = "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True))
        sys.stdout.write(f"{line.rstrip()}\n")


def _write_table(servers: Sequence[Mapping[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*_COLUMNS)
    for server in servers:
        table.add_row(*map(Text, _row(server)))
    Console(file=sys.stdout).print(table)


def _row(server: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(_text(server[name]) for name in _COLUMNS)


def _text(value: object) -> str:
    return "?" if value is None else printable(str(value))
