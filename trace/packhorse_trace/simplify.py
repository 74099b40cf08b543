"""Graphs with fewer nodes and the same answers, bit for bit.

A short text's inference takes a few milliseconds, so nodes that compute no more than a shape, and
calls that could be one, are worth removing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from packhorse.tensors import Array


def simplify_reshapes(graph: onnx.ModelProto, feeds: Sequence[Mapping[str, Array]]) -> None:
    """Replace shapes that are computed at run time by constants, where sizes are just carried over.

    An exporter writes `x.view(batch, tokens, heads, size)` as a dozen nodes that read the batch and
    the length and put them together again; ONNX's Reshape takes 0 for "as in the input". Which
    sizes are carried over is seen by running the graph.

    Args:
        graph: As exported; changed in place.
        feeds: Inputs of several batches and lengths, so that no size is constant by chance.
    """
    reshapes = [node for node in graph.graph.node if node.op_type == "Reshape"]
    if not reshapes or _has_branches(graph):
        return
    names = {name for node in reshapes for name in (node.input[0], node.output[0])}
    try:
        sizes = _sizes(graph, names, feeds)
    except Exception:  # what does not run at some size is named where it is compared
        return
    nodes: list[onnx.NodeProto] = []
    for node in graph.graph.node:
        if node.op_type == "Reshape":
            shape = _carried(sizes[node.input[0]], sizes[node.output[0]])
            if shape is not None:
                # A node, not an initializer: those are the model's own parameters.
                name = f"{node.output[0]}.shape"
                value = numpy_helper.from_array(np.array(shape, np.int64))
                nodes.append(helper.make_node("Constant", [], [name], value=value))
                node.input[1] = name
        nodes.append(node)
    _replace(graph, nodes)


def merge_products(graph: onnx.ModelProto) -> onnx.ModelProto:
    """Compute products of one tensor (queries, keys and values) in one call.

    Args:
        graph: Constants folded, weights as initializers; changed in place.
    """
    if _has_branches(graph):
        return graph
    weights = {tensor.name: tensor for tensor in graph.graph.initializer}
    uses: dict[str, list[onnx.NodeProto]] = defaultdict(list)
    for node in graph.graph.node:
        for name in node.input:
            uses[name].append(node)
    merged: dict[str, list[onnx.NodeProto]] = {}  # by the first product's name
    gone: set[str] = set()
    for source, users in list(uses.items()):
        pairs = [
            (node, uses[node.output[0]][0])
            for node in users
            if node.op_type == "MatMul"
            and node.input[0] == source
            and len(uses[node.output[0]]) == 1
        ]
        pairs = [
            (product, add)
            for product, add in pairs
            if add.op_type == "Add"
            and _rank(weights, product.input[1]) == 2
            and sum(_rank(weights, name) == 1 for name in add.input) == 1
        ]
        if len(pairs) > 1:
            merged[pairs[0][0].output[0]] = _merge(graph, source, pairs, weights)
            gone |= {node.output[0] for pair in pairs for node in pair}
    nodes: list[onnx.NodeProto] = []
    for node in graph.graph.node:
        if node.output[0] not in gone:
            nodes.append(node)
        nodes += merged.get(node.output[0], [])
    _replace(graph, nodes)
    return graph


def _merge(
    graph: onnx.ModelProto,
    source: str,
    pairs: list[tuple[onnx.NodeProto, onnx.NodeProto]],
    weights: dict[str, onnx.TensorProto],
) -> list[onnx.NodeProto]:
    """Return one product, one sum and their split, in place of several products and sums."""
    matrices = [numpy_helper.to_array(weights[product.input[1]]) for product, _ in pairs]
    biases = [
        numpy_helper.to_array(next(weights[name] for name in add.input if name in weights))
        for _, add in pairs
    ]
    name = f"{source}.merged"
    for part, array in {
        "weight": np.concatenate(matrices, axis=1),
        "bias": np.concatenate(biases),
        "sizes": np.array([matrix.shape[1] for matrix in matrices], np.int64),
    }.items():
        graph.graph.initializer.append(numpy_helper.from_array(array, f"{name}.{part}"))
    return [
        helper.make_node("MatMul", [source, f"{name}.weight"], [f"{name}.product"]),
        helper.make_node("Add", [f"{name}.product", f"{name}.bias"], [f"{name}.sum"]),
        helper.make_node(
            "Split",
            [f"{name}.sum", f"{name}.sizes"],
            [add.output[0] for _, add in pairs],
            axis=-1,
        ),
    ]


def _has_branches(graph: onnx.ModelProto) -> bool:
    """Say whether some node has graphs of its own, which use outer names without listing them."""
    return any(part.HasField("g") for node in graph.graph.node for part in node.attribute)


def _rank(weights: dict[str, onnx.TensorProto], name: str) -> int | None:
    return len(weights[name].dims) if name in weights else None


def _sizes(
    graph: onnx.ModelProto, names: set[str], feeds: Sequence[Mapping[str, Array]]
) -> dict[str, list[tuple[int, ...]]]:
    """Return the shapes that tensors have, for each of the inputs."""
    given = {tensor.name: tuple(tensor.dims) for tensor in graph.graph.initializer}
    given_inputs = {value.name for value in graph.graph.input}
    asked = sorted(names - given.keys() - given_inputs)
    before = list(graph.graph.output)
    del graph.graph.output[:]
    graph.graph.output.extend(onnx.ValueInfoProto(name=name) for name in asked)
    data = graph.SerializeToString()
    del graph.graph.output[:]
    graph.graph.output.extend(before)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(data, options, ["CPUExecutionProvider"])
    sizes: dict[str, list[tuple[int, ...]]] = {name: [] for name in asked}
    for feed in feeds:
        for name, array in zip(asked, session.run(asked, dict(feed)), strict=True):
            sizes[name].append(array.shape)
    for name in names & given_inputs:
        sizes[name] = [feed[name].shape for feed in feeds]
    for name in names & given.keys():
        sizes[name] = [given[name]] * len(feeds)
    return sizes


def _carried(before: list[tuple[int, ...]], after: list[tuple[int, ...]]) -> list[int] | None:
    """Return what Reshape is to be given, or None if more than one size has to be computed."""
    shape = []
    for place, sizes in enumerate(zip(*after, strict=True)):
        if all(
            place < len(was) and was[place] == size for was, size in zip(before, sizes, strict=True)
        ):
            shape.append(0)
        else:
            shape.append(sizes[0] if len(set(sizes)) == 1 and sizes[0] else -1)
    return shape if shape.count(-1) <= 1 else None


def _replace(graph: onnx.ModelProto, nodes: list[onnx.NodeProto]) -> None:
    """Give the graph these nodes, without those that nothing needs any more."""
    needed = {value.name for value in graph.graph.output}
    kept = []
    for node in reversed(nodes):  # in an ONNX graph a node stands behind those that it needs
        if needed.intersection(node.output):
            kept.append(node)
            needed.update(node.input)
    tensors = [tensor for tensor in graph.graph.initializer if tensor.name in needed]
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in reversed(kept)]
    del graph.graph.node[:]
    graph.graph.node.extend(copies)
    del graph.graph.initializer[:]
    graph.graph.initializer.extend(tensors)
