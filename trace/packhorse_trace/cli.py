"""`packhorse trace`."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from packhorse.errors import InvalidInput
from packhorse.settings import Settings, load_settings, setting_options
from packhorse.units import format_bytes

if TYPE_CHECKING:
    from packhorse_trace.pipeline import Job, Result


@click.command("trace")
@click.argument("catalog", required=False)
@click.option("--only", "only", multiple=True, metavar="ID", help="Trace this model; repeatable.")
@click.option("--force", is_flag=True, help="Trace again what is in the store already.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@setting_options("store", "processor", "jobs", "reduce_range", "min_label_agreement", "min_cosine")
def trace(
    catalog: str | None, only: tuple[str, ...], force: bool, as_json: bool, **flags: object
) -> None:
    """Compile the catalog's models, prove them equal, measure and publish them.

    What is in the store already is skipped, so a run that was stopped goes on where it was.
    A model that fails does not stop the rest: the exit code is then 1.

    \b
    Examples:
      packhorse trace
      packhorse trace models.yaml --only acme/intent --force
      packhorse trace --jobs 4 --json > result.json
    """
    from packhorse.catalog import load_catalog
    from packhorse.progress import show_progress
    from packhorse.store.repository import Repository
    from packhorse_trace.pipeline import plan_jobs

    settings = load_settings({**flags, "catalog": catalog})
    specs = load_catalog(settings.catalog, settings.processor)
    if not specs:
        raise InvalidInput(f"{settings.catalog} lists no models: add one")
    if unknown := set(only) - {spec.id for spec in specs}:
        raise InvalidInput(f"model {min(unknown)!r} is not in {settings.catalog}: correct --only")
    chosen = [spec for spec in specs if not only or spec.id in only]
    repository = Repository.open(settings.store)
    repository.objects.prepare()
    jobs, results = plan_jobs(chosen, repository, settings, force)
    with show_progress("trace", len(jobs) + len(results)) as bar:
        for result in results:
            bar.advance(1, f"{result.id} failed" if result.reason else "")

        def done(result: Result) -> None:
            results.append(result)
            bar.advance(1, f"{result.id} {result.variant} {result.status}")

        _run(jobs, settings, done)
    _report(results, settings, as_json)


def _run(jobs: Sequence[Job], settings: Settings, done: Callable[[Result], None]) -> None:
    """Run jobs here, or those of each shape in a process of their own."""
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

    from packhorse_trace.pipeline import Result

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


def run_shape(jobs: list[Job], settings: Settings) -> list[Result]:
    """Run the jobs of one shape; what a worker process is given to do."""
    from packhorse_trace.pipeline import run_jobs

    results: list[Result] = []
    run_jobs(jobs, settings.store, settings, results.append)
    return results


def _report(results: list[Result], settings: Settings, as_json: bool) -> None:
    counts = {
        status: sum(result.status == status for result in results)
        for status in ("traced", "unchanged", "failed")
    }
    added = sum(result.added_bytes for result in results)
    if as_json:
        rows = [dataclasses.asdict(result) for result in results]
        click.echo(json.dumps({"models": rows, **counts, "added_bytes": added}))
    else:
        for result in results:
            if result.status == "failed":
                click.echo(f"failed: {result.id} ({result.processor}): {result.reason}", err=True)
    click.echo(
        f"{counts['traced']} traced, {counts['unchanged']} unchanged, {counts['failed']} failed; "
        f"{format_bytes(added)} added to {settings.store}",
        err=True,
    )
    if counts["failed"]:
        sys.exit(1)
