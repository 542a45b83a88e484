"""What is wrong with a command line, told in one line."""

from collections.abc import Iterable

from cyclopts.argument import Argument, ArgumentCollection
from cyclopts.exceptions import (
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    RepeatArgumentError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from gymserve.cli.refusals import Refused, printable, quoted, suggestion
from gymserve.cli.sources import COMMANDS, flag_name, open_keys, variable_name
from gymserve.settings import Settings, form_of


def _ways(key: str, model: type[Settings]) -> str:
    """How a secret is given."""
    file = f"{key}_file"
    return f"{variable_name(key)} or {flag_name(file)}" if file in model.model_fields else variable_name(key)


_SECRETS = {
    flag_name(key): _ways(key, each)
    for each in COMMANDS.values()
    for key in each.model_fields
    if key not in open_keys(each)
}
_ACCEPTED = {
    flag_name(key): form_of(field).accepted for each in COMMANDS.values() for key, field in each.model_fields.items()
}

_NEEDED = {
    "DIR": "the name of a directory",
    "URL": "the address of a running gymserve, such as http://127.0.0.1:8100",
    "ENV": "the address of an environment server, such as http://127.0.0.1:8000",
}
_WITHOUT_SETTINGS = frozenset({"close", "hold", "drain", "pool", "probe", "top"})
_OF_THEIRS = {
    "--label": "the label of the run's sessions",
    "--for": "a duration such as 90s, 30m or 1h",
    "--wait": "a duration such as 90s, 30m or 1h",
    "--interval": "a duration such as 0.5s, 5s or 1m",
    "--state": "waiting, opening, idle, busy, done or closing",
    "--slots": "a whole number, 1 or more",
    "--timeout": "a duration such as 90s, 30m or 1h",
    "-n": "a whole number, 1 or more",
    "--env-header": "NAME: VALUE",
}

# The argument is not repeated: it may be the rest of a header's value.
_UNEXPECTED = Refused("an argument that belongs to no flag is not expected; a value with spaces in it needs quotes")


def refusal(error: CycloptsError) -> Refused:
    """The line for an error of the parser. An unknown flag's value is not repeated: it may be a secret."""
    match error:
        case UnknownOptionError():
            return _unknown(error.token.keyword or error.token.value, error.argument_collection)
        case UnusedCliTokensError():
            return _unexpected(error)
        case MissingArgumentError(argument=Argument(name=str() as name)) if not name.startswith("-"):
            return Refused(f"{name}: is needed: {_NEEDED[name]}")
        case MissingArgumentError(argument=Argument() as argument, command_chain=command):
            return Refused(f"flag {argument.name}: a value is needed: {_accepted(argument.name, command)}")
        case RepeatArgumentError(token=token):
            return Refused(f"flag {token.keyword}: given more than once")
        case CoercionError(token=token) if token is not None:
            accepted = _accepted(token.keyword or "")
            return Refused(f"flag {token.keyword}: {quoted(token.value)} is not accepted: {accepted}")
        case _:
            error.verbose = False
            return Refused(printable(" ".join(str(error).split())))


def _unknown(written: str, known: ArgumentCollection) -> Refused:
    flag = written.partition("=")[0]
    if flag in _SECRETS:
        return Refused(f"flag {flag}: secrets are not accepted as flags; set {_SECRETS[flag]}")
    names = [name for argument in known for name in argument.names]
    if flag in names:  # it stands behind "--", where the parser looks for no flags
        return _UNEXPECTED
    for command, model in COMMANDS.items():
        if flag in map(flag_name, open_keys(model)):
            return Refused(f"flag {flag}: not a flag of this command, but of gymserve {command}")
    return Refused(f"flag {printable(flag)}: no such flag{suggestion(flag, names, prefix='--')}")


def _unexpected(error: UnusedCliTokensError) -> Refused:
    unused, arguments = error.unused_tokens or [], error.root_input_tokens or []
    if unused[:1] == arguments[:1]:
        commands = [name for name in error.app or () if not name.startswith("-")]
        return Refused(f"{quoted(unused[0])}: no such command{suggestion(unused[0], commands)}")
    return _UNEXPECTED


def _accepted(flag: str, command: Iterable[str] | None = ()) -> str:
    if flag in _OF_THEIRS and not _WITHOUT_SETTINGS.isdisjoint(command or ()):
        return _OF_THEIRS[flag]
    return _ACCEPTED.get(flag, "the name of a file" if flag == "--config" else "true or false")
