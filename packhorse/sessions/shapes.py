"""Fixed shapes: what a compiler froze, offered as if it were free.

Rows are padded to the compiled batch and tokens to the next compiled length, and what stands at
padding is cut off the answer again (FAULTS 8).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from packhorse.errors import InvalidInput
from packhorse.tensors import Array

Run = Callable[[int, dict[str, Array]], list[Array]]
"""Runs the model compiled for a length on arrays of exactly its shape."""


@dataclass(frozen=True)
class FixedShapes:
    """Shapes that a model was compiled for.

    Attributes:
        lengths: In tokens, ascending.
        per_token: For each output, whether its second axis is the tokens.
    """

    batch: int
    lengths: tuple[int, ...]
    per_token: tuple[bool, ...]

    def run(self, run: Run, arrays: Mapping[str, Array]) -> list[Array]:
        """Run any number of rows of any length up to the longest.

        Args:
            arrays: Token arrays, each (rows, tokens).

        Raises:
            InvalidInput: More tokens than the longest length.
        """
        rows, tokens = next(iter(arrays.values())).shape
        fitting = [length for length in self.lengths if length >= tokens]
        if not fitting:
            raise InvalidInput(
                f"{tokens} tokens: the model is compiled for at most {self.lengths[-1]}; "
                "raise sequence_length in the catalog and trace it again"
            )
        length = min(fitting)
        parts = []
        for start in range(0, rows, self.batch):
            count = min(self.batch, rows - start)
            padding = ((0, self.batch - count), (0, length - tokens))
            chunk = {name: np.pad(a[start : start + count], padding) for name, a in arrays.items()}
            if "attention_mask" in chunk:
                chunk["attention_mask"][count:, 0] = 1  # a row without a token divides by zero
            parts.append([self._cut(i, o, count, tokens) for i, o in enumerate(run(length, chunk))])
        return [np.concatenate(column) for column in zip(*parts, strict=True)]

    def _cut(self, index: int, output: Array, count: int, tokens: int) -> Array:
        return output[:count, :tokens] if self.per_token[index] else output[:count]
