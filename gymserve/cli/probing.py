"""``gymserve probe``: what an environment server is like, in plain words."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter

from gymserve.address import EnvironmentAddress
from gymserve.cli.arguments import count, environment_server, seconds
from gymserve.cli.headers import environment_headers
from gymserve.cli.refusals import printable
from gymserve.settings import RowsSettings

if TYPE_CHECKING:
    from gymserve.probing import Probe

PROBE_HELP = """Look at an environment server as gymserve would: is it OpenEnv, has it room, what can be done there, how
long do a handshake, a reset and a goodbye take (the median over the episodes that are opened for it).

Nothing is acted in the episodes. Exit status 0 if all is well; 1 if something is wrong that does not pass; 3 if it has
no room or does not answer now, which gymserve would wait out. The bearer token for the server comes by the variable
GYMSERVE_ENV_TOKEN only."""

_WELL, _WRONG, _BUSY = 0, 1, 3

_Env = Annotated[str, Parameter(help="Environment server: host:port or http(s)://host[:port][/prefix].")]
_Number = Annotated[str, Parameter(name="-n", metavar="COUNT", help="Episodes to open, one after the other.")]
_Timeout = Annotated[str, Parameter(metavar="DURATION", help="For each handshake, answer and goodbye.")]
_Header = Annotated[
    tuple[str, ...] | None,
    Parameter(negative=(), metavar="NAME: VALUE", help="Sent to the server; repeatable.", show_default=False),
]
_Json = Annotated[bool, Parameter(negative=(), help="Print JSON.")]

GatherSettings = Callable[[Mapping[str, object]], RowsSettings]


def add_probe(app: App, gather: GatherSettings) -> None:
    """``probe``; ``gather`` makes settings of flags and variables, for what is sent to an environment server."""

    @app.command(help=PROBE_HELP)
    def probe(
        env: _Env, /, *, n: _Number = "3", timeout: _Timeout = "10s", env_header: _Header = None, json: _Json = False
    ) -> int:
        settings = gather({"env_header": env_header})
        address, episodes, patience_seconds = environment_server(env), count("-n", n), seconds("--timeout", timeout)
        headers = environment_headers(settings.env_header, settings.env_token)
        return run_probe(address, headers, episodes, timeout_seconds=patience_seconds, as_json=json)


def run_probe(
    address: EnvironmentAddress,
    headers: Sequence[tuple[str, str]],
    episodes: int,
    *,
    timeout_seconds: float,
    as_json: bool,
) -> int:
    """What the server is like, on stdout; the exit status tells."""
    import trio  # only for those who ask

    from gymserve.cli.remote import write_json
    from gymserve.network import TcpNetwork
    from gymserve.probing import Prober

    network = TcpNetwork(connect_timeout_seconds=timeout_seconds)
    probe = trio.run(Prober(network, address, headers, timeout_seconds=timeout_seconds).probe, episodes)
    if as_json:
        write_json(_document(probe))
    else:
        sys.stdout.writelines(f"{printable(line)}\n" for line in _lines(probe))
    if probe.is_good:
        return _WELL
    return _BUSY if probe.passes else _WRONG


def _lines(probe: "Probe") -> Iterator[str]:
    what = "is an OpenEnv server" if probe.is_openenv else "is not recognised as an OpenEnv server"
    yield f"{probe.url} {what}"
    for name, said in _told(probe):
        yield f"  {name:<12}{said}"
    for name, found in probe.failures.items():
        yield f"  {name:<12}{'busy' if found.passes else 'WRONG'}: {found}"
    if not probe.is_good:
        yield "gymserve waits that out, or tries again" if probe.passes else "gymserve cannot serve this as it is"


def _told(probe: "Probe") -> Iterator[tuple[str, str]]:
    if probe.is_mcp:
        yield "environment", f"MCP, {_tools(probe.tools)}" if probe.has_asked_for_tools else "MCP"
    elif probe.fields is not None:
        yield "environment", f"one action, with {_listed('field', probe.fields)}"
    if probe.understands_keepalive is not None:
        yield "room", "yes"
        yield "keepalive", "understood" if probe.understands_keepalive else "answered with an error, which does no harm"
    for name, taken in _timings(probe).items():
        if taken is not None:
            yield name, f"{_shown(taken)} (median of {len(getattr(probe, f'{name}_seconds'))})"


def _timings(probe: "Probe") -> dict[str, float | None]:
    return {name: _typical(getattr(probe, f"{name}_seconds")) for name in ("handshake", "reset", "close")}


def _document(probe: "Probe") -> dict[str, Any]:
    return {
        "url": probe.url,
        "ok": probe.is_good,
        "openenv": probe.is_openenv,
        "mcp": probe.is_mcp,
        "action_fields": probe.fields,
        "tools": probe.tools,
        "keepalive_understood": probe.understands_keepalive,
        **{f"{name}_seconds": taken for name, taken in _timings(probe).items()},
        "failures": {
            name: {"detail": str(found), "waited_out": found.passes} for name, found in probe.failures.items()
        },
    }


def _tools(tools: Sequence[str] | None) -> str:
    return "whose tools it does not list" if tools is None else f"with {_listed('tool', tools)}"


def _listed(what: str, names: Sequence[str]) -> str:
    number = f"{len(names)} {what}{'' if len(names) == 1 else 's'}"
    return f"{number}: {', '.join(names)}" if names else f"no {what}s"


def _typical(taken_seconds: Sequence[float]) -> float | None:
    return median(taken_seconds) if taken_seconds else None


def _shown(taken_seconds: float) -> str:
    return f"{taken_seconds * 1000:.1f} ms" if taken_seconds < 1 else f"{taken_seconds:.2f} s"
