"""Versions for the tests' environments, as constraints for pip on standard output.

versions.py lowest            the lowest of everything that pyproject.toml declares
versions.py pinned REPORT...  what pip finds now (``pip install --report``), on each Python from the oldest on
"""

import json
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

_BOUND = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?\s*(?:>=|==|~=)\s*([^,;\s]+)[^;]*(;.*)?")


def lowest(project_file: Path) -> Iterator[str]:
    """A constraint for each requirement: to run, to build, to test."""
    declared = tomllib.loads(project_file.read_text("utf-8"))
    project = declared["project"]
    extras = (line for extra in project.get("optional-dependencies", {}).values() for line in extra)
    for line in (*declared["build-system"]["requires"], *project["dependencies"], *extras):
        bound = _BOUND.match(line)
        if bound is None:
            raise SystemExit(f"{project_file}: {line!r} does not begin with its lowest version, as in 'name>=1.2,<2'")
        yield f"{bound[1]}=={bound[2]} {bound[3] or ''}".rstrip()


def pinned(reports: Iterable[dict[str, Any]]) -> Iterator[str]:
    """A constraint for each distribution; where the Pythons differ, one for each of them, valid up to the next."""
    found = {str(report["environment"]["python_version"]): dict(_versions(report)) for report in reports}
    pythons = list(found)
    for name in sorted({name for versions in found.values() for name in versions}):
        if len({versions.get(name) for versions in found.values()}) == 1:
            yield f"{name}=={found[pythons[0]][name]}"
            continue
        for python, following in zip(pythons, [*pythons[1:], None], strict=True):
            if name in found[python]:
                since = [] if python == pythons[0] else [f'python_version >= "{python}"']
                until = [] if following is None else [f'python_version < "{following}"']
                yield f"{name}=={found[python][name]} ; {' and '.join(since + until)}"


def _versions(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for item in report["install"]:
        if "dir_info" not in item["download_info"]:  # else it is the project itself
            yield re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower(), item["metadata"]["version"]


def main(command: str, *files: str) -> None:
    match command:
        case "lowest":
            lines = lowest(Path("pyproject.toml"))
        case "pinned":
            lines = pinned(json.loads(Path(file).read_text("utf-8")) for file in files)
        case _:
            raise SystemExit(__doc__)
    sys.stdout.writelines(f"{line}\n" for line in lines)


if __name__ == "__main__":
    main(*sys.argv[1:])
