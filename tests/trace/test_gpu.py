"""GPU artifacts, made and compared on a CPU as far as that goes; on a GPU, the whole check."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from packhorse.artifact import Artifact
from packhorse.errors import InvalidInput
from packhorse.sessions import open_model
from packhorse_trace.samples import random_batch
from packhorse_trace.source import read_source
from packhorse_trace.torch_model import load_eager
from tests.trace.test_pipeline import pulled, trace
from tests.trace.tiny import make_spec, save_tiny

pytestmark = pytest.mark.integration
HERE = torch.cuda.is_available()


def traced(tmp_path: Path, precision: str, kind: str = "bert") -> tuple[Artifact, Path]:
    spec = make_spec(save_tiny(tmp_path / "m", kind), precision=precision, processors=("gpu",))
    (result,) = trace(tmp_path / "s", spec)
    assert (result.status, result.reason) == ("traced", "")
    return pulled(tmp_path, "m", result.variant)


@pytest.mark.parametrize("kind", ["bert", "roberta", "deberta-v2"])
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_half_precision_is_recorded_in_the_graph_and_close(
    precision: str, kind: str, tmp_path: Path
) -> None:
    artifact, folder = traced(tmp_path, precision, kind)
    assert (artifact.variant, artifact.format, artifact.precision) == (
        f"gpu-{precision}", "torchscript", precision,
    )  # fmt: skip
    eager = load_eager(read_source(make_spec(tmp_path / "m")), "text-classification")
    session = open_model(artifact, folder, 1)  # no autocast is on
    arrays = random_batch(3, 16, eager.vocabulary)
    answer, wanted = session.run(arrays)[0], eager.run(arrays)
    difference = float(np.abs(answer - wanted).max())
    assert 0 < difference < 0.01  # not fp32 in disguise
    assert answer.dtype == np.float32


def test_auto_is_fp16(tmp_path: Path) -> None:
    assert traced(tmp_path, "auto")[0].variant == "gpu-fp16"


@pytest.mark.skipif(HERE, reason="there is a GPU here")
def test_without_a_gpu_the_record_says_what_was_not_measured(tmp_path: Path) -> None:
    artifact, _ = traced(tmp_path, "fp16")
    assert isinstance(artifact.note, str)
    assert "its cost is not measured" in artifact.note
    assert artifact.cost.latency == []
    assert artifact.equality.samples > 24  # compared all the same
    with pytest.raises(InvalidInput, match="not measured.*no GPU here"):
        artifact.cost.seconds_at(128)


def test_a_lost_mask_is_caught_in_half_precision_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from packhorse_trace import torchscript
    from tests.trace.test_sabotage import Maskless, sabotage

    write = torchscript.write_script
    monkeypatch.setattr(
        torchscript, "write_script", lambda eager, *a: write(sabotage(eager, Maskless), *a)
    )
    source = save_tiny(tmp_path / "m")
    model: Any = load_eager(read_source(make_spec(source)), "text-classification").module.model
    with torch.no_grad():
        model.classifier.weight.mul_(30)
    model.save_pretrained(source)
    (result,) = trace(tmp_path / "s", make_spec(source, precision="bf16", processors=("gpu",)))
    assert "the attention mask was lost" in result.reason


def test_the_check_for_machines_with_a_gpu_runs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.gpu", "--small"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    for precision in ("fp16", "bf16", "fp32"):
        found = report[precision]
        assert "failed" not in found
        assert found["max_abs_diff"] < 0.05
        assert found["served_score_diff"] < 0.01
        assert found["latency"]["8 x 128"]["milliseconds"] > 0
    if not HERE:
        without = [sys.executable, "-m", "benchmarks.gpu"]
        assert (
            "there is no GPU here" in subprocess.run(without, capture_output=True, text=True).stderr
        )


@pytest.mark.gpu
@pytest.mark.skipif(not HERE, reason="no GPU")
def test_on_a_gpu_latency_and_memory_are_measured(tmp_path: Path) -> None:
    artifact, _ = traced(tmp_path, "fp16")
    assert {row.batch for row in artifact.cost.latency} == {1, 8}
    assert artifact.cost.private_bytes > 0
    assert "cuda" in artifact.built_with
