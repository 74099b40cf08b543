"""What became of a run of trace: a table of what changed, or one JSON object."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

import click

from packhorse.settings import Settings
from packhorse.units import format_bytes, format_seconds
from packhorse_trace.planning import Result

ROWS = 40
"""Rows of the table; of more models, counts are read rather than names."""
NAMES = 3


def print_report(results: Sequence[Result], settings: Settings, as_json: bool) -> int:
    """Print what was done and what failed; return the exit code."""
    counts = {
        status: sum(result.status == status for result in results)
        for status in ("traced", "unchanged", "failed")
    }
    added = sum(result.added_bytes for result in results)
    if as_json:
        rows = [dataclasses.asdict(result) for result in results]
        click.echo(json.dumps({"models": rows, **counts, "added_bytes": added}))
    else:
        traced = [result for result in results if result.status == "traced"]
        for result in traced[:ROWS]:
            click.echo(
                f"{result.id:<40} {result.variant:<16} {result.version:<14} "
                f"{format_bytes(result.added_bytes):>10} {format_seconds(result.seconds):>9}"
            )
        if len(traced) > ROWS:
            click.echo(f"and {len(traced) - ROWS} more: packhorse models list")
        noted = [(note, result) for result in results for note in result.notes]
        _say("note", noted)
        _say("failed", [(r.reason, r) for r in results if r.status == "failed"])
    click.echo(
        f"{counts['traced']} traced, {counts['unchanged']} unchanged, {counts['failed']} failed; "
        f"{format_bytes(added)} added to {settings.store}",
        err=True,
    )
    return 1 if counts["failed"] else 0


def _say(kind: str, rows: Sequence[tuple[str, Result]]) -> None:
    """Print each text once, with the models that it is about."""
    about: dict[str, list[str]] = {}
    for text, result in rows:
        about.setdefault(text, []).append(f"{result.id} ({result.processor})")
    for text, names in about.items():
        more = f" and {len(names) - NAMES} more" if len(names) > NAMES else ""
        click.echo(f"{kind}: {', '.join(names[:NAMES])}{more}: {text}", err=True)
