"""copy, remove and gc, on a folder and on S3."""

import os
import time
from pathlib import Path

import pytest

from packhorse.artifact import Artifact
from packhorse.errors import InvalidInput, StoreError
from packhorse.ids import blob_key
from packhorse.store.local import LocalObjects
from packhorse.store.objects import Found, open_objects
from packhorse.store.repository import Repository
from packhorse.store.s3 import S3Objects
from packhorse.store.upkeep import collect_garbage, copy_models, remove_artifacts
from tests.onnx_models import publish
from tests.packhorse.test_cli import run
from tests.s3 import fault_proxy

DAY_S = 86400.0


def in_two_days() -> float:
    return time.time() + 2 * DAY_S


def graph(artifact: Artifact) -> str:
    return next(blob_key(file.sha256) for file in artifact.files if file.path == "model.onnx")


def keys(store: str) -> set[str]:
    objects = open_objects(store)
    return {row.key for top in ("models", "blobs") for row in objects.list(top)}


def copied(store: str) -> int:
    return run("models", "copy", "--from", store, "--to", f"{store}-other").returncode


def write_siblings(store: str, folder: Path) -> set[str]:
    """Put beside `bert` what begins with its name; return the keys."""
    objects = open_objects(store)
    publish(store, folder / "sibling", "bert-large", seed=9)
    for key in ("models/bert.txt", "models/bertha/readme", "blobs/readme"):
        objects.write(key, b"not ours")
    return keys(store)


def test_copy_takes_what_is_named_and_its_blobs(place: str, tmp_path: Path) -> None:
    other = f"{place}-other"
    artifact = publish(place, tmp_path / "a", "bert")
    write_siblings(place, tmp_path)
    done = run("models", "copy", "bert", "--from", place, "--to", other)
    assert done.returncode == 0, done.stderr
    there = Repository.open(other)
    assert [record for _, record in there.artifacts()] == [artifact]
    assert there.latest("bert") == "v1"
    assert there.faults([artifact]) == []
    assert keys(other) == {
        "models/bert/latest.json", "models/bert/v1/cpu-fp32/artifact.json",
        *(blob_key(file.sha256) for file in artifact.files),
    }  # fmt: skip


@pytest.mark.parametrize("damage", ["missing", "changed"])
def test_copy_leaves_out_the_models_whose_blob_is_broken(
    damage: str, place: str, tmp_path: Path
) -> None:
    bad = publish(place, tmp_path / "a", "a", seed=1)
    good = publish(place, tmp_path / "b", "b", seed=2)
    objects = open_objects(place)
    objects.delete(graph(bad))
    if damage == "changed" and isinstance(objects, S3Objects):
        objects.client.put_object(**objects.at(graph(bad)), Body=b"other")
    elif damage == "changed":
        objects.write(graph(bad), b"other")
    done = run("models", "copy", "--from", place, "--to", f"{place}-other")
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert line.startswith("error: a v1 cpu-fp32: ")
    assert graph(bad).removeprefix("blobs/sha256/") in line
    there = Repository.open(f"{place}-other")
    assert [record for _, record in there.artifacts()] == [good]


