"""How a gymserve stands, as JSON can say it: its servers, and the line before them."""

from typing import Any

from gymserve.door import Door
from gymserve.gateway import Gateway
from gymserve.line import Queue

_MOST_LABELS = 100  # clients choose them, and each is sent again every second


def standing(gateway: Gateway) -> dict[str, Any]:
    """But for the sessions. Of the line the longest queues."""
    readiness = gateway.readiness()
    return {
        "instance": gateway.instance,
        "servers": [_server(door) for door in gateway.pool.doors],
        "waiting": gateway.waiting,
        "oldest_wait_seconds": readiness.oldest_wait_seconds,
        "expected_wait_seconds": readiness.expected_wait_seconds,
        "line": [_queue(queue) for queue in gateway.pool.line.queues()[:_MOST_LABELS]],
        "holds_seeds": gateway.is_holding_seeds,
        "held_labels": gateway.held_labels,
        "reclaimed_alive": gateway.reclaimed_alive,
    }


def _server(door: Door) -> dict[str, Any]:
    return {
        "url": str(door.address),
        "held": door.gate.held,
        "capacity": door.gate.capacity,
        "state": door.state,
    }


def _queue(queue: Queue) -> dict[str, Any]:
    return {
        "label": queue.label,
        "waiting": queue.waiting,
        "oldest_wait_seconds": round(queue.oldest_wait_seconds, 3),
    }
