"""An ONNX graph to the files of an artifact: quantized, optimised, a file per large tensor.

All graph work is done here, once; a server loads the result with optimisation off. Optimisation
stops at the EXTENDED level: what the levels above it write is tied to this CPU's features.
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

import onnx
import onnxruntime
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.quantization.shape_inference import quant_pre_process

from packhorse_trace.row_int8 import quantize_rows
from packhorse_trace.simplify import merge_products

_SLOWER_FUSED = ["SkipLayerNormFusion", "BiasGeluFusion"]
"""Fusions that cost time on ONNX Runtime 1.32: its SkipLayerNormalization takes 4.2 ms of MiniLM's
128 tokens where its parts take 1.5."""
EXTERNAL_BYTES = 64 * 1024
"""Tensors from this size on are a file each, so that models that share one store it once."""


def write_model(
    graph: onnx.ModelProto,
    folder: Path,
    int8: bool = False,
    reduce_range: bool = True,
    rows: bool = False,
) -> None:
    """Write `model.onnx` and `weights/<sha256>` into a folder.

    Args:
        graph: As exported, with weights inside.
        int8: Quantize matrices per output channel, and embedding tables, to 8 bits.
        reduce_range: Use 7 of the 8 bits; see the setting of that name.
        rows: Take a scale for each row of activations; see `row_int8`.
    """
    level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    scratch = folder / "scratch"
    scratch.mkdir(parents=True)
    exported, quantized, final = (scratch / f"{n}.onnx" for n in ("exported", "int8", "final"))
    onnx.save(graph, exported)
    if int8:
        folded = scratch / "folded.onnx"
        _optimise(exported, folded, onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC)
        onnx.save(merge_products(onnx.load(folded)), folded)
        quant_pre_process(folded, folded, skip_optimization=True, skip_symbolic_shape=True)
        logging.getLogger().debug("quantizing %s", exported)
        quantize_dynamic(
            folded, quantized, per_channel=True, reduce_range=reduce_range,
            weight_type=QuantType.QInt8, op_types_to_quantize=["Gather"] if rows else None,
        )  # fmt: skip
        if rows:
            onnx.save(quantize_rows(onnx.load(quantized), reduce_range), quantized)
        exported = quantized
    _optimise(exported, final, level)
    _externalise(onnx.load(final), folder)
    for path in scratch.iterdir():
        path.unlink()
    scratch.rmdir()


def _optimise(source: Path, target: Path, level: onnxruntime.GraphOptimizationLevel) -> None:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.optimized_model_filepath = str(target)
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    # Prepacked weights would not be written as plain initializers.
    options.add_session_config_entry("session.disable_prepacking", "1")
    onnxruntime.InferenceSession(
        str(source), options, ["CPUExecutionProvider"], disabled_optimizers=_SLOWER_FUSED
    )


def _externalise(model: onnx.ModelProto, folder: Path) -> None:
    """Write large tensors as files named by their digest, and the graph that points to them."""
    weights = folder / "weights"
    weights.mkdir()
    for tensor in model.graph.initializer:
        data = tensor.raw_data
        if len(data) < EXTERNAL_BYTES:
            continue
        digest = hashlib.sha256(data).hexdigest()
        (weights / digest).write_bytes(data)
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        for key, value in (("location", f"weights/{digest}"), ("length", str(len(data)))):
            entry = tensor.external_data.add()
            entry.key, entry.value = key, value
    for node in model.graph.node:
        node.doc_string = ""
    (folder / "model.onnx").write_bytes(model.SerializeToString(deterministic=True))
