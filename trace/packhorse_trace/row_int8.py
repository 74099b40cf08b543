"""int8 with a scale for each row of activations, so that no answer depends on its neighbours.

ONNX Runtime's own dynamic quantization takes one scale per tensor, padding and batch companions
included. Here a row's scale is its own largest number: the rows are brought to the range of a
byte, multiplied as integers, and brought back. Built of operators that the runtime has:
`QuantizeLinear` with a scale of one, and com.microsoft's `MatMulIntegerToFloat` with a scale for
each column of weights.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper, numpy_helper

from packhorse.tensors import Array

ZERO = 128
"""What stands for zero in a byte of activations, whose sign it makes room for."""
SMALLEST = 1e-9


def quantize_rows(model: onnx.ModelProto, reduce_range: bool) -> onnx.ModelProto:
    """Quantize every product with a constant matrix; the model is changed in place.

    Args:
        model: Constants folded, weights as initializers.
        reduce_range: Use 7 of the 8 bits of a weight.
    """
    graph = model.graph
    weights = {tensor.name: tensor for tensor in graph.initializer}
    constants: dict[str, Array] = {
        "row_int8.one": np.array(1, np.float32),
        "row_int8.zero": np.array(ZERO, np.uint8),
        "row_int8.smallest": np.array(SMALLEST, np.float32),
        "row_int8.range": np.array(127, np.float32),
    }
    nodes: list[onnx.NodeProto] = []
    rows: dict[str, str] = {}
    for node in graph.node:
        if node.op_type != "MatMul" or not _is_matrix(weights.get(node.input[1])):
            nodes.append(node)
            continue
        source, matrix, target = node.input[0], node.input[1], node.output[0]
        if source not in rows:  # queries, keys and values are products of one tensor
            rows[source] = f"{source}.row_int8"
            nodes += _to_bytes(source, rows[source])
        values, scales = _to_int8(numpy_helper.to_array(weights[matrix]), reduce_range)
        names = [f"{matrix}.{part}" for part in ("quantized", "scale", "zero")]
        parts = (values, scales, np.zeros_like(scales, np.int8))
        constants.update(zip(names, parts, strict=True))
        row = rows[source]
        inputs = [f"{row}.bytes", names[0], "row_int8.one", names[1], "row_int8.zero", names[2]]
        nodes += [
            helper.make_node(
                "MatMulIntegerToFloat", inputs, [f"{target}.row_int8"], domain="com.microsoft"
            ),
            helper.make_node("Mul", [f"{target}.row_int8", f"{row}.scale"], [target]),
        ]
    _replace(model, nodes, constants)
    return model


def _to_bytes(source: str, row: str) -> list[onnx.NodeProto]:
    make = helper.make_node
    return [
        make("Abs", [source], [f"{row}.abs"]),
        make("ReduceMax", [f"{row}.abs"], [f"{row}.max"], axes=[-1], keepdims=1),
        make("Max", [f"{row}.max", "row_int8.smallest"], [f"{row}.size"]),
        make("Div", ["row_int8.range", f"{row}.size"], [f"{row}.factor"]),
        make("Div", [f"{row}.size", "row_int8.range"], [f"{row}.scale"]),
        make("Mul", [source, f"{row}.factor"], [f"{row}.scaled"]),
        make(
            "QuantizeLinear", [f"{row}.scaled", "row_int8.one", "row_int8.zero"], [f"{row}.bytes"]
        ),
    ]


def _to_int8(matrix: Array, reduce_range: bool) -> tuple[Array, Array]:
    """Return whole numbers and a scale for each column."""
    top = 63 if reduce_range else 127
    scales = np.maximum(np.abs(matrix).max(axis=0), SMALLEST) / top
    return np.round(matrix / scales).astype(np.int8), scales.astype(np.float32)


def _is_matrix(tensor: onnx.TensorProto | None) -> bool:
    return (
        tensor is not None and tensor.data_type == onnx.TensorProto.FLOAT and len(tensor.dims) == 2
    )


def _replace(
    model: onnx.ModelProto, nodes: list[onnx.NodeProto], constants: dict[str, Array]
) -> None:
    graph = model.graph
    used = {name for node in nodes for name in node.input}
    tensors = [tensor for tensor in graph.initializer if tensor.name in used]
    tensors += [numpy_helper.from_array(array, name) for name, array in constants.items()]
    del graph.node[:]
    graph.node.extend(nodes)
    del graph.initializer[:]
    graph.initializer.extend(tensors)
    if all(opset.domain != "com.microsoft" for opset in model.opset_import):
        model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
