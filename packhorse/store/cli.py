"""`packhorse models`: look into a store."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from packhorse.artifact import Artifact, TensorSpec
from packhorse.errors import Corrupt, InvalidInput
from packhorse.ids import model_key
from packhorse.settings import load_settings, setting_options
from packhorse.units import format_bytes, format_seconds, parse_seconds

_as_json = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")


@click.group("models")
def models() -> None:
    """List, show, verify, copy and remove the models in a store.

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
    found, broken = _records(_repository(flags))
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
        if not found and not broken:
            click.echo("Where there should be some, check the prefix of --store.", err=True)
    _exit_with([str(fault) for fault in broken.values()])


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
    """Read every blob again and compare it with its digest; exit code 1 if any differs.

    \b
    Examples:
      packhorse models verify
      packhorse models verify acme/intent --store s3://acme/prod --json
    """
    from packhorse.progress import show_progress

    repository = _repository(flags)
    chosen, broken = _chosen(repository, model_ids)
    faults: list[dict[str, Any]] = [{"id": None, "fault": str(fault)} for fault in broken.values()]
    blobs = {file.sha256: file.bytes for a in chosen for file in a.files}
    with show_progress("verify", sum(blobs.values()), "bytes") as bar:
        for a, fault in repository.faults(chosen, bar.advance):
            faults.append({"id": a.id, "fault": fault})
    foreign = repository.foreign()
    if as_json:
        found = {"verified": len(chosen), "blobs": len(blobs), "faults": faults, "foreign": foreign}
        click.echo(json.dumps(found))
    else:
        for row in faults:
            click.echo(f"{row['id'] or 'record'}: {row['fault']}")
        click.echo(f"{len(chosen)} models, {len(blobs)} blobs: {len(faults)} faults")
    if foreign:
        more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
        click.echo(
            f"not of packhorse, and never read or removed: {', '.join(foreign[:3])}{more}: keep "
            "other files under another prefix",
            err=True,
        )
    _exit_with([row["fault"] for row in faults], say=False)


@models.command("copy")
@click.argument("model_ids", metavar="[ID]...", nargs=-1)
@click.option("--from", "source", required=True, metavar="URL", help="Store to copy from.")
@click.option("--to", "target", required=True, metavar="URL", help="Store to copy to.")
def copy_command(model_ids: tuple[str, ...], source: str, target: str) -> None:
    """Copy models, all or those named, from one store to another.

    \b
    Examples:
      packhorse models copy --from s3://acme/test --to s3://acme/prod acme/intent
      packhorse models copy --from s3://acme/prod --to bundle && tar -cf bundle.tar bundle
    """
    from packhorse.progress import show_progress
    from packhorse.store.upkeep import copy_models

    there, here = _repository({"store": target}), _repository({"store": source})
    if f"{there.objects.url}/".startswith(f"{here.objects.url}/"):
        raise InvalidInput(f"--to {there.objects.url} lies in --from: name another store")
    chosen, broken = _chosen(here, model_ids)
    if not chosen and not broken:
        raise InvalidInput(f"--from {here.objects.url} holds no model: check its prefix")
    there.objects.prepare()
    blobs = {file.sha256: file.bytes for a in chosen for file in a.files}
    with show_progress("copy", sum(blobs.values()), "bytes") as bar:
        faults = copy_models(here, there, chosen, bar.advance)
    click.echo(f"{len(chosen) - len(faults)} artifacts are in {there.objects.url}")
    _exit_with([*map(str, broken.values()), *faults])


@models.command("remove")
@click.argument("model_ids", metavar="ID...", nargs=-1, required=True)
@setting_options("store")
@click.option("--version", default=None, help="This version only.")
@click.option("--variant", default=None, help="This variant only.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def remove_command(
    model_ids: tuple[str, ...], version: str | None, variant: str | None, yes: bool, **flags: object
) -> None:
    """Take models out of the store; gc then frees what no other model uses."""
    from packhorse.store.upkeep import remove_artifacts

    repository = _repository(flags)
    found, broken = _chosen(repository, model_ids)
    chosen = [
        prefix
        for prefix in [*(a.prefix for a in found), *broken]
        if version in (None, prefix.split("/")[2]) and variant in (None, prefix.split("/")[3])
    ]
    if not chosen:
        raise InvalidInput(f"{', '.join(model_ids)}: no such version or variant: see models list")
    for prefix in chosen:
        click.echo(_named(prefix))
    if not yes:
        click.confirm(f"Remove these from {repository.objects.url}?", abort=True)
    remove_artifacts(repository, chosen)
    click.echo(f"{len(chosen)} removed; packhorse models gc frees their blobs once they are old")


