"""How to install this very gymserve once more, elsewhere."""

import json
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import gymserve


def requirement() -> str:
    """A line of a ``requirements.txt``: the version, or where it was installed from (PEP 610), or the checkout that it
    runs from.
    """
    installation = _installation()
    if installation is None:
        return _of_checkout()
    origin = installation.read_text("direct_url.json")
    return f"gymserve=={gymserve.__version__}" if origin is None else of_origin(json.loads(origin))


def _installation() -> metadata.Distribution | None:
    """That of the package that runs. None for a checkout, also where another gymserve is installed beside it."""
    try:
        distribution = metadata.distribution("gymserve")
    except metadata.PackageNotFoundError:
        return None
    installed = Path(str(distribution.locate_file("gymserve")))
    return distribution if installed.resolve() == Path(gymserve.__file__).resolve().parent else None


def of_origin(origin: Mapping[str, Any]) -> str:
    """The line for a ``direct_url.json``."""
    url = str(origin["url"])
    if "vcs_info" in origin:
        url = f"{origin['vcs_info']['vcs']}+{url}@{origin['vcs_info']['commit_id']}"
    if "subdirectory" in origin:
        url = f"{url}#subdirectory={origin['subdirectory']}"
    return f"gymserve @ {url}"


def _of_checkout() -> str:
    root = Path(gymserve.__file__).resolve().parents[1]
    if not (root / "pyproject.toml").is_file():
        return f"gymserve=={gymserve.__version__}"
    return f"-e {root.as_uri()}"
