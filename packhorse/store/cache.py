"""Models on a server's disk: every blob once, hard-linked into the folders that use it.

ONNX Runtime refuses symbolic links that leave a model's folder, so the links are hard ones. A
blob is hashed while it is downloaded, into a file of its own below `partial/`, which is renamed
when it is whole. The lock on that file keeps others from fetching the same blob; if its owner is
killed, the system frees the lock, and whoever comes next goes on where it ended.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from packhorse.artifact import Artifact, File
from packhorse.errors import Corrupt, StoreError
from packhorse.files import atomic_file, cannot_write, write_atomically
from packhorse.ids import blob_key
from packhorse.store.objects import Objects
from packhorse.store.repository import CHUNK_BYTES, Repository, hash_stream
from packhorse.store.room import CacheFull, Room
from packhorse.units import format_bytes

DOWNLOADS_AT_ONCE = 16
LINK_TRIES = 10


class Cache:
    """A folder of pulled models, which several processes may share.

    Args:
        limit_bytes: What it may hold; None is as much as the disk does.
    """

    def __init__(self, folder: Path, limit_bytes: int | None = None) -> None:
        self.folder = Path(os.path.abspath(folder))
        self._room, self._limit_bytes = Room(self.folder, limit_bytes), limit_bytes
        self._pool = ThreadPoolExecutor(DOWNLOADS_AT_ONCE, thread_name_prefix="download")
        self._joining = threading.RLock()  # a job may end while it is entered
        self._under_way: dict[tuple[str, int, bool], Future[None]] = {}
        self._here: dict[str, int] = {}
        self._one_by_one = threading.Lock()

    def progress(self, artifacts: Iterable[Artifact]) -> tuple[int, int]:
        """Return the bytes that have come of models' blobs, each once, and how many they are."""
        blobs = {file.sha256: file.bytes for artifact in artifacts for file in artifact.files}
        return sum(self._here.get(digest, 0) for digest in blobs), sum(blobs.values())

    def pull(self, repository: Repository, artifact: Artifact, recheck: bool = False) -> Path:
        """Bring a model's files here and return its folder, which then is in use.

        Blocks; safe to call again, and from several processes at once.

        Args:
            recheck: Read what is here already, and fetch again what is not what it should be.

        Raises:
            Corrupt: A blob is missing or not what its digest says.
            StoreError: The store cannot be read, the disk is full, or the cache is.
        """
        # A version published again has another record, and so another folder.
        folder = self.folder / artifact.prefix / artifact.digest[:12]
        need = sum({file.sha256: file.bytes for file in artifact.files}.values())
        if self._limit_bytes is not None and need > self._limit_bytes:
            # Before it takes the room of others that do fit.
            raise StoreError(
                f"model {artifact.id!r} has {format_bytes(need)} of files, cache_bytes is "
                f"{format_bytes(self._limit_bytes)}: raise it"
            )
        try:
            self._bring_claimed(repository, artifact, folder, recheck)
        except CacheFull:
            # Others that were at it may each have held a part of what one of them needs.
            with self._one_by_one:
                self._bring_claimed(repository, artifact, folder, recheck)
        record = folder / "artifact.json"
        if not record.exists():
            write_atomically(record, artifact.encode(), durable=False)
        return folder

    def release(self, folder: Path) -> None:
        """Let a pulled model go as soon as its bytes are needed."""
        self._room.release(folder)

    def _bring_claimed(
        self, repository: Repository, artifact: Artifact, folder: Path, recheck: bool
    ) -> None:
        self._room.claim(folder)
        try:
            for name in ("partial", "blobs/sha256"):
                (self.folder / name).mkdir(parents=True, exist_ok=True)
            self._bring(repository, artifact, folder, recheck)
        except BaseException:
            self._room.release(folder)
            raise

    def _bring(
        self, repository: Repository, artifact: Artifact, folder: Path, recheck: bool
    ) -> None:
        jobs = [self._start(repository, file, folder, recheck) for file in artifact.files]
        wait(jobs)  # so that nothing of a pull goes on after its end
        for file, job in zip(artifact.files, jobs, strict=True):
            try:
                job.result()
                self._have(repository, file, folder / file.path)  # where another began the job
            except StoreError as err:  # one blob may be many models': each is told of its own file
                raise type(err)(
                    f"model {artifact.id!r}: {file.path}, blob {file.sha256}: {err}"
                ) from err

    def _start(
        self, repository: Repository, file: File, folder: Path, recheck: bool
    ) -> Future[None]:
        """Begin to fetch a blob, or join those who wait for it already."""
        key = (file.sha256, file.bytes, recheck)
        with self._joining:
            job = self._under_way.get(key)
            if job is None or job.done():  # who waited for one that failed may be here again
                job = self._pool.submit(self._have, repository, file, folder / file.path, recheck)
                self._under_way[key] = job
                job.add_done_callback(lambda done: self._forget(key, done))
        return job

    def _forget(self, key: tuple[str, int, bool], job: Future[None]) -> None:
        with self._joining:
            if self._under_way.get(key) is job:
                del self._under_way[key]

    def _have(
        self, repository: Repository, file: File, target: Path, recheck: bool = False
    ) -> None:
        """Fetch a blob unless it is here, and link it to where it is wanted."""
        path = self.folder / blob_key(file.sha256)
        for _ in range(LINK_TRIES):
            if not _holds(path, file, recheck):
                with _locked(self.folder / "partial" / f"{file.sha256}.{file.bytes}") as partial:
                    if not _holds(path, file, recheck):  # another process may have been at it
                        self._fetch(repository.objects, file, partial, path)
                recheck = False
            self._here[file.sha256] = file.bytes
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                return _link(path, target)
            except FileNotFoundError:
                continue  # it was in use nowhere yet, and another process needed room
        raise StoreError(
            f"cache {self.folder}: what is pulled is removed again and again: raise cache_bytes, "
            "or give each server a cache of its own"
        )

    def _fetch(self, objects: Objects, file: File, partial: FileIO, path: Path) -> None:
        for last in (False, False, True):
            try:
                self._fetch_once(objects, file, partial, path)
                break
            except Corrupt:  # perhaps on the way only: what the store holds is asked again
                partial.truncate(0)
                if last:
                    raise

    def _fetch_once(self, objects: Objects, file: File, partial: FileIO, path: Path) -> None:
        digest, buffer = hashlib.sha256(), memoryview(bytearray(CHUNK_BYTES))
        partial.seek(0)
        size = 0
        while count := partial.readinto(buffer):
            digest.update(buffer[:count])
            size += count
        if size < file.bytes:
            self._room.take(file.bytes, Path(str(partial.name)))
            with objects.open(blob_key(file.sha256), size) as source:
                while size <= file.bytes and (count := source.readinto(buffer) or 0):
                    digest.update(buffer[:count])
                    _write(partial, buffer[:count])
                    size += count
                    self._here[file.sha256] = size
        if size != file.bytes:
            raise Corrupt(f"has {size} bytes, expected {file.bytes}: publish the model again")
        if digest.hexdigest() != file.sha256:
            raise Corrupt("its content does not match its digest: publish the model again")
        try:
            os.fchmod(partial.fileno(), 0o444)
            os.replace(str(partial.name), path)
        except OSError as err:
            raise cannot_write(path, err) from err


