"""``gymserve env``: the embedded environment server alone."""

from collections.abc import Callable

import trio

from gymserve.cli.logs import configure_logging
from gymserve.cli.process import ending_signal, http_url, tell_listening, tell_not_bound
from gymserve.cli.refusals import Refused
from gymserve.descriptors import raise_limit
from gymserve.gridsim.environment import Environment
from gymserve.gridsim.faults import parse_fault
from gymserve.gridsim.grid import GridSim
from gymserve.gridsim.server import EnvironmentServer
from gymserve.settings import EnvSettings


def run_env(settings: EnvSettings, make_environment: Callable[[], Environment] = GridSim) -> int:
    """Serve until SIGINT or SIGTERM; 0, or 1 if the address could not be bound.

    At the first signal every episode gets CLOSE 1012 and the server ends within about 2 s; a second one kills it.

    :raises Refused: a fault is not accepted or given twice.
    """
    configure_logging(settings.log_format)
    raise_limit()
    try:
        faults = [parse_fault(text) for text in settings.fault]
        server = EnvironmentServer(make_environment, capacity=settings.capacity, faults=faults)
    except ValueError as exc:
        raise Refused(f"--fault: {exc}") from exc
    return trio.run(_serve, server, settings.host, settings.port)


async def _serve(server: EnvironmentServer, host: str, port: int) -> int:
    with ending_signal() as signal:
        async with trio.open_nursery() as nursery:
            try:
                bound_port = await nursery.start(server.listen, host, port)
            except OSError as exc:
                tell_not_bound(http_url(host, port), exc)
                return 1
            tell_listening(http_url(host, bound_port))
            await signal.wait()
            server.stop()
    return 0
