from concurrent.futures import ThreadPoolExecutor
from io import RawIOBase
from pathlib import Path

import pytest

from packhorse.errors import Corrupt
from packhorse.ids import blob_key
from packhorse.store.cache import Cache
from packhorse.store.local import LocalObjects
from packhorse.store.repository import Repository
from tests.onnx_models import publish


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
    with pytest.raises(Corrupt, match="model 'a': model.onnx: blob .* publish the model again"):
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
