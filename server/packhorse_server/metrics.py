"""Prometheus metrics (DESIGN 12.7). A `model` label comes from the plan, never from a client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.registry import Collector

from packhorse.errors import ModelNotFound
from packhorse_server.registry import Entry, State

if TYPE_CHECKING:
    from packhorse_server.engine import Engine, Prediction

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
UNKNOWN = "unknown"
"""The label shared by all models that are not of the plan."""


class Metrics(Collector):
    """The metrics of one engine, in a registry of their own."""

    def __init__(self, engine: Engine) -> None:
        # Without this (which its library leaves untyped), each counter has a second series.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._engine = engine
        self._registry = CollectorRegistry()
        registry = self._registry
        self._requests = Counter(
            "packhorse_requests", "Requests by outcome", ["model", "outcome"], registry=registry
        )
        self._durations = Histogram(
            "packhorse_request_duration_seconds", "Request, from its arrival to its answer",
            buckets=SECONDS, registry=registry,
        )  # fmt: skip
        self._queue = Histogram(
            "packhorse_queue_duration_seconds", "Wait for a lane", buckets=SECONDS,
            registry=registry,
        )  # fmt: skip
        self._inference = Histogram(
            "packhorse_inference_duration_seconds", "Time on a lane", buckets=SECONDS,
            registry=registry,
        )  # fmt: skip
        self._loads = Counter(
            "packhorse_model_loads", "Models loaded", ["model", "kind"], registry=registry
        )
        self._load_seconds = Histogram(
            "packhorse_model_load_seconds", "Time to load", buckets=SECONDS, registry=registry
        )
        self._batches = Histogram(
            "packhorse_batch_size", "Texts in an inference", buckets=(1, 2, 4, 8, 16, 32, 64),
            registry=registry,
        )  # fmt: skip
        self._ages = Histogram(
            "packhorse_age_at_eviction_seconds", "Time since the last use of what was evicted",
            buckets=(1, 10, 60, 600, 3600, 86400), registry=registry,
        )  # fmt: skip
        engine.residency.ages_at_eviction = self._ages.observe
        engine.residency.on_load = self.loaded
        registry.register(self)

    def answered(
        self, model_id: str, outcome: str, seconds: float, answer: Prediction | None
    ) -> None:
        """Count a request, and its times where a model answered it.

        Args:
            outcome: `ok`, or the code of the error.
        """
        try:
            entry = self._engine.registry.get(model_id)
        except ModelNotFound:
            self._requests.labels(UNKNOWN, outcome).inc()
            return
        self._requests.labels(entry.id, outcome).inc()
        if answer is None:
            return
        entry.requests += 1
        entry.request_seconds += seconds
        self._durations.observe(seconds)
        self._queue.observe(answer.queue_s)
        self._inference.observe(answer.infer_s)
        self._batches.observe(1)

    def loaded(self, entry: Entry, seconds: float) -> None:
        """Count a load, at `start` or `cold` on behalf of a request."""
        kind = "cold" if entry.state is State.AVAILABLE else "start"
        self._loads.labels(entry.id, kind).inc()
        self._load_seconds.observe(seconds)

    def render(self) -> bytes:
        """Write all metrics in Prometheus's text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Yield what is read from the engine at each scrape."""
        engine = self._engine
        seconds = SummaryMetricFamily(
            "packhorse_request_seconds", "Requests that reached a model", labels=["model"]
        )
        depth = GaugeMetricFamily(
            "packhorse_queue_depth", "Requests that wait or run", labels=["model"]
        )
        for entry in engine.registry:
            depth.add_metric([entry.id], entry.in_flight)
            seconds.add_metric([entry.id], entry.requests, entry.request_seconds)
        yield depth
        yield seconds
        for name, help_text, value in (
            ("requests_in_flight", "Requests in flight", sum(e.in_flight for e in engine.registry)),
            ("resident_bytes", "Bytes held by loaded models", engine.residency.resident_bytes),
            ("memory_limit_bytes", "Bytes that models may hold", engine.residency.budget_bytes),
            ("quarantined_models", "Models that failed to load", engine.count(State.QUARANTINED)),
        ):
            yield GaugeMetricFamily(f"packhorse_{name}", help_text, value)
        yield CounterMetricFamily(
            "packhorse_evictions", "Models evicted", engine.residency.evictions
        )
