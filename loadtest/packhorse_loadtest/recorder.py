"""What was seen: latencies in HDR histograms, failures by kind, cold apart from warm."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
from hdrh.histogram import HdrHistogram

from packhorse_loadtest.targets import Fleet

LOWEST_US, HIGHEST_US, DIGITS = 1, 3_600_000_000, 3


class Requests(msgspec.Struct):
    """How many requests were sent, answered well, and never answered."""

    sent: int
    ok: int
    unfinished: int


class Latency(msgspec.Struct):
    """Milliseconds of the requests that were answered well; None where there were none."""

    min: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    max: float | None


class Cold(msgspec.Struct):
    """Requests whose model had to be loaded first."""

    requests: int
    latency_ms: Latency


class Report(msgspec.Struct):
    """The load report (DESIGN 12.8). `usd_per_million` is None where no plan says the price."""

    throughput_rps: float
    target_rps: float | None
    requests: Requests
    errors: dict[str, int]
    latency_ms: Latency
    cold: Cold
    models: int
    models_per_instance: float
    usd_per_million: float | None


class Recorder:
    """Counts one run."""

    def __init__(self) -> None:
        self.sent = self.ok = 0
        self.late_s = 0.0
        """How far behind its schedule the tester sent at worst."""
        self.errors: Counter[str] = Counter()
        self._warm, self._cold = _histogram(), _histogram()

    def answered(self, seconds: float, cold: bool) -> None:
        """Count a success."""
        self.ok += 1
        (self._cold if cold else self._warm).record_value(max(LOWEST_US, round(seconds * 1e6)))

    def failed(self, code: str) -> None:
        """Count a failure by its code."""
        self.errors[code] += 1

    def report(self, fleet: Fleet, seconds: float, target_rps: float | None) -> Report:
        """Sum up."""
        throughput = self.ok / seconds if seconds else 0.0
        price = None
        if fleet.usd_per_hour is not None and throughput:
            price = round(fleet.usd_per_hour / 3600 / throughput * 1e6, 6)
        everything = _histogram()
        for seen in (self._warm, self._cold):
            if seen.get_total_count():  # adding an empty one would set the minimum to zero
                everything.add(seen)
        models = len({target.model_id for target in fleet.targets})
        return Report(
            throughput_rps=round(throughput, 3),
            target_rps=target_rps,
            requests=Requests(self.sent, self.ok, self.sent - self.ok - self.errors.total()),
            errors=dict(sorted(self.errors.items())),
            latency_ms=_latency(everything),
            cold=Cold(self._cold.get_total_count(), _latency(self._cold)),
            models=models,
            models_per_instance=round(models / fleet.instances, 3),
            usd_per_million=price,
        )


def _histogram() -> Any:
    return HdrHistogram(LOWEST_US, HIGHEST_US, DIGITS)


def _latency(histogram: Any) -> Latency:
    if not histogram.get_total_count():
        return Latency(None, None, None, None, None, None)

    def at(percent: float) -> float:
        return float(histogram.get_value_at_percentile(percent)) / 1000

    return Latency(
        histogram.get_min_value() / 1000, at(50), at(90), at(95), at(99),
        histogram.get_max_value() / 1000,
    )  # fmt: skip
