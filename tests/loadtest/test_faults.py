"""Servers that misbehave are counted by what they did, and every run ends on time."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from packhorse.errors import InvalidInput
from packhorse_loadtest.job import Asked, Job, Load, Transport
from packhorse_loadtest.runner import WorkerLost, run_load
from tests.loadtest.stub import RunningStub, stub
from tests.packhorse.test_cli import run

pytestmark = pytest.mark.integration


def measured(
    server: RunningStub, folder: Path, *arguments: str, code: int | None = 0
) -> dict[str, Any]:
    """Run `packhorse test` on a server; return its report."""
    done = run("test", *arguments, "--url", server.url, "--json", "report.json", cwd=folder)
    assert code is None or done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    latency = report["latency_ms"]
    values = [latency[name] for name in ("min", "p50", "p90", "p95", "p99", "max")]
    if report["requests"]["ok"]:
        assert values == sorted(values)
    requests = report["requests"]
    failures = sum(report["errors"].values())
    assert requests["sent"] == requests["ok"] + failures + requests["unfinished"]
    return report


@pytest.mark.parametrize(
    ("model", "errors"),
    [
        ("never", {"timeout": 3}),
        ("reset", {"connection_reset": 3}),
        ("close", {"connection_closed": 3}),
        ("garbage", {"bad_response": 3}),
        ("half", {"connection_closed": 3}),
        ("status-503", {"http_503": 3}),
        ("status-302", {"http_302": 3}),
        ("fifth", {"queue_full": 3}),
    ],
)
def test_each_kind_of_failure_is_counted_as_what_it_is(
    model: str, errors: dict[str, int], tmp_path: Path
) -> None:
    order = [model] * 3 if model != "fifth" else ["fifth"] * 15
    with stub(model) as server:
        trace = write_trace(tmp_path, [(0.01 * n, name) for n, name in enumerate(order)])
        start = time.monotonic()
        report = measured(
            server, tmp_path, "bmk", "--models", f"trace:{trace}", "--timeout", "500ms", code=1
        )
        assert time.monotonic() - start < 8
    assert report["errors"] == errors
    assert report["requests"]["unfinished"] == 0
    assert report["requests"]["ok"] == len(order) - 3


@pytest.mark.parametrize("model", ["continue", "unsized", "chunked"])
def test_unusual_but_lawful_answers_are_successes(model: str, tmp_path: Path) -> None:
    with stub(model) as server:
        report = measured(server, tmp_path, "bmk", "--concurrency", "2", "--duration", "500ms")
    assert report["requests"]["ok"] > 20
    assert report["errors"] == {}


def test_refusing_servers_and_unknown_hosts(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    deployed(tmp_path, {"a": f"http://127.0.0.1:{port}", "b": "http://nowhere.invalid:80"})
    done = run("test", "seq", "--json", "-", cwd=tmp_path)
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["errors"] == {"connection_refused": 1, "name_not_resolved": 1}
    assert "not one request was answered well" in done.stderr


def test_known_latencies_are_reported_within_one_percent(tmp_path: Path) -> None:
    order = ["slow-400"] * 55 + ["slow-800"] * 40 + ["slow-1200"] * 5
    rows = [(0.01 * n, order[n * 37 % 100]) for n in range(100)]
    with stub("slow-400", "slow-800", "slow-1200") as server:
        trace = write_trace(tmp_path, rows)
        report = measured(server, tmp_path, "bmk", "--models", f"trace:{trace}")
    latency = report["latency_ms"]
    for name, known in (("min", 400), ("p50", 400), ("p90", 800), ("p99", 1200), ("max", 1200)):
        assert latency[name] == pytest.approx(known, rel=0.01), name
    assert report["requests"] == {"sent": 100, "ok": 100, "unfinished": 0}


def test_instant_failures_do_not_make_the_successes_look_fast(tmp_path: Path) -> None:
    with stub("fifth", "slow-300") as server:
        rows = [(0.02 * n, "fifth" if n % 2 else "slow-300") for n in range(40)]
        trace = write_trace(tmp_path, rows)
        report = measured(server, tmp_path, "bmk", "--models", f"trace:{trace}", code=1)
    assert report["errors"]["queue_full"] in range(3, 10)
    assert report["latency_ms"]["p90"] == pytest.approx(300, rel=0.03)


def test_an_answer_that_is_outstanding_at_the_end_is_counted(tmp_path: Path) -> None:
    with stub("last-10") as server:
        start = time.monotonic()
        trace = write_trace(tmp_path, [(0.01 * n, "last-10") for n in range(10)])
        report = measured(
            server, tmp_path, "bmk", "--models", f"trace:{trace}", "--drain", "500ms", code=1
        )
        assert time.monotonic() - start < 5
    assert report["requests"] == {"sent": 10, "ok": 9, "unfinished": 1}


def test_a_server_that_freezes_shows_in_the_requests_that_it_kept_waiting(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "packhorse", "test", "bmk", "--rate", "50", "--duration",
               "20s", "--arrivals", "constant", "--json", "report.json"]  # fmt: skip
    with stub("slow-10") as server:
        process = subprocess.Popen([*command, "--url", server.url], cwd=tmp_path)
        time.sleep(8)
        server.process.send_signal(signal.SIGSTOP)
        time.sleep(5)
        server.process.send_signal(signal.SIGCONT)
        assert process.wait(30) == 0
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["requests"] == {"sent": 1000, "ok": 1000, "unfinished": 0}
    assert (report["target_rps"], report["loop"]) == (50, "open")
    assert report["sent_rps"] == 50
    latency = report["latency_ms"]
    # 250 of 1,000 requests wait, evenly, for up to 5 s: every tenth for more than 3 s.
    assert latency["p50"] < 100
    assert 2600 < latency["p90"] < 3400
    assert 4000 < latency["p95"] < 4400
    assert 4800 < latency["max"] < 5300
    assert report["tester"]["warnings"] == []


def test_a_rate_that_the_tester_cannot_reach_is_refused() -> None:
    load = Load("open", 0, rate_rps=5e6)
    job = Job(load, Transport(connections=1), [Asked("http://127.0.0.1:9/", 0)], [["{}"]], 0, 20, 1)
    with pytest.raises(InvalidInput, match=r"cannot send 5e\+06 requests a second: it fell"):
        run_load(job, 1)


def test_a_worker_that_dies_is_named() -> None:
    load = Load("closed", 0, think_s=0.05)
    job = Job(load, Transport(), [Asked("http://127.0.0.1:9/", 0)], [["{}"]], 0, 20, 1)
    before = children()

    def kill(ticks: object) -> None:
        for child in children() - before:
            os.kill(child, signal.SIGKILL)

    with pytest.raises(WorkerLost, match="ended early"):
        run_load(job, 1, kill)
    assert children() == before


def test_the_user_ends_a_run_with_a_report(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "packhorse", "test", "bmk", "--rate", "40", "--workers", "2",
               "--duration", "60s", "--json", "report.json"]  # fmt: skip
    with stub("slow-10") as server:
        process = subprocess.Popen(
            [*command, "--url", server.url], cwd=tmp_path, stdout=subprocess.PIPE, text=True
        )
        while len(server.seen()) < 60:
            time.sleep(0.1)
        start = time.monotonic()
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=10)
        assert time.monotonic() - start < 3
    assert process.returncode == 0
    assert "(interrupted)" in out
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["interrupted"]
    assert report["requests"]["sent"] == report["requests"]["ok"] >= 60
    assert report["throughput_rps"] == pytest.approx(40, rel=0.4)


def children() -> set[int]:
    """Processes that this one has started."""
    listed = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return {int(word) for word in listed.split()}


def write_trace(folder: Path, rows: Sequence[tuple[float, str]]) -> Path:
    file = folder / "trace.csv"
    file.write_text("seconds,model\n" + "".join(f"{at},{name}\n" for at, name in rows))
    return file


def deployed(folder: Path, servers: dict[str, str]) -> None:
    """Write a deployment of one model for each server."""
    rows = {
        name: {"url": url, "management_url": None, "models": [name], "pid": 1}
        for name, url in servers.items()
    }
    (folder / ".packhorse").mkdir()
    record = {"schema": 1, "runtime": "process", "router_url": None, "servers": rows}
    (folder / ".packhorse/deployment.json").write_text(json.dumps(record))
