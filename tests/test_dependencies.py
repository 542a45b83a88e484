"""What is installed with gymserve is what it needs: nothing undeclared is imported, nothing declared is dead weight."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]

TAKEN_IF_THERE = {"greenlet"}  # by werkzeug; a browser for the tests brings it

IMPORT_ALL = """
import importlib, pkgutil, sys
before = set(sys.modules)
import gymserve
for module in pkgutil.walk_packages(gymserve.__path__, "gymserve."):
    importlib.import_module(module.name)
sys.stdout.write("\\n".join(set(sys.modules) - before))
"""
RUN = """
import atexit, sys
atexit.register(lambda: sys.stdout.write("\\n".join(sys.modules)))
sys.argv[1:] = {arguments!r}
from gymserve.cli import main
main()
"""


def fresh_interpreter(code: str) -> list[str]:
    """The lines that ``code`` writes."""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (process.returncode, process.stderr) == (0, "")
    return process.stdout.splitlines()


def project() -> dict[str, Any]:
    declared: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return declared


def declared() -> list[Requirement]:
    return for_this_python(project()["dependencies"])


def declared_for_the_tests() -> list[Requirement]:
    return for_this_python(project()["optional-dependencies"]["test"])


def for_this_python(lines: Iterable[str]) -> list[Requirement]:
    requirements = map(Requirement, lines)
    return [each for each in requirements if each.marker is None or each.marker.evaluate()]


def pinned() -> dict[str, str]:
    """The versions that the tests run on with this Python."""
    lines = (ROOT / "tests" / "constraints.txt").read_text("utf-8").splitlines()
    pins = for_this_python(line for line in lines if not line.startswith("#"))
    return {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in pins}


def with_their_own(requirements: Iterable[Requirement]) -> set[str]:
    """The distributions required, and those that they require in turn, here and with the extras asked for."""
    found: set[tuple[str, str]] = set()
    left = list(requirements)
    while left:
        requirement = left.pop()
        name = canonicalize_name(requirement.name)
        for extra in {"", *requirement.extras} - {known for known_name, known in found if known_name == name}:
            found.add((name, extra))
            left += [
                each for each in required_by(name) if each.marker is None or each.marker.evaluate({"extra": extra})
            ]
    return {str(name) for name, _ in found}


def required_by(name: str) -> list[Requirement]:
    try:
        return [Requirement(line) for line in metadata.requires(name) or ()]
    except metadata.PackageNotFoundError:  # for another platform
        return []


def distributions(modules: Iterable[str]) -> set[str]:
    """The installed distributions that ``modules`` come from; the standard library's come from none."""
    owners = metadata.packages_distributions()
    tops = {module.partition(".")[0] for module in modules} - set(sys.stdlib_module_names)
    return {str(canonicalize_name(name)) for top in tops for name in owners.get(top, ())} - {"gymserve"}


def imported_by_name() -> set[str]:
    """The modules that the package's sources name in an import."""
    modules = set()
    for path in (ROOT / "gymserve").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                modules |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                modules.add(node.module)
    return modules


def test_nothing_undeclared_is_imported() -> None:
    loaded = distributions(fresh_interpreter(IMPORT_ALL))
    assert {"trio", "hypercorn", "quart"} <= loaded  # all modules were imported, the lazy ones too
    assert loaded - with_their_own(declared()) - TAKEN_IF_THERE == set()


def test_nothing_declared_is_dead_weight() -> None:
    names = {canonicalize_name(requirement.name) for requirement in declared()}
    assert names - distributions(imported_by_name()) == set()


def test_the_walk_knows_extras_and_markers() -> None:
    assert "trio" in with_their_own([Requirement("hypercorn[trio]")])
    assert "trio" not in with_their_own([Requirement("hypercorn")])


def test_each_dependency_has_its_reason() -> None:
    [block] = re.findall(r"^dependencies = \[\n(.*?)^\]$", (ROOT / "pyproject.toml").read_text("utf-8"), re.M | re.S)
    lines = block.splitlines()
    assert len(lines) == len(project()["dependencies"])
    assert [line for line in lines if not re.fullmatch(r'    "[^"]+", +# \S.+', line)] == []


def test_each_dependency_has_a_lowest_version() -> None:
    bounded = [
        (str(each), {part.operator for part in each.specifier}) for each in declared() + declared_for_the_tests()
    ]
    assert [requirement for requirement, operators in bounded if ">=" not in operators] == []


def test_what_the_tests_need_is_pinned_within_its_bounds() -> None:
    """Otherwise run ``.ci/pin``."""
    versions = pinned()
    needed = declared() + declared_for_the_tests()
    assert with_their_own(needed) - versions.keys() == set()
    unfit = [str(each) for each in needed if versions[canonicalize_name(each.name)] not in each.specifier]
    assert unfit == []


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["config"]])
def test_who_does_not_serve_loads_no_server(arguments: list[str]) -> None:
    lines = fresh_interpreter(RUN.format(arguments=arguments))
    assert "gymserve.cli" in lines
    assert {"trio", "quart", "quart_trio", "hypercorn"}.intersection(lines) == set()
