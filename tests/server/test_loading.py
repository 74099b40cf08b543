"""Loading, readiness and repair of a real server (FAULTS 2, 4, 9)."""

import time
from pathlib import Path

import msgspec
import pytest

from packhorse.errors import StoreError
from packhorse.ids import blob_key
from packhorse.store.repository import Repository
from tests.onnx_models import publish
from tests.running import Running, running, wait_until

MODELS = ["a", "b", "c"]


def row(server: Running, model_id: str) -> dict[str, object]:
    rows = {row["id"]: row for row in server.http.get("/models").json()["models"]}
    return dict(rows[model_id])


def test_a_broken_model_is_quarantined_alone_and_heals_without_a_restart(tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    for name in MODELS:
        publish(store, tmp_path / name, name, broken=name == "b")
    with running(store, tmp_path / "c", MODELS, retry_seconds=0.2) as server:
        wait_until(lambda: row(server, "b")["state"] == "quarantined")
        for name in ("a", "c"):
            assert server.ask(name, "w1").status_code == 200
        response = server.ask("b", "w1")
        assert (response.status_code, response.json()["code"]) == (503, "quarantined")
        assert "cannot load model.onnx" in response.json()["error"]
        assert int(response.headers["retry-after"]) > 0
        assert server.http.get("/readyz").status_code == 503
        assert "b" in server.http.get("/readyz").json()["reason"]
        assert server.http.get("/livez").status_code == 200
        assert "packhorse_quarantined_models 1.0" in server.http.get("/metrics").text
        publish(store, tmp_path / "b", "b")  # repaired, under the same version
        wait_until(lambda: server.ask("b", "w1").status_code == 200)
        assert server.http.get("/readyz").status_code == 200
        assert row(server, "b")["reason"] == ""
        for name in ("a", "c"):
            assert server.ask(name, "w1").status_code == 200


@pytest.mark.parametrize("damage", ["blob missing", "blob changed", "record broken", "no record"])
def test_whatever_is_broken_in_the_store_ends_in_a_reason(damage: str, tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    for name in MODELS:
        artifact = publish(store, tmp_path / name, name, seed=ord(name))
        if name == "b":
            digest = next(f.sha256 for f in artifact.files if f.path == "model.onnx")
            blob = tmp_path / "s" / blob_key(digest)
            record = tmp_path / "s/models/b/v1/cpu-fp32/artifact.json"
            blob.chmod(0o644)
            if damage == "blob missing":
                blob.unlink()
            elif damage == "blob changed":
                blob.write_bytes(b"\1" + blob.read_bytes()[1:])
            elif damage == "record broken":
                record.write_text("{}")
            else:
                record.unlink()
    with running(store, tmp_path / "c", MODELS) as server:
        assert row(server, "b")["state"] == "quarantined"
        assert len(str(row(server, "b")["reason"])) > 20
        assert server.ask("b", "w1").status_code == 503
        for name in ("a", "c"):
            assert server.ask(name, "w1").status_code == 200


def test_an_empty_set_is_never_ready(tmp_path: Path) -> None:
    (tmp_path / "s").mkdir()
    with running(str(tmp_path / "s"), tmp_path / "c", [], wait=False) as server:
        for path in ("/readyz", "/ping", "/startupz"):
            assert server.http.get(path).status_code == 503
        assert "no model" in server.http.get("/readyz").json()["reason"]


def test_a_store_that_does_not_exist_is_never_ready_and_says_so(tmp_path: Path) -> None:
    with running(str(tmp_path / "none"), tmp_path / "c", ["a"]) as server:
        assert server.http.get("/readyz").status_code == 503
        assert "does not exist" in str(row(server, "a")["reason"])


def test_a_model_that_is_absent_is_named_and_keeps_the_server_unready(tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    publish(store, tmp_path / "a", "a")
    with running(store, tmp_path / "c", ["a", "gone"]) as server:
        ready = server.http.get("/readyz")
        assert ready.status_code == 503
        assert "gone" in ready.json()["reason"]
        assert server.ask("a", "w1").status_code == 200
    with running(store, tmp_path / "c", ["a", "gone"], readiness="quorum:0.5") as server:
        assert server.http.get("/readyz").status_code == 200


def test_it_is_not_ready_before_the_last_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = str(tmp_path / "s")
    for name in MODELS:
        publish(store, tmp_path / name, name)
    release: list[bool] = []
    read = Repository.artifact

    def slow(self: Repository, model_id: str, version: str, variant: str) -> object:
        if model_id == "c":
            wait_until(lambda: bool(release))
        return read(self, model_id, version, variant)

    monkeypatch.setattr(Repository, "artifact", slow)
    with running(store, tmp_path / "c", MODELS, wait=False) as server:
        wait_until(lambda: row(server, "b")["state"] == "available")
        assert server.http.get("/readyz").status_code == 503
        assert server.http.get("/startupz").json()["available"] == 2
        response = server.ask("c", "w1")
        assert (response.status_code, response.json()["code"]) == (503, "loading")
        assert server.http.get("/livez", timeout=1).status_code == 200
        release.append(True)
        wait_until(lambda: server.http.get("/readyz").status_code == 200)


def test_a_graph_that_wants_what_the_tokenizer_lacks_is_refused_at_load(tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    publish(store, tmp_path / "a", "a", inputs=("input_ids", "attention_mask", "pixels"))
    with running(store, tmp_path / "c", ["a"]) as server:
        assert "wants input 'pixels'" in str(row(server, "a")["reason"])


def test_labels_that_do_not_match_the_graph_are_refused_at_load(tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    artifact = publish(store, tmp_path / "a", "a", labels=["x", "y"])
    wrong = msgspec.structs.replace(artifact, labels=["x", "y", "z"])
    Repository.open(store).publish(wrong, tmp_path / "a")
    with running(store, tmp_path / "c", ["a"]) as server:
        assert "needs (batch, 3)" in str(row(server, "a")["reason"])


def test_a_budget_for_one_model_serves_two_by_turns(tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    for name in ("a", "b"):
        publish(store, tmp_path / name, name, private_bytes=1_000_000)
    with running(store, tmp_path / "c", ["a", "b"], memory_bytes=1_500_000) as server:
        assert server.http.get("/readyz").status_code == 200
        server.ask("b", "w1")  # whichever was loaded last: now a is not in memory
        for _ in range(3):
            for name in ("a", "b"):
                response = server.ask(name, "w1")
                assert response.status_code == 200
                assert "load;dur=" in response.headers["server-timing"]
                assert "load;dur=" not in server.ask(name, "w1").headers["server-timing"]
        assert server.engine.residency.resident_bytes == 1_000_000
        assert "packhorse_evictions_total" in server.http.get("/metrics").text


def test_a_model_that_can_never_fit_is_507_and_its_neighbour_serves(tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    publish(store, tmp_path / "a", "a", private_bytes=1_000)
    publish(store, tmp_path / "b", "b", private_bytes=10_000_000)
    with running(store, tmp_path / "c", ["a", "b"], memory_bytes=1_000_000) as server:
        response = server.ask("b", "w1")
        assert (response.status_code, response.json()["code"]) == (507, "does_not_fit")
        assert server.ask("a", "w1").status_code == 200


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    publish(store, tmp_path / "a", "a")
    (tmp_path / "c").write_text("a file")
    with running(store, tmp_path / "c", ["a"]) as server:
        assert "cannot write" in str(row(server, "a")["reason"])
        assert server.engine.registry.get("a").error.__class__ is StoreError


def test_a_model_damaged_in_the_cache_heals_from_the_store(tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    for name in ("a", "b"):
        publish(store, tmp_path / name, name, seed=ord(name), private_bytes=1_000_000)
    cache = tmp_path / "c"
    with running(store, cache, ["a", "b"], memory_bytes=1_500_000, retry_seconds=0.2) as server:
        server.ask("b", "w1")  # a is not in memory now
        (graph,) = tmp_path.glob("c/models/a/v1/cpu-fp32/*/model.onnx")
        graph.unlink()
        response = server.ask("a", "w1")
        assert (response.status_code, response.json()["code"]) == (503, "quarantined")
        assert str(tmp_path) not in response.text
        wait_until(lambda: server.ask("a", "w1").status_code == 200)


def test_however_often_a_model_failed_it_is_tried_again_at_most_every_five_minutes(
    tmp_path: Path,
) -> None:
    store = str(tmp_path / "s")
    publish(store, tmp_path / "a", "a", broken=True)
    with running(store, tmp_path / "c", ["a"], retry_seconds=10.0) as server:
        entry = server.engine.registry.get("a")
        entry.attempts = 5000
        entry.retry_at = 0.0
        wait_until(lambda: entry.attempts == 5001)
        assert 200 < entry.retry_at - time.monotonic() <= 300
