"""How often each model is asked: uniform, Zipf, by weights, or as a recorded trace has it."""

from __future__ import annotations

import csv
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from packhorse.errors import InvalidInput

FORMS = "write uniform, zipf:1.0, weighted:FILE (model,weight) or trace:FILE (seconds,model)"


@dataclass(frozen=True)
class Choice:
    """What is asked how often; see `job.Load` for the fields."""

    weights: list[float] | None = None
    order: list[int] | None = None
    times: list[float] | None = None


def choose_models(text: str, names: Sequence[str], seed: int) -> Choice:
    """Read `--models`.

    Args:
        names: A model for each target; a model that has several targets is shared among them.

    Raises:
        InvalidInput: Not such a choice, or a file that cannot be read or names no model there.
    """
    kind, _, value = text.partition(":")
    if text == "uniform":
        shares = dict.fromkeys(names, 1.0)
    elif kind == "zipf":
        shares = zipf_shares(_number(value, f"--models {text!r}"), sorted({*names}), seed)
    elif kind == "weighted":
        rows = _rows(Path(value), "model,weight")
        shares = {}
        for where, (name, weight) in rows:
            _known(name, names, where)
            shares[name] = _number(weight, where)
        if not sum(shares.values()):
            raise InvalidInput(f"{value}: no weight is above 0")
    elif kind == "trace":
        return _trace(Path(value), names)
    else:
        raise InvalidInput(f"--models {text!r}: {FORMS}")
    targets = {name: names.count(name) for name in shares} if len({*names}) < len(names) else {}
    return Choice(weights=[shares.get(name, 0.0) / targets.get(name, 1) for name in names])


def zipf_shares(exponent: float, names: Sequence[str], seed: int) -> dict[str, float]:
    """Give the k-th model the weight k^-exponent; which is the k-th is drawn by the seed."""
    ranked = list(names)
    random.Random(f"{seed} ranks").shuffle(ranked)
    return {name: (rank + 1) ** -exponent for rank, name in enumerate(ranked)}


def _trace(path: Path, names: Sequence[str]) -> Choice:
    places: dict[str, list[int]] = defaultdict(list)
    for place, name in enumerate(names):
        places[name].append(place)
    order: list[int] = []
    times: list[float] = []
    for where, (seconds, name) in _rows(path, "seconds,model"):
        _known(name, places, where)
        times.append(_number(seconds, where))
        if len(times) > 1 and times[-1] < times[-2]:
            raise InvalidInput(f"{where}: {seconds} s is before the line above it")
        order.append(places[name][len(order) % len(places[name])])
    return Choice(order=order, times=[time - times[0] for time in times])


def _rows(path: Path, header: str) -> list[tuple[str, tuple[str, str]]]:
    """Return the rows of two columns, each with its place, without the header."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            lines = [[cell.strip() for cell in row] for row in csv.reader(file)]
    except (OSError, UnicodeDecodeError, csv.Error) as err:
        raise InvalidInput(f"{path} cannot be read: {err}") from err
    rows = []
    for number, cells in enumerate(lines, 1):
        if not any(cells) or (number == 1 and cells == header.split(",")):
            continue
        if len(cells) != 2:
            raise InvalidInput(f"{path}:{number}: write {header}")
        rows.append((f"{path}:{number}", (cells[0], cells[1])))
    if not rows:
        raise InvalidInput(f"{path} has no rows: write {header}")
    return rows


def _known(name: str, names: object, where: str) -> None:
    if name not in names:  # type: ignore[operator]
        raise InvalidInput(f"{where}: no model {name!r} is served there")


def _number(text: str, where: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e9:
        raise InvalidInput(f"{where}: {text!r} is not a number from 0 on")
    return number
