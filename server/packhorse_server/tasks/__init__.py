"""What a model is asked and how its numbers become an answer: pure functions per task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from packhorse.errors import InvalidInput
from packhorse.onnx_session import Array


@dataclass(frozen=True)
class Text:
    """One text, or a pair of texts, to be tokenized together."""

    text: str
    pair: str | None = None


class Task(Protocol):
    """A kind of question."""

    takes_pairs: bool

    def check(self, parameters: dict[str, Any]) -> None:
        """Refuse parameters that the task does not know.

        Raises:
            InvalidInput: Names the parameter and what is allowed.
        """

    def decode(self, outputs: list[Array], parameters: dict[str, Any]) -> Any:
        """Turn the outputs for one text, each with a first axis of one, into its answer."""


def parse_inputs(inputs: Any, takes_pairs: bool, most: int) -> tuple[list[Text], bool]:
    """Read `inputs` of a request.

    Returns:
        The texts, and whether the answer is a list (the inputs were one).

    Raises:
        InvalidInput: Not a text, a pair or a list of them; names the place.
    """
    if not isinstance(inputs, list):
        return [_parse_one(inputs, takes_pairs, "inputs")], False
    if not inputs:
        raise InvalidInput("inputs is an empty list: send at least one text")
    if len(inputs) > most:
        raise InvalidInput(f"inputs has {len(inputs)} texts, at most {most} are taken: send fewer")
    texts = [_parse_one(item, takes_pairs, f"inputs[{i}]") for i, item in enumerate(inputs)]
    return texts, True


def _parse_one(item: Any, takes_pairs: bool, where: str) -> Text:
    if isinstance(item, str):
        return Text(_checked(item, where))
    if isinstance(item, dict) and takes_pairs and item.keys() == {"text", "text_pair"}:
        return Text(
            _checked(item["text"], f"{where}.text"),
            _checked(item["text_pair"], f"{where}.text_pair"),
        )
    wanted = 'a text or {"text", "text_pair"}' if takes_pairs else "a text"
    kind = f"an object with {sorted(item)}" if isinstance(item, dict) else type(item).__name__
    raise InvalidInput(f"{where} is {kind[:100]}: expected {wanted}")


def _checked(text: Any, where: str) -> str:
    if not isinstance(text, str):
        raise InvalidInput(f"{where} is {type(text).__name__}: expected a text")
    if not text.strip():
        raise InvalidInput(f"{where} is empty: send a text")
    return text


def task_for(name: str, labels: list[str] | None) -> Task:
    """Return the task of a model.

    Raises:
        InvalidInput: No such task in this version.
    """
    from packhorse_server.tasks.classification import Classification
    from packhorse_server.tasks.embedding import Embedding

    if name == "text-classification":
        return Classification(labels or [])
    if name == "feature-extraction":
        return Embedding()
    raise InvalidInput(f"task {name!r} is not supported by this server")
