"""Prometheus metrics of one gymserve: counted from the telemetry, and read from the gateway when they are asked for."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from gymserve.gateway import Gateway
from gymserve.score import MASKED_KINDS
from gymserve.session import State
from gymserve.telemetry import (
    Called,
    Ended,
    Fact,
    LinesLost,
    ReclaimedAlive,
    SessionOpened,
    SlotFreed,
    Stepped,
    Verified,
)

_MOST_LABELS = 50
_OTHERS = "(others)"
_NO_LABEL = ""

_CALL_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
_OPENING_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1200)
_THINK_SECONDS = (0.1, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 180, 300, 450, 600, 900, 1200, 1800, 3600)
_REQUEST_SECONDS = (0.001, 0.0025, *_CALL_SECONDS, 1200)
_OVERSHOOT_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)


class Metrics:
    """Counts what the telemetry tells, and is the HTTP server's `Tally`. Labels of clients are bounded: those beyond
    the first 50 count together.
    """

    content_type = CONTENT_TYPE_LATEST

    def __init__(self, gateway: Gateway) -> None:
        self._registry = CollectorRegistry()
        self._labels: set[str] = set()
        self._ended = self._counter("sessions_ended", "Sessions ended, by why", "ending", "label")
        self._verified = self._counter(
            "verifies", "Verifies answered, by what masked the result", "masked_kind", "label"
        )
        self._reclaimed_alive = self._counter(
            "reclaimed_alive", "Sessions ended by their idle timeout whose client came back", "label"
        )
        self._opening = self._histogram("opening_seconds", "From a seed to its episode", _OPENING_SECONDS, "env")
        self._reset = self._histogram("reset_seconds", "Resets", _CALL_SECONDS, "env")
        self._step = _ByLabel(self._histogram("step_seconds", "Steps in the environment", _CALL_SECONDS, "label"))
        self._think = _ByLabel(
            self._histogram("think_seconds", "From an answer to the next request", _THINK_SECONDS, "label")
        )
        self._goodbye = self._histogram("goodbye_seconds", "Goodbyes, until the slot is free", _CALL_SECONDS, "env")
        self._overshoot = self._histogram(
            "reclaim_overshoot_seconds", "How late a deadline was acted on", _OVERSHOOT_SECONDS
        )
        self._request = _ByLabel(
            self._histogram("request_seconds", "HTTP requests, until their answer is out", _REQUEST_SECONDS, "route")
        )
        self._interim = self._counter(
            "interim_responses", "Interim answers to requests that wait (100 Continue)", "route"
        )
        self._hang_ups = self._counter("hang_ups", "Requests whose client left before their answer", "route")
        self._lines_lost = self._counter("trajectory_lines_lost", "Lines of trajectories that were lost, by why", "why")
        for why in ("dropped", "unwritten"):
            self._lines_lost.labels(why)
        self._begin(_NO_LABEL)
        self._registry.register(_Standing(gateway))
        gateway.telemetry.listen(self._count)

    def exposed(self) -> bytes:
        """All of them in Prometheus' text format."""
        return generate_latest(self._registry)

    def _counter(self, name: str, help: str, *labels: str) -> Counter:
        return Counter(f"gymserve_{name}", help, labels, registry=self._registry)

    def _histogram(self, name: str, help: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(f"gymserve_{name}", help, labels, registry=self._registry, buckets=buckets)

    # -- what the HTTP server tells --------------------------------------------------------------------------------

    def answered(self, route: str, seconds: float) -> None:
        self._request[route].observe(seconds)

    def reminded(self, route: str) -> None:
        self._interim.labels(route).inc()

    def hung_up(self, route: str) -> None:
        self._hang_ups.labels(route).inc()

    # -- what the telemetry tells ----------------------------------------------------------------------------------

    def _count(self, fact: Fact) -> None:
        match fact:
            case SessionOpened():
                self._bounded(fact.label)
                self._opening.labels(fact.env).observe(fact.waited_seconds + fact.reset_seconds)
                self._reset.labels(fact.env).observe(fact.reset_seconds)
            case Called():
                self._think[self._bounded(fact.label)].observe(fact.think_seconds)
            case Stepped():
                self._step[self._bounded(fact.label)].observe(fact.step_seconds)
            case Ended():
                self._ended.labels(fact.ending, self._bounded(fact.label)).inc()
                if fact.overshoot_seconds is not None:
                    self._overshoot.observe(fact.overshoot_seconds)
            case SlotFreed():
                self._goodbye.labels(fact.env).observe(fact.goodbye_seconds)
            case Verified():
                self._verified.labels(fact.masked_kind or "", self._bounded(fact.label)).inc()
            case LinesLost():
                self._lines_lost.labels(fact.why).inc(fact.lines)
            case ReclaimedAlive():
                self._reclaimed_alive.labels(self._bounded(fact.label)).inc()

    def _bounded(self, label: str | None) -> str:
        if label is None:
            return _NO_LABEL
        if label in self._labels:
            return label
        if len(self._labels) >= _MOST_LABELS:
            return _OTHERS
        self._labels.add(label)
        self._begin(label)
        if len(self._labels) == _MOST_LABELS:
            self._begin(_OTHERS)
        return label

    def _begin(self, label: str) -> None:
        """Show 0 first: Prometheus sees no increase in a counter that begins with its first events."""
        self._reclaimed_alive.labels(label)
        for masked_kind in ("", *MASKED_KINDS):
            self._verified.labels(masked_kind, label)


class _ByLabel(dict[str, Histogram]):
    """The parts of a histogram that every call adds to, found without prometheus_client's lock and checks."""

    def __init__(self, histogram: Histogram) -> None:
        super().__init__()
        self._histogram = histogram

    def __missing__(self, label: str) -> Histogram:
        self[label] = self._histogram.labels(label)
        return self[label]


class _Standing:
    """What is read, not counted: as things stand when somebody asks."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def collect(self) -> Iterator[Metric]:
        gateway = self._gateway
        states = GaugeMetricFamily("gymserve_sessions", "Sessions by state", labels=["state"])
        counted = dict.fromkeys(State, 0)
        for session in gateway.all_sessions():
            counted[session.state] += 1
        for state, count in counted.items():
            states.add_metric([state.value], count)
        yield states
        readiness = gateway.readiness()
        yield GaugeMetricFamily("gymserve_ready", "1 if a seed now would not wait, else 0", readiness.ready)
        yield GaugeMetricFamily("gymserve_waiting", "Sessions in the line", readiness.waiting)
        yield GaugeMetricFamily("gymserve_oldest_wait_seconds", "Of those in the line", readiness.oldest_wait_seconds)
        yield GaugeMetricFamily(
            "gymserve_patience_seconds", "How long a seed may wait in all", gateway.patience_seconds
        )
        if readiness.expected_wait_seconds is not None:
            yield GaugeMetricFamily(
                "gymserve_expected_wait_seconds", "For who came now", readiness.expected_wait_seconds
            )
        yield from self._servers()

    def _servers(self) -> Iterator[Metric]:
        held = GaugeMetricFamily("gymserve_slots_held", "Slots held, by server", labels=["env"])
        capacity = GaugeMetricFamily("gymserve_slots", "Slots there are for us, where it is known", labels=["env"])
        for door in self._gateway.pool.doors:
            held.add_metric([str(door.address)], door.gate.held)
            if door.gate.capacity is not None:
                capacity.add_metric([str(door.address)], door.gate.capacity)
        yield held
        yield capacity
