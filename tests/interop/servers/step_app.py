"""An OpenEnv server with one action: the action says what the environment does."""

import os
import time
from typing import Any, Literal

from ledger import Ledger
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, ConcurrencyConfig, Observation, State
from pydantic import Field, field_validator


class ScriptedAction(Action):
    reward: bool | float | Literal["nan"] | None = None
    done: bool = False
    text: str = ""
    text_bytes: int = Field(default=0, ge=0)
    sleep_seconds: float = Field(default=0, ge=0)
    failure: str | None = None
    exit: bool = False

    @field_validator("text")
    @classmethod
    def _not_forbidden(cls, text: str) -> str:
        if text == "forbidden":
            raise ValueError("this text is forbidden")
        return text


class ScriptedObservation(Observation):
    text: str = ""
    steps: int = 0


class ScriptedEnvironment(Environment[ScriptedAction, ScriptedObservation, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self) -> None:
        super().__init__()
        self._ledger = Ledger()
        self._state = State(step_count=0)

    def reset(self, **kwargs: Any) -> ScriptedObservation:
        self._ledger.enter("reset", kwargs=kwargs)
        return ScriptedObservation(text="ready")

    def step(self, action: ScriptedAction, timeout_s: float | None = None, **kwargs: Any) -> ScriptedObservation:
        self._ledger.enter("step")
        self._state.step_count += 1
        time.sleep(action.sleep_seconds)
        if action.exit:
            os._exit(3)
        if action.failure is not None:
            raise RuntimeError(action.failure)
        return ScriptedObservation(
            text=action.text + "x" * action.text_bytes,
            steps=self._state.step_count,
            reward=float("nan") if action.reward == "nan" else action.reward,
            done=action.done,
        )

    @property
    def state(self) -> State:
        return self._state

    def close(self) -> None:
        self._ledger.enter("close")


CONCURRENCY = ConcurrencyConfig(
    max_concurrent_envs=int(os.environ["CAPACITY"]),
    session_timeout=float(os.environ["SESSION_TIMEOUT"]) if "SESSION_TIMEOUT" in os.environ else None,
)
app = create_app(
    ScriptedEnvironment, ScriptedAction, ScriptedObservation, env_name="scripted", concurrency_config=CONCURRENCY
)
