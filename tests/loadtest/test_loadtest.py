"""The load tester against the real server, its store and its tokenizers."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from packhorse_loadtest.bodies import native_inputs
from packhorse_loadtest.texts import make_texts
from packhorse_server.tasks import parse_inputs, task_for
from tests.onnx_models import publish
from tests.packhorse.test_cli import run
from tests.running import Running, running


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("loadtest")
    for name in ("a", "b", "org/c"):
        publish(str(folder / "s"), folder / name, name)
    return folder / "s"


@pytest.fixture(scope="module")
def server(store: Path) -> Iterator[Running]:
    with running(str(store), store.parent / "c", ["a", "b", "org/c"]) as started:
        yield started


def served(server: Running, model_id: str) -> int:
    return server.engine.registry.get(model_id).requests


@pytest.mark.integration
def test_seq_asks_every_model_once(server: Running, tmp_path: Path) -> None:
    before = [served(server, name) for name in ("a", "b", "org/c")]
    done = run("test", "seq", "--url", server.url, "--json", "-", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [served(server, name) for name in ("a", "b", "org/c")] == [n + 1 for n in before]
    assert report["requests"] == {"sent": 3, "ok": 3, "unfinished": 0}
    assert report["server"]["inference_ms"]["requests"] == 3
    assert 0 < report["server"]["inference_ms"]["mean"] < report["latency_ms"]["max"]


@pytest.mark.integration
def test_texts_are_made_with_the_models_tokenizer(
    server: Running, store: Path, tmp_path: Path
) -> None:
    arguments = ("bmk", "--concurrency", "1", "--duration", "300ms", "--tokens", "5")
    done = run(
        "test", *arguments, "--url", server.url, "--store", str(store), "--json", "-", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["tester"]["warnings"] == []
    assert report["requests"]["ok"] > 10


def test_made_texts_have_the_tokens_that_were_asked_for() -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(".packhorse/demo/minilm/tokenizer.json")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    for tokens, lengths in (((3, 3), {3}), ((10, 14), {10, 11, 12, 13, 14}), ((600, 600), {600})):
        texts = make_texts(tokens, tokenizer, seed=1)
        assert {len(tokenizer.encode(text).ids) for text in texts} == lengths
        assert texts == make_texts(tokens, tokenizer, seed=1)
    spread = make_texts((1, 1000), None, seed=1)
    assert (len(spread), len(spread[0].split()), len(spread[-1].split())) == (32, 1, 1000)


@pytest.mark.parametrize(
    "task",
    ["text-classification", "token-classification", "question-answering", "text-ranking",
     "feature-extraction"],
)  # fmt: skip
def test_every_task_is_asked_for_what_it_takes(task: str) -> None:
    inputs = native_inputs(task, "where is it")
    groups, many = parse_inputs(inputs, task_for(task, ["O"]), 9)
    assert (len(groups), many) == (1, False)
