"""What an environment did and when, in a file that the tests read."""

import itertools
import json
import os
import time
from typing import Any

_FILE = os.environ["LEDGER"]
_numbers = itertools.count(1)


class Ledger:
    """The entries of one environment. Times are of the clock that every process of a machine shares."""

    def __init__(self) -> None:
        self._environment = next(_numbers)

    def enter(self, event: str, **details: Any) -> None:
        entry = {"at": time.monotonic(), "environment": self._environment, "event": event, **details}
        with open(_FILE, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
