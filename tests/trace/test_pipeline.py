"""From a source folder to a model that answers, with real torch and ONNX Runtime."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer

from packhorse.artifact import Artifact
from packhorse.catalog import ModelSpec
from packhorse.sessions.onnx import open_session
from packhorse.store.cache import Cache
from packhorse.store.repository import Repository
from packhorse_server.model import load_model
from packhorse_server.tasks.text import Text
from packhorse_server.tokenizers import Encoders
from packhorse_trace.pipeline import Result, plan_jobs, run_jobs
from tests.trace.tiny import SETTINGS, make_spec, save_tiny

pytestmark = pytest.mark.integration
WORDS = ["a", "hello there", "one two three four five six seven eight nine", "hello " * 100]


def trace(store: Path, *specs: ModelSpec, force: bool = False) -> list[Result]:
    repository = Repository.open(str(store))
    repository.objects.prepare()
    jobs, results = plan_jobs(specs, repository, SETTINGS, force)
    run_jobs(jobs, str(store), SETTINGS, results.append)
    return results


def pulled(tmp_path: Path, model_id: str, variant: str) -> tuple[Artifact, Path]:
    repository = Repository.open(str(tmp_path / "s"))
    artifact = repository.artifact(model_id, repository.latest(model_id), variant)
    return artifact, Cache(tmp_path / "c").pull(repository, artifact)


KINDS = ["bert", "distilbert", "roberta", "electra", "albert", "deberta-v2"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", ["fp32", "int8", "torchscript"])
def test_what_is_traced_answers_as_the_original(kind: str, precision: str, tmp_path: Path) -> None:
    source = save_tiny(tmp_path / "m", kind)
    (result,) = trace(tmp_path / "s", make_spec(source, precision=precision))
    assert (result.status, result.reason) == ("traced", "")
    artifact, folder = pulled(tmp_path, "m", f"cpu-{precision}")
    model = load_model(artifact, folder, 1, Encoders())
    original = transformers.AutoModelForSequenceClassification.from_pretrained(source).eval()
    for word in WORDS:
        rows, cut = model.answer(Text(word), {})
        arrays = model.encoder.encode(Text(word)).arrays
        named = {k: torch.from_numpy(v) for k, v in arrays.items() if k != "token_type_ids"}
        with torch.inference_mode():
            wanted = original(**named).logits.softmax(1)[0].numpy()
        found = np.array([row["score"] for row in sorted(rows, key=lambda r: r["label"])])
        assert found == pytest.approx(wanted, abs=0.1 if precision == "int8" else 1e-4)
        assert cut == (len(word) == 600)


def test_the_artifact_records_what_it_is_and_costs(tmp_path: Path) -> None:
    trace(tmp_path / "s", make_spec(save_tiny(tmp_path / "m")))
    artifact, _ = pulled(tmp_path, "m", "cpu-fp32")
    assert artifact.labels == ["LABEL_0", "LABEL_1", "LABEL_2"]
    assert [spec.name for spec in artifact.inputs] == [
        "input_ids", "attention_mask", "token_type_ids",
    ]  # fmt: skip
    assert artifact.inputs[0].shape == [-1, -1]
    assert artifact.tokenizer is not None
    assert (artifact.tokenizer.max_length, artifact.tokenizer.pair) == (64, True)
    assert artifact.equality.max_abs_diff < 1e-4
    assert artifact.verified_on.cpu_model
    assert set(artifact.built_with) >= {"python", "torch", "transformers", "onnx", "onnxruntime"}
    cost = artifact.cost
    assert 0 < cost.private_bytes < 50_000_000
    assert {row.tokens for row in cost.latency} == {12, 64}
    assert all(0 < row.p50_seconds <= row.p90_seconds for row in cost.latency)
    assert cost.load_seconds.disk > 0


def test_the_tokenizer_is_published_without_padding_or_truncation_of_its_own(
    tmp_path: Path,
) -> None:
    trace(tmp_path / "s", make_spec(save_tiny(tmp_path / "m")))
    _, folder = pulled(tmp_path, "m", "cpu-fp32")
    published = json.loads((folder / "tokenizer.json").read_text())
    assert (published["padding"], published["truncation"]) == (None, None)


def test_a_tokenizer_that_pads_on_the_left_changes_nothing(tmp_path: Path) -> None:
    source = save_tiny(tmp_path / "m")
    trace(tmp_path / "s", make_spec(source))
    known, folder = pulled(tmp_path, "m", "cpu-fp32")
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    tokenizer.enable_padding(direction="left", length=40)
    tokenizer.save(str(source / "tokenizer.json"))
    assert [r.status for r in trace(tmp_path / "s", make_spec(source))] == ["traced"]
    left, there = pulled(tmp_path, "m", "cpu-fp32")
    assert left.version != known.version
    answers = [
        load_model(artifact, at, 1, Encoders()).answer(Text("hello"), {})
        for artifact, at in ((known, folder), (left, there))
    ]
    assert answers[0] == answers[1]


def test_tensors_from_64_kib_on_are_files_of_their_own(tmp_path: Path) -> None:
    trace(tmp_path / "s", make_spec(save_tiny(tmp_path / "m")))
    artifact, folder = pulled(tmp_path, "m", "cpu-fp32")
    assert [file.path for file in artifact.files] == ["model.onnx", "tokenizer.json"]  # all small
    source = save_tiny(tmp_path / "wide")
    config = transformers.BertConfig(
        vocab_size=2000, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=64, num_labels=3,
    )  # fmt: skip
    transformers.BertForSequenceClassification(config).save_pretrained(source)
    trace(tmp_path / "s", make_spec(source, "wide"))
    artifact, folder = pulled(tmp_path, "wide", "cpu-fp32")
    (weights,) = [file for file in artifact.files if file.path.startswith("weights/")]
    assert weights.path == f"weights/{weights.sha256}"
    assert weights.bytes == 2000 * 32 * 4
    assert (folder / "model.onnx").stat().st_size < weights.bytes
    open_session(folder / "model.onnx", 1)


def test_a_second_run_does_nothing_and_needs_no_torch(tmp_path: Path) -> None:
    spec = make_spec(save_tiny(tmp_path / "m"))
    assert [r.status for r in trace(tmp_path / "s", spec)] == ["traced"]
    assert [r.status for r in trace(tmp_path / "s", spec)] == ["unchanged"]
    assert [r.status for r in trace(tmp_path / "s", spec, force=True)] == ["traced"]
    catalog = tmp_path / "models.yaml"
    catalog.write_text("models: [{id: m, source: m, task: text-classification, precision: fp32}]")
    code = (
        "import sys; sys.argv = ['packhorse', 'trace', '--json', '--store', 's', 'models.yaml']\n"
        "from packhorse.cli import main\n"
        "main()\n"
        "assert 'torch' not in sys.modules and 'transformers' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["unchanged"] == 1


def test_auto_falls_back_to_fp32_and_takes_back_what_passed_looser_settings(tmp_path: Path) -> None:
    spec = make_spec(save_tiny(tmp_path / "m"), precision="auto")
    assert [result.variant for result in trace(tmp_path / "s", spec)] == ["cpu-int8"]
    strict = SETTINGS.model_copy(update={"max_score_noise": 0.001})
    repository = Repository.open(str(tmp_path / "s"))
    jobs, results = plan_jobs([spec], repository, strict, force=True)
    run_jobs(jobs, str(tmp_path / "s"), strict, results.append)
    (result,) = results
    assert result.variant == "cpu-fp32"
    assert result.notes[0].startswith("fp32, since int8 was refused: rounding changes the scores")
    assert repository.variants("m", result.version) == ["cpu-fp32"]
    assert [result.status for result in trace(tmp_path / "s", spec)] == ["unchanged"]


def test_what_the_settings_ask_for_is_the_latest_again_after_an_experiment(tmp_path: Path) -> None:
    spec = make_spec(save_tiny(tmp_path / "m"))
    trace(tmp_path / "s", spec)
    repository = Repository.open(str(tmp_path / "s"))
    usual = repository.latest("m")
    trace(tmp_path / "s", make_spec(tmp_path / "m", version="experiment"))
    assert repository.latest("m") == "experiment"
    assert [result.status for result in trace(tmp_path / "s", spec)] == ["unchanged"]
    assert repository.latest("m") == usual


def test_models_of_one_shape_are_exported_and_measured_once_and_each_is_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from packhorse_trace import cpu, measure, onnx_export

    counts = {"export": 0, "measure": 0}
    export, measure_model = onnx_export.export_graph, measure.measure_model

    def counted_export(*arguments: Any, **options: Any) -> object:
        counts["export"] += 1
        return export(*arguments, **options)

    def counted_measure(*arguments: Any) -> object:
        counts["measure"] += 1
        return measure_model(*arguments)

    monkeypatch.setattr(onnx_export, "export_graph", counted_export)
    monkeypatch.setattr(cpu, "measure_model", counted_measure)
    specs = [make_spec(save_tiny(tmp_path / f"m{i}", seed=i), f"m{i}") for i in range(3)]
    assert [result.status for result in trace(tmp_path / "s", *specs)] == ["traced"] * 3
    assert counts == {"export": 1, "measure": 1}
    answers = []
    for spec in specs:
        artifact, folder = pulled(tmp_path, spec.id, "cpu-fp32")
        assert artifact.equality.max_abs_diff < 1e-4
        answers.append(load_model(artifact, folder, 1, Encoders()).answer(Text("hello"), {})[0])
    assert answers[0] != answers[1] != answers[2]


def test_one_broken_model_does_not_stop_the_rest(tmp_path: Path) -> None:
    good = make_spec(save_tiny(tmp_path / "good"), "good")
    headless = make_spec(save_tiny(tmp_path / "headless", embed=True), "headless")
    odd = save_tiny(tmp_path / "odd")
    (odd / "config.json").write_text('{"model_type": "unheard-of", "vocab_size": 1}')
    speechless = save_tiny(tmp_path / "speechless")
    (speechless / "tokenizer.json").write_text("{}")
    broken = save_tiny(tmp_path / "broken")
    (broken / "model.safetensors").write_bytes(b"not safetensors")
    results = trace(
        tmp_path / "s", headless, make_spec(odd, "odd"), make_spec(speechless, "speechless"),
        make_spec(broken, "broken"), make_spec(tmp_path / "gone", "gone"),
        make_spec(tmp_path / "good", "later", precision="bf16"),
        make_spec(tmp_path / "good", "neuron", processors=("inf2",), precision="auto"),
        good,
    )  # fmt: skip
    reasons = {result.id: result.reason for result in results if result.status == "failed"}
    assert {result.id for result in results if result.status == "traced"} == {"good"}
    assert "lacks weights for task 'text-classification': classifier" in reasons["headless"]
    assert "cannot load" in reasons["odd"]
    assert "tokenizer" in reasons["speechless"]
    assert "cannot load" in reasons["broken"]
    assert "does not exist" in reasons["gone"]
    assert "precision 'bf16' is not made for cpu: use auto, int8, fp32" in reasons["later"]
    assert "torch_neuronx is not installed: run in the image packhorse-inf2" in reasons["neuron"]
    assert [record.id for _, record in Repository.open(str(tmp_path / "s")).artifacts()
            if isinstance(record, Artifact)] == ["good"]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("tokenizer_config.json", "{broken", "JSONDecodeError"),
        ("config.json", "[]", "holds no object"),
        ("modules.json", '[{"idx": 0}]', "KeyError"),
        ("modules.json", '[{"type": "sentence_transformers.models.Dense"}]', "module Dense"),
        ("1_Pooling/config.json", '{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": '
         'true}', "pooling"),
        ("config.json", {"id2label": {"a": "x"}}, "ValueError"),
        ("config.json", {"max_position_embeddings": "64"}, "TypeError"),
        ("config.json", {"problem_type": "multi_label_classification"}, "problem_type"),
        ("config.json", {"id2label": {"0": "a", "1": "b"}}, "label|cannot load"),
    ],
)  # fmt: skip
def test_an_odd_source_is_refused_and_the_next_one_traced(
    name: str, content: str | dict[str, object], says: str, tmp_path: Path
) -> None:
    odd = save_tiny(tmp_path / "odd")
    (odd / name).parent.mkdir(exist_ok=True)
    if isinstance(content, dict):
        content = json.dumps(json.loads((odd / name).read_text()) | content)
    (odd / name).write_text(content)
    good = make_spec(save_tiny(tmp_path / "good"), "good")
    results = {r.id: r for r in trace(tmp_path / "s", make_spec(odd, "odd"), good)}
    assert (results["odd"].status, results["good"].status) == ("failed", "traced")
    assert re.search(says, results["odd"].reason), results["odd"].reason


def test_two_labels_without_names_have_the_usual_ones(tmp_path: Path) -> None:
    source = save_tiny(tmp_path / "m", labels=2)
    assert "id2label" not in json.loads((source / "config.json").read_text())
    assert [r.status for r in trace(tmp_path / "s", make_spec(source))] == ["traced"]
    artifact, folder = pulled(tmp_path, "m", "cpu-fp32")
    assert artifact.labels == ["LABEL_0", "LABEL_1"]
    load_model(artifact, folder, 1, Encoders())


def test_a_tokenizer_larger_than_the_model_is_refused(tmp_path: Path) -> None:
    source = save_tiny(tmp_path / "m")
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    tokenizer["added_tokens"].append(
        {"id": 200, "content": "new", "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": False}
    )  # fmt: skip
    tokenizer["model"]["vocab"] |= {f"x{i}": i for i in range(193, 200)}
    (source / "tokenizer.json").write_text(json.dumps(tokenizer))
    (result,) = trace(tmp_path / "s", make_spec(source))
    assert "the model knows 200" in result.reason


def test_a_named_version_is_traced_again_when_its_source_changed(tmp_path: Path) -> None:
    spec = make_spec(save_tiny(tmp_path / "m"), version="v1")
    assert [r.status for r in trace(tmp_path / "s", spec)] == ["traced"]
    assert [r.status for r in trace(tmp_path / "s", spec)] == ["unchanged"]
    save_tiny(tmp_path / "m", seed=1)
    assert [r.status for r in trace(tmp_path / "s", spec)] == ["traced"]


def test_a_lost_latest_is_written_again(tmp_path: Path) -> None:
    spec = make_spec(save_tiny(tmp_path / "m"))
    trace(tmp_path / "s", spec)
    (tmp_path / "s/models/m/latest.json").unlink()
    assert [r.status for r in trace(tmp_path / "s", spec)] == ["unchanged"]
    pulled(tmp_path, "m", "cpu-fp32")


def test_int8_that_loses_its_labels_is_refused_and_published_nowhere(tmp_path: Path) -> None:
    from packhorse.settings import Settings

    source = save_tiny(tmp_path / "m")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(source).eval()
    with torch.no_grad():  # one huge row forces a range in which all other rows vanish
        table = model.bert.embeddings.word_embeddings.weight
        table *= 20
        ids = torch.randint(5, 190, (64, 16))
        ids[:, 0], ids[:, -1] = 2, 3
        pooled = model.bert(ids).pooler_output
        head = model.classifier  # without its mean the answer would be one label for all texts
        head.weight *= 100
        head.bias.copy_(-head.weight @ pooled.mean(0))
        table[199] = 1e5
    model.save_pretrained(source)
    repository = Repository.open(str(tmp_path / "s"))
    repository.objects.prepare()
    jobs, _ = plan_jobs([make_spec(source, precision="int8")], repository, Settings())
    results: list[Result] = []
    run_jobs(jobs, str(tmp_path / "s"), Settings(), results.append)
    assert results[0].status == "failed"
    assert "labels agree on" in results[0].reason
    assert list(repository.artifacts()) == []


def test_jobs_in_several_processes_give_the_same_store(tmp_path: Path) -> None:
    for number, labels in enumerate((2, 3)):
        save_tiny(tmp_path / f"models/m{number}", labels=labels)
    (tmp_path / "models.yaml").write_text(
        "models: [{id: '{name}', source: 'models/*', task: text-classification, precision: fp32}]"
    )
    (tmp_path / "models/m9").mkdir()
    command = [sys.executable, "-m", "packhorse", "trace", "models.yaml", "--jobs", "2", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    found = json.loads(done.stdout)
    assert (found["traced"], found["failed"], done.returncode) == (2, 1, 1)
    assert "m9" in done.stderr
