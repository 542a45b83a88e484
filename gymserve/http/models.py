"""Bodies with a model: what is not of it is refused, each fault with its place."""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from gymserve.errors import BadArguments


class Model(BaseModel):
    """The model of a body."""

    model_config = ConfigDict(extra="forbid", frozen=True)


Body = TypeVar("Body", bound=Model)


def read_model(model: type[Body], body: Mapping[str, Any]) -> Body:
    """:raises BadArguments: it is no such body; each fault with its place."""
    try:
        return model.model_validate(body)
    except ValidationError as exc:
        faults = exc.errors(include_url=False, include_context=False, include_input=False)
    raise BadArguments([_fault(**fault) for fault in faults])


def _fault(type: str, loc: tuple[int | str, ...], msg: str, **_: Any) -> Mapping[str, Any]:
    return {"type": type, "loc": ["body", *loc], "msg": msg}
