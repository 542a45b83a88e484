"""What an environment did and when, in a file that the tests read."""

import itertools
import json
import os
import time
from typing import Any

_FILE = os.environ["LEDGER"]
_numbers = itertools.count(1)


def enter(event: str, **details: Any) -> None:
    """An entry. Times are of the clock that every process of a machine shares."""
    with open(_FILE, "a", encoding="utf-8") as file:
        file.write(json.dumps({"at": time.monotonic(), "event": event, **details}) + "\n")


class Ledger:
    """The entries of one environment."""

    def __init__(self) -> None:
        self._environment = next(_numbers)

    def enter(self, event: str, **details: Any) -> None:
        enter(event, environment=self._environment, **details)
