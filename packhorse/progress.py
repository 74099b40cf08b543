"""Progress of long work on standard error: a bar on a terminal, a line per step in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from packhorse.units import format_bytes, format_seconds


class Progress(Protocol):
    """What work in progress calls."""

    def advance(self, amount: float, note: str = "") -> None:
        """Say that `amount` more of the total is done; `note` is what was done."""


@contextmanager
def show_progress(title: str, total: float, unit: str = "") -> Iterator[Progress]:
    """Show how far work has come, and how long the rest will take, until the block ends.

    Args:
        unit: `bytes`, or empty where things are counted.
    """
    if sys.stderr.isatty():
        yield from _bar(title, total, unit)
    else:
        yield _Lines(title, total, unit)


def _bar(title: str, total: float, unit: str) -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )  # fmt: skip
    from rich.progress import Progress as Bar

    amount = DownloadColumn(binary_units=True) if unit == "bytes" else MofNCompleteColumn()
    columns = (
        TextColumn("{task.description}"), BarColumn(), amount, TimeElapsedColumn(),
        TimeRemainingColumn(), TextColumn("{task.fields[note]}"),
    )  # fmt: skip
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total, note="")

        class OnBar:
            def advance(self, amount: float, note: str = "") -> None:
                bar.update(task, advance=amount, note=note)

        yield OnBar()


class _Lines:
    """A line whenever a step has a note, and at most one every five seconds otherwise."""

    def __init__(self, title: str, total: float, unit: str) -> None:
        self._title, self._total, self._done = title, total, 0.0
        self._write = format_bytes if unit == "bytes" else _number
        self._start = self._said = time.monotonic()

    def advance(self, amount: float, note: str = "") -> None:
        self._done += amount
        now = time.monotonic()
        if note or now - self._said > 5:
            self._said = now
            elapsed_s = now - self._start
            left = max(0.0, self._total - self._done) / self._done if self._done else 0.0
            end = f", {format_seconds(elapsed_s * left)} left" if left else ""
            print(
                f"{self._title} {self._write(self._done)}/{self._write(self._total)} {note} "
                f"[after {format_seconds(elapsed_s)}{end}]",
                file=sys.stderr, flush=True,
            )  # fmt: skip


def _number(value: float) -> str:
    return f"{round(value, 1):g}"
