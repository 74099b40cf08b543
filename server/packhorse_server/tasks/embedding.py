"""feature-extraction: one pooled vector for each text; the graph has pooled it already."""

from __future__ import annotations

from typing import Any

from packhorse.errors import InvalidInput
from packhorse.onnx_session import Array


class Embedding:
    """Vectors (1, dimensions) to the vector."""

    takes_pairs = False

    def check(self, parameters: dict[str, Any]) -> None:
        if parameters:
            name = next(iter(parameters))
            raise InvalidInput(f"parameter {name[:40]!r} is not known: feature-extraction has none")

    def decode(self, outputs: list[Array], parameters: dict[str, Any]) -> Array:
        vector: Array = outputs[0][0]
        return vector
