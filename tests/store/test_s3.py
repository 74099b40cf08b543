from pathlib import Path

import msgspec
import pytest

from packhorse.artifact import Artifact
from packhorse.errors import InvalidInput, StoreError
from packhorse.ids import blob_key
from packhorse.store.cache import Cache
from packhorse.store.objects import open_objects
from packhorse.store.repository import Repository
from tests.onnx_models import publish
from tests.s3 import fault_proxy

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("signed")]
Headers = list[tuple[str, str]]


def pull(store: str, artifact: Artifact, cache: Path) -> Path:
    return Cache(cache).pull(Repository.open(store), artifact)


def test_a_model_goes_to_s3_and_comes_back(store: str, tmp_path: Path) -> None:
    artifact = publish(store, tmp_path / "m", "org/model")
    repository = Repository.open(store + "/")
    assert repository.latest("org/model") == "v1"
    assert repository.artifact("org/model", "v1", "cpu-fp32") == artifact
    assert repository.published("org/model", "v1", "cpu-fp32")
    assert repository.faults([artifact]) == []
    folder = pull(store, artifact, tmp_path / "c")
    assert (folder / "model.onnx").read_bytes() == (tmp_path / "m/model.onnx").read_bytes()


def test_publishing_the_same_again_uploads_nothing(
    server: str, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = publish(store, tmp_path / "m", "a")
    with fault_proxy(server) as (url, seen):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        assert Repository.open(store).publish(artifact, tmp_path / "m") == 0
    assert seen
    assert not [row for row in seen if row.startswith("PUT")]


def test_a_blob_that_is_not_its_digest_is_refused_by_the_server(store: str) -> None:
    with pytest.raises(StoreError, match="what arrived is not what was sent"):
        open_objects(store).write(blob_key("0" * 64), b"other")


def test_the_first_of_two_creators_wins(store: str) -> None:
    objects = open_objects(store)
    assert objects.write("models/a/x", b"1", create=True)
    assert not objects.write("models/a/x", b"2", create=True)
    assert objects.read("models/a/x") == b"1"


def test_more_keys_than_a_page_are_listed_and_siblings_are_not(store: str) -> None:
    objects = open_objects(store)
    for i in range(1205):
        objects.write(f"models/bert/{i:04}", b"")
    for key in ("models/bert-large/x", "models/bert.txt"):
        objects.write(key, b"")
    found = [row.key for row in objects.list("models/bert")]
    assert found == [f"models/bert/{i:04}" for i in range(1205)]


def test_a_large_blob_goes_in_parts(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packhorse.store.s3.SINGLE_PUT_BYTES", 20 * 1024**2)
    data = bytes(range(256)) * (100 * 1024)
    (tmp_path / "big").write_bytes(data)
    objects = open_objects(store)
    objects.write(blob_key("1" * 64), tmp_path / "big")
    with objects.open(blob_key("1" * 64), len(data) - 5) as stream:
        assert stream.read() == data[-5:]
    assert (found := objects.find(blob_key("1" * 64)))
    assert found.bytes == len(data)


def test_a_public_bucket_is_read_without_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = publish("s3://public/p", tmp_path / "m", "a")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert Repository.open("s3://public/p").artifact("a", "v1", "cpu-fp32") == artifact


@pytest.mark.parametrize(
    "url", ["s3://", "s3:/models", "s3://B_", "s3://models/a//b", "s3://models/../x"]
)
def test_an_s3_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="write s3://bucket/prefix"):
        open_objects(url)


def test_what_was_listed_saves_asking_and_never_misleads(store: str, tmp_path: Path) -> None:
    first = publish(store, tmp_path / "m", "org/model")
    repository = Repository.open(store)
    repository.publish(msgspec.structs.replace(first, version="v2"), tmp_path / "m")
    listed = repository.listed()
    assert repository.published("org/model", "v1", "cpu-fp32", listed) == first
    assert repository.published("org/model", "v3", "cpu-fp32", listed) is None
    read = repository.objects.read
    repository.objects.read = lambda key: pytest.fail("asked")  # type: ignore[method-assign]
    repository.mark_latest("org/model", "v2", listed)
    repository.objects.read = read  # type: ignore[method-assign]
    repository.mark_latest("org/model", "v1", listed)
    assert repository.latest("org/model") == "v1"
