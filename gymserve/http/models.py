"""Bodies and queries with a model: what is not of it is refused, each fault with its place."""

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
    return _read(model, body, "body")


def read_query(model: type[Body], query: Mapping[str, str]) -> Body:
    """As `read_model`, of what stands behind a URL's question mark."""
    return _read(model, dict(query), "query")


def _read(model: type[Body], values: Mapping[str, Any], where: str) -> Body:
    try:
        return model.model_validate(values)
    except ValidationError as exc:
        faults = exc.errors(include_url=False, include_context=False, include_input=False)
    raise BadArguments([_fault(where, **fault) for fault in faults])


def _fault(where: str, type: str, loc: tuple[int | str, ...], msg: str, **_: Any) -> Mapping[str, Any]:
    return {"type": type, "loc": [where, *loc], "msg": msg}
