"""A ready-made ONNX file, such as skl2onnx and onnxmltools write, to the files of an artifact."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from pathlib import Path

import onnx
import onnxruntime
from onnx import helper

from packhorse.catalog import ModelSpec
from packhorse.errors import InvalidInput, TraceError
from packhorse.sessions.onnx import FILE, open_session, session_inputs, session_outputs
from packhorse.tensors import Array, make_feed
from packhorse_trace.onnx_export import PROTOBUF_LIMIT_BYTES
from packhorse_trace.onnx_files import write_model
from packhorse_trace.ready import ReadyFile
from packhorse_trace.ready_import import declared
from packhorse_trace.tracer import Compiled


def import_onnx(
    source: ReadyFile, spec: ModelSpec, folder: Path
) -> tuple[Compiled, Callable[[Mapping[str, Array]], list[Array]], list[str] | None]:
    """Write an ONNX file's graph and weights as an artifact's.

    Returns:
        What was made, a function that runs the source without optimisation, and the class labels
        of a ZipMap in it, which gives way to the tensor that it wraps.

    Raises:
        TraceError: Over 2 GiB, or not what ONNX Runtime can run.
    """
    total = sum(path.stat().st_size for path in (source.path, *source.beside))
    if total >= PROTOBUF_LIMIT_BYTES:
        raise TraceError(f"{source.path} has {total} bytes: over 2 GiB is not supported")
    try:
        onnx.checker.check_model(str(source.path))
        model = onnx.load(str(source.path))
        labels = _unwrap(model)
        original = onnxruntime.InferenceSession(
            model.SerializeToString(), _plain(), providers=["CPUExecutionProvider"]
        )
        write_model(model, folder)
        session = open_session(folder / FILE, threads=1)
    except (InvalidInput, TraceError) as err:
        raise TraceError(f"{source.path}: {err}") from err
    except Exception as err:  # the checker's, protobuf's and the runtime's own classes
        raise TraceError(
            f"{source.path} is not an ONNX model that can be run: {str(err).splitlines()[0][:300]}"
        ) from err
    inputs = session_inputs(original)

    def reference(arrays: Mapping[str, Array]) -> list[Array]:
        answers: list[Array] = original.run(None, make_feed(inputs, arrays))
        return answers

    compiled = Compiled(
        processor="cpu",
        format="onnx",
        precision=_precision(model),
        inputs=declared(inputs, spec, source),
        outputs=session_outputs(session),
        batch_sizes=[-1],
        sequence_lengths=[-1],
        invariant=False,
        built_with={
            "python": platform.python_version(),
            "onnx": onnx.__version__,
            "onnxruntime": onnxruntime.__version__,
        },
    )
    return compiled, reference, labels


def _plain() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return options


def _precision(model: onnx.ModelProto) -> str:
    """Name what its weights are held in."""
    bytes_of = {"int8": 0, "fp16": 0, "fp32": 0}
    kinds = {
        onnx.TensorProto.INT8: "int8", onnx.TensorProto.UINT8: "int8",
        onnx.TensorProto.FLOAT16: "fp16", onnx.TensorProto.FLOAT: "fp32",
    }  # fmt: skip
    for tensor in model.graph.initializer:
        if kind := kinds.get(tensor.data_type):
            size = 1
            for length in tensor.dims:
                size *= length
            bytes_of[kind] += size
    return max(bytes_of, key=lambda kind: bytes_of[kind]) if any(bytes_of.values()) else "fp32"


def _unwrap(model: onnx.ModelProto) -> list[str] | None:
    """Take off a ZipMap, which makes a list of dictionaries of a tensor of scores."""
    graph = model.graph
    for node in list(graph.node):
        if node.op_type != "ZipMap":
            continue
        scores, name = node.input[0], node.output[0]
        labels = [
            value.decode() if isinstance(value, bytes) else str(value)
            for attribute in node.attribute
            for value in helper.get_attribute_value(attribute)
        ]
        graph.node.remove(node)
        for other in graph.node:
            for names in (other.input, other.output):
                for index, used in enumerate(names):
                    if used == scores:
                        names[index] = name
        for output in graph.output:
            if output.name == name:
                tensor = helper.make_tensor_value_info(
                    name, onnx.TensorProto.FLOAT, ["batch", len(labels)]
                )
                output.CopyFrom(tensor)
        return labels
    return None
