"""text-ranking: texts in the order in which they answer a query."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from packhorse.errors import InvalidInput
from packhorse.tensors import Array
from packhorse_server.tasks import refuse_unknown, sigmoid
from packhorse_server.tasks.text import Text, checked, unexpected

if TYPE_CHECKING:
    from packhorse_server.tokenizers import Encoded


class Ranking:
    """One score (1, 1) for each pair of query and text to `[{index, score}]`, the best first."""

    axes: tuple[str, ...] | None = ("batch",)
    whole = False
    width: int | None = 1
    sample = Text("warm up", "the model warms up")

    def parse(self, item: Any, where: str) -> list[Text]:
        if not isinstance(item, dict) or item.keys() != {"query", "texts"}:
            raise unexpected(item, where, '{"query", "texts"}')
        query, texts = checked(item["query"], f"{where}.query"), item["texts"]
        if not isinstance(texts, list) or not texts:
            raise InvalidInput(f"{where}.texts is not a list with texts: send at least one")
        return [Text(query, checked(t, f"{where}.texts[{i}]")) for i, t in enumerate(texts)]

    def check(self, parameters: dict[str, Any]) -> None:
        refuse_unknown(parameters, "text-ranking")

    def decode(self, outputs: list[Array], parameters: dict[str, Any], encoded: Encoded) -> float:
        return float(sigmoid(outputs[0][0, 0].astype(np.float64)))

    def combine(self, parts: list[Any]) -> Any:
        rows = [{"index": index, "score": score} for index, score in enumerate(parts)]
        return sorted(rows, key=lambda row: -row["score"])
