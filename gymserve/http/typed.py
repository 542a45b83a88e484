"""The bodies of NeMo Gym's typed session lifecycle (``nemo_gym/base_resources_server.py`` and ``episode_types.py``,
0.7.0), told from an agent's by ``resources_session_id``.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from gymserve.http.models import Model

_NAME_CHARACTERS = 1000

_ATTEMPT_SUFFIX = re.compile(r"-a[1-9][0-9]*$")


def _without_attempt(rollout_id: str) -> str:
    if _ATTEMPT_SUFFIX.search(rollout_id):
        raise ValueError("rollout_id must not end with the reserved attempt suffix '-a<N>'")
    return rollout_id


Name = Annotated[str, Field(min_length=1, max_length=_NAME_CHARACTERS)]
RolloutId = Annotated[
    str,
    Field(max_length=_NAME_CHARACTERS, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$"),
    AfterValidator(_without_attempt),
]


class EpisodeId(Model):
    """One attempt at a rollout."""

    rollout_id: RolloutId
    attempt: int = Field(default=0, ge=0)


class TaskId(Model):
    """One task of a run's taskset."""

    taskset: Name
    task_id: Name


class TypedSeed(Model):
    """The body of a typed ``/seed_session``; ``task_data`` is the task's row."""

    resources_session_id: Name
    episode_id: EpisodeId
    task_id: TaskId
    task_data: dict[str, Any]


class TypedClose(Model):
    """The body of a typed ``/close_session``."""

    resources_session_id: Name
    episode_id: EpisodeId


def is_typed(body: Mapping[str, Any]) -> bool:
    return "resources_session_id" in body
