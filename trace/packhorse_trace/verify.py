"""Prove that an artifact answers as its original does, or refuse it.

An artifact that is exact (fp32) is compared number by number: alone, padded, batched, and over
a grid of shapes. One that is not (int8) is compared the way it will be served, text by text: its
labels must agree, or its vectors must point the same way; the grid then shows that every shape
runs and gives finite numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from packhorse.artifact import Equality
from packhorse.errors import NotEqual
from packhorse.onnx_session import Array
from packhorse.settings import Settings
from packhorse_trace.samples import SHAPES, random_batch, with_types
from packhorse_trace.torch_model import EagerModel
from packhorse_trace.tracer import Compiled, Runner


@dataclass(frozen=True)
class Encoded:
    """Token ids of one text, cut to the model's length."""

    ids: list[int]


def encode_texts(tokenizer_file: Path, texts: Sequence[str], max_length: int) -> list[Encoded]:
    """Tokenize as the server does."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.enable_truncation(max_length)
    return [Encoded(tokenizer.encode(text).ids) for text in texts]


def verify(
    eager: EagerModel,
    run: Runner,
    compiled: Compiled,
    texts: Sequence[Encoded],
    max_length: int,
    settings: Settings,
) -> Equality:
    """Compare an artifact with its original.

    Raises:
        NotEqual: Beyond the tolerance of its precision; names the case and the remedy.
    """
    import torch

    singles = [_padded([text], len(text.ids)) for text in texts]
    wanted = np.concatenate([eager.run(arrays) for arrays in singles])
    answers = np.concatenate([_finite(run, arrays, "a single text") for arrays in singles])
    worst = float(np.max(np.abs(answers - wanted)))
    cases = len(singles)
    if compiled.invariant:
        _check_difference(worst, "single texts", settings)
        longest = max(len(text.ids) for text in texts)
        for name, rows, length in (
            ("one text with padding", texts[:1], longest + 7),
            ("a padded batch of texts", texts[:8], longest),
        ):
            batch = _padded(rows, min(length, max_length))
            difference = np.abs(_finite(run, batch, name) - wanted[: len(rows)]).max()
            _check_difference(float(difference), name, settings)
            worst = max(worst, float(difference))
            cases += 1
    for size, tokens in (*SHAPES, (1, max_length)):
        batch = random_batch(size, min(tokens, max_length), eager.vocabulary)
        name = f"batch {size} of {min(tokens, max_length)} tokens"
        answer = _finite(run, batch, name)
        if answer.shape != (size, wanted.shape[1]):
            raise NotEqual(f"{name} gives shape {answer.shape}: expected {(size, wanted.shape[1])}")
        if compiled.invariant:
            difference = float(np.abs(answer - eager.run(batch)).max())
            _check_difference(difference, name, settings)
            worst = max(worst, difference)
        cases += 1
    labelled = eager.module.output == "logits" and wanted.shape[1] > 1
    agreement = float(np.mean(answers.argmax(1) == wanted.argmax(1))) if labelled else None
    if not compiled.invariant:
        _check_approximation(answers, wanted, agreement, eager.module.output, settings)
    return Equality(f"eager torch {torch.__version__} fp32", cases, worst, agreement)


def _check_difference(difference: float, case: str, settings: Settings) -> None:
    if difference > settings.max_abs_diff:
        raise NotEqual(
            f"{case}: differs from the original by {difference:.2e}, allowed is "
            f"{settings.max_abs_diff:.0e} (max_abs_diff): the graph lost something"
        )


def _check_approximation(
    answers: Array, wanted: Array, agreement: float | None, output: str, settings: Settings
) -> None:
    if agreement is not None:
        differ = round((1 - agreement) * len(wanted))
        # Rounded up to whole texts: of 48, one may differ where 98 % are required.
        if differ > math.ceil((1 - settings.min_label_agreement) * len(wanted)):
            raise NotEqual(
                f"labels agree on {agreement:.1%} of {len(wanted)} texts, required are "
                f"{settings.min_label_agreement:.0%} (min_label_agreement): give the model samples "
                "of its own texts, or precision fp32"
            )
        return
    if output == "logits":  # one score per text: compare the scores of all texts as one vector
        answers, wanted = answers.T, wanted.T
    lengths = np.linalg.norm(answers, axis=1) * np.linalg.norm(wanted, axis=1)
    cosine = float(((answers * wanted).sum(1) / np.maximum(lengths, 1e-12)).min())
    if cosine < settings.min_cosine:
        raise NotEqual(
            f"vectors have a cosine of {cosine:.3f} to the original's, required is "
            f"{settings.min_cosine} (min_cosine): use precision fp32"
        )


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
    mask = np.zeros_like(ids)
    for index, row in enumerate(rows):
        ids[index, : len(row.ids)] = row.ids
        mask[index, : len(row.ids)] = 1
    return with_types(ids, mask)
