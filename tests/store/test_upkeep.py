import os
import time
from pathlib import Path

import pytest

from packhorse.errors import Corrupt, InvalidInput, StoreError
from packhorse.ids import blob_key
from packhorse.store.local import LocalObjects
from packhorse.store.objects import Found
from packhorse.store.repository import Repository
from packhorse.store.upkeep import collect_garbage, copy_models
from tests.onnx_models import publish
from tests.packhorse.test_cli import run

DAY_S = 86400.0


def age(folder: Path, seconds: float = 2 * DAY_S) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            os.utime(path, (time.time() - seconds,) * 2)


def test_copy_takes_what_is_named_and_its_blobs(tmp_path: Path) -> None:
    store, other = str(tmp_path / "s"), str(tmp_path / "t")
    artifact = publish(store, tmp_path / "a", "bert")
    publish(store, tmp_path / "b", "bert-large", seed=1)
    done = run("models", "copy", "bert", "--from", store, "--to", other)
    assert done.returncode == 0, done.stderr
    there = Repository.open(other)
    assert [record for _, record in there.artifacts()] == [artifact]
    assert there.latest("bert") == "v1"
    assert there.faults(artifact, {}, lambda _: None) == []
    assert len(list((tmp_path / "t/blobs/sha256").iterdir())) == 2


def test_copy_stops_at_a_damaged_blob_before_any_manifest(tmp_path: Path) -> None:
    artifact = publish(str(tmp_path / "s"), tmp_path / "a", "a")
    path = tmp_path / "s" / blob_key(artifact.files[0].sha256)
    path.chmod(0o644)
    path.write_bytes(b"\1" + path.read_bytes()[1:])
    there = Repository.open(str(tmp_path / "t"))
    there.objects.prepare()
    with pytest.raises(Corrupt, match=artifact.files[0].sha256):
        copy_models(Repository.open(str(tmp_path / "s")), there, [artifact], lambda _: None)
    assert list(there.artifacts()) == []


def test_remove_moves_latest_and_leaves_siblings_and_blobs(tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    for version in ("v1", "v2"):
        publish(store, tmp_path / version, "bert", version=version)
    publish(store, tmp_path / "c", "bert-large")
    done = run("models", "remove", "bert", "--version", "v2", "--yes", "--store", store)
    assert done.returncode == 0, done.stderr
    repository = Repository.open(store)
    assert repository.latest("bert") == "v1"
    assert run("models", "remove", "bert", "--yes", "--store", store).returncode == 0
    with pytest.raises(InvalidInput, match="'bert' is not in store"):
        repository.latest("bert")
    assert repository.has("bert-large", "v1", "cpu-fp32")


def test_gc_takes_old_blobs_that_nothing_names_and_leftovers(tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    publish(store, tmp_path / "a", "a", seed=1)
    gone = publish(store, tmp_path / "b", "b", seed=2)
    (tmp_path / "s/blobs/sha256/.x.tmp").write_bytes(b"half")
    (tmp_path / "s/blobs/readme").write_bytes(b"not ours")
    run("models", "remove", "b", "--yes", "--store", store)
    repository = Repository.open(store)
    assert collect_garbage(repository, DAY_S, dry_run=False) == []  # all too young
    age(tmp_path / "s")
    digest = next(f.sha256 for f in gone.files if f.path == "model.onnx")
    wanted = {blob_key(digest), "blobs/sha256/.x.tmp"}
    assert {row.key for row in collect_garbage(repository, DAY_S, dry_run=True)} == wanted
    assert {row.key for row in collect_garbage(repository, DAY_S, dry_run=False)} == wanted
    assert repository.has("a", "v1", "cpu-fp32")
    assert (tmp_path / "s/blobs/readme").exists()
    assert not (tmp_path / "s" / blob_key(digest)).exists()


def test_gc_keeps_what_is_published_while_it_looks(tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    artifact = publish(store, tmp_path / "a", "a")
    run("models", "remove", "a", "--yes", "--store", store)
    age(tmp_path / "s")

    class Racing(LocalObjects):
        def find(self, key: str) -> Found | None:
            Repository.open(store).publish(artifact, tmp_path / "a")
            return super().find(key)

    repository = Repository(Racing(tmp_path / "s"))
    repository.objects.list = LocalObjects(tmp_path / "s").list  # type: ignore[method-assign]
    assert collect_garbage(repository, DAY_S, dry_run=False) == []
    assert Repository.open(store).has("a", "v1", "cpu-fp32")


def test_gc_removes_nothing_where_a_manifest_cannot_be_read(tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    publish(store, tmp_path / "a", "a")
    (tmp_path / "s/models/a/v1/cpu-fp32/artifact.json").write_text('{"schema": 99}')
    age(tmp_path / "s")
    with pytest.raises(StoreError, match=r"schema 99.*upgrade.*nothing is removed"):
        collect_garbage(Repository.open(store), DAY_S, dry_run=False)
    assert run("models", "gc", "--older-than", "5s", "--store", store).returncode == 2
