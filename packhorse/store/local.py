"""A store in a folder: the embedded default, and the form of an air-gapped bundle."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from packhorse.errors import StoreError
from packhorse.files import atomic_file, cannot_write, write_atomically


class LocalObjects:
    """Objects as files below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(os.path.abspath(folder))
        self.url = self.folder.as_uri()

    def prepare(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as err:
            raise cannot_write(self.folder, err) from err

    def read(self, key: str) -> bytes | None:
        try:
            return self._path(key).read_bytes()
        except FileNotFoundError:
            self._require_folder()
            return None
        except OSError as err:
            raise self._cannot_read(key, err) from err

    def open(self, key: str) -> BinaryIO:
        try:
            return self._path(key).open("rb")
        except OSError as err:
            self._require_folder()
            raise self._cannot_read(key, err) from err

    def size(self, key: str) -> int | None:
        try:
            return self._path(key).stat().st_size
        except FileNotFoundError:
            return None
        except OSError as err:
            raise self._cannot_read(key, err) from err

    def write(self, key: str, data: bytes | Path) -> None:
        path = self._path(key)
        if isinstance(data, bytes):
            write_atomically(path, data)
            return
        with data.open("rb") as source, atomic_file(path, mode=0o444) as target:
            shutil.copyfileobj(source, target, 1024 * 1024)

    def keys(self, prefix: str) -> Iterator[str]:
        self._require_folder()
        root = self._path(prefix)
        for folder, subfolders, names in os.walk(root):
            subfolders.sort()
            for name in sorted(names):
                if not name.startswith("."):  # a temporary of a writer that died
                    yield (Path(folder) / name).relative_to(self.folder).as_posix()

    def _path(self, key: str) -> Path:
        path = Path(os.path.normpath(self.folder / key))
        if self.folder not in path.parents:
            raise StoreError(f"key {key!r} leads out of the store")
        return path

    def _require_folder(self) -> None:
        if not self.folder.is_dir():
            raise StoreError(
                f"store {self.url} does not exist: run packhorse trace to fill it, or pass --store"
            )

    def _cannot_read(self, key: str, err: OSError) -> StoreError:
        return StoreError(f"store {self.url}: cannot read {key}: {err.strerror or err}")
