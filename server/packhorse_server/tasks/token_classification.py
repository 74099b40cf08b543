"""token-classification: what each token is, with its place in the text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from packhorse.tensors import Array
from packhorse_server.tasks import refuse_unknown, softmax
from packhorse_server.tasks.text import Text, read_text

if TYPE_CHECKING:
    from packhorse_server.tokenizers import Encoded

OUTSIDE = "O"
"""The label of tokens that are nothing, which are left out of answers."""


class TokenClassification:
    """Logits (1, tokens, labels) to `[{entity, score, index, word, start, end}]`."""

    axes: tuple[str, ...] | None = ("batch", "tokens")
    whole = False
    sample = Text("warm up")

    def __init__(self, labels: list[str]) -> None:
        self._labels = labels
        self.width: int | None = len(labels)

    def parse(self, item: Any, where: str) -> list[Text]:
        return [read_text(item, where)]

    def check(self, parameters: dict[str, Any]) -> None:
        refuse_unknown(parameters, "token-classification")

    def decode(
        self, outputs: list[Array], parameters: dict[str, Any], encoded: Encoded
    ) -> list[dict[str, Any]]:
        scores = softmax(outputs[0][0].astype(np.float64))
        best = scores.argmax(axis=1)
        words = encoded.pieces.tokens
        return [
            {"entity": self._labels[best[i]], "score": float(scores[i, best[i]]), "index": i,
             "word": words[i], "start": start, "end": end}
            for i, start, end in encoded.places(0)
            if self._labels[best[i]] != OUTSIDE
        ]  # fmt: skip

    def combine(self, parts: list[Any]) -> Any:
        return parts[0]
