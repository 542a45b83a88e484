"""The rooms of the package: imports only lead downward, the pure row touches no world, and what is never used."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "gymserve"

ROWS = (
    {"cli", "__main__"},
    {"http", "gridsim"},
    {"instruments"},
    {"metrics", "expiries", "minutes", "timelines", "recording", "losses", "trajectories", "transcript", "excerpt"},
    {"gateway", "memory", "names", "past", "journal", "reclaiming", "strays"},
    {"session", "narrator", "agenda", "deadline", "traffic"},
    {"probing"},
    {"opening", "handovers", "pool", "door", "gate", "line", "ticket", "knocking", "verdict", "call"},
    {"episode", "websocket", "network", "descriptors", "partition", "sending", "upgrade", "alarms"},
    {"events"},
    {"telemetry", "contents", "collecting"},
    {
        *("__init__", "errors", "wire", "nesting", "resets", "score", "settings", "identity", "address", "toolbox"),
        *("rows", "seeds", "shares", "aggregate", "strict_json", "traceparent"),
    },
)
"""From top to bottom; a room is a module or a folder of the package."""

PURE = ROWS[-1]
WORLDLY = {
    "trio",
    "trio_websocket",
    "wsproto",
    "quart",
    "quart_trio",
    "hypercorn",
    "httpx",
    "h11",
    "socket",
    "time",
    "datetime",
}
"""What the pure row does without: I/O, frameworks, the clock."""


def sources() -> dict[str, str]:
    """The package's files by dotted module name."""
    return {
        ".".join(["gymserve", *path.relative_to(PACKAGE).with_suffix("").parts]): path.read_text("utf-8")
        for path in sorted(PACKAGE.rglob("*.py"))
    }


def room(module: str) -> str:
    """`gymserve.http.app` is in `http`, `gymserve` itself in `__init__`."""
    return module.split(".")[1] if "." in module else "__init__"


def row(name: str) -> int | None:
    return next((number for number, rooms in enumerate(ROWS) if name in rooms), None)


def imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything imported anywhere in ``tree``, inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            origin = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{origin}.{alias.name}") for alias in node.names)


def faults(files: Mapping[str, str]) -> list[str]:
    """What is wrong in ``files``, a sentence each."""
    found = []
    for module, source in files.items():
        if row(room(module)) is None:
            found.append(
                f"{module} is in no row: add {room(module)!r} to that row of ROWS in tests/test_layers.py from which "
                "on downward everything that it imports stands"
            )
            continue
        tree = ast.parse(source)
        for line, name in imports(tree):
            found += [f"{module}:{line} {fault}" for fault in import_faults(room(module), name)]
        found += [f"{module}:{line} uses {name}" for line, name in banned_names(tree)]
    return found


def import_faults(importer: str, name: str) -> Iterator[str]:
    top = name.split(".")[0]
    if top == "":
        yield f"imports {name} relatively: write it from gymserve on"
    elif top == "asyncio":
        yield "imports asyncio"
    elif importer in PURE and top in WORLDLY:
        yield f"imports {top}, and {importer} is pure"
    elif top == "gymserve":
        yield from own_import_faults(importer, own_room(name))


def own_room(name: str) -> str:
    """`from gymserve import wire` is an import from `wire`, `from gymserve import __version__` one from `__init__`."""
    named = room(name)
    return "__init__" if named.startswith("__") else named


def own_import_faults(importer: str, imported: str) -> Iterator[str]:
    ours, theirs = row(importer), row(imported)
    assert ours is not None
    if theirs is None:
        return  # told of the module itself
    if theirs < ours:
        yield f"imports {imported}, which is above {importer}"
    elif theirs == ours and importer != imported and importer in ROWS[1]:
        yield f"imports {imported}, across the bar: {importer} and {imported} know nothing of each other"
    if importer == "gridsim" and imported not in {"gridsim", *PURE}:
        yield f"imports {imported}: gridsim knows only itself and the pure row"
    if importer == "http" and imported in {"episode", "websocket"}:
        yield f"imports {imported}: HTTP knows nothing of WebSockets"
    if imported == "settings" and importer not in {"cli", "settings"}:
        yield "imports settings: only cli reads them, others get plain values"


def banned_names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id="print", lineno=line):
                yield line, "print"
            case ast.Attribute(value=ast.Name(id="time"), attr="sleep", lineno=line):
                yield line, "time.sleep"
            case ast.ImportFrom(module="time", names=names, lineno=line) if any(n.name == "sleep" for n in names):
                yield line, "time.sleep"


def test_the_package_is_in_order() -> None:
    assert faults(sources()) == []


def test_every_room_of_the_picture_exists() -> None:
    assert set().union(*ROWS) - {room(module) for module in sources()} == set()


@pytest.mark.parametrize(
    ("module", "source", "fault"),
    [
        ("gymserve.line", "from gymserve.session import Session", "imports session, which is above line"),
        ("gymserve.session", "def f():\n    import gymserve.http.app", "imports http, which is above session"),
        ("gymserve.wire", "from gymserve import call", "imports call, which is above wire"),
        (
            "gymserve.http.app",
            "from gymserve.gridsim import faults",
            "imports gridsim, across the bar: http and gridsim know nothing of each other",
        ),
        (
            "gymserve.http.app",
            "from gymserve.episode import Episode",
            "imports episode: HTTP knows nothing of WebSockets",
        ),
        (
            "gymserve.gridsim.server",
            "from gymserve.network import Network",
            "imports network: gridsim knows only itself and the pure row",
        ),
        (
            "gymserve.gateway",
            "from gymserve.settings import ServeSettings",
            "imports settings: only cli reads them, others get plain values",
        ),
        ("gymserve.score", "from time import monotonic", "imports time, and score is pure"),
        ("gymserve.toolbox", "import trio.testing", "imports trio, and toolbox is pure"),
        ("gymserve.session", "from . import call", "imports ..call relatively: write it from gymserve on"),
        ("gymserve.cli.top", "from asyncio import run", "imports asyncio"),
        ("gymserve.cli.top", "print()", "uses print"),
        ("gymserve.cli.top", "import time\ntime.sleep(1)", "uses time.sleep"),
        ("gymserve.cli.top", "from time import sleep", "uses time.sleep"),
    ],
)
def test_a_fault_is_told(module: str, source: str, fault: str) -> None:
    [told] = faults({module: source})
    assert told.partition(" ")[2] == fault


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("gymserve.opening", "from gymserve.line import Line\nfrom gymserve import wire"),
        ("gymserve.gridsim.server", "from gymserve import __version__\nimport trio"),
        ("gymserve.cli.serving", "from gymserve.settings import ServeSettings"),
        ("gymserve.http.answer", "from time import time"),
    ],
)
def test_downward_and_sideways_are_fine(module: str, source: str) -> None:
    assert faults({module: source}) == []


def test_a_module_without_a_row_is_told_what_to_do() -> None:
    assert faults({"gymserve.attic": ""}) == [
        "gymserve.attic is in no row: add 'attic' to that row of ROWS in tests/test_layers.py from which on downward "
        "everything that it imports stands"
    ]
