"""Many sessions and calls at an even rate, from a process of its own: crowd.py URL SESSIONS CALLS_A_SECOND. Until it is
ended.
"""

import itertools
import sys
from urllib.parse import urlsplit

import trio
from http_peer import POST, Peer

CONNECTIONS = 40


async def main(url: str, sessions: int, rate: float) -> None:
    place = urlsplit(url)
    cookies: list[bytes] = []
    due = itertools.count(1)
    all_open = trio.Event()

    async def play() -> None:
        peer = Peer(await trio.open_tcp_stream(place.hostname or "", place.port or 0))
        for _ in range(sessions // CONNECTIONS):
            body = b'{"gymserve_label": "run-%d"}' % (len(cookies) % 7)
            reply = await peer.ask(POST("/seed_session", body))
            cookies.append(reply.headers[b"set-cookie"].partition(b";")[0])
        if len(cookies) >= sessions:
            all_open.set()
        await all_open.wait()
        started = trio.current_time()
        while True:
            number = next(due)
            await trio.sleep_until(started + number / rate)
            await peer.ask(POST("/status", b"", f"Cookie: {cookies[number % sessions].decode()}"))

    async with trio.open_nursery() as nursery:
        for _ in range(CONNECTIONS):
            nursery.start_soon(play)


if __name__ == "__main__":
    trio.run(main, sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
