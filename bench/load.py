"""Load on a resources server, from a process of its own: rollouts as fast as they go, or calls at a fixed rate.

``--at-once`` clients each play rollouts over a raw socket: ``/seed_session``, ``--calls`` times the tool, ``/verify``,
with the cookies that the answers set. It tells in JSON how many rollouts and requests there were in a second, how long
each kind took, what went wrong, and, with ``--pid``, what CPU those processes took for it.

With ``--rate`` so many calls a second begin at even distances, also where earlier ones are unanswered: a server that
stalls is not spared the calls that it keeps waiting. One thread, about 60 us a request.
"""

import argparse
import json
import sys
from collections.abc import Sequence

from loading.plan import Plan
from loading.player import Player
from loading.usage import cpu_seconds


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where every request was answered as it should be."""
    options = _parser().parse_args(arguments)
    player = Player(
        Plan(
            options.url.rstrip("/"),
            at_once=options.at_once,
            calls=options.calls,
            tool=options.tool,
            seed=options.seed.encode(),
            body=options.body.encode(),
            verify=options.verify.encode(),
            rollouts=options.rollouts,
            seconds=options.seconds if options.rollouts is None else None,
            warm_up=options.warm_up,
            rate=options.rate,
            closes=options.close,
        )
    )
    player.warm_up()
    before = [cpu_seconds(pid) for pid in options.pid]
    tally = player.play()
    spent = [cpu_seconds(pid) - start for pid, start in zip(options.pid, before, strict=True)]
    report = tally.report()
    report["cpu"] = [
        {"pid": pid, "seconds": seconds, "microseconds_per_request": 1e6 * seconds / max(1, tally.requests)}
        for pid, seconds in zip(options.pid, spent, strict=True)
    ]
    sys.stdout.write(json.dumps(report) + "\n")
    return 1 if tally.errors else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="the server's, as http://127.0.0.1:8100; ws://... drives an OpenEnv server itself")
    parser.add_argument("--at-once", type=int, default=16, help="clients, and so rollouts at once")
    parser.add_argument("--calls", type=int, default=8, help="tool calls a rollout")
    parser.add_argument("--tool", default="step", help="the tool's name")
    parser.add_argument("--seed", default="{}", metavar="JSON", help="the body of a seed")
    parser.add_argument("--body", default="{}", metavar="JSON", help="the body of a call")
    parser.add_argument("--verify", default="{}", metavar="JSON", help="the body of a verify")
    parser.add_argument("--rollouts", type=int, help="stop after so many")
    parser.add_argument("--seconds", type=float, default=5.0, help="begin none later than that (without --rollouts)")
    parser.add_argument("--warm-up", type=int, default=0, metavar="ROLLOUTS", help="rollouts before, not counted")
    parser.add_argument("--rate", type=float, help="calls a second in all")
    parser.add_argument("--close", action="store_true", help="a new connection for each request")
    parser.add_argument("--pid", type=int, action="append", default=[], help="tell this process' CPU time (repeatable)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
