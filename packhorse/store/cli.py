"""`packhorse models`: look into a store."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from packhorse.artifact import Artifact
from packhorse.errors import Corrupt, InvalidInput
from packhorse.settings import load_settings, setting_options
from packhorse.units import format_bytes, format_seconds

_as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group("models")
def models() -> None:
    """List, show and verify the models in the store.

    \b
    Examples:
      packhorse models list
      packhorse models show acme/intent
      packhorse models verify --store file:///srv/models
    """


@models.command("list")
@setting_options("store")
@_as_json
def list_models(as_json: bool, **flags: object) -> None:
    """List every published model, version and variant."""
    found, broken = _read(flags)
    if as_json:
        rows = [
            {"id": a.id, "version": a.version, "variant": a.variant, "task": a.task,
             "precision": a.precision, "bytes": a.total_bytes}
            for a in found
        ]  # fmt: skip
        click.echo(json.dumps({"models": rows}))
    else:
        for a in found:
            click.echo(
                f"{a.id:<40} {a.version:<14} {a.variant:<12} {format_bytes(a.total_bytes):>10}"
            )
        blobs = {file.sha256: file.bytes for a in found for file in a.files}
        apart = sum(a.total_bytes for a in found)
        click.echo(
            f"{len({a.id for a in found})} models ({len(found)} artifacts of all versions and "
            f"variants), {format_bytes(sum(blobs.values()))} in {len(blobs)} blobs "
            f"({format_bytes(apart)} if each artifact had its own)",
            err=True,
        )
    _exit_with(broken)


@models.command("show")
@click.argument("model_id", metavar="ID")
@setting_options("store")
@click.option("--version", default=None, help="Version; by default the newest.")
@click.option("--variant", default=None, help="Variant; by default every one.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole record of each.")
def show_model(
    model_id: str, version: str | None, variant: str | None, as_json: bool, **flags: object
) -> None:
    """Say what a model is, how equal it is to its original, and what it costs."""
    repository = _repository(flags)
    version = version or repository.latest(model_id)
    variants = [variant] if variant else repository.variants(model_id, version)
    if not variants:
        raise InvalidInput(f"model {model_id!r} has no version {version}: see models list")
    for name in variants:
        artifact = repository.artifact(model_id, version, name)
        click.echo(artifact.encode() if as_json else _receipt(artifact), nl=False)


@models.command("verify")
@click.argument("model_ids", metavar="[ID]...", nargs=-1)
@setting_options("store")
@_as_json
def verify_models(model_ids: tuple[str, ...], as_json: bool, **flags: object) -> None:
    """Read every blob again and compare it with its digest; exit code 1 if any differs."""
    from packhorse.progress import show_progress

    repository = _repository(flags)
    found, broken = _read(flags)
    if unknown := set(model_ids) - {a.id for a in found}:
        raise InvalidInput(f"model {min(unknown)!r} is not in store {repository.objects.url}")
    chosen = [a for a in found if not model_ids or a.id in model_ids]
    faults: list[dict[str, Any]] = [{"id": None, "fault": fault} for fault in broken]
    checked: dict[str, str | None] = {}
    with show_progress("verify", sum(a.total_bytes for a in chosen)) as bar:
        for a in chosen:
            for fault in repository.faults(a, checked, bar.advance):
                faults.append({"id": a.id, "fault": fault})
    if as_json:
        click.echo(json.dumps({"verified": len(chosen), "blobs": len(checked), "faults": faults}))
    else:
        for row in faults:
            click.echo(f"{row['id'] or 'record'}: {row['fault']}")
        click.echo(f"{len(chosen)} models, {len(checked)} blobs: {len(faults)} faults")
    _exit_with([row["fault"] for row in faults], say=False)


def _receipt(a: Artifact) -> str:
    agreement = a.equality.label_agreement
    agrees = "" if agreement is None else f", labels agree on {agreement:.1%} of the texts"
    cost = a.cost
    lines = [
        f"{a.id}  version {a.version}, {a.variant}, {a.task}",
        f"  source    {a.source.uri} ({a.source.revision[:12]})",
        f"  files     {len(a.files)}, {format_bytes(a.total_bytes)}",
        f"  labels    {', '.join(a.labels)}" if a.labels else f"  pooling   {a.pooling}",
        f"  equality  max difference {a.equality.max_abs_diff:.2e} in {a.equality.samples} cases"
        f"{agrees}; against {a.equality.reference}",
        f"  memory    {format_bytes(cost.private_bytes)} private, "
        f"{format_bytes(cost.file_bytes)} page cache, {format_bytes(cost.peak_bytes)} at peak",
        f"  load      {format_seconds(cost.load_seconds.page_cache)} from the page cache, "
        f"{format_seconds(cost.load_seconds.disk)} from disk",
    ]
    for row in cost.latency:
        lines.append(
            f"  latency   {row.batch} x {row.tokens} tokens: "
            f"P50 {format_seconds(row.p50_seconds)}, P90 {format_seconds(row.p90_seconds)}"
        )
    lines.append(f"  measured  {cost.cpu}, {cost.runtime}, {cost.threads} thread")
    return "\n".join(lines) + "\n"


def _repository(flags: dict[str, object]) -> Any:
    from packhorse.store.repository import Repository

    return Repository.open(load_settings(flags).store)


def _read(flags: dict[str, object]) -> tuple[list[Artifact], list[str]]:
    """Return the readable records, and what is wrong with the others."""
    records = [record for _, record in _repository(flags).artifacts()]
    broken = [str(record) for record in records if isinstance(record, Corrupt)]
    return [record for record in records if isinstance(record, Artifact)], broken


def _exit_with(broken: list[str], say: bool = True) -> None:
    for fault in broken if say else []:
        click.echo(f"error: {fault}", err=True)
    if broken:
        sys.exit(1)
