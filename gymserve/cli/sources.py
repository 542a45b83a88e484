"""Where settings come from: flags, environment variables and files, the stronger over the weaker.

Each source is read into a layer: by setting, the value given there and the words for where that was. A layer is checked
for itself, so that a wrong value is refused even where a stronger source would override it.
"""

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from gymserve.cli.refusals import Refused, masked, printable, quoted, suggestion
from gymserve.settings import EnvSettings, RowsSettings, ServeSettings, Settings, form_of

PREFIX = "GYMSERVE_"
CONFIG_VARIABLE = "GYMSERVE_CONFIG"
COMMANDS: Mapping[str, type[Settings]] = {"serve": ServeSettings, "env": EnvSettings, "rows": RowsSettings}

_FILE_ALIASES = {"reset_timeout": "patience"}
# What Kubernetes sets in every pod of a namespace that has a Service called gymserve.
_SERVICE_LINK = re.compile(r"_SERVICE_(HOST|PORT)|_PORT_\d+_")

Model = TypeVar("Model", bound=Settings)
Check = Callable[[str], object]


@dataclass(frozen=True, slots=True)
class Given:
    """A value that someone gave. ``where`` names flag, variable or file and key; ``source`` is the short form of it."""

    value: object
    where: str
    source: str


Layer = Mapping[str, Given]


@dataclass(frozen=True, slots=True)
class Resolved(Generic[Model]):
    """Settings, and where each of their values came from (nothing for a default)."""

    settings: Model
    given: Layer

    def source(self, key: str) -> str:
        return self.given[key].source if key in self.given else "default"


def variable_name(key: str) -> str:
    return PREFIX + key.upper()


def flag_name(key: str) -> str:
    return "--" + key.replace("_", "-")


def open_keys(model: type[Settings]) -> list[str]:
    """The settings that flags and files may give: all but the secrets."""
    return [key for key, field in model.model_fields.items() if form_of(field).shown != "set"]


def from_flags(values: Mapping[str, object]) -> Layer:
    """The layer of the flags that were given (``None`` = not given)."""
    return {key: Given(value, f"flag {flag_name(key)}", "flag") for key, value in values.items() if value is not None}


def from_variables(environ: Mapping[str, str], model: type[Settings]) -> Layer:
    """The layer of the ``GYMSERVE_*`` variables that set something of ``model``.

    :raises Refused: one of them is no setting of any command.
    """
    ours = {name: environ[name] for name in sorted(environ) if name.startswith(PREFIX)}
    known = {variable_name(key) for each in COMMANDS.values() for key in each.model_fields} | {CONFIG_VARIABLE}
    for name, value in ours.items():
        if _SERVICE_LINK.search(name) or (name.endswith("_PORT") and "://" in value):
            raise Refused(
                f"variable {printable(name)}: comes from Kubernetes; set enableServiceLinks: false in the pod"
            )
        if name not in known:
            raise Refused(f"variable {printable(name)}: no such setting{suggestion(name, known, prefix=PREFIX)}")
    names = {key: variable_name(key) for key in model.model_fields}
    return {key: Given(ours[name], f"variable {name}", name) for key, name in names.items() if name in ours}


def from_file(path: str, model: type[Settings]) -> Layer:
    """The layer of a TOML or YAML file.

    :raises Refused: it cannot be read or parsed, or as `from_mapping`.
    """
    file = f"file {printable(path)}"
    return from_mapping(_mapping(path, file), file, model)


def from_mapping(values: Mapping[str, object], where: str, model: type[Settings]) -> Layer:
    """The layer of the settings in ``values``; ``where`` names where they stand.

    :raises Refused: a key is no setting of ``model``.
    """
    layer: dict[str, Given] = {}
    for written, value in values.items():
        key = _FILE_ALIASES.get(written, written)
        if key not in open_keys(model):
            raise Refused(f"{where}: {_unknown_key(written, model)}")
        if key in layer:
            raise Refused(
                f"{where}: {layer[key].where.removeprefix(f'{where}: ')} and {written} name the same setting; give one"
            )
        layer[key] = Given(value, f"{where}: {written}", where)
    return layer


def _unknown_key(written: object, model: type[Settings]) -> str:
    key = printable(str(written))
    for command, other in COMMANDS.items():
        if key in open_keys(other):
            return f"{key}: not a setting of this command, but of gymserve {command}"
        if key in other.model_fields:
            return f"{key}: secrets are not accepted in files; set {variable_name(key)}"
    return f"{key}: no such setting{suggestion(key, open_keys(model))}"


class _Loader(yaml.SafeLoader):
    """YAML that refuses a key given twice, as TOML does."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value} is given twice", key.start_mark)
            seen.add(key.value)
        return node


def _parse_yaml(text: str) -> object:
    content = yaml.load(text, Loader=_Loader)  # safe: it is a SafeLoader
    return {} if content is None else content


_PARSERS: Mapping[str, Callable[[str], object]] = {".toml": tomllib.loads, ".yaml": _parse_yaml, ".yml": _parse_yaml}


def _mapping(path: str, file: str) -> dict[str, object]:
    parse = _PARSERS.get(Path(path).suffix.lower())
    if parse is None:
        raise Refused(f"{file}: is of an unknown kind; accepted: {', '.join(_PARSERS)}")
    try:
        content = parse(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise Refused(f"{file}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError, yaml.YAMLError) as error:  # ValueError: bad UTF-8, bad TOML, a date 2024-13-45
        raise Refused(f"{file}: cannot be parsed: {_problem(error)}") from None
    if not isinstance(content, dict):
        raise Refused(f"{file}: is not a mapping from settings to values")
    return content


def _problem(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return printable(f"line {error.problem_mark.line + 1}: {error.problem}")
    return printable(" ".join(str(error).split()))


def resolve(model: type[Model], layers: Iterable[Layer], checks: Mapping[str, Check]) -> Resolved[Model]:
    """The settings that the layers give, the last the strongest.

    ``checks`` are further checks of the texts in a setting, by its name; they raise ValueError with a sentence.

    :raises Refused: a value is out of bounds.
    """
    merged: dict[str, Given] = {}
    for layer in layers:
        _validated(model, layer, checks)
        merged.update(layer)
    return Resolved(_validated(model, merged, checks), merged)


def _validated(model: type[Model], layer: Layer, checks: Mapping[str, Check]) -> Model:
    try:
        settings = model.model_validate({key: given.value for key, given in layer.items()})
    except ValidationError as error:
        raise _refusal(model, layer, error.errors(include_url=False)[0]) from None
    for key in checks.keys() & layer.keys():
        _check(getattr(settings, key), checks[key], layer[key].where)
    return settings


def _check(texts: Iterable[str], check: Check, where: str) -> None:
    for text in texts:
        try:
            check(text)
        except ValueError as error:
            raise Refused(f"{where}: {quoted(text)} is not accepted: {printable(str(error))}") from None


def _refusal(model: type[Settings], layer: Layer, error: ErrorDetails) -> Refused:
    key, *inner = error["loc"]
    given, form = layer[str(key)], form_of(model.model_fields[str(key)])
    value = quoted(error["input"] if inner else given.value) if form.shown == "value" else "the value"
    reason = str(error.get("ctx", {}).get("error", "")) or form.accepted
    return Refused(f"{given.where}: {value} is not accepted: {printable(masked(reason))}")
