"""Every option does what it says, seen from the server's side."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trustme

from packhorse_loadtest.client import Address, Client, Request
from packhorse_loadtest.connection import Answer
from packhorse_loadtest.job import Transport
from tests.loadtest.stub import RunningStub, stub
from tests.loadtest.test_faults import deployed, measured, write_trace
from tests.packhorse.test_cli import run

pytestmark = pytest.mark.integration


def test_seq_asks_every_model_once_in_turn(tmp_path: Path) -> None:
    with stub("slow-1", "fast", "team/model") as server:
        report = measured(server, tmp_path, "seq")
        assert [row["model"] for row in server.seen()] == ["slow-1", "fast", "team/model"]
        assert len({row["connection"] for row in server.seen()}) == 1
    assert report["requests"] == {"sent": 3, "ok": 3, "unfinished": 0}
    assert (report["models"], report["models_per_instance"], report["loop"]) == (3, 3, "closed")
    assert (report["usd_per_million"], report["target_rps"]) == (None, None)


def test_rnd_sends_at_its_rate_with_any_number_of_workers(tmp_path: Path) -> None:
    seen = []
    for workers in ("1", "2"):
        with stub("a", "b", "c") as server:
            arguments = ("rnd", "--rate", "100", "--duration", "2s", "--workers", workers)
            report = measured(server, tmp_path, *arguments)
            rows = sorted(server.seen(), key=lambda row: row["at"])
        assert report["target_rps"] == 100
        assert report["tester"]["workers"] == int(workers)
        assert report["sent_rps"] == len(rows) / 2 == pytest.approx(100, rel=0.25)
        seen.append(Counter((row["model"], row["body"]["inputs"]) for row in rows))
    assert seen[0] == seen[1]
    assert len({model for model, _ in seen[0]}) == 3
    assert len({text for _, text in seen[0]}) == 6


def test_another_seed_asks_otherwise(tmp_path: Path) -> None:
    orders = []
    for seed in ("1", "1", "2"):
        with stub("a", "b", "c") as server:
            measured(server, tmp_path, "bmk", "--rate", "40", "--duration", "1s", "--seed", seed)
            orders.append([row["model"] for row in server.seen()])
    assert orders[0] == orders[1] != orders[2]


def test_a_constant_rate_leaves_equal_gaps(tmp_path: Path) -> None:
    with stub("a") as server:
        arguments = ("--rate", "20", "--duration", "2s", "--arrivals", "constant")
        measured(server, tmp_path, "bmk", *arguments)
        times = [row["at"] for row in server.seen()]
    gaps = sorted(after - before for before, after in itertools.pairwise(times))
    assert len(times) == 40
    assert gaps[4] > 0.04
    assert gaps[-5] < 0.06


def test_users_ask_wait_and_think(tmp_path: Path) -> None:
    with stub("slow-50") as server:
        arguments = ("--concurrency", "4", "--think", "150ms", "--duration", "2s")
        report = measured(server, tmp_path, "bmk", *arguments, "--workers", "2")
        rows = server.seen()
    assert len({row["connection"] for row in rows}) == 4
    assert report["requests"]["sent"] == len(rows) == pytest.approx(40, abs=5)  # 4 x 2 s / 0.2 s
    assert report["latency_ms"]["p50"] == pytest.approx(50, rel=0.1)
    assert report["loop"] == "closed"


def test_there_are_no_more_workers_than_users(tmp_path: Path) -> None:
    with stub("a") as server:
        arguments = ("--concurrency", "1", "--workers", "3", "--duration", "300ms")
        assert measured(server, tmp_path, "bmk", *arguments)["tester"]["workers"] == 1


def test_connections_are_kept_or_not(tmp_path: Path) -> None:
    for flag, kept in (("--reuse", True), ("--no-reuse", False)):
        with stub("a") as server:
            measured(server, tmp_path, "bmk", "--concurrency", "2", "--duration", "500ms", flag)
            rows = server.seen()
        opened = len({row["connection"] for row in rows})
        assert opened == (2 if kept else len(rows))
        assert len(rows) > 20
        assert (rows[0]["headers"].get("connection") == "close") != kept


def test_requests_wait_when_all_connections_are_busy(tmp_path: Path) -> None:
    with stub("slow-100") as server:
        arguments = ("--rate", "40", "--arrivals", "constant", "--duration", "1s")
        report = measured(server, tmp_path, "bmk", *arguments, "--connections", "2")
        assert len({row["connection"] for row in server.seen()}) == 2
    assert report["tester"]["waited"] > 30
    assert "waited for one of 2 connections" in report["tester"]["warnings"][-1]
    assert report["latency_ms"]["max"] > 800  # 40 requests, 20 a second


def test_the_warm_up_is_sent_and_not_counted(tmp_path: Path) -> None:
    with stub("once-900") as server:
        arguments = ("--rate", "40", "--arrivals", "constant", "--duration", "1s")
        report = measured(server, tmp_path, "bmk", *arguments, "--warmup", "1s")
        assert len(server.seen()) == 80
    assert report["requests"] == {"sent": 40, "ok": 40, "unfinished": 0}
    assert report["latency_ms"]["max"] < 400


def test_the_drain_and_the_timeout_bound_a_run(tmp_path: Path) -> None:
    for flags, most_s, outcome in (
        (("--drain", "300ms"), 3, (0, 20)), (("--timeout", "200ms"), 4, (20, 0)),
    ):  # fmt: skip
        with stub("never") as server:
            start = time.monotonic()
            arguments = ("--rate", "20", "--arrivals", "constant", "--duration", "1s", *flags)
            report = measured(server, tmp_path, "bmk", *arguments, code=1)
            assert time.monotonic() - start < most_s
        timeouts = report["errors"].get("timeout", 0)
        assert (timeouts, report["requests"]["unfinished"]) == outcome


def test_models_are_chosen_as_asked(tmp_path: Path) -> None:
    weights = tmp_path / "w.csv"
    weights.write_text("model,weight\na,9\nb,1\n")
    for choice, share in ((f"weighted:{weights}", 0.9), ("zipf:2", 0.8), ("uniform", 0.5)):
        with stub("a", "b") as server:
            arguments = ("--concurrency", "2", "--duration", "500ms", "--models", choice)
            measured(server, tmp_path, "bmk", *arguments)
            counts = Counter(row["model"] for row in server.seen())
        assert max(counts.values()) / counts.total() == pytest.approx(share, abs=0.1)


def test_texts_come_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "texts.txt").write_text("grüß dich\n\n second \n")
    with stub("a") as server:
        arguments = ("--concurrency", "1", "--duration", "300ms", "--texts", "texts.txt")
        measured(server, tmp_path, "bmk", *arguments)
        assert {row["body"]["inputs"] for row in server.seen()} == {"grüß dich", "second"}


def test_tokens_are_words_where_no_tokenizer_is_at_hand(tmp_path: Path) -> None:
    with stub("a") as server:
        arguments = ("--concurrency", "1", "--duration", "300ms", "--tokens", "5-7")
        report = measured(server, tmp_path, "bmk", *arguments)
        lengths = {len(row["body"]["inputs"].split()) for row in server.seen()}
    assert lengths == {5, 6, 7}
    assert "counts words, as the tokenizer of a is not at hand" in report["tester"]["warnings"][0]


def test_the_open_inference_protocol(tmp_path: Path) -> None:
    def inputs(*rows: tuple[str, str, list[int]]) -> list[dict[str, Any]]:
        return [dict(zip(("name", "datatype", "shape"), row, strict=True)) for row in rows]

    question = inputs(("question", "BYTES", [-1]), ("context", "BYTES", [-1]))
    numbers = inputs(("x", "FP32", [-1, 3]), ("n", "INT64", [2]), ("b", "BOOL", [1]))
    with stub(
        {"id": "team/qa", "inputs": question, "task": "question-answering"},
        {"id": "trees", "inputs": numbers, "task": "tensor"},
    ) as server:
        measured(server, tmp_path, "seq", "--protocol", "oip", "--tokens", "4")
        asked, tensors = server.seen()
        measured(server, tmp_path, "bmk", "--concurrency", "1", "--duration", "100ms")
        native = next(row for row in server.seen()[2:] if row["model"] == "trees")
    assert asked["path"] == "/v2/models/team/qa/infer"
    rows = asked["body"]["inputs"]
    assert [(r["name"], r["datatype"], r["shape"], len(r["data"])) for r in rows] == [
        ("question", "BYTES", [1], 1), ("context", "BYTES", [1], 1),
    ]  # fmt: skip
    assert tensors["path"] == "/v2/models/trees/infer"
    rows = tensors["body"]["inputs"]
    assert [(r["name"], r["shape"], len(r["data"])) for r in rows] == [
        ("x", [1, 3], 3), ("n", [2], 2), ("b", [1], 1),
    ]  # fmt: skip
    assert native["path"] == "/predictions/trees"
    assert native["body"] == tensors["body"]


def test_a_tensor_model_that_nobody_describes_is_refused(tmp_path: Path) -> None:
    with stub({"id": "trees", "inputs": None, "task": "tensor"}) as server:
        done = run("test", "seq", "--url", server.url, cwd=tmp_path)
    assert done.returncode == 2
    assert "cannot find out which inputs trees takes" in done.stderr


def test_certificates_are_checked_unless_told_otherwise(tmp_path: Path) -> None:
    trustme.CA().issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(
        tmp_path / "cert.pem"
    )
    with stub("a", certificate=tmp_path / "cert.pem") as server:
        done = run("test", "seq", "--url", server.url, cwd=tmp_path)
        assert done.returncode == 2
        assert "certificate verify failed" in done.stderr
        assert measured(server, tmp_path, "seq", "--insecure")["requests"]["ok"] == 1
    with stub("a", certificate=tmp_path / "cert.pem") as server:
        deployed(tmp_path, {"a": server.url})
        done = run("test", "seq", "--json", "-", cwd=tmp_path)
        assert json.loads(done.stdout)["errors"] == {"tls": 1}


def test_names_are_resolved_once_or_for_each_connection() -> None:
    async def lookups(server: RunningStub, fresh: bool) -> int:
        count = 0

        async def resolve(host: str, port: int) -> list[Any]:
            nonlocal count
            count += 1
            loop = asyncio.get_running_loop()
            return await loop.getaddrinfo("127.0.0.1", port, type=socket.SOCK_STREAM)

        transport = Transport(reuse=False, fresh_names=fresh)
        address = Address(server.url.replace("127.0.0.1", "some.name"), transport)
        client = Client(address, transport, 10, resolve)
        for _ in range(3):
            over = asyncio.Event()
            data = address.head(server.url + "/predictions/a") + b"2\r\n\r\n{}"

            def done(request: Request, answer: Answer, over: asyncio.Event = over) -> None:
                assert answer.error is None
                over.set()

            client.submit(Request(data, time.monotonic(), done))
            await asyncio.wait_for(over.wait(), 5)
        client.close()
        return count

    with stub("a") as server:
        assert asyncio.run(lookups(server, fresh=False)) == 1
        assert asyncio.run(lookups(server, fresh=True)) == 3
        assert {row["headers"]["host"].split(":")[0] for row in server.seen()} == {"some.name"}


def test_headers_go_with_every_request(tmp_path: Path) -> None:
    with stub("a", "b") as server:
        measured(server, tmp_path, "seq", "-H", "X-Api-Key: s3cret", "--header", "X-Team: blue")
        for row in server.seen():
            assert (row["headers"]["x-api-key"], row["headers"]["x-team"]) == ("s3cret", "blue")


def test_the_dns_option_reaches_the_client(tmp_path: Path) -> None:
    with stub("a") as server:
        for way in ("cached", "fresh"):
            url = server.url.replace("127.0.0.1", "localhost")
            named = RunningStub(url, server.process)
            arguments = ("--concurrency", "1", "--duration", "200ms", "--no-reuse", "--dns", way)
            assert measured(named, tmp_path, "bmk", *arguments)["requests"]["ok"] > 5


def test_cold_answers_stand_apart_and_the_servers_own_figures_beside(tmp_path: Path) -> None:
    with stub("cold-2") as server:
        trace = write_trace(tmp_path, [(0.05 * n, "cold-2") for n in range(10)])
        report = measured(server, tmp_path, "bmk", "--models", f"trace:{trace}")
    assert report["cold"]["requests"] == 2
    assert report["server"] == {
        "queue_ms": {"requests": 10, "mean": pytest.approx(2.0), "p90": 2.5},
        "inference_ms": {"requests": 10, "mean": pytest.approx(20.0), "p90": 25.0},
    }


@pytest.mark.parametrize(
    ("conditions", "code"),
    [
        ((), 1), (("p90>10s",), 1), (("errors>20%",), 0), (("errors>10",), 0),
        (("errors>10", "p50>1us"), 1), (("errors>0",), 1),
    ],
)  # fmt: skip
def test_what_fails_a_run(conditions: tuple[str, ...], code: int, tmp_path: Path) -> None:
    with stub("fifth") as server:
        trace = write_trace(tmp_path, [(0.01 * n, "fifth") for n in range(10)])
        flags = [part for text in conditions for part in ("--fail-if", text)]
        arguments = ("bmk", "--models", f"trace:{trace}", *flags)
        measured(server, tmp_path, *arguments, code=code)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["bmk", "--rate", "0"], "--rate 0.0 is not a positive number"),
        (["bmk", "--rate", "9e9"], "no tester with 1 worker(s) sends more than 100000"),
        (["bmk", "--workers", "0"], "--workers 0 is not a number from 1 on"),
        (["bmk", "--concurrency", "0"], "--concurrency 0 is not a number from 1 on"),
        (["bmk", "--duration", "0s"], "--duration must be above 0"),
        (["bmk", "--duration", "soon"], "'soon' is not a time"),
        (["bmk", "-H", "key=1"], "--header 'key=1': write 'Name: value'"),
        (["bmk", "-H", "key: 1\r\nX: y"], "on one line"),
        (["bmk", "--tokens", "9-5"], "--tokens '9-5': write a number or a range"),
        (["bmk", "--tokens", "5", "--texts", "x"], "give one"),
        (["bmk", "--texts", "x.txt"], "texts x.txt cannot be read"),
        (["bmk", "--models", "zipf"], "'' is not a number"),
        (["seq", "--fail-if", "p90>1"], "give the unit, such as p90>1ms"),
        (["seq", "--url", "127.0.0.1:80"], "is not a server: write it as http://"),
        (["seq", "--url", "http://127.0.0.1:1"], "no server answers at http://127.0.0.1:1/models"),
        (["seq", "--plan", "none.yaml"], "none.yaml"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], reason: str, tmp_path: Path) -> None:
    with stub("a") as server:
        url = [] if "--url" in arguments else ["--url", server.url]
        done = run("test", *arguments, *url, cwd=tmp_path)
        assert server.seen() == []
    assert done.returncode == 2
    assert reason in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_the_report_is_a_page_too(tmp_path: Path) -> None:
    with stub("slow-20") as server:
        arguments = ("--concurrency", "2", "--duration", "500ms", "--html", "report.html")
        report = measured(server, tmp_path, "bmk", *arguments)
    page = (tmp_path / "report.html").read_text()
    assert f"{report['requests']['sent']} sent" in page
    assert page.count("<polyline") == 1
    assert "http://" not in page
    with stub("status-500") as server:
        arguments = ("--concurrency", "1", "--duration", "100ms", "--html", "report.html")
        measured(server, tmp_path, "bmk", *arguments, code=1)
    assert "No request was answered well" in (tmp_path / "report.html").read_text()


def test_no_models_and_no_deployment(tmp_path: Path) -> None:
    with stub() as server:
        done = run("test", "seq", "--url", server.url, cwd=tmp_path)
    assert (done.returncode, "no model is served there" in done.stderr) == (2, True)
    done = run("test", "seq", cwd=tmp_path)
    assert (done.returncode, "run packhorse deploy up" in done.stderr) == (2, True)
