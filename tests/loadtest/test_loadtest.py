"""The load tester against a real server."""

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from packhorse_loadtest.recorder import Recorder
from packhorse_loadtest.scenarios import run_rnd
from packhorse_loadtest.targets import Fleet, Target, predict_url
from packhorse_server.tasks import parse_inputs, task_for
from tests.onnx_models import publish
from tests.packhorse.test_cli import run
from tests.running import Running, running

FLEET = Fleet([Target("a", "http://x/a"), Target("b", "http://x/b")], 1, 3.6)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("loadtest")
    store = str(folder / "s")
    for name in ("a", "b", "org/c"):
        publish(store, folder / name, name)
    with running(store, folder / "c", ["a", "b", "org/c"]) as started:
        yield started


def served(server: Running, model_id: str) -> int:
    return server.engine.registry.get(model_id).requests


def test_seq_asks_every_model_once(server: Running, tmp_path: Path) -> None:
    before = [served(server, name) for name in ("a", "b", "org/c")]
    done = run("test", "seq", "--url", server.url, "--json", "-", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [served(server, name) for name in ("a", "b", "org/c")] == [n + 1 for n in before]
    assert report["requests"] == {"sent": 3, "ok": 3, "unfinished": 0}
    assert (report["models"], report["errors"]) == (3, {})
    latency = report["latency_ms"]
    assert 0 < latency["min"] <= latency["p50"] <= latency["p99"] <= latency["max"]


def test_rnd_keeps_its_rate_and_its_seed(server: Running, tmp_path: Path) -> None:
    arguments = ("test", "rnd", "--url", server.url, "--rate", "50", "--duration", "2s")
    reports = []
    for _ in range(2):
        done = run(*arguments, "--json", "r.json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        reports.append(json.loads((tmp_path / "r.json").read_text()))
    one, other = reports
    assert one["requests"]["sent"] == other["requests"]["sent"]
    assert 60 < one["requests"]["sent"] < 150
    assert one["target_rps"] == 50
    assert one["requests"]["ok"] == one["requests"]["sent"]


def test_in_rnd_latency_counts_from_when_a_request_should_have_been_sent(server: Running) -> None:
    stalls = [0.5]

    def advance(seconds: float) -> None:
        if stalls:
            time.sleep(stalls.pop())  # the tester itself stands still: requests leave late

    fleet = Fleet([Target("a", predict_url(server.url, "a"))], 1, None)
    recorder, seconds = asyncio.run(run_rnd(fleet, ["w1"], 5.0, 40.0, 1.5, 0, advance))
    report = recorder.report(fleet, seconds, 40.0)
    assert report.requests.ok == report.requests.sent
    assert report.latency_ms.max is not None
    assert report.latency_ms.max > 300


def test_failures_are_counted_by_code_and_can_fail_the_run(server: Running, tmp_path: Path) -> None:
    (tmp_path / "texts").write_text("w1\n")
    arguments = ("test", "seq", "--url", server.url, "--texts", "texts")
    assert run(*arguments, "--fail-if", "errors>0", cwd=tmp_path).returncode == 0
    done = run(*arguments, "--fail-if", "p90>0.001ms", cwd=tmp_path)
    assert (done.returncode, "p90 is" in done.stderr) == (1, True)
    server.engine.settings.__dict__["max_body_bytes"] = 1
    try:
        done = run(*arguments, "--json", "r.json", cwd=tmp_path)
    finally:
        server.engine.settings.__dict__["max_body_bytes"] = 2_000_000
    report = json.loads((tmp_path / "r.json").read_text())
    assert (done.returncode, report["errors"]) == (1, {"body_too_large": 3})


def test_a_tester_that_falls_behind_says_so(server: Running, tmp_path: Path) -> None:
    arguments = ("--url", server.url, "--rate", "20000", "--duration", "200ms")
    done = run("test", "rnd", *arguments, cwd=tmp_path)
    assert "warning: the tester itself fell" in done.stderr


def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = run("test", "seq", "--url", "http://127.0.0.1:9", cwd=tmp_path)
    assert (done.returncode, "does not list its models" in done.stderr) == (1, True)


def test_percentiles_come_from_all_requests_with_cold_ones_apart() -> None:
    recorder = Recorder()
    for milliseconds in range(1, 101):
        recorder.sent += 1
        recorder.answered(milliseconds / 1000, cold=milliseconds > 98)
    recorder.sent += 3
    recorder.failed("queue_full")
    report = recorder.report(FLEET, 10.0, None)
    assert report.latency_ms.p50 == pytest.approx(50, rel=0.01)
    assert report.latency_ms.p90 == pytest.approx(90, rel=0.01)
    assert report.latency_ms.min == pytest.approx(1, rel=0.01)
    assert report.cold.requests == 2
    assert report.cold.latency_ms.min == pytest.approx(99, rel=0.01)
    assert (report.requests.unfinished, report.errors) == (2, {"queue_full": 1})
    assert report.throughput_rps == 10
    assert report.usd_per_million == pytest.approx(100)  # $3.6/h at 10/s
    assert report.models_per_instance == 2


def test_a_run_without_answers_has_no_latency_and_no_price() -> None:
    report = Recorder().report(FLEET, 0.0, None)
    assert (report.latency_ms.p50, report.usd_per_million, report.throughput_rps) == (None, None, 0)


@pytest.mark.parametrize(
    "task",
    ["text-classification", "token-classification", "question-answering", "text-ranking",
     "feature-extraction"],
)  # fmt: skip
def test_every_task_is_asked_for_what_it_takes(task: str) -> None:
    inputs = Target("a", "http://x/a", task).inputs("where is it")
    groups, many = parse_inputs(inputs, task_for(task, ["O"]), 9)
    assert (len(groups), many) == (1, False)
