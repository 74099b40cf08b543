"""Models on a server's disk: every blob once, hard-linked into the folders that use it.

ONNX Runtime refuses symbolic links that leave a model's folder, so the links are hard ones. A
blob is checked while it is copied and appears under its name only when it is whole.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

from packhorse.artifact import Artifact, File
from packhorse.errors import Corrupt, StoreError
from packhorse.files import atomic_file, cannot_write, write_atomically
from packhorse.ids import artifact_prefix, blob_key
from packhorse.store.repository import CHUNK_BYTES, Repository, hash_stream

DOWNLOADS_AT_ONCE = 16


class Cache:
    """A folder of pulled models."""

    def __init__(self, folder: Path) -> None:
        self.folder = Path(os.path.abspath(folder))
        self._pool = ThreadPoolExecutor(DOWNLOADS_AT_ONCE, thread_name_prefix="download")
        self._joining = threading.RLock()  # a job may end while it is entered
        self._under_way: dict[tuple[str, int, bool], Future[Path]] = {}

    def pull(self, repository: Repository, artifact: Artifact, recheck: bool = False) -> Path:
        """Bring a model's files here and return its folder.

        Blocks; safe to call again, and from several processes at once.

        Args:
            recheck: Read what is here already, and fetch again what is not what it should be.

        Raises:
            Corrupt: A blob is missing or not what its digest says.
            StoreError: The store cannot be read, or the disk is full.
        """
        folder = self.folder / artifact_prefix(artifact.id, artifact.version, artifact.variant)
        blobs = [self._start(repository, file, recheck) for file in artifact.files]
        wait(blobs)  # so that nothing of a pull goes on after its end
        for file, blob in zip(artifact.files, blobs, strict=True):
            try:
                path = blob.result()
            except StoreError as err:  # one blob may be many models': each is told of its own file
                raise type(err)(f"model {artifact.id!r}: {file.path}: {err}") from err
            self._link(path, folder / file.path)
        write_atomically(folder / "artifact.json", artifact.encode())
        return folder

    def _start(self, repository: Repository, file: File, recheck: bool) -> Future[Path]:
        """Begin to fetch a blob, or join those who wait for it already."""
        key = (file.sha256, file.bytes, recheck)
        with self._joining:
            job = self._under_way.get(key)
            if job is None:
                job = self._pool.submit(self._blob, repository, file, recheck)
                self._under_way[key] = job
                job.add_done_callback(lambda done: self._forget(key))
        return job

    def _forget(self, key: tuple[str, int, bool]) -> None:
        with self._joining:
            self._under_way.pop(key, None)

    def _blob(self, repository: Repository, file: File, recheck: bool) -> Path:
        # Two that fetched one blob at once would leave it on disk twice, each linked somewhere.
        with self._locked(file.sha256):
            path = self.folder / blob_key(file.sha256)
            if not _holds(path, file, recheck):
                self._fetch(repository, file, path)
            return path

    @contextmanager
    def _locked(self, sha256: str) -> Iterator[None]:
        """Hold a lock between threads and processes, which the system frees if we are killed."""
        path = self.folder / "locks" / sha256[:4]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock = path.open("a")
        except OSError as err:
            raise cannot_write(path, err) from err
        with lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _fetch(self, repository: Repository, file: File, path: Path) -> None:
        for last in (False, False, True):
            try:
                self._fetch_once(repository, file, path)
            except Corrupt:  # perhaps on the way only: what the store holds is asked again
                if last:
                    raise
            else:
                return

    def _fetch_once(self, repository: Repository, file: File, path: Path) -> None:
        digest = hashlib.sha256()
        size = 0
        with (
            repository.objects.open(blob_key(file.sha256)) as source,
            atomic_file(path, mode=0o444) as target,
        ):
            while chunk := source.read(CHUNK_BYTES):
                digest.update(chunk)
                size += len(chunk)
                target.write(chunk)
            if size != file.bytes or digest.hexdigest() != file.sha256:
                raise Corrupt(
                    f"blob {file.sha256} has {size} bytes of {file.bytes} or other content: "
                    "publish the model again"
                )

    def _link(self, blob: Path, target: Path) -> None:
        try:
            if target.exists() and target.samefile(blob):
                return
            target.parent.mkdir(parents=True, exist_ok=True)
            # Linked under another name and renamed, so that a file in use is never half replaced.
            with tempfile.TemporaryDirectory(prefix=".", dir=target.parent) as aside:
                new = Path(aside) / "new"
                try:
                    os.link(blob, new)
                except OSError:  # another file system, or one without hard links
                    shutil.copyfile(blob, new)
                os.replace(new, target)
        except OSError as err:
            raise cannot_write(target, err) from err


def _holds(path: Path, file: File, recheck: bool) -> bool:
    try:
        if path.stat().st_size != file.bytes:
            return False
        if not recheck:
            return True
        with path.open("rb") as stream:
            return hash_stream(stream) == file.sha256
    except OSError:
        return False
