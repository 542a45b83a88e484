"""The files of the page: what they contain, and under which paths a browser finds them."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files

PAGE_PATH = "/gymserve/dashboard"

_PAGE = "dashboard.html"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class File:
    """One of them; ``etag`` is another one when the content is (RFC 9110 section 8.8.3), without its quotes."""

    content: bytes
    content_type: str
    etag: str


def _read() -> Iterator[tuple[str, File]]:
    for entry in files(__package__).iterdir():
        _, dot, suffix = entry.name.rpartition(".")
        content_type = _TYPES.get(dot + suffix)
        if content_type is not None:
            content = entry.read_bytes()
            path = PAGE_PATH if entry.name == _PAGE else f"{PAGE_PATH}/{entry.name}"
            yield path, File(content, content_type, hashlib.sha256(content).hexdigest()[:32])


FILES = dict(_read())
"""By path. The page's own has no slash at its end, so that what it asks for is found beside it, below any prefix of a
proxy: ``sessions`` is ``/gymserve/sessions``.
"""
