"""What a model is asked and how its numbers become an answer: pure functions per task."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from packhorse.errors import InvalidInput
from packhorse.tensors import Array


class Task(Protocol):
    """A kind of question.

    Attributes:
        axes: Names of the output's axes before the last; None is any.
        width: Length of the output's last axis; None is any.
        whole: Whether `inputs` is one question even where it is a list.
        sample: What a model is tried with after loading.
    """

    axes: tuple[str, ...] | None
    width: int | None
    whole: bool
    sample: Any

    def parse(self, item: Any, where: str) -> list[Any]:
        """Read one input; the model is run on each of the questions that it stands for.

        Raises:
            InvalidInput: Names the place and what is expected there.
        """

    def check(self, parameters: dict[str, Any]) -> None:
        """Refuse parameters that the task does not know.

        Raises:
            InvalidInput: Names the parameter and what is allowed.
        """

    def decode(self, outputs: list[Array], parameters: dict[str, Any], encoded: Any) -> Any:
        """Turn the outputs for one question into its answer.

        Args:
            outputs: For a text, each with a first axis of one.
            encoded: What the task's encoder made of the question.
        """

    def combine(self, parts: list[Any]) -> Any:
        """Make one input's answer of those of its questions."""


def parse_inputs(inputs: Any, task: Task, most: int) -> tuple[list[list[Any]], bool]:
    """Read `inputs` of a request.

    Returns:
        The questions of each input, and whether the answer is a list (the inputs were one).

    Raises:
        InvalidInput: Not what the task takes, or a list of it; names the place.
    """
    if task.whole or not isinstance(inputs, list):
        groups, many = [task.parse(inputs, "inputs")], False
    elif not inputs:
        raise InvalidInput("inputs is an empty list: send at least one text")
    elif len(inputs) > most:
        raise InvalidInput(f"inputs has {len(inputs)} texts, at most {most} are taken: send fewer")
    else:
        groups, many = [task.parse(item, f"inputs[{i}]") for i, item in enumerate(inputs)], True
    count = sum(len(group) for group in groups)
    if count > most:
        raise InvalidInput(f"inputs has {count} texts, at most {most} are taken: send fewer")
    return groups, many


def refuse_unknown(parameters: dict[str, Any], task: str, *known: str) -> None:
    """Refuse parameters beside those known.

    Raises:
        InvalidInput: Names the first that is not, and those that are.
    """
    for name in parameters:
        if name not in known:
            raise InvalidInput(
                f"parameter {name[:40]!r} is not known: {task} has {', '.join(known) or 'none'}"
            )


def positive(parameters: dict[str, Any], name: str) -> None:
    """Refuse a parameter that is given and is not a whole number above zero."""
    value = parameters.get(name, 1)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InvalidInput(f"{name} = {value!r:.40} is not a positive whole number")


def softmax(logits: Array) -> Array:
    """Return shares along the last axis that add up to one."""
    powers: Array = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def sigmoid(logits: Array) -> Array:
    """Return a share for each score alone, without an overflow for any."""
    return np.asarray((1 + np.tanh(logits / 2)) / 2)


def task_for(name: str, labels: list[str] | None) -> Task:
    """Return a task on texts.

    Raises:
        InvalidInput: No such task in this version.
    """
    from packhorse_server.tasks.answering import Answering
    from packhorse_server.tasks.classification import Classification
    from packhorse_server.tasks.embedding import Embedding
    from packhorse_server.tasks.ranking import Ranking
    from packhorse_server.tasks.token_classification import TokenClassification

    if name == "text-classification":
        return Classification(labels or [])
    if name == "token-classification":
        return TokenClassification(labels or [])
    if name == "feature-extraction":
        return Embedding()
    if name == "question-answering":
        return Answering()
    if name == "text-ranking":
        return Ranking()
    raise InvalidInput(f"task {name!r} is not supported by this server")