def test_copying_again_writes_nothing(store: str, signed: None, server: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    publish(store, tmp_path / "a", "a")
    assert copied(store) == 0
    with fault_proxy(server) as (url, seen):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        assert copied(store) == 0
    assert seen
    assert not [row for row in seen if row.startswith(("PUT", "POST"))]


def test_copy_between_kinds_of_store_and_back(store: str, signed: None, tmp_path: Path) -> None:
    artifact = publish(store, tmp_path / "a", "org/a")
    bundle, other = str(tmp_path / "bundle"), f"{store}-other"
    assert run("models", "copy", "--from", store, "--to", bundle).returncode == 0
    done = run("models", "copy", "--from", f"file://{bundle}", "--to", other)
    assert done.returncode == 0, done.stderr
    there = Repository.open(other)
    assert there.faults([there.artifact("org/a", "v1", "cpu-fp32")]) == []
    assert there.artifact("org/a", "v1", "cpu-fp32").digest == artifact.digest


def test_remove_moves_latest_and_leaves_siblings_and_blobs(place: str, tmp_path: Path) -> None:
    siblings = write_siblings(place, tmp_path)
    for version in ("v1", "v2"):
        publish(place, tmp_path / version, "bert", version=version)
    done = run("models", "remove", "bert", "--version", "v2", "--yes", "--store", place)
    assert done.returncode == 0, done.stderr
    repository = Repository.open(place)
    assert repository.latest("bert") == "v1"
    assert run("models", "remove", "bert", "--yes", "--store", place).returncode == 0
    with pytest.raises(InvalidInput, match="'bert' is not in store"):
        repository.latest("bert")
    assert {key for key in keys(place) if key.startswith("models/")} == {
        key for key in siblings if key.startswith("models/")
    }
    assert repository.published("bert-large", "v1", "cpu-fp32")


def test_gc_takes_old_blobs_that_nothing_names_and_leftovers(place: str, tmp_path: Path) -> None:
    publish(place, tmp_path / "a", "bert", seed=1)
    siblings = write_siblings(place, tmp_path)
    gone = publish(place, tmp_path / "b", "b", seed=2)
    repository = Repository.open(place)
    objects = repository.objects
    if isinstance(objects, S3Objects):
        objects.client.create_multipart_upload(**objects.at(blob_key("e" * 64)))
        (leftover,) = [row.key for row in objects.leftovers()]
    else:
        leftover = "blobs/sha256/.x.tmp"
        objects.write(leftover, b"half")
    remove_artifacts(repository, [gone.prefix])
    assert collect_garbage(repository, DAY_S, dry_run=False) == []  # all too young
    wanted = {graph(gone), leftover}
    would = collect_garbage(repository, DAY_S, dry_run=True, clock=in_two_days)
    assert {row.key for row in would} == wanted
    removed = collect_garbage(repository, DAY_S, dry_run=False, clock=in_two_days)
    assert {row.key for row in removed} == wanted
    assert keys(place) == siblings
    assert list(objects.leftovers()) == []
    assert repository.published("bert", "v1", "cpu-fp32")


def test_gc_keeps_what_is_published_while_it_looks(tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    artifact = publish(store, tmp_path / "a", "a")
    remove_artifacts(Repository.open(store), [artifact.prefix])
    for path in (tmp_path / "s").rglob("*"):
        os.utime(path, (time.time() - 2 * DAY_S,) * 2)

    class Racing(LocalObjects):
        def find(self, key: str) -> Found | None:
            Repository.open(store).publish(artifact, tmp_path / "a")
            return super().find(key)

    repository = Repository(Racing(tmp_path / "s"))
    plain = LocalObjects(tmp_path / "s").list
    repository.objects.list = plain  # type: ignore[method-assign] # which calls find itself
    assert collect_garbage(repository, DAY_S, dry_run=False) == []
    assert Repository.open(store).published("a", "v1", "cpu-fp32")


def test_gc_removes_nothing_where_a_manifest_cannot_be_read(tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    publish(store, tmp_path / "a", "a")
    (tmp_path / "s/models/a/v1/cpu-fp32/artifact.json").write_text('{"schema": 99}')
    with pytest.raises(StoreError, match=r"schema 99.*upgrade.*nothing is removed"):
        collect_garbage(Repository.open(store), DAY_S, dry_run=False, clock=in_two_days)
    assert run("models", "gc", "--older-than", "5s", "--store", store).returncode == 2


def test_a_copy_makes_old_blobs_of_the_target_young(tmp_path: Path) -> None:
    store, other = str(tmp_path / "s"), str(tmp_path / "t")
    artifact = publish(store, tmp_path / "a", "a")
    publish(other, tmp_path / "a", "a")
    there = Repository.open(other)
    remove_artifacts(there, [artifact.prefix])
    for path in (tmp_path / "t/blobs/sha256").iterdir():
        os.utime(path, (time.time() - 2 * DAY_S,) * 2)
    assert copy_models(Repository.open(store), there, [artifact]) == []
    remove_artifacts(
        there, [artifact.prefix]
    )  # as a gc sees it that read the manifests before the copy
    assert collect_garbage(there, DAY_S, dry_run=False) == []


def test_a_model_that_lost_its_latest_record_is_copied_and_removed(tmp_path: Path) -> None:
    store, other = str(tmp_path / "s"), str(tmp_path / "t")
    for version in ("v1", "v2"):
        publish(store, tmp_path / version, "a", version=version)
    (tmp_path / "s/models/a/latest.json").unlink()
    assert run("models", "copy", "--from", store, "--to", other).returncode == 0
    assert Repository.open(other).latest("a") in ("v1", "v2")
    done = run("models", "remove", "a", "--version", "v2", "--yes", "--store", store)
    assert done.returncode == 0, done.stderr
    assert Repository.open(store).latest("a") == "v1"


def test_gc_of_everything_on_a_folder_store_ends_well(tmp_path: Path) -> None:
    blobs = tmp_path / "s/blobs/sha256"
    blobs.mkdir(parents=True)
    for number in range(200):
        (blobs / f"{number:064x}").write_bytes(b"x")
    repository = Repository.open(str(tmp_path / "s"))
    assert len(collect_garbage(repository, DAY_S, dry_run=False, clock=in_two_days)) == 200
    assert list((tmp_path / "s").rglob("*")) == []


def test_a_version_published_while_another_is_removed_is_the_latest(tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    artifact = publish(store, tmp_path / "a", "a")

    class Racing(LocalObjects):
        def delete(self, key: str) -> None:
            if key.endswith("/artifact.json"):
                publish(store, tmp_path / "b", "a", version="v2")
            super().delete(key)

    remove_artifacts(Repository(Racing(tmp_path / "s")), [artifact.prefix])
    assert Repository.open(store).latest("a") == "v2"


def test_a_broken_record_can_be_removed_and_is_nobody_elses_fault(tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    for name in ("org/a", "b"):
        publish(store, tmp_path / name, name)
    (tmp_path / "s/models/org~a/v1/cpu-fp32/artifact.json").write_text("{")
    assert run("models", "verify", "b", "--store", store).returncode == 0
    other = str(tmp_path / "t")
    assert run("models", "copy", "b", "--from", store, "--to", other).returncode == 0
    assert run("models", "verify", "org/a", "--store", store).returncode == 1
    done = run("models", "remove", "org/a", "--yes", "--store", store)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "org/a v1 cpu-fp32")
    assert [record.id for _, record in Repository.open(store).artifacts()] == ["b"]  # type: ignore[union-attr] # whole


@pytest.mark.parametrize("inside", ["", "/inner"])
def test_a_store_is_not_copied_into_itself(inside: str, tmp_path: Path) -> None:
    publish(str(tmp_path / "s"), tmp_path / "a", "a")
    done = run("models", "copy", "--from", str(tmp_path / "s"), "--to", f"{tmp_path}/s{inside}")
    assert done.returncode == 2
    assert "lies in --from: name another store" in done.stderr


@pytest.mark.parametrize("how", ["copy", "publish"])
def test_what_is_damaged_is_mended_by_bringing_it_again(
    how: str, place: str, tmp_path: Path
) -> None:
    artifact = publish(place, tmp_path / "a", "a")
    good = publish(f"{tmp_path}/good", tmp_path / "a", "a")
    objects = open_objects(place)
    data = bytearray((tmp_path / "a/model.onnx").read_bytes())
    data[-1] ^= 1
    objects.delete(graph(artifact))
    if isinstance(objects, S3Objects):
        objects.client.put_object(**objects.at(graph(artifact)), Body=bytes(data))
    else:
        objects.write(graph(artifact), bytes(data))
    repository = Repository.open(place)
    assert len(repository.faults([artifact])) == 1
    if how == "publish":
        repository.publish(artifact, tmp_path / "a")
    else:
        copy_models(Repository.open(f"{tmp_path}/good"), repository, [good])
    assert repository.faults([artifact]) == []


def test_a_store_without_models_is_named_where_they_are_wanted(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    done = run("models", "copy", "--from", f"{tmp_path}/s", "--to", f"{tmp_path}/t")
    assert done.returncode == 2
    assert "holds no model: check its prefix" in done.stderr
    assert "check the prefix" in run("models", "list", "--store", f"{tmp_path}/s").stderr
