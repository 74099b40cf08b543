"""Bytes under keys: what a store must be able to do, whatever it is made of."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Protocol
from urllib.parse import unquote

from packhorse.errors import InvalidInput


class Objects(Protocol):
    """A flat space of immutable objects. Keys are `/`-separated and never begin with one."""

    url: str

    def prepare(self) -> None:
        """Make sure that the store can be written, or raise the StoreError that says why not."""

    def read(self, key: str) -> bytes | None:
        """Return a small object, or None where there is none."""

    def open(self, key: str) -> BinaryIO:
        """Open an object for streaming.

        Raises:
            StoreError: Missing or unreadable.
        """

    def size(self, key: str) -> int | None:
        """Return an object's bytes, or None where there is none."""

    def write(self, key: str, data: bytes | Path) -> None:
        """Create or replace an object; a reader never sees half of it."""

    def keys(self, prefix: str) -> Iterator[str]:
        """Yield the keys below `prefix/`, in order; siblings that begin alike are not below it."""


def open_objects(url: str) -> Objects:
    """Open a store by URL: a folder, `file:///dir`, or (to come) `s3://bucket/prefix`.

    Raises:
        InvalidInput: The scheme is not one of these.
    """
    from packhorse.store.local import LocalObjects

    scheme, separator, rest = url.partition("://")
    if not separator:
        folder = url
    elif scheme == "file":
        folder = unquote(rest[len("localhost") :] if rest.startswith("localhost/") else rest)
    else:
        raise InvalidInput(
            f"store {url!r}: scheme {scheme!r} is not supported by this version: use file:///dir"
        )
    if not folder or "\0" in folder:
        raise InvalidInput(f"store {url!r} names no folder: write file:///dir")
    return LocalObjects(Path(folder))
