import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import boto3
import pytest

from packhorse.artifact import Artifact
from packhorse.errors import Corrupt, InvalidInput, StoreError
from packhorse.ids import blob_key
from packhorse.store.cache import Cache
from packhorse.store.objects import open_objects
from packhorse.store.repository import Repository
from packhorse.store.s3 import S3Objects
from tests.onnx_models import publish
from tests.packhorse.test_cli import run
from tests.running import running
from tests.s3 import Fault, fault_proxy, s3_server, send

pytestmark = pytest.mark.integration
Headers = list[tuple[str, str]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with s3_server(tmp_path_factory.mktemp("s3")) as url:
        client = boto3.client(
            "s3", endpoint_url=url, aws_access_key_id="ADMIN", aws_secret_access_key="secret",
            region_name="us-east-1",
        )  # fmt: skip
        for bucket in ("models", "public"):
            client.create_bucket(Bucket=bucket)
        client.close()
        yield url


@pytest.fixture(autouse=True)
def signed(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "ADMIN")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")


@pytest.fixture
def store(request: pytest.FixtureRequest) -> str:
    return f"s3://models/{request.node.name.replace('[', '-').replace(']', '')}"


def pull(store: str, artifact: Artifact, cache: Path) -> Path:
    return Cache(cache).pull(Repository.open(store), artifact)


def test_a_model_goes_to_s3_and_comes_back(store: str, tmp_path: Path) -> None:
    artifact = publish(store, tmp_path / "m", "org/model")
    repository = Repository.open(store + "/")
    assert repository.latest("org/model") == "v1"
    assert repository.artifact("org/model", "v1", "cpu-fp32") == artifact
    assert repository.has("org/model", "v1", "cpu-fp32")
    assert repository.faults(artifact, {}, lambda _: None) == []
    folder = pull(store, artifact, tmp_path / "c")
    assert (folder / "model.onnx").read_bytes() == (tmp_path / "m/model.onnx").read_bytes()


def test_publishing_the_same_again_uploads_nothing(
    server: str, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = publish(store, tmp_path / "m", "a")
    with fault_proxy(server, lambda *_: False, 0) as (url, seen):
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


def cut(handler: BaseHTTPRequestHandler, status: int, headers: Headers, data: bytes) -> bool:
    send(handler, status, headers, data[: len(data) * 6 // 10])
    return True


def wrong_bytes(
    handler: BaseHTTPRequestHandler, status: int, headers: Headers, data: bytes
) -> bool:
    send(handler, status, headers, b"\0" * len(data))
    return True


def slow_down(handler: BaseHTTPRequestHandler, *_: object) -> bool:
    body = b"<Error><Code>SlowDown</Code><Message>Slow down</Message></Error>"
    send(handler, 503, [("Content-Length", str(len(body)))], body)
    return True


def internal(handler: BaseHTTPRequestHandler, *_: object) -> bool:
    send(handler, 500, [("Content-Length", "0")], b"")
    return True


def too_short(handler: BaseHTTPRequestHandler, status: int, headers: Headers, data: bytes) -> bool:
    claimed = [("Content-Length", "7") if k.lower() == "content-length" else (k, v)
               for k, v in headers]  # fmt: skip
    send(handler, status, claimed, data[:7])
    return True


@pytest.mark.parametrize("fault", [cut, wrong_bytes, slow_down, internal, too_short])
def test_a_passing_fault_is_recovered_from(
    fault: Fault, server: str, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = publish(store, tmp_path / "m", "a")
    with fault_proxy(server, fault, 1) as (url, seen):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        folder = pull(store, artifact, tmp_path / "c")
    assert (folder / "model.onnx").read_bytes() == (tmp_path / "m/model.onnx").read_bytes()
    assert ("bytes=" in "".join(seen)) == (fault is cut)  # a range only to resume


@pytest.mark.parametrize("fault", [wrong_bytes, slow_down, too_short])
def test_a_lasting_fault_ends_in_an_error_and_no_blob(
    fault: Fault, server: str, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = publish(store, tmp_path / "m", "a")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    with fault_proxy(server, fault, 10**6) as (url, _):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        with pytest.raises(StoreError, match=r"(?s)blobs?[ /].*[0-9a-f]{64}|SlowDown"):
            pull(store, artifact, tmp_path / "c")
    assert not [p for p in (tmp_path / "c/blobs").rglob("*") if p.is_file()]


def test_an_object_that_changes_in_mid_read_is_noticed(
    server: str, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = open_objects(store)
    plain.write("blobs/x", b"a" * 100_000)

    def changing(handler: BaseHTTPRequestHandler, *answer: object) -> bool:
        plain.write("blobs/x", b"b" * 100_000)
        return cut(handler, *answer)  # type: ignore[arg-type] # passed on as they came

    with fault_proxy(server, changing, 1) as (url, _):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        with open_objects(store).open("blobs/x") as stream, pytest.raises(Corrupt, match="changed"):
            stream.read()


@pytest.mark.parametrize(
    ("url", "environment", "says"),
    [
        ("s3://nosuch/x", {}, "bucket 'nosuch' does not exist"),
        ("s3://models/x", {"AWS_ACCESS_KEY_ID": "STRANGER"}, "access denied .403."),
        ("s3://models/x", {"AWS_ACCESS_KEY_ID": "NOBODY"}, "access key is not known"),
        ("s3://models/x", {"AWS_SECRET_ACCESS_KEY": "no"}, "secret key does not fit"),
        ("s3://models/x", {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}, "no credentials"),
        ("s3://models/x", {"AWS_PROFILE": "gone"}, "correct AWS_PROFILE"),
        ("s3://models/x", {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_MAX_ATTEMPTS": "1"},
         "does not answer"),
    ],
)  # fmt: skip
def test_what_s3_refuses_is_one_line_with_the_remedy(
    url: str, environment: dict[str, str], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
        if not value:
            monkeypatch.delenv(name)
    with pytest.raises(StoreError, match=says) as caught:
        list(Repository.open(url).artifacts())
    assert "\n" not in str(caught.value)


def test_a_public_bucket_is_read_without_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = publish("s3://public/p", tmp_path / "m", "a")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert Repository.open("s3://public/p").artifact("a", "v1", "cpu-fp32") == artifact


@pytest.mark.parametrize("url", ["s3://", "s3://B_", "s3://models/a//b", "s3://models/../x"])
def test_an_s3_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="write s3://bucket/prefix"):
        open_objects(url)


def test_a_server_serves_from_s3_and_one_bad_blob_sinks_one_model(
    store: str, tmp_path: Path
) -> None:
    publish(store, tmp_path / "a", "a", seed=1)
    bad = publish(store, tmp_path / "b", "b", seed=2)
    digest = next(f.sha256 for f in bad.files if f.path == "model.onnx")
    objects = open_objects(store)
    assert isinstance(objects, S3Objects)
    data = (tmp_path / "b/model.onnx").read_bytes()
    at = objects.at(blob_key(digest))
    objects.client.put_object(**at, Body=data[:-1] + b"\1")
    done = run("models", "verify", "--store", store)
    assert done.returncode == 1
    assert f"b: model.onnx: blob {digest}" in done.stdout
    assert "a: " not in done.stdout
    with running(store, tmp_path / "c", ["a", "b"]) as server:
        assert server.ask("a", "w1").status_code == 200
        refused = server.ask("b", "w1")
        assert refused.status_code == 503
        assert digest in refused.text


PULL_ALL = """
import sys
from pathlib import Path
from packhorse.store.cache import Cache
from packhorse.store.repository import Repository
repository, cache = Repository.open(sys.argv[1]), Cache(Path(sys.argv[2]))
for _, artifact in repository.artifacts():
    cache.pull(repository, artifact)
"""


def test_two_processes_fetch_each_blob_once_into_one_cache(
    server: str, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(50):
        publish(store, tmp_path / str(i), f"m{i}", seed=i)
    with fault_proxy(server, lambda *_: False, 0) as (url, seen):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        command = [sys.executable, "-c", PULL_ALL, store, str(tmp_path / "c")]
        both = [subprocess.Popen(command) for _ in range(2)]
        assert [process.wait(60) for process in both] == [0, 0]
    fetched = [row for row in seen if row.startswith("GET") and "/blobs/" in row]
    assert len(fetched) == len(set(fetched)) == 51  # fifty graphs and one tokenizer
    for i in range(50):
        (graph,) = tmp_path.glob(f"c/models/m{i}/v1/cpu-fp32/*/model.onnx")
        assert graph.read_bytes() == (tmp_path / f"{i}/model.onnx").read_bytes()
