"""A model that is loaded and can answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from packhorse.artifact import Artifact
from packhorse.errors import InvalidInput, PackhorseError
from packhorse_server.backends import Backend, load_backend
from packhorse_server.tasks import Task, task_for
from packhorse_server.tasks.text import Text
from packhorse_server.tokenizers import Encoder, Encoders


@dataclass(frozen=True)
class Model:
    """Tokenizer, backend and task of one artifact. Methods run in lane threads."""

    artifact: Artifact
    backend: Backend
    encoder: Encoder
    task: Task

    def answer(self, text: Text, parameters: dict[str, Any]) -> tuple[Any, bool]:
        """Answer one text, alone: a neighbour in a batch would change an int8 answer.

        Returns:
            The answer, and whether the text was cut to the model's length.
        """
        encoded = self.encoder.encode(text)
        outputs = self.backend.run(encoded.arrays)
        if not np.isfinite(outputs[0]).all():
            raise PackhorseError(f"model {self.artifact.id!r} gave numbers that are not finite")
        return self.task.decode(outputs, parameters, encoded), encoded.cut


def load_model(artifact: Artifact, folder: Path, threads: int, encoders: Encoders) -> Model:
    """Load a pulled model and have it answer once, so that what cannot serve fails here.

    Raises:
        InvalidInput: The files do not load, the graph wants what the tokenizer lacks, or the
            outputs are not what the task reads.
    """
    task = task_for(artifact.task, artifact.labels)
    backend = load_backend(artifact, folder, threads)
    model = Model(artifact, backend, encoders.get(artifact, folder), task)
    try:
        encoded = model.encoder.encode(task.sample)
        outputs = backend.run(encoded.arrays)
        _check_outputs(artifact, task, [output.shape for output in outputs])
        if not all(np.isfinite(output).all() for output in outputs):
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


def _check_outputs(artifact: Artifact, task: Task, shapes: Sequence[tuple[int, ...]]) -> None:
    axes = len(task.axes) + 1
    if not shapes or len(shapes[0]) != axes or task.width not in (None, shapes[0][-1]):
        raise InvalidInput(
            f"model {artifact.id!r} gives shapes {list(shapes)}: task {artifact.task!r} needs "
            f"({', '.join([*task.axes, str(task.width or 'dimensions')])})"
        )
