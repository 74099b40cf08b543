"""What a rounded model must keep: its labels, its probabilities, the direction of its vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from packhorse.errors import NotEqual
from packhorse.settings import Settings
from packhorse.tensors import Array
from packhorse_trace.samples import Encoded

MOSTLY = 0.3
"""Share of unknown tokens from which on texts say little about a model."""


def shared_decisions(
    answers: Sequence[Array], wanted: Sequence[Array], output: str
) -> float | None:
    """Return the share of equal decisions: labels, or the two ends of a span; None: no labels."""
    if output == "embedding" or wanted[0].shape[-1] == 1:
        return None
    axis = 0 if output == "spans" else -1
    same = [a.argmax(axis) == w.argmax(axis) for a, w in zip(answers, wanted, strict=True)]
    return float(np.mean(np.concatenate([np.atleast_1d(row) for row in same])))


def score_difference(
    answers: Sequence[Array], wanted: Sequence[Array], output: str
) -> float | None:
    """Return the largest change of a probability; None where answers are none."""
    if output == "embedding":
        return None
    axis = 0 if output == "spans" else -1
    return max(
        float(np.abs(_shares(a, axis) - _shares(w, axis)).max())
        for a, w in zip(answers, wanted, strict=True)
    )


def score_noise(answers: Sequence[Array], wanted: Sequence[Array], output: str) -> float | None:
    """Return the changes of scores per their own differences from text to text.

    Trained MiniLM heads show 0.07 to 0.2 in int8; untrained ones, and models with a few weights
    far larger than the rest, 0.6 and more, although the same label may win everywhere.

    Returns:
        None for vectors, whose direction is compared, and for one score in all.
    """
    if output == "embedding":
        return None
    width = wanted[0].shape[-1]
    found, known = (np.concatenate([x.reshape(-1, width) for x in y]) for y in (answers, wanted))
    if len(known) < 2:
        return None
    changes = float(np.sqrt(np.mean((found - known) ** 2)))
    own = float(np.sqrt(np.mean((known - known.mean(axis=0)) ** 2)))
    return changes / max(own, 1e-12)


def check_decisions(
    answers: Sequence[Array],
    wanted: Sequence[Array],
    output: str,
    agreement: float | None,
    noise: float | None,
    settings: Settings,
) -> None:
    """Refuse a model whose decisions differ.

    Args:
        agreement: Of `shared_decisions`.
        noise: Of `score_noise`.

    Raises:
        NotEqual: Labels agree on too few texts, scores are lost in noise, or vectors turned.
    """
    if agreement is not None:
        _check_labels(wanted, output, agreement, settings)
    if noise is not None and noise > settings.max_score_noise:
        raise NotEqual(
            f"rounding changes the scores by {noise:.2f} of what tells texts apart, allowed is "
            f"{settings.max_score_noise} (max_score_noise): an untrained head does that, or a few "
            "weights far larger than the rest: give the model samples of its own texts, or "
            "precision fp32"
        )
    if agreement is not None:
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


def doubts(texts: Sequence[Encoded], wanted: Sequence[Array], output: str) -> list[str]:
    """Say why built-in texts may prove little of this model."""
    found = []
    tokens = sum(len(text.ids) for text in texts)
    unknown = sum(text.unknown for text in texts) / max(1, tokens)
    if unknown > MOSTLY:
        found.append(
            f"{unknown:.0%} of the built-in texts' tokens are unknown to its tokenizer: give "
            "samples of its own"
        )
    if output == "logits" and wanted[0].shape[-1] > 1:
        labels = {int(want.argmax()) for want in wanted}
        if len(labels) == 1:
            found.append(
                "one label wins on all of the built-in texts: give samples of its own, or what "
                "rounding does to it is hardly judged"
            )
    return found


def _check_labels(
    wanted: Sequence[Array], output: str, agreement: float, settings: Settings
) -> None:
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


def _shares(logits: Array, axis: int) -> Array:
    if logits.shape[axis] == 1:
        return np.asarray((1 + np.tanh(logits / 2)) / 2)
    powers = np.exp(logits - logits.max(axis=axis, keepdims=True))
    return np.asarray(powers / powers.sum(axis=axis, keepdims=True))
