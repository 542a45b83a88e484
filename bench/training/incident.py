"""The figures of the incident, in seconds as they were, and the one factor by which a run is faster."""

import math
from dataclasses import dataclass

import numpy as np

SLOTS = 64
IN_FLIGHT = 64
GROUP_SIZE = 8
BATCH_SIZE = 32
STEPS = 40
EVALUATED_STEPS = (0, 20, 40)

HANDSHAKE_SECONDS = 0.5
"""A handshake is answered after this while the environment server is at ease."""
LOADED_HANDSHAKE_SECONDS = 12.0
"""And after this while it is under load: `LOADED_SHARE` of its slots or more are being reset or closed."""
LOADED_SHARE = 0.375
RESET_SECONDS = 3.0
CLOSE_SECONDS = 10.0
OUTAGE_SECONDS = 30.0

CLIENT_HANDSHAKE_SECONDS = 10.0
"""What OpenEnv's client gives a handshake, and gymserve by its ``--connect-timeout``."""
RESTART_PATIENCE_SECONDS = 60.0
CLOSE_TIMEOUT_SECONDS = 60.0
STEP_TIMEOUT_SECONDS = 600.0
INTERIM_SECONDS = 15.0

SET_UP_SECONDS = 2.0
"""What a trainer takes for a rollout before it asks for an environment: dispatch, worker, task."""
ADMISSION_WINDOW_SECONDS = 5.0
THINK_MEDIAN_SECONDS = 8.0
THINK_P99_SECONDS = 120.0
LONGEST_THINK_SECONDS = 110.0
"""A turn's tokens are limited, so its time is. Without a limit one turn in a hundred would outlast an idle timeout of
120 s.
"""
TURNS = 3
"""Of a rollout: each thinks once, and dispatches eight hours."""

_P99_NORMAL = 2.3263478740408408
"""The 99th percentile of the standard normal distribution."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Every time of the incident is divided by ``scale``."""

    scale: float

    def seconds(self, seconds: float) -> float:
        """What ``seconds`` of the incident take in this run."""
        return seconds / self.scale

    def as_it_were(self, seconds: float) -> float:
        """What ``seconds`` of this run stand for."""
        return seconds * self.scale

    def think_seconds(self, chance: np.random.Generator) -> float:
        """Of one turn, in this run: lognormal, with a longest."""
        spread = math.log(THINK_P99_SECONDS / THINK_MEDIAN_SECONDS) / _P99_NORMAL
        drawn = THINK_MEDIAN_SECONDS * math.exp(spread * chance.standard_normal())
        return self.seconds(min(drawn, LONGEST_THINK_SECONDS))
