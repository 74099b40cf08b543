"""A store in a folder: the embedded default, and the form of an air-gapped bundle."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from io import RawIOBase
from pathlib import Path

from packhorse.errors import StoreError
from packhorse.files import atomic_file, cannot_write
from packhorse.store.objects import Found


class LocalObjects:
    """Objects as files below a folder."""

    remote = False

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

    def open(self, key: str, start: int = 0) -> RawIOBase:
        try:
            file = self._path(key).open("rb", buffering=0)
            file.seek(start)
            return file
        except OSError as err:
            self._require_folder()
            raise self._cannot_read(key, err) from err

    def find(self, key: str) -> Found | None:
        try:
            stat = self._path(key).stat()
        except FileNotFoundError:
            return None
        except OSError as err:
            raise self._cannot_read(key, err) from err
        tag = f"{stat.st_ino}-{stat.st_size}-{stat.st_mtime_ns}"
        return Found(key, stat.st_size, stat.st_mtime, tag)

    def write(self, key: str, data: bytes | Path, create: bool = False) -> bool:
        mode = 0o644 if isinstance(data, bytes) else 0o444
        try:
            with atomic_file(self._path(key), mode, create) as target:
                if isinstance(data, bytes):
                    target.write(data)
                else:
                    with data.open("rb") as source:
                        shutil.copyfileobj(source, target, 1024 * 1024)
        except FileExistsError:
            return False
        return True

    def touch(self, key: str) -> None:
        try:
            os.utime(self._path(key))
        except OSError as err:
            raise cannot_write(self._path(key), err) from err

    def delete(self, key: str) -> None:
        path = self._path(key)
        try:
            path.unlink(missing_ok=True)
        except OSError as err:
            raise StoreError(f"cannot remove {path}: {err.strerror or err}") from err
        with suppress(OSError):  # what held nothing else goes with it; others may be at it too
            for folder in path.parents:
                if folder == self.folder:
                    break
                folder.rmdir()

    def list(self, prefix: str) -> Iterator[Found]:
        for found in self._walk(prefix):
            if not found.key.rpartition("/")[2].startswith("."):
                yield found

    def leftovers(self) -> Iterator[Found]:
        for prefix in ("models", "blobs"):
            for found in self._walk(prefix):
                name = found.key.rpartition("/")[2]
                if name.startswith(".") and name.endswith(".tmp"):
                    yield found

    def _walk(self, prefix: str) -> Iterator[Found]:
        self._require_folder()
        for folder, subfolders, names in os.walk(self._path(prefix)):
            subfolders.sort()
            for name in sorted(names):
                key = (Path(folder) / name).relative_to(self.folder).as_posix()
                found = self.find(key)
                if found is not None:
                    yield found

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
