import os
from collections.abc import Callable
from pathlib import Path

import pytest

from packhorse.errors import Corrupt, InvalidInput, StoreError
from packhorse.ids import blob_key
from packhorse.store.local import LocalObjects
from packhorse.store.objects import open_objects
from packhorse.store.repository import Repository
from packhorse.store.upkeep import collect_garbage, remove_artifacts
from tests.onnx_models import publish


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_what_is_published_is_found(tmp_path: Path) -> None:
    artifact = publish(str(tmp_path / "s"), tmp_path / "m", "org/model")
    repository = Repository.open(f"file://{tmp_path}/s")
    assert repository.latest("org/model") == "v1"
    assert repository.artifact("org/model", "v1", "cpu-fp32") == artifact
    assert repository.published("org/model", "v1", "cpu-fp32")
    assert repository.variants("org/model", "v1") == ["cpu-fp32"]
    assert [record for _, record in repository.artifacts()] == [artifact]


def test_publishing_the_same_again_adds_nothing(tmp_path: Path) -> None:
    store = tmp_path / "s"
    artifact = publish(str(store), tmp_path / "m", "a")
    before = files_below(store)
    assert Repository.open(str(store)).publish(artifact, tmp_path / "m") == 0
    assert files_below(store) == before


def test_models_that_share_a_file_hold_it_once(tmp_path: Path) -> None:
    store = tmp_path / "s"
    for name in ("a", "b"):
        publish(str(store), tmp_path / name, name)
    assert len(list((store / "blobs/sha256").iterdir())) == 2  # one graph, one tokenizer


def test_the_manifest_is_written_after_every_blob_and_before_latest(tmp_path: Path) -> None:
    written: list[str] = []

    class Recording(LocalObjects):
        def write(self, key: str, data: bytes | Path, create: bool = False) -> bool:
            written.append(key.split("/")[-1] if key.startswith("models") else "blob")
            return super().write(key, data, create)

    artifact = publish(str(tmp_path / "s"), tmp_path / "m", "a")
    Repository(Recording(tmp_path / "other")).publish(artifact, tmp_path / "m")
    assert written == ["blob", "blob", "artifact.json", "latest.json"]


def test_a_publisher_that_dies_half_way_leaves_no_model(tmp_path: Path) -> None:
    class Dying(LocalObjects):
        def write(self, key: str, data: bytes | Path, create: bool = False) -> bool:
            if not key.startswith("blobs"):
                raise StoreError("disk full")
            return super().write(key, data, create)

    artifact = publish(str(tmp_path / "s"), tmp_path / "m", "a")
    with pytest.raises(StoreError):
        Repository(Dying(tmp_path / "other")).publish(artifact, tmp_path / "m")
    assert list(Repository.open(str(tmp_path / "other")).artifacts()) == []


def test_siblings_that_begin_alike_are_kept_apart(tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    for name in ("bert", "bert-large", "bert/base"):
        publish(store, tmp_path / name.replace("/", "_"), name)
    (tmp_path / "s/models/bert.txt").write_text("not ours")
    repository = Repository.open(store)
    assert repository.variants("bert", "v1") == ["cpu-fp32"]
    assert sorted(r.id for _, r in repository.artifacts() if not isinstance(r, Corrupt)) == [
        "bert", "bert-large", "bert/base",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda path: path.unlink(), "missing"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "bytes, expected"),
        (lambda path: path.write_bytes(b"\1" + path.read_bytes()[1:]), "does not match"),
    ],
)
def test_a_damaged_blob_is_found(
    damage: Callable[[Path], object], says: str, tmp_path: Path
) -> None:
    artifact = publish(str(tmp_path / "s"), tmp_path / "m", "a")
    repository = Repository.open(str(tmp_path / "s"))
    assert repository.faults([artifact]) == []
    path = tmp_path / "s" / blob_key(artifact.files[0].sha256)
    path.chmod(0o644)
    damage(path)
    ((_, fault),) = repository.faults([artifact])
    assert says in fault
    assert artifact.files[0].sha256 in fault
    assert artifact.files[0].path in fault


def test_publishing_again_mends_a_damaged_blob(tmp_path: Path) -> None:
    artifact = publish(str(tmp_path / "s"), tmp_path / "m", "a")
    path = tmp_path / "s" / blob_key(artifact.files[0].sha256)
    path.chmod(0o644)
    path.write_bytes(b"\1" + path.read_bytes()[1:])
    repository = Repository.open(str(tmp_path / "s"))
    assert repository.publish(artifact, tmp_path / "m") == artifact.files[0].bytes
    assert repository.faults([artifact]) == []


