"""text-classification: every label with its probability, the best first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from packhorse.tensors import Array
from packhorse_server.tasks import positive, refuse_unknown, sigmoid, softmax
from packhorse_server.tasks.text import Text, read_pair, read_text, unexpected

if TYPE_CHECKING:
    from packhorse_server.tokenizers import Encoded


class Classification:
    """Logits (1, labels) to `[{label, score}]`."""

    axes: tuple[str, ...] | None = ("batch",)
    whole = False
    sample = Text("warm up")

    def __init__(self, labels: list[str]) -> None:
        self._labels = labels
        self.width: int | None = len(labels)

    def parse(self, item: Any, where: str) -> list[Text]:
        pair = read_pair(item, where, ("text", "text_pair"))
        if pair is None and not isinstance(item, str):
            raise unexpected(item, where, 'a text or {"text", "text_pair"}')
        return [pair or read_text(item, where)]

    def check(self, parameters: dict[str, Any]) -> None:
        refuse_unknown(parameters, "text-classification", "top_k")
        positive(parameters, "top_k")

    def decode(
        self, outputs: list[Array], parameters: dict[str, Any], encoded: Encoded
    ) -> list[dict[str, Any]]:
        logits = outputs[0][0].astype(np.float64)
        # A single score has no rivals to share a softmax with.
        scores = sigmoid(logits) if len(logits) == 1 else softmax(logits)
        order = np.argsort(-scores, kind="stable")[: parameters.get("top_k")]
        return [{"label": self._labels[i], "score": float(scores[i])} for i in order]

    def combine(self, parts: list[Any]) -> Any:
        return parts[0]
