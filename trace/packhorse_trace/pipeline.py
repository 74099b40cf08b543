"""From jobs to published artifacts: what is alike is made once, and one failure stops no other."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from packhorse.settings import Settings
from packhorse.store.repository import Repository
from packhorse_trace.making import Made, make
from packhorse_trace.planning import Job, Result, plan_jobs, reason_of
from packhorse_trace.tracer import Tracer, tracer_for

__all__ = ["Job", "Result", "plan_jobs", "run_jobs"]


def run_jobs(
    jobs: Sequence[Job], store: str, settings: Settings, done: Callable[[Result], None]
) -> None:
    """Compile, verify, measure and publish; a broken model does not stop the rest.

    Args:
        jobs: Those of one shape after one another, as `plan_jobs` gives them.
        done: Called with each result as it comes.
    """
    repository = Repository.open(store)
    tracers: dict[str, Tracer] = {}
    last: Made | None = None
    with tempfile.TemporaryDirectory(prefix="packhorse-trace-") as scratch:
        for number, job in enumerate(jobs):
            start = time.monotonic()
            folder = Path(scratch) / str(number)
            try:
                if job.processor not in tracers:
                    tracer = tracer_for(job.processor, settings)
                    tracer.prepare()
                    tracers[job.processor] = tracer
                if last is not None and last.serves(job):
                    made = last.lent_to(job)
                else:
                    made = make(job, tracers[job.processor], settings, folder, last)
                added = repository.publish(made.artifact, made.folder)
                for variant in made.refused_variants:  # it may have passed other settings once
                    repository.withdraw(job.spec.id, job.version, variant)
                last = made
                result = _traced(job, made, added, time.monotonic() - start)
            except Exception as err:
                # Whatever one model makes a compiler do, the other thousands are still to come.
                seconds = time.monotonic() - start
                result = Result(
                    job.spec.id, job.processor, "failed", job.version, job.variants, seconds,
                    reason=reason_of(err),
                )  # fmt: skip
            _tidy(Path(scratch), last)
            done(result)


def _traced(job: Job, made: Made, added: int, seconds: float) -> Result:
    return Result(
        job.spec.id, job.processor, "traced", job.version, made.artifact.variant, seconds, added,
        notes=made.notes,
    )  # fmt: skip


def _tidy(scratch: Path, last: Made | None) -> None:
    """Remove all but what the next job may use."""
    import shutil

    for folder in scratch.iterdir():
        if last is None or folder not in last.folder.parents:
            shutil.rmtree(folder, ignore_errors=True)
