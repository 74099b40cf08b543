"""Sources that cannot be traced: each named with what is wrong, once, and the rest goes on."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.trace.test_pipeline import trace
from tests.trace.tiny import make_spec, save_tiny

pytestmark = pytest.mark.integration
Edit = Callable[[Path], object]


def weights(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Edit:
    def edit(folder: Path) -> None:
        file = folder / "model.safetensors"
        save_file(change(load_file(file)), file, metadata={"format": "pt"})

    return edit


def config(**changes: Any) -> Edit:
    def edit(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))

    return edit


def with_nan(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    state["bert.encoder.layer.0.output.dense.weight"][0, 0] = float("nan")
    return state


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (weights(with_nan), "weights bert.encoder.layer.0.output.dense.weight hold numbers that"),
        (weights(lambda s: {k: v * 1e20 for k, v in s.items()}),
         "the original answers with numbers that are not finite"),
        (weights(lambda s: {**s, "classifier.weight": torch.ones(5, 32)}),
         "its weights do not have the shapes that config.json says"),
        (config(vocab_size=50), "its weights do not have the shapes"),
        (config(num_attention_heads=7), "not a multiple of the number of attention heads"),
        (config(hidden_act="nonsense"), "KeyError: 'nonsense'"),
        (config(model_type="custom"), "model type `custom`"),
        (lambda folder: (folder / "tokenizer.json").unlink(), "has no tokenizer (tokenizer.json"),
        (lambda folder: (folder / "tokenizer.json").write_text(""), "that can be read"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_once(edit: Edit, says: str, tmp_path: Path) -> None:
    source = save_tiny(tmp_path / "m")
    edit(source)
    good = make_spec(save_tiny(tmp_path / "good", seed=1), "good")
    bad, fine = sorted(
        trace(tmp_path / "s", make_spec(source, "bad", precision="auto"), good),
        key=lambda result: result.id,
    )
    assert (bad.status, fine.status) == ("failed", "traced")
    assert says in bad.reason
    assert bad.reason.count(says) == 1


def test_weights_in_half_precision_are_compared_in_full(tmp_path: Path) -> None:
    source = save_tiny(tmp_path / "m")
    weights(lambda s: {k: v.bfloat16() for k, v in s.items()})(source)
    (result,) = trace(tmp_path / "s", make_spec(source))
    assert (result.status, result.reason) == ("traced", "")
