"""Writing files so that a reader sees the old content or the new, never half of it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from packhorse.errors import StoreError


@contextmanager
def atomic_file(
    path: Path, mode: int = 0o644, create: bool = False, durable: bool = True
) -> Iterator[BinaryIO]:
    """Open a file beside the target; when the block ends well, flush it and rename it over.

    Args:
        create: Leave a target that is there already as it is.
        durable: Wait for the disk, so that a crash of the machine leaves it whole too.

    Raises:
        StoreError: The disk is full, the folder is not writable, …; nothing is left behind.
        FileExistsError: With `create`, there is one already.
    """
    temporary: str | None = None
    try:
        handle, temporary = _beside(path)
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.chmod(temporary, mode)
        if create:
            try:
                os.link(temporary, path)
            except FileExistsError as err:
                raise _There from err
        else:
            os.replace(temporary, path)
            temporary = None
    except _There as err:
        raise FileExistsError(path) from err
    except OSError as err:
        raise cannot_write(path, err) from err
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


class _There(Exception):
    """The target is there already, which is no fault of the file system."""


def _beside(path: Path) -> tuple[int, str]:
    """Open a temporary file in a target's folder, which others may be removing as empty."""
    for last in (False, False, False, True):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return tempfile.mkstemp(prefix=".", suffix=".tmp", dir=path.parent)
        except (FileNotFoundError, FileExistsError):
            if last:
                raise
    raise AssertionError("the last try returns or raises")


def write_atomically(path: Path, data: bytes, durable: bool = True) -> None:
    """Write a whole file, or leave what was there.

    Raises:
        StoreError: As `atomic_file`.
    """
    with atomic_file(path, durable=durable) as file:
        file.write(data)


def cannot_write(path: Path, err: OSError) -> StoreError:
    """Name the file and what the system said, with the remedy."""
    return StoreError(
        f"cannot write {path}: {err.strerror or err}: free space, or choose another place"
    )
