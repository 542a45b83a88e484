"""What an environment is to the embedded server."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gymserve.wire import Observation


class InvalidAction(Exception):
    """The action, or an argument of reset, does not fit: OpenEnv's VALIDATION_ERROR, and the episode goes on.

    ``errors`` has one object per fault, with pydantic's keys ``type``, ``loc``, ``msg`` and ``input``.
    """

    def __init__(self, errors: Sequence[Mapping[str, Any]]) -> None:
        super().__init__("; ".join(str(error.get("msg")) for error in errors))
        self.errors = errors


class Environment(ABC):
    """One episode at a time, made anew for every connection.

    Its methods run on the event loop and must not block. Any exception of ``reset`` and ``step`` except `InvalidAction`
    reaches the client as EXECUTION_ERROR with its text, and the episode goes on.
    """

    #: JSON Schema of what `step` takes. OpenEnv's clients know an MCP environment by the title ``CallToolAction``.
    action_schema: Mapping[str, Any]
    #: JSON Schema of an observation's fields.
    observation_schema: Mapping[str, Any]
    #: ``name``, ``description`` and ``input_schema`` of every tool; empty for a step environment.
    tools: Sequence[Mapping[str, Any]] = ()

    @abstractmethod
    def reset(self, *args: Any, **kwargs: Any) -> Observation:
        """Begin an episode. An implementation names the parameters that it knows; it is passed no others."""

    @abstractmethod
    def step(self, action: Mapping[str, Any]) -> Observation:
        """Act. :raises InvalidAction: the action does not fit `action_schema`."""

    def close(self) -> None:  # noqa: B027 - most environments hold nothing
        """Give back what the environment holds; called once, whatever happened before."""


def known_arguments(function: Callable[..., Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Those of ``arguments`` that ``function`` names; all of them if it takes ``**kwargs``.

    OpenEnv drops the others without a word (``HTTPEnvServer._get_valid_kwargs``).
    """
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return dict(arguments)
    named = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return {name: value for name, value in arguments.items() if name in named}
