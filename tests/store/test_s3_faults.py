"""Whatever a network and a server do to a download: recovered from, or a reason (FAULTS 3)."""

import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from packhorse.errors import Corrupt, StoreError
from packhorse.store.cache import Cache
from packhorse.store.objects import open_objects
from packhorse.store.repository import Repository
from tests.onnx_models import publish
from tests.s3 import Fault, Headers, fault_proxy, send

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("signed")]


def claiming(headers: Headers, length: int) -> Headers:
    return [(k, str(length) if k.lower() == "content-length" else v) for k, v in headers]


def cut(handler: BaseHTTPRequestHandler, status: int, headers: Headers, data: bytes) -> bool:
    send(handler, status, headers, data[: len(data) * 6 // 10])
    return True


def stall(handler: BaseHTTPRequestHandler, status: int, headers: Headers, data: bytes) -> bool:
    send(handler, status, headers, data[: len(data) // 2])
    handler.wfile.flush()
    time.sleep(1.0)  # longer than the client waits for a byte
    return True


def delay(*_: object) -> bool:
    time.sleep(0.2)
    return False


def in_chunks(handler: BaseHTTPRequestHandler, status: int, headers: Headers, data: bytes) -> bool:
    kept = [(k, v) for k, v in headers if k.lower() != "content-length"]
    body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (data[:9], data[9:], b""))
    send(handler, status, [*kept, ("Transfer-Encoding", "chunked")], body)
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
    send(handler, status, claiming(headers, 7), data[:7])
    return True


def says_too_long(
    handler: BaseHTTPRequestHandler, status: int, headers: Headers, data: bytes
) -> bool:
    send(handler, status, claiming(headers, len(data) + 100), data)
    return True


def is_too_long(
    handler: BaseHTTPRequestHandler, status: int, headers: Headers, data: bytes
) -> bool:
    send(handler, status, claiming(headers, len(data) + 100), data + b"\1" * 100)
    return True


LASTING = [cut, stall, wrong_bytes, slow_down, internal, too_short, is_too_long]
FAULTS = [*LASTING, delay, says_too_long, in_chunks]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_passing_fault_is_recovered_from(
    fault: Fault, server: str, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = publish(store, tmp_path / "m", "a")
    monkeypatch.setattr("packhorse.store.s3.READ_TIMEOUT_S", 0.5)
    with fault_proxy(server, fault, 1) as (url, seen):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        folder = Cache(tmp_path / "c").pull(Repository.open(store), artifact)
    assert (folder / "model.onnx").read_bytes() == (tmp_path / "m/model.onnx").read_bytes()
    resumed = fault in (cut, says_too_long)
    assert ("bytes=" in "".join(seen)) == resumed  # a range only to resume


@pytest.mark.parametrize("fault", LASTING)
def test_a_lasting_fault_ends_in_a_reason_and_no_blob(
    fault: Fault, server: str, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifact = publish(store, tmp_path / "m", "a")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "2")
    monkeypatch.setattr("packhorse.store.s3.READ_TIMEOUT_S", 0.2)
    with fault_proxy(server, fault, 10**6) as (url, _):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        with pytest.raises(StoreError) as caught:
            Cache(tmp_path / "c").pull(Repository.open(store), artifact)
    said = str(caught.value)
    assert said.startswith("model 'a': ")
    assert any(f"{file.path}, blob {file.sha256}: " in said for file in artifact.files)
    causes = ("broke off at byte", "expected", "does not match its digest", "SlowDown", "500")
    assert any(cause in said for cause in causes), said
    assert "\n" not in said
    assert not list((tmp_path / "c/blobs").rglob("*.*"))
    assert not [path for path in (tmp_path / "c/blobs").rglob("*") if path.is_file()]


def test_a_server_that_ignores_ranges_is_read_from_the_start(
    server: str, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = bytes(range(256)) * 1000
    open_objects(store).write("blobs/x", whole)

    def ignore(handler: BaseHTTPRequestHandler, status: int, headers: Headers, data: bytes) -> bool:
        if "Range" not in handler.headers:
            return cut(handler, status, headers, data)
        kept = [(k, v) for k, v in headers if k.lower() not in ("content-length", "content-range")]
        send(handler, 200, [*kept, ("Content-Length", str(len(whole)))], whole)
        return True

    with fault_proxy(server, ignore, 2) as (url, _):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        with open_objects(store).open("blobs/x") as stream:
            assert stream.readall() == whole


def test_an_object_that_changes_in_mid_read_is_noticed(
    server: str, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = open_objects(store)
    plain.write("blobs/x", b"a" * 100_000)

    def changing(
        handler: BaseHTTPRequestHandler, status: int, headers: Headers, data: bytes
    ) -> bool:
        plain.write("blobs/x", b"b" * 100_000)
        return cut(handler, status, headers, data)

    with fault_proxy(server, changing, 1) as (url, _):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        with open_objects(store).open("blobs/x") as stream, pytest.raises(Corrupt, match="changed"):
            stream.readall()


def test_a_connection_read_to_its_end_is_used_again(
    server: str, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = open_objects(store)
    plain.write("blobs/x", b"a" * 100_000)
    connections: set[int] = set()

    def note(handler: BaseHTTPRequestHandler, *_: object) -> bool:
        connections.add(handler.client_address[1])
        return False

    with fault_proxy(server, note, 10) as (url, seen):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        objects = open_objects(store)
        for _ in range(5):
            with objects.open("blobs/x") as stream:
                assert len(stream.readall()) == 100_000
    assert len(seen) == 5
    assert len(connections) == 1
