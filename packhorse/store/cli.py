"""`packhorse models`: look into a store."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from packhorse.artifact import Artifact
from packhorse.errors import Corrupt, InvalidInput
from packhorse.settings import load_settings, setting_options
from packhorse.units import format_bytes

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
            f"{len(found)} models, {format_bytes(sum(blobs.values()))} in {len(blobs)} blobs "
            f"({format_bytes(apart)} if each model had its own)",
            err=True,
        )
    _exit_with(broken)


@models.command("show")
@click.argument("model_id", metavar="ID")
@setting_options("store")
@click.option("--version", default=None, help="Version; by default the newest.")
@click.option("--variant", default=None, help="Variant; by default every one.")
def show_model(model_id: str, version: str | None, variant: str | None, **flags: object) -> None:
    """Print a model's record: files, equality, cost."""
    repository = _repository(flags)
    version = version or repository.latest(model_id)
    variants = [variant] if variant else repository.variants(model_id, version)
    if not variants:
        raise InvalidInput(f"model {model_id!r} has no version {version}: see models list")
    for name in variants:
        click.echo(repository.artifact(model_id, version, name).encode(), nl=False)


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
