"""What was seen: latencies in HDR histograms, failures by kind, cold apart from warm.

Histograms of several workers are added up; percentiles are never averaged.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
from hdrh.histogram import HdrHistogram

from packhorse_loadtest.job import Seen

LOWEST_US, HIGHEST_US, DIGITS = 1, 3_600_000_000, 3


class Latency(msgspec.Struct):
    """Milliseconds of the requests that were answered well; None where there were none."""

    min: float | None
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    max: float | None


class Recorder:
    """Counts one run."""

    def __init__(self) -> None:
        self.sent = self.ok = self.waited = 0
        self.errors: Counter[str] = Counter()
        self.warm, self.cold, self.late = _histogram(), _histogram(), _histogram()
        self.last_s = 0.0
        """When the last answer came, in seconds from the start of what is recorded."""
        self.cpu_share = 0.0
        """CPU seconds per second, of the busiest worker."""
        self.stopped_s: float | None = None
        self.behind_s: float | None = None

    def answered(self, seconds: float, cold: bool) -> None:
        """Count a success."""
        self.ok += 1
        (self.cold if cold else self.warm).record_value(_micros(seconds))

    def failed(self, kind: str) -> None:
        """Count a failure by its kind."""
        self.errors[kind] += 1

    def lagged(self, seconds: float) -> None:
        """Count how late the tester got to sending a request."""
        self.late.record_value(_micros(seconds))

    @property
    def unfinished(self) -> int:
        """Requests that have no outcome."""
        return self.sent - self.ok - self.errors.total()

    def seen(self) -> Seen:
        """Return everything, for another process."""
        warm, cold, late = (h.encode().decode() for h in (self.warm, self.cold, self.late))
        return Seen(
            self.sent, self.ok, dict(self.errors), warm, cold, late, self.waited, self.last_s,
            self.cpu_share, self.stopped_s, self.behind_s,
        )  # fmt: skip

    def add(self, seen: Seen) -> None:
        """Count what another worker saw."""
        self.sent += seen.sent
        self.ok += seen.ok
        self.waited += seen.waited
        self.errors.update(seen.errors)
        for own, encoded in (
            (self.warm, seen.warm),
            (self.cold, seen.cold),
            (self.late, seen.late),
        ):
            _add(own, HdrHistogram.decode(encoded.encode()))
        self.last_s = max(self.last_s, seen.last_s)
        self.cpu_share = max(self.cpu_share, seen.cpu_share)
        self.stopped_s = _largest(self.stopped_s, seen.stopped_s)
        self.behind_s = _largest(self.behind_s, seen.behind_s)

    def everything(self) -> Any:
        """Return the histogram of warm and cold together."""
        both = _histogram()
        for part in (self.warm, self.cold):
            _add(both, part)
        return both


def latency_of(histogram: Any) -> Latency:
    """Read the percentiles."""
    if not histogram.get_total_count():
        return Latency(None, None, None, None, None, None)

    def at(percent: float) -> float:
        return float(histogram.get_value_at_percentile(percent)) / 1000

    # Buckets are named by their upper end, the extremes by their lower: keep them in order.
    least, most = histogram.get_min_value() / 1000, histogram.get_max_value() / 1000
    p50, p90, p95, p99 = (min(max(at(percent), least), most) for percent in (50, 90, 95, 99))
    return Latency(least, p50, p90, p95, p99, most)


def _histogram() -> Any:
    return HdrHistogram(LOWEST_US, HIGHEST_US, DIGITS)


def _add(histogram: Any, other: Any) -> None:
    if other.get_total_count():  # adding an empty one would set the minimum to zero
        histogram.add(other)


def _micros(seconds: float) -> int:
    return min(HIGHEST_US, max(LOWEST_US, round(seconds * 1e6)))


def _largest(one: float | None, other: float | None) -> float | None:
    return max((v for v in (one, other) if v is not None), default=None)
