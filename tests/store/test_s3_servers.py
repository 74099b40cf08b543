"""Whole servers on S3: what they fetch, what they refuse, and what a kill leaves behind."""

import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import httpx
import numpy as np
import pytest

from packhorse.ids import blob_key
from packhorse.store.objects import open_objects
from packhorse.store.repository import CHUNK_BYTES, hash_stream
from packhorse.store.s3 import S3Objects
from tests.onnx_models import publish, vectors
from tests.packhorse.test_cli import run
from tests.running import running, wait_until
from tests.s3 import Headers, fault_proxy, free_ports, send
from tests.store.test_s3_faults import cut

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("signed")]


@contextmanager
def serving(store: str, cache: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """A server process with all models of a store; yields it and its URL."""
    (port,) = free_ports(1)
    command = [
        sys.executable, "-m", "packhorse", "serve", "--all", "--store", store,
        "--cache", str(cache), "--port", str(port), "--management-port", "0",
    ]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        yield process, f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz").status_code == 200
    except httpx.HTTPError:
        return False


def check_answers(url: str, models: int) -> None:
    for i in range(models):
        response = httpx.post(f"{url}/predictions/m{i}", json={"inputs": "w1"})
        assert response.status_code == 200
        assert np.allclose(response.json(), vectors(4, i)[5] / 3, atol=1e-6)


def check_blobs(cache: Path) -> None:
    for path in (cache / "blobs/sha256").iterdir():
        with path.open("rb") as stream:
            assert hash_stream(stream) == path.name
    assert not list((cache / "partial").iterdir())


def test_one_bad_blob_sinks_the_models_that_use_it(store: str, tmp_path: Path) -> None:
    publish(store, tmp_path / "a", "a", seed=1)
    bad = publish(store, tmp_path / "b", "b", seed=2)
    digest = next(f.sha256 for f in bad.files if f.path == "model.onnx")
    objects = open_objects(store)
    assert isinstance(objects, S3Objects)
    data = (tmp_path / "b/model.onnx").read_bytes()
    at = objects.at(blob_key(digest))
    objects.client.put_object(**at, Body=data[:-1] + bytes([data[-1] ^ 1]))
    done = run("models", "verify", "--store", store)
    assert done.returncode == 1
    assert f"b: model.onnx: blob {digest}" in done.stdout
    assert "a: " not in done.stdout
    with running(store, tmp_path / "c", ["a", "b"]) as server:
        assert server.ask("a", "w1").status_code == 200
        refused = server.ask("b", "w1")
        assert refused.status_code == 503
        assert digest in refused.text


def test_a_download_that_is_always_cut_is_one_models_reason(
    server: str, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(store, tmp_path / "a", "a", seed=1)
    bad = publish(store, tmp_path / "b", "b", seed=2)
    digest = next(f.sha256 for f in bad.files if f.path == "model.onnx")
    with fault_proxy(server, cut, 10**6, matching=f"GET .*{digest}") as (url, _):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        with running(store, tmp_path / "c", ["a", "b"]) as served:
            assert served.ask("a", "w1").status_code == 200
            refused = served.ask("b", "w1")
            assert refused.status_code == 503
            assert f"model 'b': model.onnx, blob {digest}: " in refused.text
            assert "broke off at byte" in refused.text
    assert not (tmp_path / "c" / blob_key(digest)).exists()


@pytest.mark.parametrize("slash", ["", "/"])
def test_siblings_that_begin_alike_are_not_fetched(
    slash: str, server: str, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = publish(store, tmp_path / "a", "bert", seed=1)
    publish(store, tmp_path / "b", "bert-large", seed=2)
    publish(f"{store}-large", tmp_path / "c", "bert", seed=3)
    open_objects(store).write("models/bert.txt", b"plain")
    with fault_proxy(server) as (url, seen):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        with running(store + slash, tmp_path / "cache", ["bert"]) as served:
            assert served.ask("bert", "w1").status_code == 200
            rows = served.http.get("/models").json()["models"]
    assert [row["id"] for row in rows] == ["bert"]
    models = tmp_path / "cache/models"
    assert [path.name for path in models.iterdir()] == ["bert"]
    own = store.removeprefix("s3:/")
    allowed = {f"{own}/{blob_key(file.sha256)}" for file in wanted.files} | {
        f"{own}/models/bert/latest.json", f"{own}/models/bert/v1/cpu-fp32/artifact.json",
    }  # fmt: skip
    fetched = {row.split()[1] for row in seen if "?" not in row}
    assert fetched == allowed


def test_two_servers_fetch_each_blob_once_into_one_cache(
    server: str, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(50):
        publish(store, tmp_path / str(i), f"m{i}", seed=i)
    with fault_proxy(server) as (url, seen):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        with (
            serving(store, tmp_path / "c") as (_, one),
            serving(store, tmp_path / "c") as (_, other),
        ):
            wait_until(lambda: ready(one) and ready(other), 60)
            check_answers(one, 50)
            check_answers(other, 50)
    fetched = [row for row in seen if row.startswith("GET") and "/blobs/" in row]
    assert len(fetched) == len(set(fetched)) == 51  # fifty graphs and one tokenizer
    check_blobs(tmp_path / "c")


def test_ten_kills_in_mid_download_leave_nothing_wrong(
    server: str, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(40):
        (tmp_path / str(i)).mkdir()
        (tmp_path / str(i) / "more").write_bytes(np.random.default_rng(i).bytes(2 * CHUNK_BYTES))
        publish(store, tmp_path / str(i), f"m{i}", seed=i)
    chance = random.Random(7)
    kill = threading.Event()
    countdown = [0]
    lock = threading.Lock()

    def interrupt(
        handler: BaseHTTPRequestHandler, status: int, headers: Headers, data: bytes
    ) -> bool:
        with lock:
            countdown[0] -= 1
            strike = countdown[0] == 0
        if strike:
            with suppress(OSError):  # a request of the server before, which was killed
                send(handler, status, headers, data[: chance.randrange(len(data) // 2, len(data))])
                handler.wfile.flush()
            time.sleep(0.1)  # for what was sent to be written
            kill.set()
            return True
        return kill.wait(5) if countdown[0] < 0 else False

    with fault_proxy(server, interrupt, 10**6) as (url, seen):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        for _ in range(10):
            countdown[0] = chance.randint(1, 3)
            kill.clear()
            with serving(store, tmp_path / "c") as (process, _):
                assert kill.wait(60)
                process.kill()
        countdown[0] = 10**6
        with serving(store, tmp_path / "c") as (_, here):
            wait_until(lambda: ready(here), 60)
            check_answers(here, 40)
    check_blobs(tmp_path / "c")
    assert any("bytes=" in row for row in seen)  # gone on with where a kill had left it