@pytest.mark.parametrize("url", ["{}/st#1", "file://{}/st#1", "file://localhost{}/st#1"])
def test_a_store_url_leads_to_the_folder_that_it_names(url: str, tmp_path: Path) -> None:
    objects = open_objects(url.format(tmp_path))
    objects.write("blobs/x", b"1")
    assert (tmp_path / "st#1/blobs/x").read_bytes() == b"1"


def test_a_record_under_another_models_key_is_refused(tmp_path: Path) -> None:
    publish(str(tmp_path / "s"), tmp_path / "m", "a")
    (tmp_path / "s/models/b").mkdir()
    (tmp_path / "s/models/a/v1").rename(tmp_path / "s/models/b/v1")
    repository = Repository.open(str(tmp_path / "s"))
    with pytest.raises(Corrupt, match="describes 'a'"):
        repository.artifact("b", "v1", "cpu-fp32")
    ((_, found),) = repository.artifacts()
    assert isinstance(found, Corrupt)


def test_what_is_not_there_is_named_with_the_remedy(tmp_path: Path) -> None:
    repository = Repository.open(str(tmp_path))
    with pytest.raises(InvalidInput, match="'a' is not in store .*run packhorse trace"):
        repository.latest("a")
    with pytest.raises(InvalidInput, match="'a' version v1 variant cpu-int8 is not in"):
        repository.artifact("a", "v1", "cpu-int8")
    assert not repository.published("a", "v1", "cpu-int8")


@pytest.mark.parametrize("url", ["file://", "", "ftp://host/x"])
def test_a_store_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="store"):
        open_objects(url)


def test_a_store_that_does_not_exist_is_not_an_empty_one(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="does not exist"):
        list(Repository.open(str(tmp_path / "none")).artifacts())


def test_no_key_leads_out_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    objects = LocalObjects(tmp_path / "s")
    for key in ("../secret", "/etc/passwd", "a/../../secret", "."):
        with pytest.raises(StoreError, match="leads out"):
            objects.read(key)


def test_a_full_disk_leaves_nothing_half_written(tmp_path: Path) -> None:
    objects = LocalObjects(tmp_path / "s")
    objects.prepare()
    (tmp_path / "s/blobs").write_text("a file where a folder should be")
    with pytest.raises(StoreError, match="cannot write"):
        objects.write("blobs/sha256/x", b"data")


@pytest.mark.parametrize("listed", [False, True])
def test_a_tag_changes_when_an_object_is_written_anew(
    listed: bool, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packhorse.store.repository.LIST_FROM", 1 if listed else 10)
    publish(place, tmp_path / "m", "bert", seed=1)
    publish(place, tmp_path / "n", "bert-large", seed=1)
    repository = Repository.open(place)
    names = [
        f"models/{name}" for name in ("bert/latest.json", "bert/v1/cpu-fp32/artifact.json", "no")
    ]
    before = repository.tags(names)
    assert set(before) == set(names[:2])
    publish(place, tmp_path / "m", "bert", seed=1)
    publish(place, tmp_path / "n", "bert-large", seed=2)
    assert repository.tags(names) == before
    publish(place, tmp_path / "m", "bert", seed=2)
    after = repository.tags(names)
    assert after[names[0]] == before[names[0]]  # the version is the same
    assert after[names[1]] != before[names[1]]


def test_publishing_a_version_again_keeps_its_old_blobs_from_gc(tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    first = publish(store, tmp_path / "a", "a", seed=1)
    publish(store, tmp_path / "b", "a", seed=2)
    for path in (tmp_path / "s/blobs/sha256").iterdir():
        os.utime(path, (1, 1))

    class Collected(LocalObjects):
        def write(self, key: str, data: bytes | Path, create: bool = False) -> bool:
            if key.endswith("/artifact.json"):
                collect_garbage(Repository.open(store), 7200, dry_run=False)
            return super().write(key, data, create)

    Repository(Collected(tmp_path / "s")).publish(first, tmp_path / "a")
    assert Repository.open(store).faults([first]) == []


def test_foreign_records_are_no_variants(tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    artifact = publish(store, tmp_path / "a", "a")
    repository = Repository.open(store)
    for key in ("models/a/v1/old/cpu-int8", "models/a/BACKUP"):
        repository.objects.write(f"{key}/artifact.json", artifact.encode())
    assert repository.variants("a", "v1") == ["cpu-fp32"]
    remove_artifacts(repository, [artifact.prefix])
    assert repository.latest_or_none("a") is None
