"""What is answered to a request that cannot be served as it came."""

import json
from dataclasses import dataclass

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error answer: the HTTP status, a word for programs and a sentence for people."""

    status: int
    error: str
    detail: str

    def body(self) -> bytes:
        """The answer's JSON; `done` is false, as a refused request says nothing about an episode."""
        return json.dumps({"error": self.error, "detail": self.detail, "done": False}).encode()

    def headers(self) -> Headers:
        """The headers that go with `body()`."""
        return [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(self.body()))]


class Refused(Exception):
    """The client's request breaks HTTP or one of our limits; `refusal` is the answer to it."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.detail)
        self.refusal = refusal
