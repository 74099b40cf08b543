"""What is published anew takes over in a server that runs."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packhorse.store.repository import Repository
from packhorse.store.upkeep import remove_artifacts
from packhorse_server.residency import Residency
from tests.onnx_models import publish, vectors
from tests.running import Running, running, wait_until

SOON: dict[str, Any] = {"refresh_seconds": 0.1, "retry_seconds": 0.1}


def answered_by(server: Running, model_id: str, seed: int) -> bool:
    """Whether the answer is that of the model made with a seed."""
    response = server.ask(model_id, "w1")
    assert response.status_code == 200, response.text
    expected = vectors(4, seed)[4 + 1] / 3  # over three tokens, of which two are special
    return bool(np.allclose(response.json(), expected, atol=1e-6))


def row(server: Running, model_id: str) -> dict[str, Any]:
    rows = {row["id"]: row for row in server.http.get("/models").json()["models"]}
    return dict(rows[model_id])


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_a_newer_upload_takes_over_without_a_failed_request(version: str, tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    publish(store, tmp_path / "m", "a", seed=1)
    with running(store, tmp_path / "c", ["a"], **SOON) as server:
        assert answered_by(server, "a", 1)
        statuses: set[int] = set()
        stop = threading.Event()

        def ask_on() -> None:
            while not stop.is_set():
                statuses.add(server.ask("a", "w1").status_code)

        asking = threading.Thread(target=ask_on)
        asking.start()
        publish(store, tmp_path / "m", "a", seed=2, version=version)
        try:
            wait_until(lambda: answered_by(server, "a", 2))
        finally:
            stop.set()
            asking.join()
        assert statuses == {200}
        assert row(server, "a") == {**row(server, "a"), "version": version, "reason": ""}
        wait_until(lambda: server.engine.residency.resident_bytes == 1_000_000)  # the old one's go
        metrics = server.http.get("/metrics").text
        count = next(line for line in metrics.splitlines() if "seconds_count{model=" in line)
        assert float(count.split()[1]) > 3  # counted on from the old one


def test_a_plan_that_names_the_version_keeps_it(tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    publish(store, tmp_path / "m", "a", seed=1)
    publish(store, tmp_path / "n", "b", seed=1)
    with running(store, tmp_path / "c", ["a", "b"], **SOON) as server:
        server.engine.registry.get("a").version = "v1"
        publish(store, tmp_path / "m", "a", seed=2, version="v2")
        publish(store, tmp_path / "n", "b", seed=2, version="v2")
        wait_until(lambda: answered_by(server, "b", 2))
        assert answered_by(server, "a", 1)


def test_a_broken_newer_upload_leaves_the_old_one_serving(tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    publish(store, tmp_path / "m", "a", seed=1)
    with running(store, tmp_path / "c", ["a"], **SOON) as server:
        publish(store, tmp_path / "m", "a", broken=True, version="v2")
        wait_until(lambda: "cannot load model.onnx" in row(server, "a")["reason"])
        assert row(server, "a")["state"] == "available"
        assert server.http.get("/readyz").status_code == 200
        assert answered_by(server, "a", 1)
        publish(store, tmp_path / "m", "a", seed=3, version="v3")
        wait_until(lambda: answered_by(server, "a", 3))
        assert row(server, "a")["reason"] == ""


def test_a_repaired_upload_does_not_wait_for_the_broken_ones_pause(tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    publish(store, tmp_path / "m", "a", seed=1)
    with running(store, tmp_path / "c", ["a"], **SOON) as server:
        publish(store, tmp_path / "m", "a", broken=True)
        entry = server.engine.registry.get("a")
        wait_until(lambda: entry.attempts > 0)
        entry.retry_at = float("inf")
        publish(store, tmp_path / "m", "a", seed=2)
        wait_until(lambda: answered_by(server, "a", 2))


def test_a_model_that_is_removed_from_the_store_is_served_on(tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    artifact = publish(store, tmp_path / "m", "a", seed=1)
    with running(store, tmp_path / "c", ["a"], **SOON) as server:
        remove_artifacts(Repository.open(store), [artifact.prefix])
        wait_until(lambda: "not in store" in row(server, "a")["reason"])
        assert answered_by(server, "a", 1)


def test_a_pinned_model_gives_way_to_its_successor(tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    publish(store, tmp_path / "m", "a", seed=1)
    with running(store, tmp_path / "c", ["a"], memory_bytes=1_500_000, **SOON) as server:
        server.engine.registry.get("a").pinned = True
        publish(store, tmp_path / "m", "a", seed=2)
        wait_until(lambda: row(server, "a")["state"] == "available")
        wait_until(lambda: answered_by(server, "a", 2))


def test_what_is_replaced_ends_with_its_last_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evicted: list[int] = []
    plain = Residency.evict

    async def evict(self: Residency, entry: Any) -> None:
        evicted.append(entry.in_flight)
        await plain(self, entry)

    monkeypatch.setattr(Residency, "evict", evict)
    store = str(tmp_path / "s")
    publish(store, tmp_path / "m", "a", seed=1)
    with running(store, tmp_path / "c", ["a"], **SOON) as server:
        old = server.engine.registry.get("a")
        old.in_flight += 1  # a request that takes its time
        publish(store, tmp_path / "m", "a", seed=2)
        wait_until(lambda: answered_by(server, "a", 2))
        assert old.model is not None
        old.in_flight -= 1
        wait_until(lambda: old.model is None)
    assert evicted == [0]


def test_without_refresh_the_store_is_looked_at_when_asked(tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    publish(store, tmp_path / "m", "a", seed=1)
    with running(store, tmp_path / "c", ["a"], refresh_seconds=0) as server:
        publish(store, tmp_path / "m", "a", seed=2, version="v2")
        server.engine.registry.get("a").tags = {}
        assert answered_by(server, "a", 1)
        server.loop.call_soon_threadsafe(server.engine.retry, "a")
        wait_until(lambda: answered_by(server, "a", 2))


def test_progress_counts_every_blob_once(tmp_path: Path) -> None:
    store = str(tmp_path / "s")
    blobs = {}
    for name in ("a", "b"):
        artifact = publish(store, tmp_path / name, name, seed=ord(name))
        blobs.update({file.sha256: file.bytes for file in artifact.files})
    with running(store, tmp_path / "c", ["a", "b"]) as server:
        progress = server.http.get("/startupz").json()
    assert progress["pulled_bytes"] == progress["total_bytes"] == sum(blobs.values())
    assert (progress["available"], progress["eta_seconds"]) == (2, 0.0)
