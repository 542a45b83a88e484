"""The commands: flags made from the settings' models, and what each command does with them."""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, cast

from cyclopts import App, Parameter
from pydantic.fields import FieldInfo

from gymserve import __version__
from gymserve.cli.config import rows, write_json, write_text, written
from gymserve.cli.probing import add_probe
from gymserve.cli.sources import (
    CONFIG_VARIABLE,
    Check,
    Layer,
    Model,
    Resolved,
    from_file,
    from_flags,
    from_variables,
    open_keys,
    resolve,
)
from gymserve.cli.steering import add_steering_commands
from gymserve.settings import EnvSettings, RowsSettings, ServeSettings, Settings, form_of

SERVE_HELP = (
    "Stand between RL frameworks (HTTP) and an OpenEnv environment server. `gymserve` alone means `gymserve serve`."
)
SOURCES_HELP = (
    "Every flag is also a variable (--idle-timeout: GYMSERVE_IDLE_TIMEOUT) and a key (idle_timeout) of the file that "
    "--config or GYMSERVE_CONFIG names. A flag beats a variable, a variable beats the file, the file beats the default."
)
SECRETS_HELP = (
    "Secrets come by variable or file, never by a flag's value: GYMSERVE_SECRET signs session cookies (two separated "
    "by a comma: the first signs, both are accepted); GYMSERVE_TOKEN and GYMSERVE_ADMIN_TOKEN stand for --token-file "
    "and --admin-token-file; GYMSERVE_ENV_TOKEN is the bearer token for the environment server."
)
TOKEN_HELP = "The bearer token for the environment server comes by the variable GYMSERVE_ENV_TOKEN only."
ENV_HELP = "Serve the embedded environments as an OpenEnv server of their own."
CONFIG_HELP = "Print every setting of gymserve serve, and where it comes from; takes the flags of gymserve serve."

ROWS_HELP = (
    "Write dataset rows (JSONL) that NeMo Gym and verifiers read: for the days of GridSim, the embedded environment, "
    "or with --env for seeds of an environment server, whose tools are asked for there."
)

DEMO_HELP = (
    "See it work, with no server of your own: 64 rollouts of GridSim on 8 slots, 12 of them abandoned without a word. "
    "Exit status 0 only if all is as it should be."
)

NEMO_GYM_HELP = (
    "Write what NeMo Gym's launcher (gym env start) needs to start gymserve as a resources server, below a directory "
    "of yours, and tell how to go on from there. Files that are there already and differ are left, and refused."
)

RunServe = Callable[[ServeSettings], int]
RunEnv = Callable[[EnvSettings], int]
RunRows = Callable[[Resolved[RowsSettings]], int]


def _run_serve(settings: ServeSettings) -> int:
    from gymserve.cli.serving import run_serve  # Trio, Quart and hypercorn: only for those who serve

    return run_serve(settings)


def _run_env(settings: EnvSettings) -> int:
    from gymserve.cli.environment import run_env

    return run_env(settings)


def _run_rows(resolved: Resolved[RowsSettings]) -> int:
    from gymserve.cli.rows import run_rows

    return run_rows(resolved)


def _run_demo(as_json: bool) -> int:
    from gymserve.cli.demo import run_demo

    return run_demo(as_json=as_json)


def _run_nemo_gym(directory: str) -> int:
    from gymserve.cli.nemo_gym_directory import run_nemo_gym

    return run_nemo_gym(directory)


def _check_fault(text: str) -> object:
    from gymserve.gridsim.faults import parse_fault

    return parse_fault(text)


