"""Small real ONNX models for tests of everything behind the trace stage: no torch, no weights.

A text of words `w0 … w99` is classified by the mean of its words' vectors, so that every test can
work out the right answer by hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from packhorse import artifact as records
from packhorse.store.repository import Repository, hash_stream

WORDS = 100
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
OPSET = 17


def vectors(outputs: int, seed: int = 0) -> np.ndarray:
    """The word vectors of a model, (vocabulary, outputs); special tokens have zeros."""
    table = np.random.default_rng(seed).normal(size=(len(SPECIAL) + WORDS, outputs))
    table[: len(SPECIAL)] = 0
    return table.astype(np.float32)


def write_graph(
    path: Path,
    outputs: int,
    inputs: Sequence[str] = ("input_ids", "attention_mask", "token_type_ids"),
    dtype: int = TensorProto.INT64,
    seed: int = 0,
) -> None:
    """Write a graph: the sum of word vectors over the mask, divided by the number of tokens.

    Every input of the list takes part, so that a test sees whether it was fed.
    """
    nodes = [
        helper.make_node("Cast", ["input_ids"], ["ids"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("Cast", ["attention_mask"], ["mask"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["mask", "last"], ["mask3"]),
        helper.make_node("Mul", ["rows", "mask3"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "one"], ["sum"], keepdims=0),
        helper.make_node("ReduceSum", ["mask", "one"], ["count"], keepdims=1),
        helper.make_node("Div", ["sum", "count"], ["mean"]),
    ]
    if "token_type_ids" in inputs:
        nodes += [
            helper.make_node("Cast", ["token_type_ids"], ["types"], to=TensorProto.FLOAT),
            helper.make_node("ReduceSum", ["types", "one"], ["second"], keepdims=1),
            helper.make_node("Add", ["mean", "second"], ["output"]),
        ]
    else:
        nodes.append(helper.make_node("Identity", ["mean"], ["output"]))
    graph = helper.make_graph(
        nodes,
        "words",
        [helper.make_tensor_value_info(name, dtype, ["batch", "tokens"]) for name in inputs],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, ["batch", outputs])],
        [
            onnx.numpy_helper.from_array(vectors(outputs, seed), "table"),
            onnx.numpy_helper.from_array(np.array([-1]), "last"),
            onnx.numpy_helper.from_array(np.array([1]), "one"),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)
    path.write_bytes(model.SerializeToString())


def write_tokenizer(path: Path) -> None:
    """Write a tokenizer of whole words with BERT's special tokens."""
    words = {word: i for i, word in enumerate([*SPECIAL, *(f"w{i}" for i in range(WORDS))])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    path.write_text(tokenizer.to_str())


def make_artifact(
    folder: Path,
    model_id: str,
    version: str = "v1",
    variant: str = "cpu-fp32",
    labels: list[str] | None = None,
    outputs: int = 4,
    max_length: int = 16,
    private_bytes: int = 1_000_000,
    shared: Sequence[records.Shared] = (),
    seconds: float = 0.001,
) -> records.Artifact:
    """Describe the files that lie in a folder."""
    files = []
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        with path.open("rb") as stream:
            digest = hash_stream(stream)
        name = path.relative_to(folder).as_posix()
        files.append(records.File(name, digest, path.stat().st_size))
    tokenizer = next(file for file in files if file.path == "tokenizer.json")
    return records.Artifact(
        id=model_id,
        version=version,
        variant=variant,
        task="feature-extraction" if labels is None else "text-classification",
        processor="cpu",
        format="onnx",
        precision=variant.partition("-")[2],
        files=files,
        inputs=[records.TensorSpec("input_ids", "int64", [-1, -1])],
        outputs=[records.TensorSpec("output", "float32", [-1, outputs])],
        batch_sizes=[-1],
        sequence_lengths=[-1],
        labels=labels,
        pooling="mean" if labels is None else None,
        normalize=False,
        tokenizer=records.Tokenizer(tokenizer.sha256, max_length, True),
        source=records.Source("test", "0" * 64),
        built_with={"onnxruntime": onnxruntime.__version__},
        verified_on=records.VerifiedOn("test", []),
        equality=records.Equality("none", 1, 0.0, None),
        cost=records.Cost(
            cpu="test",
            runtime="test",
            threads=1,
            private_bytes=private_bytes,
            file_bytes=sum(blob.bytes for blob in shared),
            shared=list(shared),
            peak_bytes=private_bytes,
            maps=len(shared),
            load_seconds=records.LoadSeconds(0.01, 0.02),
            latency=[records.Latency(1, 16, seconds, seconds)],
        ),
    )


def publish(
    store: str,
    folder: Path,
    model_id: str,
    labels: list[str] | None = None,
    seed: int = 0,
    inputs: Sequence[str] = ("input_ids", "attention_mask", "token_type_ids"),
    dtype: int = TensorProto.INT64,
    broken: bool = False,
    **facts: object,
) -> records.Artifact:
    """Make a model and publish it; a broken one has noise in place of its graph."""
    folder.mkdir(parents=True, exist_ok=True)
    outputs = len(labels) if labels else 4
    write_graph(folder / "model.onnx", outputs, inputs, dtype, seed)
    if broken:
        (folder / "model.onnx").write_bytes(np.random.default_rng(1).bytes(1024))
    write_tokenizer(folder / "tokenizer.json")
    artifact = make_artifact(
        folder,
        model_id,
        labels=labels,
        outputs=outputs,
        **facts,  # type: ignore[arg-type] # whatever make_artifact takes
    )
    repository = Repository.open(store)
    repository.objects.prepare()
    repository.publish(artifact, folder)
    return artifact
