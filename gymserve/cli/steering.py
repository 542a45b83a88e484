"""The commands that watch and steer a running gymserve: their arguments, and what of them is accepted."""

import re
from collections.abc import Mapping
from typing import Annotated

from cyclopts import App, Parameter

from gymserve.cli.arguments import count, environment_server, gymserve_url, seconds
from gymserve.cli.refusals import Refused, printable, quoted
from gymserve.cli.sources import from_variables
from gymserve.settings import ServeSettings

ADMIN_TOKEN_VARIABLE = "GYMSERVE_ADMIN_TOKEN"
TOKEN_VARIABLE = "GYMSERVE_TOKEN"

_LONGEST_LABEL = 200
_SHORTEST_INTERVAL_SECONDS = 0.1
_STATES = ("waiting", "opening", "idle", "busy", "done", "closing")

_TOKEN_HELP = f"Where it asks for an admin token, the variable {ADMIN_TOKEN_VARIABLE} holds it."
CLOSE_HELP = f"""End all sessions of a run on a running gymserve, those that wait too, and refuse its seeds for a while.

{_TOKEN_HELP}"""
HOLD_HELP = f"""Run a trainer, and close its run on a running gymserve when it exits, however that comes about.

If this command itself is killed, gymserve sees its connection end, and closes the run as well. SIGINT and SIGTERM are
passed on; the exit status is the trainer's, 128 and the signal's number where one ended it.

{_TOKEN_HELP}"""
DRAIN_HELP = f"""Have a running gymserve take no new sessions (their seeds are held, not refused), finish the running
ones and exit; return when it has.

Exit status 1 if it has not some seconds after --wait. {_TOKEN_HELP}"""
TOP_HELP = f"""Watch a running gymserve in this terminal: its sessions, its line, its environment servers. q leaves.

With --once the same is printed once, with all sessions; exit status 1 where gymserve cannot be reached. Where it asks
for a token, one of the variables {ADMIN_TOKEN_VARIABLE} and {TOKEN_VARIABLE} holds it."""
POOL_HELP = f"Add, drain and list the environment servers of a running gymserve. {_TOKEN_HELP}"

_Url = Annotated[str, Parameter(help="The running gymserve, such as http://127.0.0.1:8100.")]
_Env = Annotated[str, Parameter(help="Environment server: host:port or http(s)://host[:port][/prefix].")]
_Label = Annotated[
    str | None, Parameter(metavar="LABEL", help="The run: the label of its sessions.", show_default=False)
]
_For = Annotated[
    str, Parameter(name="--for", metavar="DURATION", help="For how long its seeds are refused; 0 takes that back.")
]
_Wait = Annotated[
    str, Parameter(metavar="DURATION", help="How long the running sessions may take, before they are ended.")
]
_Slots = Annotated[str | None, Parameter(metavar="COUNT", help="The most that may be held there.", show_default=False)]
_Command = Annotated[str, Parameter(help="The trainer, after --.", allow_leading_hyphen=True)]
_OnlyLabel = Annotated[
    str | None, Parameter(metavar="LABEL", help="Only sessions with this label.", show_default=False)
]
_State = Annotated[
    str | None,
    Parameter(metavar="STATE", help=f"Only sessions in this state: {', '.join(_STATES)}.", show_default=False),
]
_Interval = Annotated[str, Parameter(metavar="DURATION", help="How often gymserve is asked.")]
_Once = Annotated[bool, Parameter(negative=(), help="Print it once.")]
_OnceAsJson = Annotated[bool, Parameter(negative=(), help="With --once: print what gymserve tells, as JSON.")]
_Json = Annotated[bool, Parameter(negative=(), help="Print JSON.")]


