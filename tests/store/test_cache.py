import fcntl
import os
import resource
from concurrent.futures import ThreadPoolExecutor
from io import RawIOBase
from pathlib import Path
from typing import Any

import pytest

from packhorse.artifact import File
from packhorse.errors import Corrupt, StoreError
from packhorse.ids import blob_key
from packhorse.store.cache import Cache
from packhorse.store.local import LocalObjects
from packhorse.store.repository import Repository
from tests.onnx_models import publish
from tests.running import wait_until


def test_a_pulled_model_lies_in_its_folder_and_shares_blobs(tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    cache = Cache(tmp_path / "c")
    folders = []
    for name in ("a", "b"):
        artifact = publish(store, tmp_path / name, name)
        folders.append(cache.pull(Repository.open(store), artifact))
    one, other = folders
    assert (one / "model.onnx").read_bytes() == (tmp_path / "a/model.onnx").read_bytes()
    assert (one / "model.onnx").samefile(other / "model.onnx")
    assert sorted(p.name for p in one.iterdir()) == [
        "artifact.json",
        "model.onnx",
        "tokenizer.json",
    ]


def test_a_blob_that_is_not_what_it_should_be_never_gets_its_name(tmp_path: Path) -> None:
    artifact = publish(str(tmp_path / "s"), tmp_path / "m", "a")
    path = tmp_path / "s" / blob_key(artifact.files[0].sha256)
    path.chmod(0o644)
    path.write_bytes(b"\1" + path.read_bytes()[1:])
    with pytest.raises(Corrupt, match="model 'a': model.onnx, blob .* publish the model again"):
        Cache(tmp_path / "c").pull(Repository.open(str(tmp_path / "s")), artifact)
    assert [p.name for p in (tmp_path / "c/blobs").rglob("*") if p.is_file()] == [
        artifact.files[1].sha256
    ]


def test_a_truncated_blob_in_the_cache_is_pulled_again(tmp_path: Path) -> None:
    artifact = publish(str(tmp_path / "s"), tmp_path / "m", "a")
    repository, cache = Repository.open(str(tmp_path / "s")), Cache(tmp_path / "c")
    folder = cache.pull(repository, artifact)
    blob = tmp_path / "c" / blob_key(artifact.files[0].sha256)
    blob.unlink()
    blob.write_bytes(b"short")
    cache.pull(repository, artifact)
    assert (folder / "model.onnx").read_bytes() == (tmp_path / "m/model.onnx").read_bytes()


def test_a_damaged_blob_in_the_cache_is_found_by_a_recheck(tmp_path: Path) -> None:
    artifact = publish(str(tmp_path / "s"), tmp_path / "m", "a")
    repository, cache = Repository.open(str(tmp_path / "s")), Cache(tmp_path / "c")
    folder = cache.pull(repository, artifact)
    blob = tmp_path / "c" / blob_key(artifact.files[0].sha256)
    blob.chmod(0o644)
    blob.write_bytes(b"\1" + blob.read_bytes()[1:])
    cache.pull(repository, artifact, recheck=True)
    assert (folder / "model.onnx").read_bytes() == (tmp_path / "m/model.onnx").read_bytes()


def test_a_model_that_is_there_is_not_written_again(tmp_path: Path) -> None:
    artifact = publish(str(tmp_path / "s"), tmp_path / "m", "a")
    repository, cache = Repository.open(str(tmp_path / "s")), Cache(tmp_path / "c")
    inode = (cache.pull(repository, artifact) / "model.onnx").stat().st_ino
    assert (cache.pull(repository, artifact) / "model.onnx").stat().st_ino == inode


def test_pulling_one_blob_from_many_threads_fetches_it_once(tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    artifacts = [publish(store, tmp_path / name, name) for name in "abcdefgh"]
    fetched: list[str] = []

    class Counting(LocalObjects):
        def open(self, key: str, start: int = 0) -> RawIOBase:
            fetched.append(key)
            return super().open(key, start)

    repository = Repository(Counting(tmp_path / "s"))
    with ThreadPoolExecutor(8) as pool:
        pull = Cache(tmp_path / "c").pull
        folders = list(pool.map(lambda artifact: pull(repository, artifact), artifacts))
    assert len(fetched) == len(set(fetched)) == 2  # one graph, one tokenizer
    assert len({(folder / "model.onnx").stat().st_ino for folder in folders}) == 1


def unfinished(cache: Path, file: File) -> Path:
    (cache / "partial").mkdir(parents=True, exist_ok=True)
    return cache / "partial" / f"{file.sha256}.{file.bytes}"


class Watched(LocalObjects):
    """A store that says from which byte each object was read."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.starts: dict[str, list[int]] = {}

    def open(self, key: str, start: int = 0) -> RawIOBase:
        self.starts.setdefault(key, []).append(start)
        return super().open(key, start)


@pytest.mark.parametrize(
    ("begun", "starts"), [("half", "half"), ("whole", None), ("wrong", "half, anew"), ("long", "0")]
)
def test_an_unfinished_download_is_gone_on_with(
    begun: str, starts: str | None, tmp_path: Path
) -> None:
    artifact = publish(str(tmp_path / "s"), tmp_path / "m", "a")
    file = next(file for file in artifact.files if file.path == "model.onnx")
    data = (tmp_path / "m/model.onnx").read_bytes()
    half = len(data) // 2
    there = {"half": data[:half], "whole": data, "wrong": b"\1" * half, "long": data + b"more"}
    unfinished(tmp_path / "c", file).write_bytes(there[begun])
    objects = Watched(tmp_path / "s")
    folder = Cache(tmp_path / "c").pull(Repository(objects), artifact)
    assert (folder / "model.onnx").read_bytes() == data
    wanted = {"half": [half], None: None, "half, anew": [half, 0], "0": [0]}[starts]
    assert objects.starts.get(blob_key(file.sha256)) == wanted
    assert not list((tmp_path / "c/partial").iterdir())


def test_a_store_that_breaks_off_leaves_what_came(tmp_path: Path) -> None:
    artifact = publish(str(tmp_path / "s"), tmp_path / "m", "a")
    file = next(file for file in artifact.files if file.path == "model.onnx")
    data = (tmp_path / "m/model.onnx").read_bytes()

    class Half(RawIOBase):
        def __init__(self) -> None:
            self.left = memoryview(data[:100])

        def readinto(self, buffer: Any) -> int:
            if not self.left:
                raise StoreError("the network is gone")
            buffer[: len(self.left)] = self.left
            count, self.left = len(self.left), memoryview(b"")
            return count

    class Breaking(LocalObjects):
        def open(self, key: str, start: int = 0) -> RawIOBase:
            return Half() if key.endswith(file.sha256) else super().open(key, start)

    with pytest.raises(StoreError, match="model 'a': model.onnx, blob .*: the network is gone"):
        Cache(tmp_path / "c").pull(Repository(Breaking(tmp_path / "s")), artifact)
    assert unfinished(tmp_path / "c", file).read_bytes() == data[:100]


def test_a_blob_of_before_the_machine_started_is_read_once(tmp_path: Path) -> None:
    artifact = publish(str(tmp_path / "s"), tmp_path / "m", "a")
    file = next(file for file in artifact.files if file.path == "model.onnx")
    objects = Watched(tmp_path / "s")
    Cache(tmp_path / "c").pull(Repository(objects), artifact)
    blob = tmp_path / "c" / blob_key(file.sha256)
    os.utime(blob, (1, 1))
    Cache(tmp_path / "c").pull(Repository(objects), artifact)  # whole: from now on trusted
    assert blob.stat().st_mtime > 1
    assert objects.starts[blob_key(file.sha256)] == [0]
    blob.chmod(0o644)
    blob.write_bytes(bytes(file.bytes))  # what a crash leaves of what was not flushed
    os.utime(blob, (1, 1))
    folder = Cache(tmp_path / "c").pull(Repository(objects), artifact)
    assert objects.starts[blob_key(file.sha256)] == [0, 0]
    assert (folder / "model.onnx").read_bytes() == (tmp_path / "m/model.onnx").read_bytes()


def test_a_disk_that_takes_no_more_is_named_and_nothing_stays(tmp_path: Path) -> None:
    artifact = publish(str(tmp_path / "s"), tmp_path / "m", "a")
    least = min(file.bytes for file in artifact.files)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (least - 1, hard))
    try:
        with pytest.raises(StoreError, match="cannot write .*: free space, or choose another"):
            Cache(tmp_path / "c").pull(Repository.open(str(tmp_path / "s")), artifact)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list((tmp_path / "c/partial").iterdir())


def test_an_unfinished_download_that_is_removed_while_one_waits_for_it(tmp_path: Path) -> None:
    artifact = publish(str(tmp_path / "s"), tmp_path / "m", "a")
    file = next(file for file in artifact.files if file.path == "model.onnx")
    path = unfinished(tmp_path / "c", file)
    with path.open("ab") as other, ThreadPoolExecutor(1) as pool:
        fcntl.flock(other, fcntl.LOCK_EX)
        repository = Repository.open(str(tmp_path / "s"))
        job = pool.submit(Cache(tmp_path / "c").pull, repository, artifact)
        inode = path.stat().st_ino
        wait_until(lambda: f":{inode} " in Path("/proc/locks").read_text().partition("->")[2])
        path.unlink()  # as one does who needs room
        fcntl.flock(other, fcntl.LOCK_UN)
        folder = job.result(10)
    assert (folder / "model.onnx").read_bytes() == (tmp_path / "m/model.onnx").read_bytes()
