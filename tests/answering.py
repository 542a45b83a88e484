"""A stand-in for a gymserve, for what a real one is not easily brought to say."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@contextmanager
def answering(status: int, body: bytes) -> Iterator[tuple[str, list[Any]]]:
    """A server that always says the same, and what it was asked: path, token, body."""
    asked: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent = self.rfile.read(int(self.headers["Content-Length"] or 0))
            self.answer(json.loads(sent))

        def do_GET(self) -> None:
            self.answer(None)

        def answer(self, sent: Any) -> None:
            asked.append((self.path, self.headers["Authorization"], self.headers["Content-Type"], sent))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/behind", asked
        finally:
            server.shutdown()
            thread.join()
