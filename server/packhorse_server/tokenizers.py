"""Tokenizers, held once for all models that share one: each takes 6 MB and 50 ms."""

from __future__ import annotations

import threading
import weakref
from pathlib import Path

import numpy as np
import tokenizers

from packhorse.artifact import Artifact
from packhorse.errors import InvalidInput
from packhorse.onnx_session import Array
from packhorse_server.tasks import Text


class Encoder:
    """A tokenizer that cuts to a model's length. Thread-safe; never changed after this."""

    def __init__(self, file: Path, max_length: int) -> None:
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(file))
        except Exception as err:  # the library raises bare Exception
            raise InvalidInput(f"{file.name} is not a tokenizer: {str(err)[:200]}") from err
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(max_length)

    def encode(self, text: Text) -> tuple[dict[str, Array], bool]:
        """Tokenize.

        Returns:
            Arrays (1, tokens) by input name, and whether the text was cut.
        """
        found = self._tokenizer.encode(text.text, text.pair)
        arrays = {
            "input_ids": np.array([found.ids], dtype=np.int64),
            "attention_mask": np.array([found.attention_mask], dtype=np.int64),
            "token_type_ids": np.array([found.type_ids], dtype=np.int64),
        }
        return arrays, bool(found.overflowing)


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
