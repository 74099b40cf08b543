"""What of a shared cache is in use, and what goes when its bytes run short.

Each process that uses a cache has a file below `users/`, which lists the folders it uses and which
it holds locked for as long as it lives: however it dies, the system frees the lock. Folders that
nobody lists go when bytes are needed, the one used longest ago first, and with them the blobs that
no other folder links to.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from packhorse.errors import StoreError
from packhorse.files import cannot_write
from packhorse.units import format_bytes

FULL = 0.95
"""Share of the limit down to which is made room at once, so that not every blob has to."""


class CacheFull(StoreError):
    """All that the cache's limit allows is in use."""


class _Blob(NamedTuple):
    path: Path
    bytes: int
    links: int


class Room:
    """The bytes of one cache folder. Methods may be called from many threads and processes.

    What it has claimed is in use for as long as the object lives.
    """

    def __init__(self, folder: Path, limit_bytes: int | None) -> None:
        self._folder, self._limit_bytes = folder, limit_bytes
        self._mutex = threading.Lock()
        self._lock: int | None = None
        self._user: int | None = None
        self._claimed: set[str] = set()
        self._lines = 0

    def claim(self, model: Path) -> None:
        """Say that this process uses a model's folder, before anything is put there."""
        with self._alone():
            model.mkdir(parents=True, exist_ok=True)
            self._claimed.add(str(model.relative_to(self._folder)))
            self._note("+", model)

    def release(self, model: Path) -> None:
        """Say that this process does not use a folder any more; it stays until bytes are needed."""
        with self._alone():
            self._claimed.discard(str(model.relative_to(self._folder)))
            self._note("-", model)

    def take(self, size: int, own: Path) -> None:
        """Have room for bytes that are about to be written.

        Args:
            own: The file that they are written to, which is not counted.

        Raises:
            CacheFull: All that the limit allows is in use.
        """
        with self._alone() as lock:
            count = os.pread(lock, 32, 0)
            used = int(count) if count else self._look(own)[0]
            limit = self._limit_bytes
            if limit is not None and used + size > limit:
                used = self._make_room(size, limit, own)
                if used + size > limit:
                    raise CacheFull(
                        f"the cache is full: {format_bytes(used)} are in use or on their way, "
                        f"{format_bytes(size)} more are needed, cache_bytes is "
                        f"{format_bytes(limit)}: raise it, or put fewer models on this machine"
                    )
            os.pwrite(lock, b"%032d" % (used + size), 0)

    @contextmanager
    def _alone(self) -> Iterator[int]:
        """Keep every other thread and process out until the block ends.

        Yields:
            The lock's file, in which stands how many bytes there are, or nothing: nobody knows.
        """
        path = self._folder / "lock"
        try:
            with self._mutex:
                lock = self._lock = self._locked(path)
                try:
                    if self._user is None or not os.fstat(self._user).st_nlink:
                        self._user = self._enter(lock)
                    yield lock
                finally:
                    fcntl.flock(lock, fcntl.LOCK_UN)
        except OSError as err:
            raise cannot_write(Path(err.filename or path), err) from err

    def _locked(self, path: Path) -> int:
        """Lock the lock's file, anew where somebody has removed the cache meanwhile."""
        while True:
            if self._lock is None:
                self._folder.mkdir(parents=True, exist_ok=True)
                self._lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
                weakref.finalize(self, os.close, self._lock)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            if os.fstat(self._lock).st_nlink:
                return self._lock
            self._lock = None

    def _enter(self, lock: int) -> int:
        """Begin this process's file with what it uses."""
        users = self._folder / "users"
        users.mkdir(exist_ok=True)
        if not any(True for _ in self._claims()):
            os.ftruncate(lock, 0)  # a crash may have left it wrong
        user, _ = tempfile.mkstemp(dir=users)
        weakref.finalize(self, os.close, user)
        fcntl.flock(user, fcntl.LOCK_EX)
        self._write_claims(user)
        return user

    def _write_claims(self, user: int) -> None:
        os.ftruncate(user, 0)
        os.pwrite(user, "".join(f"+{name}\n" for name in self._claimed).encode(), 0)
        os.lseek(user, 0, os.SEEK_END)
        self._lines = len(self._claimed)

    def _note(self, sign: str, model: Path) -> None:
        user = self._user
        if user is None:
            raise RuntimeError("a cache is noted in before it is entered: this is a bug")
        if self._lines > 2 * len(self._claimed) + 64:  # models come and go for as long as it runs
            self._write_claims(user)
        else:
            os.write(user, f"{sign}{model.relative_to(self._folder)}\n".encode())
            self._lines += 1
        with suppress(FileNotFoundError):  # removed by hand
            os.utime(model)

    def _claims(self) -> Iterator[set[str]]:
        """Yield what each living process uses, and forget the dead."""
        for path in (self._folder / "users").iterdir():
            with path.open() as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    claimed: set[str] = set()
                    for line in file.read().splitlines():
                        (claimed.add if line[0] == "+" else claimed.discard)(line[1:])
                    yield claimed
                else:
                    path.unlink()

    def _look(self, own: Path, sweep: bool = False) -> tuple[int, dict[int, _Blob]]:
        """Return the bytes that there are or will be, and the blobs by inode.

        Args:
            sweep: Remove the unfinished downloads that nobody is at.
        """
        # In this order: what ends between the two looks is seen in both, and counted once.
        unfinished = dict(self._unfinished(own, sweep))
        blobs = {}
        for entry in _entries(self._folder / "blobs/sha256"):
            with suppress(FileNotFoundError):
                stat = entry.stat()
                blobs[stat.st_ino] = _Blob(Path(entry.path), stat.st_size, stat.st_nlink)
                unfinished.pop(entry.name, None)
        return sum(blob.bytes for blob in blobs.values()) + sum(unfinished.values()), blobs

    def _unfinished(self, own: Path, sweep: bool) -> Iterator[tuple[str, int]]:
        """Yield unfinished downloads with the bytes that they have, or will have."""
        for entry in _entries(self._folder / "partial"):
            path = Path(entry.path)
            if path == own or not path.suffix[1:].isdigit():
                continue
            with suppress(FileNotFoundError), path.open() as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    yield path.stem, int(path.suffix[1:])
                    continue
                if sweep:
                    path.unlink()
                else:
                    yield path.stem, os.fstat(file.fileno()).st_size

    def _make_room(self, size: int, limit: int, own: Path) -> int:
        """Remove what nobody uses until bytes fit; return the bytes that are left."""
        used, blobs = self._look(own, sweep=True)
        enough = int(limit * FULL) - size
        for blob in blobs.values():
            if blob.links == 1 and used > enough:
                blob.path.unlink(missing_ok=True)
                used -= blob.bytes
        claimed = set().union(*self._claims())
        for model in sorted(self._models(), key=lambda path: path.stat().st_mtime):
            if used <= enough:
                break
            if str(model.relative_to(self._folder)) not in claimed:
                used -= _remove(model, blobs)
        return used

    def _models(self) -> Iterable[Path]:
        return [path for path in self._folder.glob("models/*/*/*/*") if path.is_dir()]


def _remove(model: Path, blobs: dict[int, _Blob]) -> int:
    """Remove a model's folder and the blobs that only it linked to; return their bytes."""
    inodes = {path.stat().st_ino for path in model.rglob("*") if path.is_file()}
    shutil.rmtree(model, ignore_errors=True)
    for folder in list(model.parents)[:3]:  # variant, version and id, where they are empty now
        with suppress(OSError):
            folder.rmdir()
    freed = 0
    for inode in inodes & blobs.keys():
        blob = blobs[inode]
        with suppress(FileNotFoundError):
            if blob.path.stat().st_nlink == 1:
                blob.path.unlink()
                freed += blob.bytes
    return freed


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except FileNotFoundError:
        return []
