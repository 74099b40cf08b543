from pathlib import Path

import msgspec

from packhorse.artifact import Shared
from packhorse.store.repository import Repository
from packhorse_pack.needs import read_needs
from tests.onnx_models import publish
from tests.trace.tiny import make_spec


def test_needs_are_whole_numbers_rounded_up(tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    shared = [Shared("a" * 64, 500)]
    publish(store, tmp_path / "a", "a", private_bytes=1000, shared=shared, seconds=0.0033333)
    spec = make_spec(tmp_path / "a", "a", expected_rps=1.5, sequence_length=16)
    ((item,), _) = read_needs([spec], Repository.open(store))
    assert item.memory_bytes == 1500
    assert item.compute_micro == 5000  # 4,999.95 micro-shares
    assert (item.model.version, item.model.variant) == ("v1", "cpu-fp32")


def test_replicas_share_the_rate_and_not_the_memory(tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    publish(store, tmp_path / "a", "a", private_bytes=1000, seconds=0.01)
    spec = make_spec(tmp_path / "a", "a", expected_rps=30, replicas=3, pinned=True)
    items, _ = read_needs([spec], Repository.open(store))
    assert [(i.memory_bytes, i.model.pinned) for i in items] == [(1000, True)] * 3
    assert {i.compute_micro for i in items} == {200_000}  # 10/s of 0.01 s at twice the length


def test_a_model_that_is_not_in_the_store_is_named(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    items, missing = read_needs([make_spec(tmp_path, "a")], Repository.open(str(tmp_path / "s")))
    assert items == []
    assert "'a' is not in store" in missing["a"]


def test_what_cannot_be_packed_yet_is_named(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    spec = make_spec(tmp_path, "a", processors=("gpu",))
    _, missing = read_needs([spec], Repository.open(str(tmp_path / "s")))
    assert "is for gpu" in missing["a"]


def test_what_auto_became_is_packed(tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    publish(store, tmp_path / "a", "a", variant="cpu-fp32")
    spec = make_spec(tmp_path / "a", "a", precision="auto")
    assert read_needs([spec], Repository.open(store))[0][0].model.variant == "cpu-fp32"
    publish(store, tmp_path / "a", "a", variant="cpu-int8")
    assert read_needs([spec], Repository.open(store))[0][0].model.variant == "cpu-int8"


def test_a_named_version_is_packed_although_there_is_a_newer_one(tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    old = publish(store, tmp_path / "a", "a")
    Repository.open(store).publish(msgspec.structs.replace(old, version="v2"), tmp_path / "a")
    spec = make_spec(tmp_path / "a", "a", version="v1")
    assert read_needs([spec], Repository.open(store))[0][0].model.version == "v1"
