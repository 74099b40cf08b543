"""A model that is loaded and can answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from packhorse.artifact import Artifact
from packhorse.errors import InvalidInput, PackhorseError
from packhorse.tensors import Array
from packhorse_server.backends import Backend, load_backend
from packhorse_server.tasks import Task, task_for
from packhorse_server.tasks.tensor import TensorEncoder, TensorTask
from packhorse_server.tokenizers import Encoders


class Arrays(Protocol):
    """What a question has become: arrays by input name, and whether any of it was cut off."""

    @property
    def arrays(self) -> dict[str, Array]: ...
    @property
    def cut(self) -> bool: ...


class Encodes(Protocol):
    """What makes arrays of a question that the task's `parse` read."""

    def encode(self, question: Any) -> Arrays: ...


@dataclass(frozen=True)
class Model:
    """Tokenizer, backend and task of one artifact. Methods run in lane threads."""

    artifact: Artifact
    backend: Backend
    encoder: Encodes
    task: Task

    def answer(self, question: Any, parameters: dict[str, Any]) -> tuple[Any, bool]:
        """Answer one text, alone: a neighbour in a batch would change an int8 answer.

        Args:
            question: What the task's `parse` read: a text, or tensors.

        Returns:
            The answer, and whether the text was cut to the model's length.
        """
        encoded = self.encoder.encode(question)
        try:
            outputs = self.backend.run(encoded.arrays)
        except Exception as err:
            if self.artifact.task != "tensor":
                raise
            # Of shapes and numbers that a graph cannot take, only the graph knows.
            reason = str(err).splitlines()[0][:200]
            raise InvalidInput(f"the model cannot take these tensors: {reason}") from err
        if not _all_finite(outputs):
            if self.artifact.task == "tensor":
                raise InvalidInput("the model has no finite answer to these tensors: send others")
            raise PackhorseError(f"model {self.artifact.id!r} gave numbers that are not finite")
        return self.task.decode(outputs, parameters, encoded), encoded.cut


def load_model(artifact: Artifact, folder: Path, threads: int, encoders: Encoders) -> Model:
    """Load a pulled model and have it answer once, so that what cannot serve fails here.

    Raises:
        InvalidInput: The files do not load, the graph wants what the tokenizer lacks, or the
            outputs are not what the task reads.
    """
    reads_tensors = artifact.task == "tensor"
    task: Task = TensorTask(artifact) if reads_tensors else task_for(artifact.task, artifact.labels)
    backend = load_backend(artifact, folder, threads)
    encoder: Encodes = (
        TensorEncoder(artifact.inputs) if reads_tensors else encoders.get(artifact, folder)
    )
    model = Model(artifact, backend, encoder, task)
    if task.sample is None:
        return model
    try:
        encoded = encoder.encode(task.sample)
        outputs = backend.run(encoded.arrays)
        _check_outputs(artifact, task, [output.shape for output in outputs])
        if not _all_finite(outputs):
            raise InvalidInput(f"model {artifact.id!r} answers with numbers that are not finite")
        task.decode(outputs, {}, encoded)
    except InvalidInput:
        backend.unload()
        raise
    except Exception as err:  # of the runtime: whatever it is, this model cannot serve
        backend.unload()
        raise InvalidInput(
            f"model {artifact.id!r} loads but does not answer: {str(err).splitlines()[0][:200]}"
        ) from err
    return model


def _all_finite(outputs: Sequence[Array]) -> bool:
    return all(np.isfinite(output).all() for output in outputs if output.dtype.kind == "f")


def _check_outputs(artifact: Artifact, task: Task, shapes: Sequence[tuple[int, ...]]) -> None:
    if task.axes is None:
        return
    axes = len(task.axes) + 1
    if not shapes or len(shapes[0]) != axes or task.width not in (None, shapes[0][-1]):
        raise InvalidInput(
            f"model {artifact.id!r} gives shapes {list(shapes)}: task {artifact.task!r} needs "
            f"({', '.join([*task.axes, str(task.width or 'dimensions')])})"
        )
