"""What every benchmark shares: a core for each side, turns, and one table of ratios.

A figure alone says more about the machine than about packhorse. So each is set beside a limit that
was measured in the same run, in turns with it; the server has one core and the client another.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import httpx

OUT = Path(".packhorse/bench.json")


@dataclass(frozen=True)
class Figure:
    """One row of the table.

    Attributes:
        limit: What was measured beside it, or what is allowed.
        against: What the limit is.
        wanted: What the ratio is to be, such as ">= 1.5"; empty where nothing is.
    """

    what: str
    value: float
    unit: str
    limit: float
    against: str
    wanted: str = ""

    @property
    def ratio(self) -> float:
        return self.value / self.limit

    @property
    def holds(self) -> bool:
        sign, _, bound = self.wanted.partition(" ")
        if not sign:
            return True
        return self.ratio >= float(bound) if sign == ">=" else self.ratio <= float(bound)


def markdown(figures: list[Figure]) -> str:
    """Write the table."""
    lines = ["| what | measured | against | ratio | wanted |", "|---|---|---|---|---|"]
    for row in figures:
        wanted = row.wanted if row.holds else f"**{row.wanted}**, missed"
        lines.append(
            f"| {row.what} | {row.value:.4g} {row.unit} | {row.limit:.4g} {row.unit}, "
            f"{row.against} | {row.ratio:.3g} | {wanted} |"
        )
    return "\n".join(lines)


def save(figures: list[Figure]) -> None:
    """Keep the figures for whoever compares runs."""
    OUT.parent.mkdir(exist_ok=True)
    rows = [{**asdict(row), "ratio": round(row.ratio, 4)} for row in figures]
    OUT.write_text(json.dumps(rows, indent=2) + "\n")


def cores() -> tuple[int, int]:
    """Return the core of the server and that of the client; the same where there is only one."""
    there = sorted(os.sched_getaffinity(0))
    return there[0], there[-1]


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Keep this process, and what it starts meanwhile, on one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def serving(command: list[str], url: str) -> Iterator[str]:
    """Run a server on its core until the block ends; it has begun when the URL answers."""
    with on_core(cores()[0]):
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        for _ in range(100):
            try:
                httpx.get(url, timeout=1)
                break
            except httpx.TransportError:
                time.sleep(0.1)
        else:
            raise RuntimeError(f"{command[0]} does not answer at {url}")
        yield url
    finally:
        process.terminate()
        process.wait(10)


def in_turns(rounds: int, calls: dict[str, Callable[[], dict[str, float]]]) -> dict[
    str, dict[str, float]
]:  # fmt: skip
    """Let each measure in turn, on the client's core; return the median of each figure."""
    seen: dict[str, list[dict[str, float]]] = {name: [] for name in calls}
    with on_core(cores()[1]):
        for _ in range(rounds):
            for name, call in calls.items():
                seen[name].append(call())
    return {
        name: {key: median(row[key] for row in rows) for key in rows[0]}
        for name, rows in seen.items()
    }
