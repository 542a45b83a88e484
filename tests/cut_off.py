"""Cuts every connection of a gymserve off, in a network namespace of its own, and writes when it was noticed.

``unshare -rn sh -c 'ip link set lo up; python tests/cut_off.py SECONDS'``
"""

import json
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import trio

sys.path.append(str(Path(__file__).parent / "http"))

from http_peer import POST
from processes import Rollout, Server, running, sessions, until

MOST_SECONDS = 15


async def main(partition_timeout: str) -> None:
    with (
        running("env", "--capacity", "1") as env,
        running("serve", "--env", env.url, "--interim", "1", "--partition-timeout", partition_timeout) as server,
    ):
        await Rollout(server.url).seed(day=1)
        waiting = await trio.open_tcp_stream(urlsplit(server.url).hostname or "", urlsplit(server.url).port or 0)
        await waiting.send_all(POST("/seed_session", b"{}"))
        await until(lambda: one_waits(server), within_seconds=10)
        await trio.run_process(["ip", "link", "set", "lo", "down"])
        cut_off_at = time.monotonic()
        noticed: dict[str, float] = {}
        while len(noticed) < 2 and time.monotonic() < cut_off_at + MOST_SECONDS:
            await trio.sleep(0.1)
            for what, said in (("episode", "the server dropped the connection"), ("client", "the client hung up")):
                if said in server.log:
                    noticed.setdefault(what, time.monotonic() - cut_off_at)
        sys.stdout.write(json.dumps(noticed))


async def one_waits(server: Server) -> bool:
    return bool((await sessions(server.url))["waiting"])


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
