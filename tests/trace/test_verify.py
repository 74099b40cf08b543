"""Sabotage: whatever goes wrong in an export must be caught (FAULTS 7, 8, 22)."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from packhorse.errors import NotEqual
from packhorse.sessions import open_model
from packhorse.settings import Settings
from packhorse.tensors import Array
from packhorse_trace.cpu import CpuTracer
from packhorse_trace.samples import TEXTS, Encoded, encode_texts
from packhorse_trace.source import read_source
from packhorse_trace.tokenizer import write_tokenizer
from packhorse_trace.torch_model import EagerModel, load_eager
from packhorse_trace.tracer import Compiled, Runner
from packhorse_trace.verify import verify
from tests.trace.tiny import make_spec, save_tiny

pytestmark = pytest.mark.integration
LENGTH = 64


def runner(compiled: Compiled, folder: Path) -> Runner:
    session = open_model(compiled, folder, threads=1)
    return lambda arrays: session.run(arrays)[0]


Traced = tuple[EagerModel, Runner, Compiled, list[Encoded]]


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Traced:
    folder = tmp_path_factory.mktemp("verify")
    spec = make_spec(save_tiny(folder / "m"))
    source = read_source(spec)
    eager = load_eager(source, spec.task)
    tracer = CpuTracer(Settings())
    compiled = tracer.compile(eager, spec, "fp32", "shape", folder / "out")
    write_tokenizer(source, folder / "tokenizer.json")
    texts = encode_texts(folder / "tokenizer.json", [(text, None) for text in TEXTS], LENGTH)
    return eager, runner(compiled, folder / "out"), compiled, texts


def check(traced: Traced, run: Runner, **settings: float) -> None:
    eager, _, compiled, texts = traced
    verify(eager, run, compiled, texts, LENGTH, Settings(**settings))


def test_an_equal_artifact_passes_and_says_how_equal_it_is(traced: Traced) -> None:
    eager, run, compiled, texts = traced
    equality, _ = verify(eager, run, compiled, texts, LENGTH, Settings())
    assert equality.max_abs_diff < 1e-5
    assert equality.label_agreement == 1.0
    assert equality.samples > len(TEXTS)


def test_a_lost_mask_is_caught(traced: Traced) -> None:
    def maskless(arrays: Mapping[str, Array]) -> Array:
        return traced[1]({**arrays, "attention_mask": np.ones_like(arrays["attention_mask"])})

    with pytest.raises(NotEqual, match="padd.*differs from the original"):
        check(traced, maskless)


def test_a_frozen_batch_is_caught(traced: Traced) -> None:
    def frozen(arrays: Mapping[str, Array]) -> Array:
        return traced[1]({name: array[:1] for name, array in arrays.items()})

    with pytest.raises(NotEqual):
        check(traced, frozen)


def test_a_frozen_length_is_caught(traced: Traced) -> None:
    def frozen(arrays: Mapping[str, Array]) -> Array:
        return traced[1]({name: array[:, :16] for name, array in arrays.items()})

    with pytest.raises(NotEqual):
        check(traced, frozen)


def test_a_shape_that_does_not_run_is_named(traced: Traced) -> None:
    def short(arrays: Mapping[str, Array]) -> Array:
        if len(arrays["input_ids"]) == 3:
            raise RuntimeError("index out of range")
        return traced[1](arrays)

    with pytest.raises(NotEqual, match="batch 3 of 16 tokens: does not run: index out of range"):
        check(traced, short)


def test_numbers_that_are_not_finite_are_caught(traced: Traced) -> None:
    def overflowing(arrays: Mapping[str, Array]) -> Array:
        return np.asarray(traced[1](arrays) * np.float32(np.inf))

    with pytest.raises(NotEqual, match="not finite"):
        check(traced, overflowing)


def test_a_model_left_in_training_mode_is_caught(traced: Traced) -> None:
    eager, run, compiled, texts = traced
    eager.module.train()
    try:
        with pytest.raises(NotEqual):
            verify(eager, run, compiled, texts, LENGTH, Settings())
    finally:
        eager.module.eval()


@pytest.mark.parametrize(("flips", "passes"), [(0, True), (1, True), (2, False)])
def test_labels_may_differ_on_the_share_allowed_rounded_up(
    traced: Traced, flips: int, passes: bool
) -> None:
    eager, run, compiled, texts = traced
    approximate = Compiled(**{**compiled.__dict__, "invariant": False, "precision": "int8"})
    calls = 0

    def flipping(arrays: Mapping[str, Array]) -> Array:
        nonlocal calls
        calls += 1
        answer = run(arrays)
        return np.asarray(-answer) if calls <= flips else answer

    # Of 24 texts, one may differ.
    settings = Settings(min_label_agreement=0.98, max_score_noise=1e9)
    if passes:
        equality, _ = verify(eager, flipping, approximate, texts, LENGTH, settings)
        assert equality.label_agreement == pytest.approx(1 - flips / len(texts))
    else:
        with pytest.raises(NotEqual, match=r"labels agree on 91.7% of 24 texts.*samples"):
            verify(eager, flipping, approximate, texts, LENGTH, settings)


def test_embeddings_must_point_the_same_way(tmp_path: Path) -> None:
    spec = make_spec(save_tiny(tmp_path / "m", embed=True), task="feature-extraction")
    source = read_source(spec)
    eager = load_eager(source, spec.task)
    tracer = CpuTracer(Settings())
    compiled = tracer.compile(eager, spec, "fp32", "shape", tmp_path / "out")
    run = runner(compiled, tmp_path / "out")
    write_tokenizer(source, tmp_path / "tokenizer.json")
    texts = encode_texts(tmp_path / "tokenizer.json", [(text, None) for text in TEXTS], LENGTH)
    assert verify(eager, run, compiled, texts, LENGTH, Settings())[0].label_agreement is None
    approximate = Compiled(**{**compiled.__dict__, "invariant": False, "precision": "int8"})

    def turned(arrays: Mapping[str, Array]) -> Array:
        return np.roll(run(arrays), 1, axis=1)

    with pytest.raises(NotEqual, match="cosine"):
        verify(eager, turned, approximate, texts, LENGTH, Settings())
