"""text-classification: every label with its probability, the best first."""

from __future__ import annotations

from typing import Any

import numpy as np

from packhorse.errors import InvalidInput
from packhorse.onnx_session import Array


class Classification:
    """Logits (1, labels) to `[{label, score}]`."""

    takes_pairs = True

    def __init__(self, labels: list[str]) -> None:
        self._labels = labels

    def check(self, parameters: dict[str, Any]) -> None:
        for name, value in parameters.items():
            if name != "top_k":
                raise InvalidInput(
                    f"parameter {name[:40]!r} is not known: text-classification has top_k"
                )
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InvalidInput(f"top_k = {value!r:.40} is not a positive whole number")

    def decode(self, outputs: list[Array], parameters: dict[str, Any]) -> list[dict[str, Any]]:
        logits = outputs[0][0].astype(np.float64)
        if len(logits) == 1:  # a single score has no rivals to share a softmax with
            scores = 1 / (1 + np.exp(-logits))
        else:
            powers = np.exp(logits - logits.max())
            scores = powers / powers.sum()
        order = np.argsort(-scores, kind="stable")[: parameters.get("top_k")]
        return [{"label": self._labels[i], "score": float(scores[i])} for i in order]
