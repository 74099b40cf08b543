"""Many entries: what is alike is made once, a kill loses nothing, a second run uploads nothing."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import transformers

from packhorse.store.repository import Repository
from packhorse_trace import onnx_export
from tests.trace.test_pipeline import trace
from tests.trace.tiny import make_spec, save_tiny, save_tokenizer

pytestmark = pytest.mark.integration
LOOSE = {**os.environ, "PACKHORSE_MIN_LABEL_AGREEMENT": "0", "PACKHORSE_MAX_SCORE_NOISE": "1e9"}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "packhorse", "trace", "models.yaml", "--json", *arguments]


def run(folder: Path, *arguments: str) -> tuple[dict[str, Any], float]:
    """Trace in a process of its own; return what it printed and the CPU seconds it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command(*arguments), cwd=folder, capture_output=True, text=True, env=LOOSE
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return json.loads(done.stdout), spent


def test_copies_of_one_source_are_made_once(tmp_path: Path) -> None:
    source = save_tiny(tmp_path / "m")
    specs = [make_spec(source, f"copy-{i}") for i in range(20)]
    results = trace(tmp_path / "s", *specs)
    assert [result.status for result in results] == ["traced"] * 20
    assert max(result.seconds for result in results[1:]) < results[0].seconds / 4
    assert sum(result.added_bytes > 0 for result in results) == 1
    repository = Repository.open(str(tmp_path / "s"))
    records = [record for _, record in repository.artifacts()]
    assert {record.id for record in records} == {spec.id for spec in specs}  # type: ignore[union-attr]
    assert len({tuple(record.files) for record in records}) == 1  # type: ignore[union-attr]


def test_copies_with_other_samples_or_batches_are_judged_and_measured_anew(tmp_path: Path) -> None:
    source = save_tiny(tmp_path / "m")
    (tmp_path / "texts").write_text("one text\nand another\n")
    specs = [
        make_spec(source, "a"), make_spec(source, "b", samples=tmp_path / "texts"),
        make_spec(source, "c", batch=4),
    ]  # fmt: skip
    trace(tmp_path / "s", *specs)
    found = {record.id: record for _, record in Repository.open(str(tmp_path / "s")).artifacts()}  # type: ignore[union-attr]
    assert found["a"].equality.samples > found["b"].equality.samples  # type: ignore[union-attr]
    assert {row.batch for row in found["c"].cost.latency} == {1, 4}  # type: ignore[union-attr]


def test_new_models_whose_biases_are_equal_share_an_export(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exporter merges equal tensors; another model's may differ there."""
    exports = []
    export = onnx_export.export_graph

    def counted(*arguments: Any, **options: Any) -> Any:
        exports.append(arguments)
        return export(*arguments, **options)

    monkeypatch.setattr(onnx_export, "export_graph", counted)
    config: Any = transformers.BertConfig(
        vocab_size=200, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=64, num_labels=3,
    )  # fmt: skip
    plain = tmp_path / "plain"
    transformers.BertForSequenceClassification(config).save_pretrained(plain)
    save_tokenizer(plain)
    trained = save_tiny(tmp_path / "trained", seed=3)
    results = trace(tmp_path / "s", make_spec(plain, "plain"), make_spec(trained, "trained"))
    assert [result.reason for result in results] == ["", ""]
    assert len(exports) == 1


def test_a_kill_in_the_middle_leaves_a_store_that_verifies(tmp_path: Path) -> None:
    for number in range(12):
        save_tiny(tmp_path / f"models/m{number}", seed=number, labels=2 + number % 3)
    (tmp_path / "models.yaml").write_text(
        "models: [{id: '{name}', source: 'models/*', task: text-classification, precision: fp32}]"
    )
    store = tmp_path / ".packhorse/store"
    process = subprocess.Popen(
        command(), cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=LOOSE,
        start_new_session=True,
    )  # fmt: skip
    while len(list(store.glob("models/*/*/*/artifact.json"))) < 4:
        assert process.poll() is None
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    verify = [sys.executable, "-m", "packhorse", "models", "verify"]
    done = subprocess.run(verify, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    found, _ = run(tmp_path)
    assert found["failed"] == 0
    assert found["unchanged"] >= 4
    assert found["traced"] + found["unchanged"] == 12
    done = subprocess.run(verify, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0
    assert "12 models" in done.stdout


@pytest.mark.slow
def test_three_thousand_entries_over_twenty_shapes(tmp_path: Path) -> None:
    for shape in range(20):
        for number in range(15):
            folder = tmp_path / f"m/s{shape}-{number}"
            config: Any = transformers.BertConfig(
                vocab_size=200, hidden_size=32 + 16 * (shape % 5), num_hidden_layers=1 + shape // 5,
                num_attention_heads=2, intermediate_size=64, max_position_embeddings=64,
                num_labels=3,
            )  # fmt: skip
            transformers.BertForSequenceClassification(config).save_pretrained(folder)
            save_tokenizer(folder)
    entries = [f"  - {{id: '{{name}}-{copy}', source: 'm/*'}}" for copy in range(10)]
    head = ["defaults: {task: text-classification, precision: int8}", "models:"]
    (tmp_path / "models.yaml").write_text("\n".join([*head, *entries]))
    first, first_s = run(tmp_path, "--jobs", "2")
    assert (first["traced"], first["failed"]) == (3000, 0)
    assert first_s / 3000 < 0.5  # CPU of repeated and first entries together
    second, second_s = run(tmp_path)
    assert (second["unchanged"], second["added_bytes"]) == (3000, 0)
    assert second_s < 15
