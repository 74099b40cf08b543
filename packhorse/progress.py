"""Progress of long work on standard error: a bar on a terminal, a line per step in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from packhorse.units import format_seconds


class Progress(Protocol):
    """What work in progress calls."""

    def advance(self, amount: float, note: str = "") -> None:
        """Say that `amount` more of the total is done; `note` is what was done."""


@contextmanager
def show_progress(title: str, total: float) -> Iterator[Progress]:
    """Show how far work has come until the block ends."""
    if sys.stderr.isatty():
        yield from _bar(title, total)
    else:
        yield _Lines(title, total)


def _bar(title: str, total: float) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TimeElapsedColumn(), TextColumn("{task.fields[note]}"),
    )  # fmt: skip
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total, note="")

        class OnBar:
            def advance(self, amount: float, note: str = "") -> None:
                bar.update(task, advance=amount, note=note)

        yield OnBar()


class _Lines:
    """A line whenever a step has a note, and at most one every five seconds otherwise."""

    def __init__(self, title: str, total: float) -> None:
        self._title, self._total, self._done = title, total, 0.0
        self._start = self._said = time.monotonic()

    def advance(self, amount: float, note: str = "") -> None:
        self._done += amount
        now = time.monotonic()
        if note or now - self._said > 5:
            self._said = now
            print(
                f"{self._title} {round(self._done, 1):g}/{round(self._total, 1):g} {note} "
                f"[after {format_seconds(now - self._start)}]",
                file=sys.stderr, flush=True,
            )  # fmt: skip
