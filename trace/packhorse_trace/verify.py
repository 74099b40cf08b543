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
from packhorse_trace.samples import SHAPES, random_batch
from packhorse_trace.torch_model import EagerModel
from packhorse_trace.tracer import Compiled, Runner


@dataclass(frozen=True)
class Encoded:
    """Token ids of one text or pair, cut to the model's length, and of which text each is."""

    ids: list[int]
    types: list[int]


def encode_texts(
    tokenizer_file: Path, texts: Sequence[tuple[str, str | None]], max_length: int
) -> list[Encoded]:
    """Tokenize as the server does."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.enable_truncation(max_length)
    found = [tokenizer.encode(text, pair) for text, pair in texts]
    return [Encoded(row.ids, row.type_ids) for row in found]


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
    wanted = [eager.run(arrays)[0] for arrays in singles]
    answers = [_finite(run, arrays, "a single text")[0] for arrays in singles]
    worst = max(_difference(answer, want) for answer, want in zip(answers, wanted, strict=True))
    cases = len(singles)
    if compiled.invariant:
        _check_difference(worst, "single texts", settings)
        longest = max(len(text.ids) for text in texts)
        for name, rows, length in (
            ("one text with padding", texts[:1], longest + 7),
            ("a padded batch of texts", texts[:8], longest),
        ):
            batch = _padded(rows, min(length, max_length))
            answer = _finite(run, batch, name)
            if len(answer) != len(rows):
                raise NotEqual(f"{name} gives {len(answer)} answers: expected {len(rows)}")
            for row, text in enumerate(rows):  # what stands at padding is nobody's answer
                known = answer[row, : len(text.ids)] if eager.per_token else answer[row]
                difference = _difference(known, wanted[row])
                _check_difference(difference, name, settings)
                worst = max(worst, difference)
            cases += 1
    for size, tokens in (*SHAPES, (1, max_length)):
        tokens = min(tokens, max_length)
        batch = random_batch(size, tokens, eager.vocabulary)
        name = f"batch {size} of {tokens} tokens"
        answer, want = _finite(run, batch, name), eager.run(batch)
        if answer.shape != want.shape:
            raise NotEqual(f"{name} gives shape {answer.shape}: expected {want.shape}")
        if compiled.invariant:
            if eager.per_token:
                read = batch["attention_mask"] == 1
                answer, want = answer[read], want[read]
            difference = _difference(answer, want)
            _check_difference(difference, name, settings)
            worst = max(worst, difference)
        cases += 1
    agreement = _agreement(answers, wanted, eager.module.output)
    if not compiled.invariant:
        _check_approximation(answers, wanted, agreement, eager.module.output, settings)
    return Equality(f"eager torch {torch.__version__} fp32", cases, worst, agreement)


def _difference(answer: Array, want: Array) -> float:
    if answer.shape != want.shape:
        raise NotEqual(f"a text gives shape {answer.shape}: expected {want.shape}")
    return float(np.abs(answer - want).max())


def _agreement(answers: Sequence[Array], wanted: Sequence[Array], output: str) -> float | None:
    """Return the share of equal decisions: labels, or the two ends of a span; None: no labels."""
    if output == "embedding" or wanted[0].shape[-1] == 1:
        return None
    axis = 0 if output == "spans" else -1
    same = [a.argmax(axis) == w.argmax(axis) for a, w in zip(answers, wanted, strict=True)]
    return float(np.mean(np.concatenate([np.atleast_1d(row) for row in same])))


def _check_difference(difference: float, case: str, settings: Settings) -> None:
    if difference > settings.max_abs_diff:
        raise NotEqual(
            f"{case}: differs from the original by {difference:.2e}, allowed is "
            f"{settings.max_abs_diff:.0e} (max_abs_diff): the graph lost something"
        )


def _check_approximation(
    answers: Sequence[Array],
    wanted: Sequence[Array],
    agreement: float | None,
    output: str,
    settings: Settings,
) -> None:
    if agreement is not None:
        count, what = len(wanted), "texts"
        if output == "spans":
            count, what = 2 * count, "ends of answers"
        elif output == "token_logits":
            count, what = sum(len(want) for want in wanted), "tokens"
        differ = round((1 - agreement) * count)
        # Rounded up to whole texts: of 48, one may differ where 98 % are required.
        if differ > math.ceil((1 - settings.min_label_agreement) * count):
            raise NotEqual(
                f"labels agree on {agreement:.1%} of {count} {what}, required are "
                f"{settings.min_label_agreement:.0%} (min_label_agreement): give the model samples "
                "of its own texts, or precision fp32"
            )
        return
    found, known = np.stack(answers), np.stack(wanted)
    if output == "logits":  # one score per text: compare the scores of all texts as one vector
        found, known = found.T, known.T
    lengths = np.linalg.norm(found, axis=1) * np.linalg.norm(known, axis=1)
    cosine = float(((found * known).sum(1) / np.maximum(lengths, 1e-12)).min())
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
    mask, types = np.zeros_like(ids), np.zeros_like(ids)
    for index, row in enumerate(rows):
        ids[index, : len(row.ids)] = row.ids
        mask[index, : len(row.ids)] = 1
        types[index, : len(row.ids)] = row.types
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
