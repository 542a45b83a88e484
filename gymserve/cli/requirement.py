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
    try:
        origin = metadata.distribution("gymserve").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return _of_checkout()
    return f"gymserve=={gymserve.__version__}" if origin is None else of_origin(json.loads(origin))


def of_origin(origin: Mapping[str, Any]) -> str:
    """The line for a ``direct_url.json``."""
    url = str(origin["url"])
    if origin.get("dir_info", {}).get("editable"):
        return f"-e {url}"
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
