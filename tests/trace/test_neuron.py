"""What the Neuron SDKs are asked for, held to their documentation by stand-ins that record it.

A stand-in's `trace` gives a real TorchScript module that takes the traced shapes only, so what
follows (saving, comparing, serving) runs as it would.
"""

import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from packhorse.errors import MissingPackage
from packhorse.sessions import neuron as session_module
from packhorse.sessions.torchscript import import_torch
from packhorse.settings import Settings
from packhorse.store.cache import Cache
from packhorse.store.repository import Repository
from packhorse_server.model import load_model
from packhorse_server.tasks.text import Text
from packhorse_server.tokenizers import Encoders
from packhorse_trace import measure, neuron
from packhorse_trace.pipeline import run_jobs
from packhorse_trace.planning import Result, plan_jobs
from packhorse_trace.source import read_source
from packhorse_trace.torch_model import load_eager
from tests.trace.tiny import make_spec, save_tiny

pytestmark = pytest.mark.integration
Call = tuple[str, tuple[Any, ...], dict[str, Any]]


class Fixed(torch.nn.Module):
    """Answers as a compiled model does: for one shape, and with an error for any other."""

    def __init__(self, module: Any, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.module, self.batch, self.length = module, shape[0], shape[1]

    def forward(self, ids: torch.Tensor, mask: torch.Tensor, types: torch.Tensor) -> torch.Tensor:
        if ids.size(0) != self.batch or ids.size(1) != self.length:
            raise RuntimeError("compiled for another shape")
        answer: torch.Tensor = self.module(ids, mask, types)
        return answer


class Sdk(types.ModuleType):
    """A stand-in for torch_neuron or torch_neuronx."""

    __version__ = "stand-in"

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.calls: list[Call] = []

    def trace(self, *arguments: Any, **options: Any) -> Any:
        self.calls.append(("trace", arguments, options))
        import_torch()
        module, inputs = arguments
        jit: Any = torch.jit
        traced = jit.trace(module, inputs, check_trace=False)
        return jit.script(Fixed(traced, tuple(inputs[0].shape)))

    def replace_weights(self, *arguments: Any) -> None:
        self.calls.append(("replace_weights", arguments, {}))
        compiled, module = arguments
        state = {f"module.{name}": value for name, value in module.state_dict().items()}
        compiled.load_state_dict(state, strict=False)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *arguments: self.calls.append((name, arguments, {}))

    def called(self, name: str) -> list[Call]:
        return [call for call in self.calls if call[0] == name]


@pytest.fixture
def sdk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Sdk:
    name = {"inf1": "torch_neuron", "inf2": "torch_neuronx"}[request.param]
    stand_in = Sdk(name)
    monkeypatch.setitem(sys.modules, name, stand_in)
    return stand_in


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Neuron device is here; what is measured on it is not of interest."""
    path = tmp_path / "neuron0"
    path.touch()
    monkeypatch.setattr(neuron, "DEVICE", path)
    monkeypatch.setattr(
        neuron, "measure_model", lambda compiled, folder, *_: measure.unmeasured(folder, "test")
    )


def trace(tmp_path: Path, *specs: Any, **settings: Any) -> list[Result]:
    repository = Repository.open(str(tmp_path / "s"))
    repository.objects.prepare()
    chosen = Settings(min_label_agreement=0.0, max_score_noise=1e9, **settings)
    jobs, results = plan_jobs(specs, repository, chosen)
    run_jobs(jobs, str(tmp_path / "s"), chosen, results.append)
    return results


def spec_for(processor: str, source: Path, model_id: str = "m", **facts: Any) -> Any:
    return make_spec(source, model_id, processors=(processor,), precision="auto", **facts)


@pytest.mark.parametrize("sdk", ["inf1"], indirect=True)
@pytest.mark.parametrize(
    ("settings", "flags"),
    [
        ({}, ["--fast-math", "fp32-cast-matmult", "no-fast-relayout"]),
        ({"neuron_cast": "all"}, ["--fast-math", "all"]),
        ({"neuron_cast": "none"}, ["--fast-math", "none"]),
        ({"neuron_cast": "all", "neuron_pipeline_cores": 4},
         ["--fast-math", "all", "--neuroncore-pipeline-cores", "4"]),
    ],
)  # fmt: skip
def test_inf1_is_asked_as_documented(
    sdk: Sdk, device: None, settings: dict[str, Any], flags: list[str], tmp_path: Path
) -> None:
    cores = settings.get("neuron_pipeline_cores", 1)
    source = save_tiny(tmp_path / "m")
    (result,) = trace(tmp_path, spec_for("inf1", source, batch=2), **settings)
    assert (result.reason, result.variant) == ("", f"inf1-bf16-b2-s32-p{cores}")
    ((_, (module, inputs), options),) = sdk.called("trace")
    assert isinstance(module, torch.nn.Module)
    assert [tuple(tensor.shape) for tensor in inputs] == [(2, 32)] * 3
    assert all(tensor.dtype == torch.int64 for tensor in inputs)
    assert options.pop("compiler_workdir")
    assert options == {"compiler_args": flags, "separate_weights": False}


@pytest.mark.parametrize("sdk", ["inf2"], indirect=True)
@pytest.mark.parametrize(
    ("settings", "flags"),
    [
        ({}, ["--auto-cast=matmult", "--auto-cast-type=bf16"]),
        ({"neuron_cast": "all"}, ["--auto-cast=all", "--auto-cast-type=bf16"]),
        ({"neuron_cast": "none"}, ["--auto-cast=none"]),
    ],
)
def test_inf2_is_asked_as_documented(
    sdk: Sdk, device: None, settings: dict[str, Any], flags: list[str], tmp_path: Path
) -> None:
    (result,) = trace(tmp_path, spec_for("inf2", save_tiny(tmp_path / "m")), **settings)
    assert (result.reason, result.variant) == ("", "inf2-bf16-b1-s32-p1")
    ((_, _, options),) = sdk.called("trace")
    assert options.pop("compiler_workdir")
    assert options == {
        "compiler_args": ["--model-type=transformer", *flags],
        "inline_weights_to_neff": False,
        "cpu_backend": False,
    }
    loaded = sdk.called("move_trace_to_device")
    assert loaded  # or weights are copied for every call
    assert all(call[1][1] == 0 for call in loaded)


@pytest.mark.parametrize("sdk", ["inf2"], indirect=True)
def test_inf2_compiles_one_shape_once_and_puts_each_models_weights_in(
    sdk: Sdk, device: None, tmp_path: Path
) -> None:
    specs = [
        spec_for("inf2", save_tiny(tmp_path / f"m{i}", seed=i), f"m{i}", sequence_buckets=(8, 16))
        for i in range(3)
    ]
    results = trace(tmp_path, *specs)
    assert [result.reason for result in results] == [""] * 3  # each equal to its own original
    shapes = [tuple(call[1][1][0].shape) for call in sdk.called("trace")]
    assert shapes == [(1, 8), (1, 16), (1, 32)]
    assert len(sdk.called("replace_weights")) == 2 * 3


@pytest.mark.parametrize("sdk", ["inf2"], indirect=True)
@pytest.mark.parametrize("load", ["async", "lazy"])
def test_inf2_sets_the_flags_of_loading_before_it_saves(
    sdk: Sdk, device: None, load: Any, tmp_path: Path
) -> None:
    trace(tmp_path, spec_for("inf2", save_tiny(tmp_path / "m")), neuron_load=load)
    names = [name for name, _, _ in sdk.calls]
    assert names[:2] == ["trace", f"{load}_load"]
    assert sdk.calls[1][1][1] is True


@pytest.mark.parametrize("sdk", ["inf1", "inf2"], indirect=True)
def test_what_is_compiled_is_served_at_any_batch_and_length(
    sdk: Sdk, device: None, tmp_path: Path
) -> None:
    """FAULTS 8: fixed shapes are padded to and cut from; nobody sees a row of padding."""
    processor = "inf1" if sdk.__name__ == "torch_neuron" else "inf2"
    source = save_tiny(tmp_path / "m")
    spec = spec_for(processor, source, batch=2, sequence_buckets=(8,))
    (result,) = trace(tmp_path, spec)
    repository = Repository.open(str(tmp_path / "s"))
    artifact = repository.artifact("m", result.version, result.variant)
    assert (artifact.batch_sizes, artifact.sequence_lengths) == ([2], [8, 32])
    assert artifact.tokenizer is not None
    assert artifact.tokenizer.max_length == 32  # not the 64 that the original reads
    model = load_model(artifact, Cache(tmp_path / "c").pull(repository, artifact), 1, Encoders())
    eager = load_eager(read_source(spec), spec.task)
    for text in ("a", "one two three four", "word " * 400):
        encoded = model.encoder.encode(Text(text))
        for rows in (1, 2, 3, 5):
            arrays = {name: np.repeat(a, rows, axis=0) for name, a in encoded.arrays.items()}
            (answer,) = model.backend.run(arrays)
            assert answer == pytest.approx(eager.run(arrays), abs=1e-4)
            assert len(answer) == rows
        assert encoded.cut == (len(text) > 100)


@pytest.mark.parametrize("sdk", ["inf2"], indirect=True)
def test_without_a_device_nothing_is_published_unless_asked(sdk: Sdk, tmp_path: Path) -> None:
    spec = spec_for("inf2", save_tiny(tmp_path / "m"))
    (result,) = trace(tmp_path, spec)
    assert "there is no Neuron device here" in result.reason
    assert "or set publish_unproven" in result.reason
    (result,) = trace(tmp_path, spec, publish_unproven=True)
    assert "neither compared nor measured" in result.notes[0]
    options = sdk.called("trace")[-1][2]
    assert options["cpu_backend"] is True
    assert options["compiler_args"][-2:] == ["--target", "inf2"]
    artifact = Repository.open(str(tmp_path / "s")).artifact("m", result.version, result.variant)
    assert (artifact.equality.samples, artifact.cost.latency) == (0, [])
    assert artifact.cost.runtime.startswith("not measured: there is no Neuron device")


@pytest.mark.parametrize("weights", [1, 22_700_000, 66_000_000, 110_000_000])
def test_auto_pipelines_over_four_cores_for_every_twenty_million_weights(weights: int) -> None:
    tracer = neuron.NeuronTracer("inf1", Settings(neuron_pipeline_cores="auto"))
    wanted = {1: 1, 22_700_000: 4, 66_000_000: 12, 110_000_000: 24}
    assert tracer._cores(weights) == wanted[weights]


def test_what_a_generation_does_not_have_is_refused(tmp_path: Path) -> None:
    source = save_tiny(tmp_path / "m")
    pipelined = trace(tmp_path, spec_for("inf2", source), neuron_pipeline_cores=4)
    assert "neuron_pipeline_cores 4: inf2 cannot split a model" in pipelined[0].reason
    lazy = trace(tmp_path, spec_for("inf1", source), neuron_load="lazy")
    assert "neuron_load 'lazy' is not known to inf1" in lazy[0].reason
    exact = trace(tmp_path, make_spec(source, processors=("inf1",), precision="fp32"))
    assert "precision 'fp32' is not made for inf1: use auto, bf16" in exact[0].reason


@pytest.mark.parametrize("sdk", ["inf2"], indirect=True)
def test_a_compiler_that_fails_is_quoted(
    sdk: Sdk, device: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError("[NCC_EVRF001] operator erfinv is not supported\nmore")

    monkeypatch.setattr(sdk, "trace", refuse)
    (result,) = trace(tmp_path, spec_for("inf2", save_tiny(tmp_path / "m")))
    assert "refuses batch 1 of 32 tokens: [NCC_EVRF001] operator erfinv" in result.reason


def test_a_missing_sdk_is_named_with_the_image_that_has_it() -> None:
    with pytest.raises(
        MissingPackage, match="torch_neuron is not installed: run in the image packhorse"
    ):
        session_module.import_sdk("inf1")
