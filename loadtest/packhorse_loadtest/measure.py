"""One measurement, from the choice of models to the report."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packhorse.errors import InvalidInput, PackhorseError
from packhorse.progress import Progress, show_progress
from packhorse_loadtest.bodies import make_bodies
from packhorse_loadtest.job import Job, Load, Tick, Transport
from packhorse_loadtest.models import Choice, choose_models
from packhorse_loadtest.page import latency_points
from packhorse_loadtest.report import Report, make_report
from packhorse_loadtest.runner import run_load
from packhorse_loadtest.server_side import difference, scrape
from packhorse_loadtest.targets import Access, Fleet, find_fleet
from packhorse_loadtest.texts import parse_tokens, read_texts

if TYPE_CHECKING:
    from packhorse.settings import Settings
    from packhorse.store.repository import Repository

MOST_RPS = 100_000
"""More than any worker sends, whatever its machine."""
DURATION_S = 10.0
NOTE_EVERY_S = 5.0


@dataclass(frozen=True)
class Options:
    """The flags of `packhorse test`, checked; times in seconds."""

    scenario: str
    url: str | None = None
    plan: Path | None = None
    texts: Path | None = None
    tokens: str | None = None
    protocol: str = "native"
    timeout_s: float = 30.0
    reuse: bool = True
    dns: str = "cached"
    insecure: bool = False
    headers: tuple[str, ...] = ()
    duration_s: float | None = None
    warmup_s: float = 0.0
    drain_s: float = 5.0
    seed: int = 0
    workers: int = 1
    connections: int = 1000
    concurrency: int | None = None
    think_s: float = 0.0
    rate: float | None = None
    arrivals: str = "poisson"
    models: str = "uniform"


@dataclass(frozen=True)
class Measured:
    """A run's report, and its latencies as (percentile, milliseconds)."""

    report: Report
    points: list[tuple[float, float]]


def measure(options: Options, settings: Settings) -> Measured:
    """Send the load and report.

    Raises:
        InvalidInput: No server answers there, some option cannot be, or the tester cannot reach
            the rate.
    """
    tokens = parse_tokens(options.tokens) if options.tokens else None
    texts = read_texts(options.texts)
    access = Access(options.insecure, options.headers)
    fleet = find_fleet(options.url, options.plan, access)
    load, duration_s = plan_load(options, fleet)
    bodies = make_bodies(
        fleet, texts, tokens, options.protocol == "oip", _repository(settings), options.seed,
        access,
    )  # fmt: skip
    workers = min(options.workers, options.concurrency or options.workers)
    transport = Transport(
        timeout_s=options.timeout_s,
        connections=load.concurrency if load.loop == "closed" else options.connections,
        reuse=options.reuse, fresh_names=options.dns == "fresh", insecure=options.insecure,
        headers=[*options.headers],
    )  # fmt: skip
    job = Job(
        load, transport, bodies.asked, bodies.sets, options.warmup_s, duration_s, options.drain_s
    )
    before = scrape(fleet.servers, access)
    total = len(fleet.targets) if duration_s is None else options.warmup_s + duration_s
    with show_progress(f"test {options.scenario}", round(total, 1)) as bar:
        recorder = run_load(job, workers, _follow(bar, job))
    after = scrape(fleet.servers, access)
    notes = tuple(bodies.notes)
    report = make_report(recorder, job, fleet, workers, difference(before, after), notes)
    return Measured(report, latency_points(recorder))


def plan_load(options: Options, fleet: Fleet) -> tuple[Load, float | None]:
    """Return which requests are sent, and for how long.

    Raises:
        InvalidInput: Options that exclude each other, or a rate beyond any tester.
    """
    if options.scenario == "seq":
        return Load("closed", options.seed, count=len(fleet.targets)), None
    choice = choose_models(options.models, [t.model_id for t in fleet.targets], options.seed)
    if options.rate is not None and options.concurrency is not None:
        raise InvalidInput("--rate is an open loop and --concurrency a closed one: give one")
    if options.think_s and options.concurrency is None:
        raise InvalidInput("--think is for users (--concurrency)")
    if options.rate is not None and options.rate > MOST_RPS * options.workers:
        raise InvalidInput(
            f"--rate {options.rate:g}: no tester with {options.workers} worker(s) sends more than "
            f"{MOST_RPS * options.workers} a second; lower it, or raise --workers"
        )
    duration_s = DURATION_S if options.duration_s is None else options.duration_s
    common = {"seed": options.seed, "weights": choice.weights, "order": choice.order}
    if options.rate is not None:
        load = Load("open", arrivals=options.arrivals, rate_rps=options.rate, **common)  # type: ignore[arg-type]
    elif choice.times is not None and options.concurrency is None:
        return _replayed(options, choice)
    else:
        users = options.concurrency or 1
        load = Load("closed", concurrency=users, think_s=options.think_s, **common)  # type: ignore[arg-type]
    return load, duration_s


def _replayed(options: Options, choice: Choice) -> tuple[Load, float]:
    """Replay a trace at its own times."""
    times = choice.times or []
    duration_s = options.duration_s or max(0.1, times[-1] - options.warmup_s + 0.001)
    rate_rps = len(times) / max(times[-1], duration_s)
    load = Load("open", options.seed, "trace", round(rate_rps, 3), order=choice.order, times=times)
    return load, duration_s


def _repository(settings: Settings) -> Repository | None:
    """Return the store if it is at hand; a test needs it only for tokenizers and tensors."""
    from packhorse.store.repository import Repository

    try:
        return Repository.open(settings.store)
    except PackhorseError:
        return None


def _follow(bar: Progress, job: Job) -> Callable[[Mapping[int, Tick]], None]:
    """Return what shows the workers' ticks: on a terminal each, in a log every few seconds."""
    start = said = time.monotonic()
    done = 0.0

    def show(ticks: Mapping[int, Tick]) -> None:
        nonlocal said, done
        now = time.monotonic()
        sent, ok, failed = (
            sum(getattr(tick, name) for tick in ticks.values()) for name in ("sent", "ok", "failed")
        )
        p90 = max((t.p90_ms for t in ticks.values() if t.p90_ms is not None), default=None)
        note = f"{sent} sent, {ok} ok, {failed} failed"
        note += "" if p90 is None else f", p90 {p90:.1f} ms"
        if not sys.stderr.isatty():
            if now - said < NOTE_EVERY_S:
                return
            said = now
        amount = float(ok + failed) if job.duration_s is None else now - start
        bar.advance(round(amount - done, 1), note)
        done = amount

    return show
