"""`packhorse trace`, and `packhorse trace explore`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from packhorse.catalog import ModelSpec, load_catalog
from packhorse.errors import InvalidInput
from packhorse.settings import Processor, load_settings, setting_options

PROCESSORS = Processor.__args__  # type: ignore[attr-defined]


class Trace(click.Group):
    """A group whose first word may be left out: `packhorse trace models.yaml` is `… run …`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or args[0] not in self.commands:
            args = ["run", *args]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        return ("" if name == "run" else name), command, rest


@click.group(cls=Trace)
def trace() -> None:
    """Compile models, or find out how one is compiled best."""


@trace.command("run")
@click.argument("catalog", required=False)
@click.option("--only", "only", multiple=True, metavar="ID", help="Trace this model; repeatable.")
@click.option(
    "--only-processor",
    type=click.Choice(PROCESSORS),
    help="Leave out what is for other processors.",
)
@click.option("--force", is_flag=True, help="Trace again what is in the store already.")
@click.option(
    "--container",
    type=click.Choice(["never", "auto"]),
    default="never",
    show_default=True,
    help="auto: what needs a compiler that is not here is traced in its processor's image.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@setting_options(
    "store", "processor", "jobs", "reduce_range", "int8_scales",
    "min_label_agreement", "max_score_noise",
    "min_cosine", "max_abs_diff", "publish_unproven",
)  # fmt: skip
def run(
    catalog: str | None,
    only: tuple[str, ...],
    only_processor: str | None,
    force: bool,
    container: str,
    as_json: bool,
    **flags: object,
) -> None:
    """Compile the catalog's models, prove them equal, measure and publish them.

    What is in the store already is skipped, so a run that was stopped goes on where it was.
    A model that fails does not stop the rest: the exit code is then 1.

    \b
    Examples:
      packhorse trace
      packhorse trace models.yaml --only acme/intent --force
      packhorse trace --jobs 4 --json > result.json

    `packhorse trace explore ID` compares precisions, lengths, batches and threads of one model
    (`packhorse trace explore --help`).
    """
    from packhorse_trace.planning import Result
    from packhorse_trace.report import print_report
    from packhorse_trace.workers import trace_here

    settings = load_settings({**flags, "catalog": catalog})
    specs = load_catalog(settings.catalog, settings.processor)
    if not specs:
        raise InvalidInput(f"{settings.catalog} lists no models: add one")
    if unknown := set(only) - {spec.id for spec in specs}:
        raise InvalidInput(f"model {min(unknown)!r} is not in {settings.catalog}: correct --only")
    chosen = [spec for spec in specs if not only or spec.id in only]
    results: list[Result] = []
    if only_processor:
        chosen = for_processors(chosen, {only_processor})
    if container == "auto":
        from packhorse_trace.container import missing_compilers, trace_in_image

        missing = missing_compilers({name for spec in chosen for name in spec.processors})
        for processor in sorted(missing):
            there = for_processors(chosen, {processor})
            results += trace_in_image(processor, there, settings, force, chosen=bool(only))
        chosen = for_processors(chosen, set(PROCESSORS) - missing)
    if chosen:
        results += trace_here(chosen, settings, force)
    sys.exit(print_report(results, settings, as_json))


@trace.command("explore")
@click.argument("model_id", metavar="ID")
@click.option("--catalog", default=None, metavar="FILE", help="Catalog that names the model.")
@click.option("--precisions", default=None, help="Comma-separated; by default all there are.")
@click.option("--lengths", default="12,128", show_default=True, help="Tokens, comma-separated.")
@click.option("--batches", default="1,8", show_default=True, help="Texts, comma-separated.")
@click.option(
    "--threads", default=None, help="Threads per inference; by default 1 and the CPUs there are."
)
@click.option(
    "--png", type=click.Path(path_type=Path), default=None,
    help="Where the picture goes [default: .packhorse/explore-<id>.png].",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@setting_options("processor")
def explore(
    model_id: str,
    catalog: str | None,
    precisions: str | None,
    lengths: str,
    batches: str,
    threads: str | None,
    png: Path | None,
    as_json: bool,
    **flags: object,
) -> None:
    """Compile one model in several ways, measure each, and name the two winners.

    The fastest answers soonest; the other answers the most texts a second on each core. Nothing
    is published. Tune it as the catalog's precision, sequence_length and batch, and the setting
    threads_per_inference.

    \b
    Examples:
      packhorse trace explore acme/intent
      packhorse trace explore acme/intent --lengths 16,64,256 --batches 1,4,16 --threads 1,2
      packhorse trace explore acme/intent --processor gpu --json
    """
    from packhorse_trace.explore import Grid, explore_model

    settings = load_settings({**flags, "catalog": catalog})
    specs = load_catalog(settings.catalog, settings.processor)
    found = [spec for spec in specs if spec.id == model_id]
    if not found:
        raise InvalidInput(f"model {model_id!r} is not in {settings.catalog}: correct the id")
    grid = Grid(
        tuple(precisions.split(",")) if precisions else (),
        _numbers("--lengths", lengths),
        _numbers("--batches", batches),
        _numbers("--threads", threads) if threads else (),
    )
    sys.exit(explore_model(found[0], settings, grid, png, as_json))


def for_processors(specs: list[ModelSpec], processors: set[str]) -> list[ModelSpec]:
    """Leave only some processors in each spec, and out what is for none of them."""
    import dataclasses

    kept = [
        dataclasses.replace(spec, processors=tuple(p for p in spec.processors if p in processors))
        for spec in specs
    ]
    return [spec for spec in kept if spec.processors]


def _numbers(name: str, text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1:
        raise InvalidInput(f"{name} {text!r}: write whole numbers, such as 1,8")
    return numbers
