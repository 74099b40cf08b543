"""Texts as tasks read them from a request."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from packhorse.errors import InvalidInput


@dataclass(frozen=True)
class Text:
    """One text, or a pair of texts, to be tokenized together."""

    text: str
    pair: str | None = None


def read_text(item: Any, where: str) -> Text:
    """Read a text.

    Raises:
        InvalidInput: It is something else, or empty; `where` names the place.
    """
    if not isinstance(item, str):
        raise unexpected(item, where, "a text")
    return Text(checked(item, where))


def read_pair(item: Any, where: str, *keys: tuple[str, str]) -> Text | None:
    """Read an object of two texts under one of several pairs of keys, or return None."""
    for first, second in keys:
        if isinstance(item, dict) and item.keys() == {first, second}:
            return Text(
                checked(item[first], f"{where}.{first}"), checked(item[second], f"{where}.{second}")
            )
    return None


def checked(text: Any, where: str) -> str:
    """Return a text that is one.

    Raises:
        InvalidInput: It is none, or empty.
    """
    if not isinstance(text, str):
        raise InvalidInput(f"{where} is {type(text).__name__}: expected a text")
    if not text.strip():
        raise InvalidInput(f"{where} is empty: send a text")
    return text


def unexpected(item: Any, where: str, wanted: str) -> InvalidInput:
    """Say what was found and what is wanted."""
    kind = f"an object with {sorted(item)}" if isinstance(item, dict) else type(item).__name__
    return InvalidInput(f"{where} is {kind[:100]}: expected {wanted}")
