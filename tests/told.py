"""What a gymserve tells of itself at /gymserve/sessions, made up."""

from collections import Counter
from typing import Any

SERVER = "http://127.0.0.1:8000"


def session(number: int = 1, **changes: Any) -> dict[str, Any]:
    return {
        "id": f"{number:012x}",
        "label": "run-7",
        "state": "idle",
        "env": SERVER,
        "holds_slot": True,
        "steps": 3,
        "reward": 0.5,
        "age_seconds": 75.0,
        "idle_deadline_in_seconds": 90.0,
        **changes,
    }


def server(url: str = SERVER, *, capacity: int | None = 8, state: str = "ready", **slots: Any) -> dict[str, Any]:
    held = {**dict.fromkeys(("opening", "idle", "busy", "closing"), 0), **slots}
    return {"url": url, "held": sum(held.values()), "capacity": capacity, "state": state, "slots": held}


def listing(*sessions: dict[str, Any], **changes: Any) -> dict[str, Any]:
    states = [each["state"] for each in sessions]
    holding: dict[str, Any] = Counter(each["state"] for each in sessions if each["holds_slot"])
    return {
        "instance": "0a1b2c3d",
        "sessions": list(sessions),
        "next": None,
        "matching": len(sessions),
        "counts": {s: states.count(s) for s in ("waiting", "opening", "idle", "busy", "done", "closing")},
        "waiting": 0,
        "oldest_wait_seconds": 0.0,
        "expected_wait_seconds": None,
        "line": [],
        "holds_seeds": False,
        "held_labels": [],
        "reclaimed_alive": 0,
        "servers": [server(**holding)],
        "event": "0a1b2c3d-17",
        **changes,
    }
