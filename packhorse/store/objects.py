"""Bytes under keys: what a store must be able to do, whatever it is made of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from io import RawIOBase
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import unquote

from packhorse.errors import InvalidInput

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


class Found(NamedTuple):
    """An object that is there.

    Attributes:
        modified: When it was written last, in seconds since the epoch, by the store's clock.
        tag: Differs where it has been written anew.
        sha256: Its digest in hexadecimal, where the store itself has checked and kept one.
    """

    key: str
    bytes: int
    modified: float
    tag: str = ""
    sha256: str | None = None


class Objects(Protocol):
    """A flat space of objects. Keys are `/`-separated and never begin with one.

    All methods may be called from many threads at once.

    Attributes:
        url: The store's URL, for messages.
        remote: Whether reading costs a network transfer.
    """

    url: str
    remote: bool

    def prepare(self) -> None:
        """Make sure that the store can be written, or raise the StoreError that says why not."""

    def read(self, key: str) -> bytes | None:
        """Return a small object, or None where there is none."""

    def open(self, key: str, start: int = 0) -> RawIOBase:
        """Open an object for streaming, unbuffered, from a byte on.

        Raises:
            StoreError: Missing or unreadable; Corrupt: it changed while it was read.
        """

    def find(self, key: str) -> Found | None:
        """Return what is known of an object, or None where there is none."""

    def write(self, key: str, data: bytes | Path, create: bool = False) -> bool:
        """Create or replace an object; a reader never sees half of it.

        Args:
            create: Write only where there is none.

        Returns:
            Whether it was written.
        """

    def touch(self, key: str) -> None:
        """Make an object as young as one written now."""

    def delete(self, key: str) -> None:
        """Remove an object, if it is there."""

    def list(self, prefix: str) -> Iterator[Found]:
        """Yield what is below `prefix/`, in order; siblings that begin alike are not below it."""

    def leftovers(self) -> Iterator[Found]:
        """Yield what writers that were killed left behind; `delete` takes these keys too."""


def open_objects(url: str) -> Objects:
    """Open a store by URL: `s3://bucket/prefix`, a folder, or `file:///dir`.

    Raises:
        InvalidInput: The URL is none of these.
    """
    from packhorse.store.local import LocalObjects

    scheme, separator, rest = url.partition("://")
    if scheme == "s3" and separator:
        from packhorse.store.s3 import S3Objects

        bucket, _, prefix = rest.partition("/")
        prefix = prefix.strip("/")
        segments = prefix.split("/") if prefix else []
        if not _BUCKET.fullmatch(bucket) or any(part in ("", ".", "..") for part in segments):
            raise InvalidInput(f"store {url!r}: write s3://bucket/prefix")
        return S3Objects(bucket, prefix)
    if url.startswith("s3:"):
        raise InvalidInput(f"store {url!r}: write s3://bucket/prefix")
    if not separator:
        folder = url
    elif scheme == "file":
        folder = unquote(rest[len("localhost") :] if rest.startswith("localhost/") else rest)
    else:
        raise InvalidInput(
            f"store {url!r}: scheme {scheme!r} is not supported: use s3://bucket/prefix or "
            "file:///dir"
        )
    if not folder or "\0" in folder:
        raise InvalidInput(f"store {url!r} names no folder: write file:///dir")
    return LocalObjects(Path(folder))
