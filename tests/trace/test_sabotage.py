"""A compiler that does wrong is found out, named, and nothing published (FAULTS 7, 8, 22)."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from packhorse.settings import load_settings
from packhorse.store.repository import Repository
from packhorse_trace import onnx_export, torch_model, torchscript
from packhorse_trace.pipeline import run_jobs
from packhorse_trace.planning import Result, plan_jobs
from packhorse_trace.torch_model import Classifier, EagerModel
from tests.trace.tiny import make_spec, save_tiny

pytestmark = pytest.mark.integration


def trace(tmp_path: Path, source: Path, force: bool = False, **facts: Any) -> Result:
    """Trace with the settings that users have."""
    repository, settings = Repository.open(str(tmp_path / "s")), load_settings(folder=tmp_path)
    repository.objects.prepare()
    jobs, results = plan_jobs([make_spec(source, **facts)], repository, settings, force)
    run_jobs(jobs, str(tmp_path / "s"), settings, results.append)
    (result,) = results
    assert (result.status == "failed") == (list(repository.artifacts()) == [])
    return result


class Maskless(Classifier):
    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        ids, mask, types = inputs
        return super().forward(ids, torch.ones_like(mask), types)


class Frozen(Classifier):
    """Reshapes to the batch that it was traced with."""

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(*inputs).reshape(2, -1)


def sabotage(eager: EagerModel, kind: type[Classifier]) -> EagerModel:
    module = copy.copy(eager.module)
    module.__class__ = kind
    return EagerModel(module, eager.inputs, eager.vocabulary, eager.max_length, eager.parameters)


@pytest.mark.parametrize("precision", ["fp32", "torchscript"])
@pytest.mark.parametrize(
    ("kind", "says"),
    [(Maskless, "padd.*the attention mask was lost"), (Frozen, "a single text: does not run")],
)
def test_a_wrapper_that_loses_something_is_caught(
    kind: type[Classifier], says: str, precision: str, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    export, write = onnx_export.export_graph, torchscript.write_script

    def exported(eager: EagerModel, *arguments: Any, **options: Any) -> Any:
        return export(sabotage(eager, kind), *arguments, **options)

    def written(eager: EagerModel, *arguments: Any, **options: Any) -> None:
        write(sabotage(eager, kind), *arguments, **options)

    monkeypatch.setattr(onnx_export, "export_graph", exported)
    monkeypatch.setattr(torchscript, "write_script", written)
    result = trace(tmp_path, save_tiny(tmp_path / "m"), precision=precision)
    assert result.status == "failed"
    assert re.search(says, result.reason), result.reason


def test_an_original_in_training_mode_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = torch_model.load_eager

    def training(*arguments: Any) -> EagerModel:
        eager = load(*arguments)
        eager.module.train()
        return eager

    monkeypatch.setattr(torch_model, "load_eager", training)
    result = trace(tmp_path, save_tiny(tmp_path / "m"))
    assert "gives two answers to one text: it is in training mode" in result.reason


def test_an_artifact_traced_in_training_mode_is_caught(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = torchscript.write_script

    def training(eager: EagerModel, *arguments: Any, **options: Any) -> None:
        trained = copy.deepcopy(eager)
        layers: Any = trained.module.modules()
        for layer in layers:
            if isinstance(layer, torch.nn.Dropout):
                active: Any = layer
                active.forward = lambda x: torch.nn.functional.dropout(x, 0.1, training=True)
        write(trained, *arguments, **options)

    monkeypatch.setattr(torchscript, "write_script", training)
    result = trace(tmp_path, save_tiny(tmp_path / "m"), precision="torchscript")
    assert "single texts: differs from the original" in result.reason
    assert "in training mode" in result.reason


DEMO = Path(".packhorse/demo/tenants")  # `make check` builds it


@pytest.fixture(scope="module")
def tenant() -> Path:
    """A trained classifier of real weights."""
    return (DEMO / "harbor-toys").resolve()


def copy_of(tenant: Path, folder: Path, factor: float) -> Path:
    """Copy a model with the weights of one neuron made larger."""
    model: Any = transformers.AutoModelForSequenceClassification.from_pretrained(tenant)
    with torch.no_grad():
        layer = model.bert.encoder.layer[1]
        layer.intermediate.dense.weight[3] *= factor
        layer.output.dense.weight[:, 3] *= factor
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes((tenant / "tokenizer.json").read_bytes())
    return folder


def test_int8_of_a_sane_model_passes_and_its_figures_are_recorded(
    tenant: Path, tmp_path: Path
) -> None:
    samples = tenant / "held_out.txt"
    result = trace(tmp_path, tenant, precision="int8", samples=samples)
    assert (result.status, result.reason) == ("traced", "")
    artifact = Repository.open(str(tmp_path / "s")).artifact("m", result.version, "cpu-int8")
    equality = artifact.equality
    assert equality.label_agreement is not None
    assert equality.label_agreement >= 0.97
    assert isinstance(equality.max_score_diff, float)
    assert isinstance(equality.score_noise, float)
    assert 0 < equality.max_score_diff < 0.3
    assert 0 < equality.score_noise < 0.2


@pytest.mark.parametrize("precision", ["int8", "auto"])
def test_int8_of_a_few_weights_times_a_thousand_is_caught(
    precision: str, tenant: Path, tmp_path: Path
) -> None:
    """FAULTS 22: the figures say so, int8 is refused, and `auto` publishes fp32 instead."""
    source = copy_of(tenant, tmp_path / "m", 1000)
    says = "labels agree on|rounding changes the scores by"
    result = trace(tmp_path, source, precision=precision, samples=tenant / "held_out.txt")
    if precision == "int8":
        assert re.match(says, result.reason), result.reason
        return
    assert (result.status, result.variant) == ("traced", "cpu-fp32")
    assert any(re.match(f"fp32, since int8 was refused: ({says})", n) for n in result.notes)
    artifact = Repository.open(str(tmp_path / "s")).artifact("m", result.version, "cpu-fp32")
    assert isinstance(artifact.refused, dict)
    assert re.match(says, artifact.refused["int8"])
    assert not list((tmp_path / "s").glob("models/m/*/cpu-int8/artifact.json"))
    again = trace(tmp_path, source, precision="auto", samples=tenant / "held_out.txt")
    assert (again.status, again.variant) == ("unchanged", "cpu-fp32")


def test_texts_that_prove_little_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = save_tiny(tmp_path / "m")
    model: Any = transformers.BertForSequenceClassification.from_pretrained(source)
    with torch.no_grad():
        model.classifier.bias.copy_(torch.tensor([50.0, 0, 0]))
    model.save_pretrained(source)
    monkeypatch.setenv("PACKHORSE_MAX_SCORE_NOISE", "100")
    result = trace(tmp_path, source, precision="int8")
    assert any("one label wins on all of the built-in texts" in note for note in result.notes)
