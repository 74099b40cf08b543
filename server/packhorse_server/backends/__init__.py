"""What runs a compiled model: one small protocol, one module for each runtime."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from packhorse.artifact import Artifact, TensorSpec
from packhorse.errors import InvalidInput
from packhorse.onnx_session import Array


class Backend(Protocol):
    """A loaded model. Calls come from lane threads, several at once."""

    inputs: list[TensorSpec]

    def run(self, arrays: Mapping[str, Array]) -> list[Array]:
        """Infer.

        Args:
            arrays: Token arrays, each (batch, tokens); the backend picks what its graph wants.

        Returns:
            The graph's outputs, in its order; their first axis is the batch.
        """

    def unload(self) -> None:
        """Give the memory back. No call follows."""


def load_backend(artifact: Artifact, folder: Path, threads: int) -> Backend:
    """Load a pulled model.

    Raises:
        InvalidInput: No backend for its format, or the files are not what it can load.
    """
    if artifact.format == "onnx":
        from packhorse_server.backends.onnx import OnnxBackend

        return OnnxBackend(folder / "model.onnx", threads)
    raise InvalidInput(
        f"format {artifact.format!r} of {artifact.id!r} is not supported by this server: "
        "trace the model for cpu"
    )
