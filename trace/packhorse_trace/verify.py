"""Prove that an artifact answers as its original does, or refuse it.

What is exact (fp32) or nearly so (fp16, bf16) is compared number by number: alone, padded,
batched, and over a grid of shapes. What rounds its numbers is judged by its decisions too: labels
must agree, probabilities may move by so much, vectors must point the same way. int8 is compared
the way it will be served, text by text; the grid then shows that every shape runs and gives
finite numbers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from packhorse.artifact import Equality
from packhorse.errors import NotEqual
from packhorse.settings import Settings
from packhorse.tensors import Array
from packhorse_trace.decisions import (
    check_decisions,
    doubts,
    score_difference,
    score_noise,
    shared_decisions,
)
from packhorse_trace.samples import SHAPES, Encoded, random_batch
from packhorse_trace.torch_model import EagerModel
from packhorse_trace.tracer import Compiled, Runner

HALF_DIFF = {"fp16": 0.01, "bf16": 0.08}
"""Largest difference of what is computed in half precision, per size of the largest output: three
to four times what a trained MiniLM head lost on random tokens (0.0026 and 0.026)."""


@dataclass(frozen=True)
class Tolerance:
    """How far numbers may lie apart.

    Attributes:
        relative: Whether `limit` is per size of the largest number (at least one).
    """

    limit: float
    relative: bool

    def check(self, answer: Array, want: Array, case: str, cause: str) -> float:
        """Return the largest difference.

        Raises:
            NotEqual: It is over the limit.
        """
        difference = difference_of(answer, want, case)
        limit = self.limit * max(1.0, float(np.abs(want).max())) if self.relative else self.limit
        if difference > limit:
            raise NotEqual(
                f"{case}: differs from the original by {difference:.2e}, allowed is {limit:.0e} "
                f"(max_abs_diff): {cause}"
            )
        return difference


def verify(
    eager: EagerModel,
    run: Runner,
    compiled: Compiled,
    texts: Sequence[Encoded],
    max_length: int,
    settings: Settings,
) -> tuple[Equality, list[str]]:
    """Compare an artifact with its original.

    Returns:
        The figures, and why the texts may prove little of a model that rounds its numbers.

    Raises:
        NotEqual: Beyond the tolerance of its precision; names the case and the remedy.
    """
    import torch

    exact = compiled.precision == "fp32"
    half = HALF_DIFF.get(compiled.precision)
    tolerance = Tolerance(half or settings.max_abs_diff, relative=half is not None)
    singles = [_padded([text], len(text.ids)) for text in texts]
    wanted = [eager.run(arrays)[0] for arrays in singles]
    if not all(np.isfinite(want).all() for want in wanted):
        raise NotEqual(
            "the original answers with numbers that are not finite: its weights are too large"
        )
    if not np.array_equal(eager.run(singles[0])[0], wanted[0]):
        raise NotEqual(
            "the original gives two answers to one text: it is in training mode (dropout), or "
            "random"
        )
    answers = [_finite(run, arrays, "a single text")[0] for arrays in singles]
    worst = max(difference_of(a, w, "a text") for a, w in zip(answers, wanted, strict=True))
    cases = len(singles)
    rounded = compiled.precision == "int8"  # judged by decisions, not number by number
    if compiled.invariant:
        alone = answers if rounded else wanted
        for answer, want in zip(answers, alone, strict=True):
            tolerance.check(answer, want, "single texts", "another model, or in training mode")
        padded = _check_padded(eager, run, texts, alone, max_length, tolerance)
        worst = worst if rounded else max(worst, padded)
        cases += 2
    for size, tokens in (*SHAPES, (1, max_length)):
        tokens = min(tokens, max_length)
        batch = random_batch(size, tokens, eager.vocabulary)
        name = f"batch {size} of {tokens} tokens"
        answer, want = _finite(run, batch, name), eager.run(batch)
        if answer.shape != want.shape:
            raise NotEqual(
                f"{name} gives shape {answer.shape}, expected {want.shape}: a size was frozen"
            )
        if compiled.invariant and not rounded:
            if eager.per_token:
                read = batch["attention_mask"] == 1
                answer, want = answer[read], want[read]
            worst = max(worst, tolerance.check(answer, want, name, "a size was frozen"))
        cases += 1
    output = eager.module.output
    agreement = shared_decisions(answers, wanted, output)
    equality = Equality(f"eager torch {torch.__version__} fp32", cases, worst, agreement)
    if exact:
        return equality, []
    moved, noise = (f(answers, wanted, output) for f in (score_difference, score_noise))
    check_decisions(answers, wanted, output, agreement, noise, settings)
    if moved is not None:
        equality = Equality(equality.reference, cases, worst, agreement, moved, noise)
    return equality, doubts(texts, wanted, output)


def difference_of(answer: Array, want: Array, case: str) -> float:
    """Return the largest absolute difference.

    Raises:
        NotEqual: The shapes differ.
    """
    if answer.shape != want.shape:
        raise NotEqual(f"{case} gives shape {answer.shape}: expected {want.shape}")
    return float(np.abs(answer - want).max())


def _check_padded(
    eager: EagerModel,
    run: Runner,
    texts: Sequence[Encoded],
    wanted: Sequence[Array],
    max_length: int,
    tolerance: Tolerance,
) -> float:
    """Compare texts with padding behind them, alone and in a batch; return the difference."""
    longest = max(len(text.ids) for text in texts)
    worst = 0.0
    for name, rows, length in (
        ("one text with padding", texts[:1], longest + 7),
        ("a padded batch of texts", texts[:8], longest),
    ):
        batch = _padded(rows, min(length, max_length))
        answer = _finite(run, batch, name)
        if len(answer) != len(rows):
            raise NotEqual(
                f"{name} gives {len(answer)} answers, expected {len(rows)}: the batch was frozen"
            )
        for row, text in enumerate(rows):  # what stands at padding is nobody's answer
            known = answer[row, : len(text.ids)] if eager.per_token else answer[row]
            worst = max(
                worst, tolerance.check(known, wanted[row], name, "the attention mask was lost")
            )
    return worst


def _finite(run: Runner, arrays: Mapping[str, Array], case: str) -> Array:
    try:
        answer = run(arrays)
    except Exception as err:  # the runtime's own classes, for a shape that was frozen
        raise NotEqual(f"{case}: does not run: {str(err).splitlines()[0][:300]}") from err
    if not np.isfinite(answer).all():
        raise NotEqual(f"{case}: gives numbers that are not finite")
    return answer


def _padded(rows: Sequence[Encoded], length: int) -> dict[str, Array]:
    ids = np.zeros((len(rows), length), dtype=np.int64)
    mask, types = np.zeros_like(ids), np.zeros_like(ids)
    for index, row in enumerate(rows):
        ids[index, : len(row.ids)] = row.ids
        mask[index, : len(row.ids)] = 1
        types[index, : len(row.ids)] = row.types
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
