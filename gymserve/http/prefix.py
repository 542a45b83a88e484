"""``/ng-rollout/<id>``: NeMo Gym's client puts it before every path when its observability is on."""

import re
from collections.abc import Awaitable, Callable
from typing import Any

_PREFIX = re.compile(r"/ng-rollout/[A-Za-z0-9][A-Za-z0-9._-]*(?=/)")

#: In the scope: the path as the client wrote it, where that is another.
ASKED_PATH = "gymserve.asked_path"

AsgiApp = Callable[[Any, Any, Any], Awaitable[None]]


def strip_rollout_prefix(app: AsgiApp) -> AsgiApp:
    """``app`` without the prefix in its paths (``nemo_gym/rollout_correlation.py``)."""

    async def stripped(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"].startswith("/ng-rollout/"):
            scope = {
                **scope,
                ASKED_PATH: scope["raw_path"].decode("latin-1"),
                "path": _rest(scope["path"]),
                "raw_path": _rest(scope["raw_path"].decode("latin-1")).encode("latin-1"),
            }
        await app(scope, receive, send)

    return stripped


def _rest(path: str) -> str:
    return _PREFIX.sub("", path, count=1)