def add_steering_commands(app: App, environ: Mapping[str, str]) -> None:
    """``close``, ``hold``, ``drain``, ``top`` and ``pool``."""

    @app.command(help=CLOSE_HELP)
    def close(url: _Url, /, *, label: _Label = None, for_: _For = "60s", json: _Json = False) -> int:
        from gymserve.cli.runs import run_close  # Trio and httpx: only for those who ask

        where, token = gymserve_url(url), _token(environ)
        return run_close(where, token, _label(label), refused_seconds=seconds("--for", for_), as_json=json)

    @app.command(help=HOLD_HELP)
    def hold(url: _Url, /, *command: _Command, label: _Label = None, for_: _For = "60s") -> int:
        from gymserve.cli.holding import run_hold

        where, token = gymserve_url(url), _token(environ)
        _check_command(command)
        return run_hold(where, token, _label(label), command, refused_seconds=seconds("--for", for_))

    @app.command(help=DRAIN_HELP)
    def drain(url: _Url, /, *, wait: _Wait = "30m") -> int:
        from gymserve.cli.draining import run_drain

        return run_drain(gymserve_url(url), _token(environ), wait_seconds=seconds("--wait", wait))

    @app.command(help=TOP_HELP)
    def top(
        url: _Url,
        /,
        *,
        interval: _Interval = "1s",
        label: _OnlyLabel = None,
        state: _State = None,
        once: _Once = False,
        json: _OnceAsJson = False,
    ) -> int:
        from gymserve.cli.listing import Filters
        from gymserve.cli.top import run_top, run_top_once

        where, token = gymserve_url(url), _token(environ, ADMIN_TOKEN_VARIABLE, TOKEN_VARIABLE)
        filters = Filters(None if label is None else _label(label), _state(state))
        interval_seconds = _interval(interval)
        if once:
            return run_top_once(where, token, filters, as_json=json)
        if json:
            raise Refused("flag --json: goes with --once")
        return run_top(where, token, filters, interval_seconds=interval_seconds)

    app.command(_pool(environ))


def _pool(environ: Mapping[str, str]) -> App:
    pool = App(name="pool", help=POOL_HELP)

    @pool.command(help="Open new sessions on that environment server too, from now on.")
    def add(url: _Url, env: _Env, /, *, slots: _Slots = None, json: _Json = False) -> int:
        from gymserve.cli.pool import run_pool_add

        where, server = gymserve_url(url), str(environment_server(env))
        limit = None if slots is None else count("--slots", slots)
        return run_pool_add(where, _token(environ), server, slots=limit, as_json=json)

    @pool.command(help="Open no new sessions on that environment server; it is gone when its last one ends.")
    def drain(url: _Url, env: _Env, /, *, json: _Json = False) -> int:
        from gymserve.cli.pool import run_pool_drain

        return run_pool_drain(gymserve_url(url), _token(environ), str(environment_server(env)), as_json=json)

    @pool.command(name="list", help="Print the environment servers.")
    def show(url: _Url, /, *, json: _Json = False) -> int:
        from gymserve.cli.pool import run_pool_list

        return run_pool_list(gymserve_url(url), _token(environ), as_json=json)

    return pool


def _token(environ: Mapping[str, str], *variables: str) -> str | None:
    """That of the first of the variables which is set; without one it is the admin token's.

    :raises Refused: it cannot be sent; or another variable of ours is unknown.
    """
    variables = variables or (ADMIN_TOKEN_VARIABLE,)
    from_variables({name: value for name, value in environ.items() if name not in variables}, ServeSettings)
    for variable in variables:
        if (token := environ.get(variable)) is not None:
            if not re.fullmatch(r"[\x21-\x7e]+", token):
                raise Refused(f"variable {variable}: the value is not accepted: ASCII characters without spaces")
            return token
    return None


def _label(text: str | None) -> str:
    if text is None:
        raise Refused("flag --label: is needed: the label of the run's sessions")
    if not 0 < len(text) <= _LONGEST_LABEL:
        raise Refused(f"flag --label: {quoted(text)} is not accepted: 1 to {_LONGEST_LABEL} characters")
    return text


def _state(text: str | None) -> str | None:
    if text is not None and text not in _STATES:
        raise Refused(f"flag --state: {quoted(text)} is not accepted: one of {', '.join(_STATES)}")
    return text


def _interval(text: str) -> float:
    given = seconds("--interval", text)
    if given < _SHORTEST_INTERVAL_SECONDS:
        raise Refused(f"flag --interval: {quoted(text)} is not accepted: {_SHORTEST_INTERVAL_SECONDS:g}s or more")
    return given


def _check_command(command: tuple[str, ...]) -> None:
    if not command or not command[0]:
        raise Refused("COMMAND: is needed: what to run, after --")
    if command[0].startswith("-"):
        raise Refused(f"flag {printable(command[0])}: no such flag; what to run stands after --")
