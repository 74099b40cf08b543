"""Tokenizers, held once for all models that share one: each takes 6 MB and 50 ms."""

from __future__ import annotations

import re
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tokenizers

from packhorse.artifact import Artifact
from packhorse.errors import InvalidInput
from packhorse.tensors import Array
from packhorse_server.tasks.text import Text

_SPACE = re.compile(r"\s")


@dataclass(frozen=True)
class Encoded:
    """What a tokenizer made of a text.

    Attributes:
        arrays: (1, tokens) by input name.
        cut: Whether the text was cut.
        pieces: The tokenizer's own record, for tasks that answer about places in the text.
    """

    text: Text
    arrays: dict[str, Array]
    cut: bool
    pieces: tokenizers.Encoding

    def places(self, sequence: int) -> list[tuple[int, int, int]]:
        """Return (token, start, end) of each token of the text (0) or its pair (1), in order.

        Start and end count characters of the text; tokens that the tokenizer added have none.
        """
        rows = zip(self.pieces.sequence_ids, self.pieces.offsets, strict=True)
        return [(i, *span) for i, (own, span) in enumerate(rows) if own == sequence]


class Encoder:
    """A tokenizer that cuts to a model's length. Thread-safe; never changed after this."""

    def __init__(self, file: Path, max_length: int) -> None:
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(file))
        except Exception as err:  # the library raises bare Exception
            raise InvalidInput(f"{file.name} is not a tokenizer: {str(err)[:200]}") from err
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_length)
        self._max_length = max_length

    def encode(self, text: Text) -> Encoded:
        """Tokenize.

        Raises:
            InvalidInput: The text has no token.
        """
        first, pair = self._head(text.text), None if text.pair is None else self._head(text.pair)
        found = self._tokenizer.encode(first, pair)
        if not found.ids:
            raise InvalidInput("the text has no tokens that the model knows: send another")
        arrays = {
            "input_ids": np.array([found.ids], dtype=np.int64),
            "attention_mask": np.array([found.attention_mask], dtype=np.int64),
            "token_type_ids": np.array([found.type_ids], dtype=np.int64),
        }
        shorter = len(first) < len(text.text) or (pair is not None and pair != text.pair)
        return Encoded(text, arrays, shorter or bool(found.overflowing), found)

    def _head(self, text: str) -> str:
        """Return the beginning of a text, up to a space, that fills the model twice.

        The library keeps all that it cuts off, in pieces, and for a pair every combination of
        both sides' pieces: two texts of 100,000 words took 20 GB. So it is never given much more
        than the model reads. Twice, since a pair is shared out by which text is the longer one;
        only where both are over-long may the odd token go to the other than the longer.
        """
        size = 8 * self._max_length
        while size < len(text):
            space = _SPACE.search(text, size, 2 * size)
            head = text[: space.start() if space else 2 * size]
            found = self._tokenizer.encode(head)
            if len(found.overflowing) > 1:
                end = max(stop for _, stop in found.overflowing[0].offsets)
                space = _SPACE.search(head, end)
                return head[: space.start()] if space else head
            size *= 2
        return text


class Encoders:
    """Encoders by content and length, for as long as a model uses them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: weakref.WeakValueDictionary[tuple[str, int], Encoder] = (
            weakref.WeakValueDictionary()
        )

    def get(self, artifact: Artifact, folder: Path) -> Encoder:
        """Return the encoder of a model.

        Raises:
            InvalidInput: The model has no tokenizer, or one that cannot be read.
        """
        spec = artifact.tokenizer
        if spec is None:
            raise InvalidInput(f"model {artifact.id!r} has no tokenizer: trace it again")
        key = (spec.sha256, spec.max_length)
        with self._lock:
            encoder = self._held.get(key)
            if encoder is None:
                encoder = self._held[key] = Encoder(folder / "tokenizer.json", spec.max_length)
        return encoder