@contextmanager
def _locked(path: Path) -> Iterator[FileIO]:
    """Open an unfinished download that no other thread or process is at."""
    while True:
        try:
            file = FileIO(path, "a+")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as err:
            raise cannot_write(path, err) from err
        with file:
            if not _is_at(path, file):
                continue  # who had it has finished
            try:
                yield file
            except BaseException:
                if not os.fstat(file.fileno()).st_size:  # else it is gone on with
                    path.unlink(missing_ok=True)
                raise
            if _is_at(path, file):
                path.unlink()
            return


def _is_at(path: Path, file: FileIO) -> bool:
    with suppress(FileNotFoundError):
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    return False


def _write(file: FileIO, data: memoryview) -> None:
    try:
        while data:
            data = data[file.write(data) :]
    except OSError as err:
        file.truncate(0)
        raise cannot_write(Path(str(file.name)), err) from err


def _link(blob: Path, target: Path) -> None:
    """Link a blob to where it is wanted; FileNotFoundError: it is gone."""
    try:
        try:
            os.link(blob, target)
        except FileExistsError:
            if target.samefile(blob):
                return
            # Linked under another name and renamed: a file in use is never half replaced.
            aside = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
            os.link(blob, aside)
            os.replace(aside, target)
    except FileNotFoundError:
        raise
    except OSError as err:
        if err.errno not in (errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK):
            raise cannot_write(target, err) from err
        with blob.open("rb") as source, atomic_file(target, 0o444, durable=False) as copy:
            shutil.copyfileobj(source, copy)


def _holds(path: Path, file: File, recheck: bool) -> bool:
    """Tell whether a blob is here and whole.

    Blobs are not forced to the disk, which would double the time of a pull. So what was written
    before the machine started is read once: a crash may have left a file of zeros.
    """
    try:
        stat = path.stat()
        if stat.st_size != file.bytes:
            return False
        started_at = time.time() - time.monotonic()
        if not recheck and stat.st_mtime >= started_at:
            return True
        with path.open("rb") as stream:
            if hash_stream(stream) != file.sha256:
                return False
        with suppress(OSError):  # of another user: read again next time
            os.utime(path)
        return True
    except OSError:
        return False
