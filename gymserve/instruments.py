"""What is kept of a gateway for whoever watches it, all of it from the telemetry."""

from dataclasses import dataclass

from gymserve.events import Events
from gymserve.gateway import Gateway
from gymserve.metrics import Metrics
from gymserve.minutes import Minutes
from gymserve.timelines import Timelines


@dataclass(frozen=True, slots=True)
class Instruments:
    """The numbers, the latest events, what happened to each session, and what ended in the last half hour."""

    metrics: Metrics
    events: Events
    timelines: Timelines
    minutes: Minutes


def fit_instruments(gateway: Gateway, *, kept_seconds: float) -> Instruments:
    """:param kept_seconds: for which what happened to an ended session is told."""
    events = Events(gateway.instance, gateway.telemetry)
    return Instruments(Metrics(gateway), events, Timelines(events, kept_seconds=kept_seconds), Minutes(events))
