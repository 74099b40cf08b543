"""The demo's models, real weights: accuracy, equality with eager torch, and what sharing saves."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
import yaml

from packhorse.artifact import Artifact
from packhorse.catalog import ModelSpec, load_catalog
from packhorse.settings import Settings
from packhorse.store.repository import Repository
from packhorse_trace.pipeline import Result, plan_jobs, run_jobs
from tests.running import Running, running

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[2]
DESK = ROOT / "examples/support_desk"
SENTENCES: dict[str, dict[str, list[str]]] = yaml.safe_load((DESK / "sentences.yaml").read_text())
TENANTS: dict[str, dict[str, str]] = yaml.safe_load((DESK / "tenants.yaml").read_text())
HEAD_BYTES = 5 * 385 * 4


@pytest.fixture(scope="module")
def specs() -> list[ModelSpec]:
    if not (ROOT / ".packhorse/demo/built").exists():
        pytest.fail("the demo's models are missing: make demo-models")
    return load_catalog(DESK / "models.yaml")


@pytest.fixture(scope="module")
def artifacts(
    specs: list[ModelSpec], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[Artifact]]:
    folder = tmp_path_factory.mktemp("support_desk")
    repository = Repository.open(str(folder / "s"))
    repository.objects.prepare()
    jobs, _ = plan_jobs(specs, repository, Settings())
    results: list[Result] = []
    run_jobs(jobs, str(folder / "s"), Settings(), results.append)
    assert [result.reason for result in results if result.reason] == []
    found = [record for _, record in repository.artifacts() if isinstance(record, Artifact)]
    assert len(found) == 22
    return folder, found


@pytest.fixture(scope="module")
def server(artifacts: tuple[Path, list[Artifact]]) -> Iterator[Running]:
    folder, found = artifacts
    with running(str(folder / "s"), folder / "c", [record.id for record in found]) as started:
        yield started


def test_the_sentences_are_enough_and_none_is_both_learnt_and_held_out() -> None:
    texts = [text for split in SENTENCES.values() for part in split.values() for text in part]
    assert len(texts) == len(set(texts)) == 12 * 24
    assert len(TENANTS) == 20
    assert {len(names) for names in TENANTS.values()} == {4, 5}


def test_int8_classifiers_agree_with_fp32_and_are_right(
    server: Running, artifacts: tuple[Path, list[Artifact]]
) -> None:
    right = agreeing = total = 0
    records = {record.id: record for record in artifacts[1]}
    for tenant, names in TENANTS.items():
        folder = ROOT / ".packhorse/demo/tenants" / tenant
        original = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        same = mine = 0
        for intent, label in names.items():
            texts = SENTENCES[intent]["held_out"]
            answers = server.ask(f"{tenant}/intent", texts, top_k=1).json()
            for text, answer in zip(texts, answers, strict=True):
                with torch.inference_mode():
                    logits = original(**tokenizer(text, return_tensors="pt")).logits
                best = original.config.id2label[int(logits.argmax())]
                same += answer[0]["label"] == best
                mine += answer[0]["label"] == label
        count = 12 * len(names)
        recorded = records[f"{tenant}/intent"].equality
        assert recorded.label_agreement == pytest.approx(same / count), tenant
        assert recorded.max_abs_diff > 0
        agreeing, right, total = agreeing + same, right + mine, total + count
        assert mine / count >= 0.85, tenant
    assert agreeing / total >= 0.98
    assert right / total >= 0.85


def test_fp32_embeddings_equal_eager_torch_with_the_same_pooling(server: Running) -> None:
    texts = [text for split in SENTENCES.values() for text in split["held_out"]][:50]
    folder = ROOT / ".packhorse/demo/minilm"
    model = transformers.AutoModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    found = np.array(server.ask("embed/minilm-fp32", texts).json())
    for text, vector in zip(texts, found, strict=True):
        batch = tokenizer(text, return_tensors="pt")
        with torch.inference_mode():
            hidden = model(**batch).last_hidden_state
            mask = batch["attention_mask"].unsqueeze(-1)
            pooled = (hidden * mask).sum(1) / mask.sum(1)
            wanted: Any = torch.nn.functional.normalize(pooled, dim=1)[0].numpy()
        assert np.abs(vector - wanted).max() <= 1e-4


def test_the_store_holds_each_trunk_once(artifacts: tuple[Path, list[Artifact]]) -> None:
    folder, found = artifacts
    records = {record.id: record for record in found}
    trunks = [
        sum(
            f.bytes
            for f in records[f"embed/minilm-{precision}"].files
            if f.path != "tokenizer.json"
        )
        for precision in ("fp32", "int8")
    ]
    held = sum(path.stat().st_size for path in (folder / "s/blobs").rglob("*") if path.is_file())
    assert held <= 1.1 * (sum(trunks) + 20 * HEAD_BYTES)


def test_the_cache_holds_each_trunk_once(
    server: Running, artifacts: tuple[Path, list[Artifact]]
) -> None:
    folder, _ = artifacts
    inodes = {
        (path.stat().st_ino, path.stat().st_size)
        for part in ("blobs", "models")
        for path in (folder / "c" / part).rglob("*")
        if path.is_file() and path.name != "artifact.json"
    }
    stored = sum(path.stat().st_size for path in (folder / "s/blobs").rglob("*") if path.is_file())
    assert sum(size for _, size in inodes) == stored
