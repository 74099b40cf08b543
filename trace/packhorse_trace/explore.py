"""Ways to compile one model, each measured: which answers soonest, which carries most.

The grid is small on purpose: precision, length, batch, threads (pipelined cores on Inferentia 1).
Throughput is counted per core, since a machine runs as many inferences at once as it has lanes.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import click

from packhorse.artifact import Cost
from packhorse.catalog import ModelSpec, Precision
from packhorse.errors import InvalidInput, TraceError
from packhorse.ids import model_key
from packhorse.progress import show_progress
from packhorse.settings import Settings
from packhorse_trace.exploration import FASTEST, MOST, Point, draw, winners
from packhorse_trace.making import prove
from packhorse_trace.measure import measure_model
from packhorse_trace.source import Source, locate, read_source
from packhorse_trace.tokenizer import write_tokenizer
from packhorse_trace.tracer import Tracer, tracer_for

ALL = {
    "cpu": ("int8", "fp32", "torchscript"),
    "gpu": ("fp16", "bf16", "fp32"),
    "inf1": ("bf16",),
    "inf2": ("bf16", "fp32"),
}


@dataclass(frozen=True)
class Grid:
    """What is tried; empty precisions and threads stand for all that make sense."""

    precisions: tuple[str, ...]
    lengths: tuple[int, ...]
    batches: tuple[int, ...]
    threads: tuple[int, ...]


def explore_model(
    spec: ModelSpec, settings: Settings, grid: Grid, png: Path | None, as_json: bool
) -> int:
    """Try every way, print the table, draw the picture; return the exit code.

    Raises:
        TraceError, InvalidInput: The source or the grid is wrong.
    """
    processor = spec.processors[0]
    if locate(spec).is_file():
        raise InvalidInput(f"{spec.source} is compiled already: there is nothing to choose")
    source = read_source(spec)
    precisions = grid.precisions or ALL[processor]
    if unknown := set(precisions) - set(ALL[processor]):
        raise InvalidInput(
            f"--precisions {min(unknown)!r}: {processor} has {', '.join(ALL[processor])}"
        )
    if (longest := max(grid.lengths)) > source.max_length:
        raise InvalidInput(
            f"--lengths {longest}: the model reads at most {source.max_length} tokens"
        )
    points: list[Point] = []
    refused: dict[str, str] = {}
    with show_progress("explore", len(precisions)) as bar:
        for precision in precisions:
            try:
                points += _points(spec, source, processor, precision, settings, grid)
                bar.advance(1, precision)
            except TraceError as err:
                refused[precision] = str(err)
                bar.advance(1, f"{precision} refused")
    chosen = winners(points)
    if as_json:
        click.echo(json.dumps({
            "id": spec.id, "processor": processor, "refused": refused,
            "points": [dataclasses.asdict(point) for point in points],
            "winners": {str(tokens): {k: dataclasses.asdict(p) for k, p in found.items()}
                        for tokens, found in chosen.items()},
        }))  # fmt: skip
    else:
        _print(points, chosen)
    for precision, why in refused.items():
        click.echo(f"refused: {precision}: {why}", err=True)
    if not points:
        return 1
    path = png or Path(".packhorse") / f"explore-{model_key(spec.id)}.png"
    draw(points, chosen, f"{spec.id} on {processor}", path)
    click.echo(f"wrote {path}", err=True)
    return 0


def _points(
    spec: ModelSpec, source: Source, processor: str, precision: str, settings: Settings, grid: Grid
) -> Iterator[Point]:
    fixed = processor in ("inf1", "inf2")
    for batches in [[batch] for batch in grid.batches] if fixed else [list(grid.batches)]:
        for cores in ("auto", 1) if processor == "inf1" else (1,):
            tried = settings.model_copy(update={"neuron_pipeline_cores": cores})
            asked = dataclasses.replace(
                spec, precision=cast(Precision, precision), batch=batches[0],
                sequence_length=max(grid.lengths), sequence_buckets=grid.lengths,
            )  # fmt: skip
            yield from _measured(asked, source, tracer_for(processor, tried), tried, grid, batches)


def _measured(
    spec: ModelSpec, source: Source, tracer: Tracer, settings: Settings, grid: Grid,
    batches: Sequence[int],
) -> Iterator[Point]:  # fmt: skip
    from packhorse_trace.torch_model import load_eager

    with tempfile.TemporaryDirectory(prefix="packhorse-explore-") as scratch:
        folder = Path(scratch) / "model"
        eager = load_eager(source, spec.task)
        compiled = tracer.compile(eager, spec, spec.precision, "", folder)
        write_tokenizer(source, folder / "tokenizer.json")
        prove(eager, compiled, spec, folder, source.max_length, settings)
        if compiled.note:
            raise TraceError(compiled.note)
        # What neighbours would change is served text by text, and so measured.
        sizes = list(batches) if compiled.invariant else [1]
        for threads in _thread_counts(grid, compiled.processor):
            cost = measure_model(compiled, folder, sorted(grid.lengths), sizes, threads)
            yield from _rows(cost, spec.precision, threads)


def _rows(cost: Cost, precision: str, threads: int) -> Iterator[Point]:
    for row in cost.latency:
        yield Point(
            precision, row.tokens, row.batch, threads, row.p50_seconds * 1e3,
            row.p90_seconds * 1e3, row.batch / row.p50_seconds / threads,
        )  # fmt: skip


def _thread_counts(grid: Grid, processor: str) -> tuple[int, ...]:
    import os

    if processor != "cpu":
        return (1,)
    return grid.threads or tuple(sorted({1, len(os.sched_getaffinity(0))}))


def _print(points: Sequence[Point], chosen: dict[int, dict[str, Point]]) -> None:
    heads = ("tokens", "precision", "batch", "threads", "P50 ms", "P90 ms", "texts/s a core")
    write: Callable[[Sequence[object]], str] = lambda row: (  # noqa: E731
        f"{row[0]:>6}  {row[1]:<11} {row[2]:>5} {row[3]:>7} {row[4]:>9} {row[5]:>9} {row[6]:>14}"
    )
    click.echo(write(heads))
    for point in sorted(points, key=lambda p: (p.tokens, p.p90_ms)):
        marks = [kind for kind, best in chosen[point.tokens].items() if best is point]
        row = write((
            point.tokens, point.precision, point.batch, point.threads, f"{point.p50_ms:.2f}",
            f"{point.p90_ms:.2f}", f"{point.texts_per_second:.1f}",
        ))  # fmt: skip
        click.echo(f"{row}  {', '.join(marks)}".rstrip())
    for tokens, found in chosen.items():
        for kind in (FASTEST, MOST):
            click.echo(f"{tokens} tokens, {kind}: {found[kind].way}")
