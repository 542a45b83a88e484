"""``gymserve close``: what is left of a run."""

import sys

from gymserve.cli.refusals import printable
from gymserve.cli.remote import Remote, steer, write_json


def run_close(url: str, token: str | None, label: str, *, refused_seconds: float, as_json: bool) -> int:
    """End all sessions of that label, and have its seeds refused for a while; 0, or 1 where that failed."""

    async def close(remote: Remote) -> int:
        ended = await close_run(remote, label, refused_seconds)
        if as_json:
            write_json({"closed": ended})
        else:
            sys.stdout.write(f"{told_of_close(label, ended, refused_seconds)}\n")
        return 0

    return steer(url, token, close)


async def close_run(remote: Remote, label: str, refused_seconds: float) -> int:
    """How many sessions of it there were. :raises Failed: it could not be closed."""
    answer = await remote.post("/gymserve/close", {"label": label, "for_seconds": refused_seconds})
    return int(answer["closed"])


def told_of_close(label: str, ended: int, refused_seconds: float) -> str:
    sessions = "1 session ended" if ended == 1 else f"{ended} sessions ended"
    refused = f", its seeds are refused for {refused_seconds:g} s" if refused_seconds else ""
    return f"closed {printable(label)}: {sessions}{refused}"
