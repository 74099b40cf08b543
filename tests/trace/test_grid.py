"""Every architecture, task and precision against its original, over a grid of shapes.

Minutes of CPU, so `slow`; one of each architecture runs in test_pipeline.py, one of each task in
test_tasks.py. docs/trace.md lists what is refused: nothing of this grid is.
"""

from pathlib import Path

import numpy as np
import pytest

from packhorse.sessions import open_model
from packhorse.tensors import Array
from packhorse_trace.samples import TEXTS, encode_texts, random_batch
from packhorse_trace.source import read_source
from packhorse_trace.torch_model import load_eager
from tests.trace.test_pipeline import pulled, trace
from tests.trace.tiny import make_spec, save_tiny

pytestmark = [pytest.mark.integration, pytest.mark.slow]
KINDS = ["bert", "distilbert", "roberta", "minilm", "electra", "albert", "deberta-v2"]
TASKS = ["text-classification", "token-classification", "question-answering", "text-ranking",
         "feature-extraction"]  # fmt: skip
POSITIONS = 160


@pytest.mark.parametrize("precision", ["fp32", "int8", "torchscript"])
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("kind", KINDS)
def test_equal(kind: str, task: str, precision: str, tmp_path: Path) -> None:
    labels = {"token-classification": 4, "text-ranking": 1, "question-answering": 2}.get(task, 3)
    embed = task == "feature-extraction"
    source = save_tiny(
        tmp_path / "m", kind, labels, embed=embed, positions=POSITIONS,
        task="text-classification" if embed else task,
    )  # fmt: skip
    spec = make_spec(source, task=task, precision=precision)
    (result,) = trace(tmp_path / "s", spec)
    assert result.reason == ""
    artifact, folder = pulled(tmp_path, "m", f"cpu-{precision}")
    session, eager = open_model(artifact, folder, 1), load_eager(read_source(spec), task)
    longest = read_source(spec).max_length
    assert longest == POSITIONS - 2 * (kind == "roberta")
    for batch in (1, 2, 3, 8):
        for tokens in (1, 5, 128, longest):
            arrays = random_batch(batch, tokens, eager.vocabulary)  # padded, the first row excepted
            answer, wanted = session.run(arrays)[0], eager.run(arrays)
            assert answer.shape == wanted.shape
            assert np.isfinite(answer).all()
            if eager.per_token:
                read = arrays["attention_mask"] == 1
                answer, wanted = answer[read], wanted[read]
            if precision != "int8":
                assert np.abs(answer - wanted).max() <= 1e-4
    texts = encode_texts(folder / "tokenizer.json", [(text, None) for text in TEXTS], longest)
    answers, originals = [], []
    for text in texts:
        arrays = {
            "input_ids": np.array([text.ids]), "attention_mask": np.ones((1, len(text.ids)), int),
            "token_type_ids": np.array([text.types]),
        }  # fmt: skip
        answers.append(session.run(arrays)[0][0])
        originals.append(eager.run(arrays)[0])
    largest = max(float(np.abs(a - w).max()) for a, w in zip(answers, originals, strict=True))
    assert largest <= (1e-4 if precision != "int8" else np.inf)
    for answer, wanted in zip(answers, originals, strict=True):
        if labels > 1 and not embed:
            _check_labels(answer, wanted, largest, 0 if task == "question-answering" else -1)


def _check_labels(answer: Array, wanted: Array, largest: float, axis: int) -> None:
    """Wherever the original is sure, by three times the largest difference, labels agree."""
    if wanted.shape[axis] < 2:
        return
    ordered = np.sort(wanted, axis=axis)
    margin = np.take(ordered, -1, axis) - np.take(ordered, -2, axis)
    same = answer.argmax(axis) == wanted.argmax(axis)
    assert np.all(same | (margin <= 3 * largest))
