"""Jobs run here, or those of each shape in a process of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from packhorse.catalog import ModelSpec
from packhorse.progress import show_progress
from packhorse.settings import Settings
from packhorse.store.repository import Repository
from packhorse_trace.planning import Job, Result, plan_jobs


def trace_here(specs: Sequence[ModelSpec], settings: Settings, force: bool) -> list[Result]:
    """Trace what is not in the store yet, showing progress."""
    repository = Repository.open(settings.store)
    repository.objects.prepare()
    jobs, results = plan_jobs(specs, repository, settings, force)
    with show_progress("trace", len(jobs) + len(results)) as bar:
        for result in results:
            bar.advance(1, f"{result.id} failed" if result.reason else "")

        def done(result: Result) -> None:
            results.append(result)
            bar.advance(1, f"{result.id} {result.variant} {result.status}")

        _run(jobs, settings, done)
    return results


def run_shape(jobs: list[Job], settings: Settings) -> list[Result]:
    """Run the jobs of one shape; what a worker process is given to do."""
    from packhorse_trace.pipeline import run_jobs

    results: list[Result] = []
    run_jobs(jobs, settings.store, settings, results.append)
    return results


def _run(jobs: Sequence[Job], settings: Settings, done: Callable[[Result], None]) -> None:
    from packhorse_trace.pipeline import run_jobs

    shapes: dict[str, list[Job]] = {}
    for job in jobs:
        shapes.setdefault(job.shape, []).append(job)
    if settings.jobs == 1 or len(shapes) < 2:
        run_jobs(jobs, settings.store, settings, done)
        return
    import multiprocessing
    from concurrent.futures import ProcessPoolExecutor, as_completed
    from concurrent.futures.process import BrokenProcessPool

    # Not forked: torch and ONNX Runtime have threads, which a fork would lose.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(settings.jobs, len(shapes)), context) as pool:
        groups = {pool.submit(run_shape, group, settings): group for group in shapes.values()}
        for future in as_completed(groups):
            try:
                results = future.result()
            except BrokenProcessPool:  # a worker was killed, by the system for its memory perhaps
                reason = "a worker process was killed: run trace again, with fewer --jobs"
                results = [Result(j.spec.id, j.processor, "failed", j.version, j.variants,
                                  reason=reason) for j in groups[future]]  # fmt: skip
            for result in results:
                done(result)
