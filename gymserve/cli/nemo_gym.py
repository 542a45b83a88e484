"""gymserve as a process of NeMo Gym's launcher, which gives it its settings, and ends it.

NeMo Gym (0.7.0, ``nemo_gym/cli/env.py``) hands its whole configuration over in one variable and the name of the
instance to serve in another, and looks for the server at the instance's ``host`` and ``port``. It ends its servers
by SIGINT and one second later by SIGKILL. With ``nemo_gym_log_dir`` set, only the shell between gets these; and one
that is killed itself ends nothing. So the launcher's death is watched for.
"""

import json
import os
import sys
from collections.abc import Mapping
from functools import partial
from importlib import import_module
from typing import Any, NoReturn

import yaml

from gymserve.cli import interruptible, refuse
from gymserve.cli.launcher import Launcher
from gymserve.cli.process import EndingSignal, first_of
from gymserve.cli.refusals import Refused, printable
from gymserve.cli.serving import run_serve
from gymserve.cli.sources import CONFIG_VARIABLE, Given, Layer, from_file, from_mapping, from_variables, resolve
from gymserve.settings import ServeSettings

CONFIG_DICT_VARIABLE = "NEMO_GYM_CONFIG_DICT"
INSTANCE_VARIABLE = "NEMO_GYM_CONFIG_PATH"

_GRACE_SECONDS = 0.5  # leaves as long for the goodbyes
_ADDRESS = ("host", "port")
_MCP = "expose_tools_over_mcp"
_FOR_NEMO_GYM = frozenset(
    {
        "allowed_agents",
        "allowed_model_types",
        "datasets",
        "description",
        "domain",
        "entrypoint",
        "num_workers",  # gymserve is one process
        "value",
        "verified",
        "verified_url",
    }
)
"""What NeMo Gym itself reads of a resources server's configuration."""


def run() -> NoReturn:
    """Serve as the instance that NeMo Gym's launcher has started, and exit: 2 for a configuration that is not accepted.

    SIGINT or SIGTERM ends it, or the launcher's death. Further signals change nothing: at Ctrl-C in a terminal SIGINT
    comes twice, from there and from the launcher.
    """
    sys.exit(interruptible(partial(_serve, os.environ)))


def _serve(environ: Mapping[str, str]) -> int:
    launcher = Launcher(INSTANCE_VARIABLE, environ.get(INSTANCE_VARIABLE, ""))

    async def launcher_gone() -> str:
        await launcher.gone()
        return "NeMo Gym's launcher has died"

    async def until(signal: EndingSignal) -> str:
        return await first_of(signal.noted, launcher_gone)

    try:
        settings = instance_settings(environ)
    except Refused as refused:
        return refuse(refused)
    return run_serve(settings, until=until)


def instance_settings(environ: Mapping[str, str]) -> ServeSettings:
    """The settings of the instance that the variables name, as `sources` has them: the instance's own keys are weaker
    than a ``GYMSERVE_...`` variable and stronger than a file. Its host and port are the strongest.

    :raises Refused: NeMo Gym has not set its variables, or a setting is not accepted.
    """
    name = _variable(environ, INSTANCE_VARIABLE)
    instance = _instance(_variable(environ, CONFIG_DICT_VARIABLE), name)
    where = f"instance {printable(name)}"
    own = {key: value for key, value in _ours(instance).items() if key not in {*_ADDRESS, _MCP}}
    path = environ.get(CONFIG_VARIABLE)
    layers: list[Layer] = [
        {key: Given(value, where, where) for key, value in _defaults(name, instance).items()},
        {} if path is None else from_file(path, ServeSettings),
        from_mapping(own, where, ServeSettings),
        from_variables(environ, ServeSettings),
        {key: Given(instance.get(key), f"{where}: {key}", where) for key in _ADDRESS},
    ]
    return resolve(ServeSettings, layers, {}).settings


def _defaults(name: str, instance: Mapping[str, Any]) -> dict[str, object]:
    defaults: dict[str, object] = {"name": name, "grace": _GRACE_SECONDS}
    if _MCP in instance:
        defaults["mcp"] = "always" if instance[_MCP] else "never"
    return defaults


def _variable(environ: Mapping[str, str], name: str) -> str:
    if name not in environ:
        raise Refused(f"variable {name}: is not set; NeMo Gym's launcher sets it: run gym env start, or gymserve serve")
    return environ[name]


def _instance(text: str, name: str) -> Mapping[str, Any]:
    """The first server of that name, which is the one that NeMo Gym starts, as its servers see it."""
    try:
        instance = next(iter(next(iter(yaml.safe_load(text)[name].values())).values()))
    except (yaml.YAMLError, AttributeError, KeyError, StopIteration, TypeError):
        instance = None
    if not isinstance(instance, dict):
        raise Refused(f"variable {CONFIG_DICT_VARIABLE}: has no server {printable(name)}")
    return _interpolated(text, name) if "${" in json.dumps(_ours(instance), default=str) else instance


def _ours(instance: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in instance.items() if key not in _FOR_NEMO_GYM}


def _interpolated(text: str, name: str) -> Mapping[str, Any]:
    try:
        omegaconf = import_module("omegaconf")  # as NeMo Gym has it, and so most often who is started by it
    except ModuleNotFoundError:
        raise Refused(
            f"instance {printable(name)}: has an interpolation ({'${...}'}); add omegaconf to requirements.txt beside "
            "app.py, or write the value itself"
        ) from None
    config = omegaconf.OmegaConf.create(text)
    server = next(iter(next(iter(config[name].values())).values()))
    try:
        instance: Mapping[str, Any] = omegaconf.OmegaConf.to_container(server, resolve=True)
    except omegaconf.errors.OmegaConfBaseException as error:
        raise Refused(f"instance {printable(name)}: {printable(str(error).partition(chr(10))[0])}") from None
    return instance
