"""YAML files written by people, read so that every complaint can name its line.

PyYAML alone forgets where a value stood and lets a key given twice win silently; both matter
in a catalog of thousands of models.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from packhorse.errors import InvalidInput

Path_ = tuple[Any, ...]
Model = TypeVar("Model", bound=BaseModel)


class Document:
    """One parsed YAML file.

    Attributes:
        data: The plain values.
        name: The file, as errors name it.
    """

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        self._lines: dict[Path_, int] = {}
        self._walked: set[int] = set()
        try:
            loader = yaml.SafeLoader(text)
            root = loader.get_single_node()
            if root is not None:
                self._walk(root, ())
            self.data: Any = None if root is None else loader.construct_document(root)
        except yaml.MarkedYAMLError as err:
            line = err.problem_mark.line + 1 if err.problem_mark else 1
            raise InvalidInput(f"{name}:{line}: not YAML: {err.problem}") from err
        except (yaml.YAMLError, ValueError, TypeError, RecursionError) as err:
            if isinstance(err, InvalidInput):
                raise
            raise InvalidInput(f"{name}: not YAML that can be read: {err}"[:300]) from err

    @classmethod
    def read(cls, path: Path, remedy: str = "correct the path") -> Document:
        """Read a file.

        Args:
            remedy: What to do if it does not exist.

        Raises:
            InvalidInput: Missing, unreadable, not UTF-8, not YAML, or with a key given twice.
        """
        try:
            return cls(path.read_text(encoding="utf-8"), str(path))
        except FileNotFoundError as err:
            raise InvalidInput(f"{path} does not exist: {remedy}") from err
        except (OSError, UnicodeDecodeError) as err:
            raise InvalidInput(f"{path} cannot be read: {err}") from err

    def error(self, path: Path_, message: str) -> InvalidInput:
        """Make an error that names the line of the value at `path` (keys and indices)."""
        while path and path not in self._lines:
            path = path[:-1]
        return InvalidInput(f"{self.name}:{self._lines.get(path, 1)}: {message}")

    def validate(self, model: type[Model], data: Any = None, at: Path_ = ()) -> Model:
        """Check the values at `at` against a pydantic model.

        Raises:
            InvalidInput: The first thing wrong, with its line and the remedy.
        """
        value = self.data if data is None else data
        if not isinstance(value, dict):
            raise self.error(at, f"expected a mapping of settings, found {type(value).__name__}")
        try:
            return model.model_validate(value)
        except ValidationError as err:
            where = (*at, *_first(err)["loc"])
            raise self.error(where, describe(err, list(model.model_fields))) from err

    def _walk(self, node: yaml.Node, path: Path_) -> None:
        self._lines[path] = node.start_mark.line + 1
        if id(node) in self._walked:  # an alias: a few lines of them stand for billions of nodes
            return
        self._walked.add(id(node))
        if isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key, value in node.value:
                if not isinstance(key, yaml.ScalarNode):
                    raise InvalidInput(f"{self.name}:{key.start_mark.line + 1}: a key is no word")
                if key.value in seen:
                    raise InvalidInput(
                        f"{self.name}:{key.start_mark.line + 1}: key {key.value!r} is given twice: "
                        "remove one"
                    )
                seen.add(key.value)
                inner = (*path, key.value)
                self._walk(value, inner)
                self._lines[inner] = key.start_mark.line + 1
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self._walk(item, (*path, index))


def describe(err: ValidationError, known: list[str]) -> str:
    """Say in one line what pydantic found wrong first, and what would be right."""
    first = _first(err)
    where = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        hint = f": known keys are {', '.join(sorted(known))}" if len(first["loc"]) == 1 else ""
        return f"unknown key {where!r}{hint}"
    if first["type"] == "missing":
        return f"{where!r} is missing: add it"
    return f"{where} = {first['input']!r}: {first['msg'].removeprefix('Value error, ')}"


def _first(err: ValidationError) -> Any:
    """The fault to name: an unknown key is often the misspelt one that another fault misses."""
    faults = err.errors()
    return next((fault for fault in faults if fault["type"] == "extra_forbidden"), faults[0])
