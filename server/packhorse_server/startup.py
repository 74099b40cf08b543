"""How far a start has come, for probes, people and the log."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packhorse.units import format_bytes, format_seconds
from packhorse_server.registry import State

if TYPE_CHECKING:
    from packhorse_server.engine import Engine

log = logging.getLogger(__name__)
REPORT_S = 5.0


@dataclass(frozen=True)
class Progress:
    """How far a start has come.

    Attributes:
        started: Whether every model has been tried once.
        pulled_bytes, total_bytes: Of the blobs, each once, of the manifests read so far.
        eta_seconds: Until all have been tried, if it goes on at this pace; None: unknown.
    """

    started: bool
    models: int
    available: int
    quarantined: int
    pulled_bytes: int
    total_bytes: int
    eta_seconds: float | None

    def __str__(self) -> str:
        eta = "" if self.eta_seconds is None else f" eta={format_seconds(self.eta_seconds)}"
        return (
            f"models={self.available}/{self.models} quarantined={self.quarantined} pulled="
            f"{format_bytes(self.pulled_bytes)}/{format_bytes(self.total_bytes)}{eta}"
        )


def start_progress(engine: Engine) -> Progress:
    """Count what has come since the start."""
    entries = list(engine.registry)
    tried = sum(entry.state is State.AVAILABLE or entry.attempts > 0 for entry in entries)
    here, total = engine.cache.progress(list(engine.loader.wanted.values()))
    # Models load while others are pulled: what is further behind tells the end.
    shares = [tried / max(1, len(entries)), here / max(1, total)]
    share = min((share for share in shares if share), default=0.0)
    elapsed_s = time.monotonic() - engine.started_at
    started = bool(entries) and tried == len(entries)
    if started:
        share = 1.0
    return Progress(
        started=started,
        models=len(entries),
        available=engine.count(State.AVAILABLE),
        quarantined=engine.count(State.QUARANTINED),
        pulled_bytes=here,
        total_bytes=total,
        eta_seconds=round(elapsed_s / share * (1 - share), 1) if share else None,
    )


async def report_start(engine: Engine) -> None:
    """Say in the log how far a start has come, until it has."""
    said = engine.started_at
    while len(engine.registry) and not (progress := start_progress(engine)).started:
        if time.monotonic() - said >= REPORT_S:
            said = time.monotonic()
            log.info("starting %s", progress)
        await asyncio.sleep(0.2)
    log.info("started %s seconds=%.1f", start_progress(engine),
             time.monotonic() - engine.started_at)  # fmt: skip