def build_app(
    environ: Mapping[str, str],
    *,
    run_serve: RunServe = _run_serve,
    run_env: RunEnv = _run_env,
    run_rows: RunRows = _run_rows,
    check_fault: Check = _check_fault,
) -> App:
    """The command line. Its commands return an exit status and raise ``Refused`` for values that are not accepted."""

    def serve(**flags: object) -> int:
        return run_serve(gather(ServeSettings, flags, environ).settings)

    def env(**flags: object) -> int:
        return run_env(gather(EnvSettings, flags, environ, fault=check_fault).settings)

    def config(**flags: object) -> int:
        write = write_json if flags.pop("json", None) else write_text
        write(rows(gather(ServeSettings, flags, environ)))
        return 0

    def write_rows(**flags: object) -> int:
        return run_rows(gather(RowsSettings, flags, environ))

    def demo(**flags: object) -> int:
        from_variables(environ, ServeSettings)  # an unknown variable is refused here too
        return _run_demo(bool(flags.get("json")))

    def nemo_gym(directory: str) -> int:
        from_variables(environ, ServeSettings)
        return _run_nemo_gym(directory)

    _describe(serve, [SERVE_HELP, SOURCES_HELP, SECRETS_HELP], _flags(ServeSettings))
    _describe(env, [ENV_HELP, SOURCES_HELP], _flags(EnvSettings))
    _describe(config, [CONFIG_HELP], [_JSON, *_flags(ServeSettings)])
    _describe(write_rows, [ROWS_HELP, SOURCES_HELP, TOKEN_HELP], _flags(RowsSettings))
    _describe(demo, [DEMO_HELP], [_JSON])
    _describe(nemo_gym, [NEMO_GYM_HELP], [_DIRECTORY])
    app = App(name="gymserve", version=f"gymserve {__version__}", help_format="plaintext")
    app.default(serve)
    commands: Mapping[str, Callable[..., int]] = {
        "serve": serve,
        "demo": demo,
        "env": env,
        "rows": write_rows,
        "nemo-gym": nemo_gym,
        "config": config,
    }
    for name, command in commands.items():
        app.command(command, name=name)
    add_probe(app, lambda flags: gather(RowsSettings, flags, environ).settings)
    add_steering_commands(app, environ)
    return app


def gather(
    model: type[Model], flags: Mapping[str, object], environ: Mapping[str, str], **checks: Check
) -> Resolved[Model]:
    """The settings from all sources: default < file < variable < flag.

    :raises Refused: something that is given is not accepted.
    """
    given = {key: value for key, value in flags.items() if key != "config"}
    variables = from_variables(environ, model)
    path = flags.get("config", environ.get(CONFIG_VARIABLE))
    file: Layer = {} if path is None else from_file(str(path), model)
    return resolve(model, [file, variables, from_flags(given)], checks)


def _describe(command: Callable[..., int], paragraphs: Iterable[str], flags: Iterable[inspect.Parameter]) -> None:
    command.__doc__ = "\n\n".join(paragraphs)
    cast(Any, command).__signature__ = inspect.Signature(list(flags))


def _flag(name: str, kind: Any, parameter: Parameter) -> inspect.Parameter:
    # Nothing but the text is taken here: the model says what is accepted, wherever a value comes from.
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, parameter]
    )


_CONFIG = _flag("config", str, Parameter(metavar="FILE", help="Settings file (.toml, .yaml or .yml)."))
_DIRECTORY = inspect.Parameter(
    "dir",
    inspect.Parameter.POSITIONAL_ONLY,
    annotation=Annotated[str, Parameter(help="Directory that gets resources_servers/gymserve/.")],
)
_JSON = _flag("json", bool, Parameter(negative=(), help="Print JSON."))


def _flags(model: type[Settings]) -> Iterator[inspect.Parameter]:
    yield _CONFIG
    defaults = model().model_dump(mode="json")
    for key in open_keys(model):
        yield _setting_flag(key, model.model_fields[key], defaults[key])


def _setting_flag(key: str, field: FieldInfo, default: Any) -> inspect.Parameter:
    form = form_of(field)
    parameter = Parameter(
        metavar=form.metavar or None,
        help=field.description,
        show_default=lambda _: written(default, form),
        negative=None if field.annotation is bool else (),
    )
    return _flag(key, _kind(field), parameter)


def _kind(field: FieldInfo) -> Any:
    if field.annotation is bool:
        return bool
    return tuple[str, ...] if isinstance(field.default, tuple) else str
