"""Texts and shapes on which an artifact is compared with its original."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from packhorse.artifact import TensorSpec
from packhorse.errors import TraceError
from packhorse.tensors import Array

TEXTS = (
    "a",
    "Where is my parcel?",
    "The quick brown fox jumps over the lazy dog.",
    "I am very happy with the service.",
    "This is the worst film that I have seen in years.",
    "Please send me the invoice of last month as a PDF.",
    "The meeting is moved to Thursday at half past nine.",
    "Berlin is the capital of Germany and lies on the river Spree.",
    "How long does it take to boil an egg?",
    "Stocks fell sharply after the central bank raised its rates by half a point.",
    "The patient reports mild pain in the left knee since Tuesday.",
    "def add(a, b): return a + b",
    "Wer reitet so spät durch Nacht und Wind?",
    "Il pleut depuis trois jours.",
    "おはようございます",
    "No.",
    "The battery of my phone is empty after two hours, although it is new.",
    "Our team won three to one in the second half.",
    "Mix flour, sugar and butter, then bake for forty minutes.",
    "She opened the door, saw nobody, and closed it again.",
    "e-mail: someone@example.com, phone +49 30 1234567",
    "An apple a day keeps the doctor away.",
    "The train was late; nevertheless we arrived in time for the concert.",
    "What is the difference between a violin and a viola?",
)
"""Texts of many kinds, for models that come without samples of their own."""

SHAPES = ((1, 1), (2, 5), (3, 16), (8, 9), (2, 128))
"""(batch, tokens) that every artifact of free shape must take, beside its longest length."""


@dataclass(frozen=True)
class Encoded:
    """Token ids of one text or pair, cut to the model's length, and of which text each is.

    Attributes:
        unknown: How many of them stand for what the tokenizer does not know.
    """

    ids: list[int]
    types: list[int]
    unknown: int = 0


def encode_texts(
    tokenizer_file: Path, texts: Sequence[tuple[str, str | None]], max_length: int
) -> list[Encoded]:
    """Tokenize as the server does."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    tokenizer.enable_truncation(max_length)
    token = json.loads(tokenizer.to_str())["model"].get("unk_token")
    unknown = tokenizer.token_to_id(token) if isinstance(token, str) else None
    found = [tokenizer.encode(text, pair) for text, pair in texts]
    return [Encoded(row.ids, row.type_ids, row.ids.count(unknown or -1)) for row in found]


def read_texts(path: Path | None) -> list[str]:
    """Return the texts of a samples file, one a line, or the built-in ones.

    Raises:
        TraceError: The file is missing, empty or not UTF-8.
    """
    if path is None:
        return list(TEXTS)
    try:
        lines = [line.strip() for line in path.read_text("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as err:
        raise TraceError(f"samples {path} cannot be read: {err}") from err
    texts = [line for line in lines if line]
    if not texts:
        raise TraceError(f"samples {path} holds no text: write one a line, or leave samples out")
    return texts


def read_samples(path: Path | None, pairs: bool) -> list[tuple[str, str | None]]:
    """Return what a model is compared on: texts, or pairs of them.

    A line of a samples file holds a pair with a tab between; without, the next line's text is the
    second one.
    """
    texts = read_texts(path)
    if not pairs:
        return [(text, None) for text in texts]
    following = [*texts[1:], texts[0]]
    split = [text.partition("\t") for text in texts]
    return [
        (first, second if tab else after.partition("\t")[0])
        for (first, tab, second), after in zip(split, following, strict=True)
    ]


def ones(inputs: Sequence[TensorSpec], batch: int, tokens: int) -> dict[str, Array]:
    """Make an array of ones, or of short texts, for each input of a graph.

    Args:
        batch: Size of a free first axis.
        tokens: Size of every other free axis.
    """
    return {
        spec.name: np.full(
            [
                size if size >= 0 else tokens if axis else batch
                for axis, size in enumerate(spec.shape)
            ],
            "a" if spec.dtype == "str" else 1,
            dtype=object if spec.dtype == "str" else spec.dtype,
        )
        for spec in inputs
    }


def random_tensors(
    inputs: Sequence[TensorSpec], batch: int, size: int, seed: int
) -> dict[str, Array]:
    """Draw an array for each input: normal numbers, 0 or 1 for integers, short texts.

    Args:
        batch, size: Of free axes, as in `ones`.
    """
    draw = np.random.default_rng(seed)
    found = {}
    for name, array in ones(inputs, batch, size).items():
        if array.dtype == object:
            found[name] = draw.choice(np.array(["a", "b", "c"], dtype=object), array.shape)
        elif array.dtype.kind == "f":
            found[name] = draw.standard_normal(array.shape).astype(array.dtype)
        else:  # an index into a table may not be large
            found[name] = draw.integers(0, 2, array.shape).astype(array.dtype)
    return found


def random_batch(batch: int, tokens: int, vocabulary: int) -> dict[str, Array]:
    """Make token arrays (batch, tokens) whose rows end in padding, except the first.

    The second half of each row is of a second text, which a lost input would not tell apart.
    """
    draw = np.random.default_rng(batch * 1000 + tokens)
    ids = draw.integers(0, vocabulary, (batch, tokens), dtype=np.int64)
    mask = np.ones_like(ids)
    for row in range(1, batch):
        mask[row, max(1, tokens * (batch - row) // batch) :] = 0
    types = np.zeros_like(ids)
    types[:, (tokens + 1) // 2 :] = 1
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
