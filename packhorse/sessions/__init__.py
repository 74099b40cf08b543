"""Compiled models, opened in one way wherever they run: a module for each runtime.

Trace verifies and measures through this package and servers run through it, so what was proven
and measured is what serves. A runtime is imported only in its own module, when it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from packhorse.artifact import TensorSpec
from packhorse.errors import InvalidInput
from packhorse.tensors import Array


class Session(Protocol):
    """A loaded model. Calls come from many threads, several at once."""

    inputs: list[TensorSpec]

    def run(self, arrays: Mapping[str, Array]) -> list[Array]:
        """Infer.

        Args:
            arrays: By name, such as token arrays (batch, tokens); those that the graph does not
                know are left out.

        Returns:
            The outputs, in the graph's order; for tasks on texts their first axis is the batch.

        Raises:
            InvalidInput: An input is missing.
        """


class Facts(Protocol):
    """What must be known of a model to open it; an artifact's record has it."""

    @property
    def processor(self) -> str: ...
    @property
    def format(self) -> str: ...
    @property
    def inputs(self) -> list[TensorSpec]: ...
    @property
    def outputs(self) -> list[TensorSpec]: ...
    @property
    def batch_sizes(self) -> list[int]: ...
    @property
    def sequence_lengths(self) -> list[int]: ...


def open_model(facts: Facts, folder: Path, threads: int) -> Session:
    """Open a model's files.

    Args:
        threads: Per inference, on a CPU.

    Raises:
        InvalidInput: No such format, or the files are not what the runtime can load.
        MissingPackage: The runtime is not installed.
    """
    if facts.format == "onnx":
        from packhorse.sessions.onnx import OnnxSession

        return OnnxSession(folder, threads)
    if facts.format == "torchscript":
        from packhorse.sessions.torchscript import ScriptSession

        return ScriptSession(folder, facts.inputs, threads, gpu=facts.processor == "gpu")
    if facts.format == "neuron":
        from packhorse.sessions.neuron import NeuronSession

        return NeuronSession(facts, folder)
    raise InvalidInput(f"format {facts.format!r} is not known: upgrade packhorse")