@models.command("gc")
@setting_options("store")
@click.option("--older-than", default="24h", metavar="AGE", help="Age, such as 24h or 90m.",
              show_default=True)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Say what would be removed.")
def gc_command(older_than: str, dry_run: bool, **flags: object) -> None:
    """Remove blobs that no model names any more, and what killed publishers left."""
    from packhorse.store.upkeep import collect_garbage

    removed = collect_garbage(_repository(flags), parse_seconds(older_than), dry_run)
    for row in removed:
        click.echo(row.key)
    size = format_bytes(sum(row.bytes for row in removed))
    click.echo(
        f"{len(removed)} objects, {size} {'would be ' if dry_run else ''}removed; what is younger "
        f"than {older_than} is kept",
        err=True,
    )


def _chosen(
    repository: Any, model_ids: tuple[str, ...]
) -> tuple[list[Artifact], dict[str, Corrupt]]:
    """Return the models named, or all: the readable records, and what is wrong with the others."""
    found, broken = _records(repository)
    keys = {model_key(model_id): model_id for model_id in model_ids}
    known = {a.prefix.split("/")[1] for a in found} | {prefix.split("/")[1] for prefix in broken}
    if unknown := keys.keys() - known:
        raise InvalidInput(f"model {keys[min(unknown)]!r} is not in store {repository.objects.url}")
    if not model_ids:
        return found, broken
    return (
        [a for a in found if a.id in model_ids],
        {prefix: fault for prefix, fault in broken.items() if prefix.split("/")[1] in keys},
    )


def _named(prefix: str) -> str:
    """Write a key prefix as people do."""
    _, key, version, variant = prefix.split("/")
    return f"{key.replace('~', '/')} {version} {variant}"


def _receipt(a: Artifact) -> str:
    agreement = a.equality.label_agreement
    agrees = "" if agreement is None else f", labels agree on {agreement:.1%} of the texts"
    cost = a.cost
    moved, noise = a.equality.max_score_diff, a.equality.score_noise
    if isinstance(moved, float):
        agrees += f", probabilities move by {moved:.3f} at most"
    if isinstance(noise, float):
        agrees += f", score noise {noise:.2f}"
    lines = [
        f"{a.id}  version {a.version}, {a.variant}, {a.task}",
        f"  source    {a.source.uri} ({a.source.revision[:12]})",
        f"  files     {len(a.files)}, {format_bytes(a.total_bytes)}",
        f"  labels    {', '.join(a.labels)}" if a.labels else f"  pooling   {a.pooling or 'none'}",
        *(f"  input     {_tensor(item)}" for item in a.inputs),
        *(f"  output    {_tensor(item)}" for item in a.outputs),
        f"  built     {', '.join(f'{name} {what}' for name, what in a.built_with.items())}",
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
    lines.append(f"  verified  {a.verified_on.cpu_model} ({' '.join(a.verified_on.features)})")
    refused = a.refused if isinstance(a.refused, dict) else {}
    lines += [f"  refused   {precision}: {why}" for precision, why in refused.items()]
    lines += [f"  note      {a.note}"] if isinstance(a.note, str) else []
    return "\n".join(lines) + "\n"


def _tensor(spec: TensorSpec) -> str:
    return f"{spec.name} {spec.dtype} {spec.shape}"


def _repository(flags: dict[str, object]) -> Any:
    from packhorse.store.repository import Repository

    return Repository.open(load_settings(flags).store)


def _records(repository: Any) -> tuple[list[Artifact], dict[str, Corrupt]]:
    """Return the readable records, and by key prefix what is wrong with the others."""
    records = dict(repository.artifacts())
    broken = {prefix: row for prefix, row in records.items() if isinstance(row, Corrupt)}
    return [row for row in records.values() if isinstance(row, Artifact)], broken


def _exit_with(broken: list[str], say: bool = True) -> None:
    for fault in broken if say else []:
        click.echo(f"error: {fault}", err=True)
    if broken:
        sys.exit(1)
