"""feature-extraction: one pooled vector for each text; the graph has pooled it already."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packhorse.tensors import Array
from packhorse_server.tasks import refuse_unknown
from packhorse_server.tasks.text import Text, read_text

if TYPE_CHECKING:
    from packhorse_server.tokenizers import Encoded


class Embedding:
    """Vectors (1, dimensions) to the vector."""

    axes: tuple[str, ...] | None = ("batch",)
    whole = False
    width: int | None = None
    sample = Text("warm up")

    def parse(self, item: Any, where: str) -> list[Text]:
        return [read_text(item, where)]

    def check(self, parameters: dict[str, Any]) -> None:
        refuse_unknown(parameters, "feature-extraction")

    def decode(self, outputs: list[Array], parameters: dict[str, Any], encoded: Encoded) -> Array:
        vector: Array = outputs[0][0]
        return vector

    def combine(self, parts: list[Any]) -> Any:
        return parts[0]
