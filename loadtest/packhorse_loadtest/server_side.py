"""What the servers measured meanwhile: waiting and inference, read from their metrics."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

import httpx
import msgspec

from packhorse_loadtest.targets import Access

SCRAPE_TIMEOUT_S = 2.0
_SAMPLE = re.compile(
    r"^packhorse_(queue|inference)_duration_seconds_(bucket|sum|count)"
    r'(?:\{le="([^"]+)"\})? (\S+)$',
    re.MULTILINE,
)
Sums = Counter[tuple[str, str, str]]


class Spent(msgspec.Struct):
    """Milliseconds of one part of a request, as the servers' histograms have it.

    Attributes:
        p90: The upper end of the bucket that holds it; None where it is beyond the last.
    """

    requests: int
    mean: float
    p90: float | None


class ServerSide(msgspec.Struct):
    """Waiting for a lane, and time on it."""

    queue_ms: Spent
    inference_ms: Spent


def scrape(servers: Sequence[str], access: Access) -> Sums | None:
    """Add up the servers' histograms; None where one does not answer or has none."""
    sums: Sums = Counter()
    for server in servers:
        try:
            answer = access.get(f"{server}/metrics", SCRAPE_TIMEOUT_S)
        except (httpx.HTTPError, OSError):
            return None
        found = _SAMPLE.findall(answer.text)
        if not found:
            return None
        for part, kind, bound, value in found:
            sums[part, kind, bound] += float(value)  # type: ignore[assignment]
    return sums


def difference(before: Sums | None, after: Sums | None) -> ServerSide | None:
    """Return what was spent between two scrapes; None where there is nothing to tell."""
    if before is None or after is None:
        return None
    parts = [_spent(before, after, part) for part in ("queue", "inference")]
    queue, inference = parts
    return ServerSide(queue, inference) if queue is not None and inference is not None else None


def _spent(before: Sums, after: Sums, part: str) -> Spent | None:
    def grown(kind: str, bound: str = "") -> float:
        return after[part, kind, bound] - before[part, kind, bound]

    count = grown("count")
    if count <= 0:  # nothing ran, or a server started anew in between
        return None
    bounds = sorted((key[2] for key in after if key[:2] == (part, "bucket")), key=float)
    holds = next((b for b in bounds if grown("bucket", b) >= 0.9 * count), "+Inf")
    p90 = None if holds == "+Inf" else round(float(holds) * 1000, 3)
    return Spent(round(count), round(grown("sum") / count * 1000, 3), p90)
