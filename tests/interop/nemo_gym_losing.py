"""A proxy before a gymserve that loses answers: the request is served, and the connection closed without a word.

NeMo Gym's client sends such a request again, whatever it was.
"""

from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock, Thread
from typing import Self

import httpx
from nemo_gym_gridsim import NO_TLS

_TIMEOUT_SECONDS = 60.0
_POLL_SECONDS = 0.05  # how soon it stops
_NOT_FORWARDED = {"host", "connection", "content-length", "transfer-encoding"}


class LosingProxy:
    """``lost`` counts the lost answers of each path."""

    def __init__(self, url: str) -> None:
        """:param url: of the gymserve."""
        self.url = url
        self.lost: Counter[str] = Counter()
        self._served: Counter[str] = Counter()
        self._loses: Callable[[str, int], bool] = lambda path, number: False
        self._lock = Lock()
        self._http = _Http(("127.0.0.1", 0), _Handler)
        self._http.proxy = self

    @property
    def port(self) -> int:
        return self._http.server_port

    def __enter__(self) -> Self:
        Thread(target=self._http.serve_forever, args=(_POLL_SECONDS,), name="losing proxy", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.shutdown()
        self._http.server_close()

    def lose(self, loses: Callable[[str, int], bool]) -> None:
        """From now on, lose the answer to the n-th request of a path if ``loses(path, n)``; the counts start anew."""
        with self._lock:
            self._loses = loses
            self._served.clear()
            self.lost.clear()

    def is_lost(self, path: str) -> bool:
        with self._lock:
            self._served[path] += 1
            lost = self._loses(path, self._served[path])
            self.lost[path] += lost
            return lost


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    proxy: LosingProxy


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Http

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        headers = [(name, value) for name, value in self.headers.items() if name.lower() not in _NOT_FORWARDED]
        with httpx.Client(
            base_url=self.server.proxy.url, timeout=_TIMEOUT_SECONDS, trust_env=False, verify=NO_TLS
        ) as http:
            answer = http.post(self.path, content=body, headers=headers)
        if self.server.proxy.is_lost(self.path):
            self.close_connection = True
            return
        self.send_response(answer.status_code)
        for name, value in answer.headers.multi_items():
            if name.lower() not in _NOT_FORWARDED:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(answer.content)))
        self.end_headers()
        self.wfile.write(answer.content)

    def log_message(self, format: str, *args: object) -> None:
        pass
