"""Graphs that are simplified give the same bits with fewer nodes."""

from __future__ import annotations

import io
import warnings
from collections import Counter
from typing import Any, cast

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from packhorse_trace.simplify import merge_products, simplify_reshapes

torch = pytest.importorskip("torch")
SIZES = {"query": 8, "key": 8, "value": 12}


def run(graph: onnx.ModelProto, x: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    session = onnxruntime.InferenceSession(graph.SerializeToString())
    return cast(list[Any], session.run(None, {"x": x}))


def projections(bias: bool = True) -> onnx.ModelProto:
    """Three products of one tensor, one with its bias first, and one product of another tensor."""
    rng = np.random.default_rng(1)
    nodes, constants = [], {}
    for name, size in SIZES.items():
        constants[f"{name}.w"] = rng.normal(size=(16, size)).astype(np.float32)
        constants[f"{name}.b"] = rng.normal(size=size).astype(np.float32)
        nodes.append(helper.make_node("MatMul", ["x", f"{name}.w"], [f"{name}.product"]))
        pair = [f"{name}.product", f"{name}.b"]
        pair = pair[::-1] if name == "key" else pair
        nodes.append(helper.make_node("Add" if bias else "Sub", pair, [name]))
    constants["last.w"] = rng.normal(size=(8, 3)).astype(np.float32)
    nodes.append(helper.make_node("MatMul", ["key", "last.w"], ["last"]))
    value = helper.make_tensor_value_info
    outputs = [value(n, onnx.TensorProto.FLOAT, None) for n in (*SIZES, "last")]
    inputs = [value("x", onnx.TensorProto.FLOAT, ["batch", "tokens", 16])]
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "projections", inputs, outputs, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_products_of_one_tensor_become_one() -> None:
    x = np.random.default_rng(0).normal(size=(2, 5, 16)).astype(np.float32)
    before = run(projections(), x)
    merged = merge_products(projections())
    assert Counter(node.op_type for node in merged.graph.node) == {
        "MatMul": 2,
        "Add": 1,
        "Split": 1,
    }
    assert {t.name for t in merged.graph.initializer} == {
        "x.merged.weight", "x.merged.bias", "x.merged.sizes", "last.w",
    }  # fmt: skip
    for was, now in zip(before, run(merged, x), strict=True):
        np.testing.assert_allclose(now, was, atol=1e-6)


def test_products_without_a_bias_are_left_alone() -> None:
    merged = merge_products(projections(bias=False))
    assert merged == projections(bias=False)


def test_products_that_share_a_matrix_and_not_what_it_is_multiplied_with_are_left_alone() -> None:
    graph = projections()
    layers = [("a", "x", "query.w"), ("b", "a", "back.w"), ("c", "b", "query.w")]
    del graph.graph.node[:]
    del graph.graph.output[1:]
    graph.graph.output[0].name = "c"
    back = np.random.default_rng(2).normal(size=(8, 16)).astype(np.float32)
    graph.graph.initializer.append(numpy_helper.from_array(back, "back.w"))
    graph.graph.initializer.append(numpy_helper.from_array(back[0], "back.b"))
    for name, source, matrix in layers:
        bias = matrix.replace(".w", ".b")
        graph.graph.node.append(helper.make_node("MatMul", [source, matrix], [f"{name}.product"]))
        graph.graph.node.append(helper.make_node("Add", [f"{name}.product", bias], [name]))
    x = np.random.default_rng(0).normal(size=(2, 5, 16)).astype(np.float32)
    before = run(graph, x)
    merged = merge_products(graph)
    assert [node.op_type for node in merged.graph.node] == ["MatMul", "Add"] * 3
    np.testing.assert_array_equal(run(merged, x)[0], before[0])


class Heads(torch.nn.Module):  # type: ignore[name-defined,misc]
    """Splits into heads and back as attention does, then rearranges in a way that 0 cannot say."""

    def forward(self, x: Any) -> Any:
        batch, tokens, _ = x.shape
        heads = x.view(batch, tokens, 4, 4).transpose(1, 2)
        joined = heads.transpose(1, 2).reshape(batch, tokens, 16)
        return joined.reshape(tokens, batch, 16)


def test_sizes_that_are_carried_over_are_not_computed() -> None:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Heads(), (torch.zeros(2, 3, 16),), cast(Any, buffer), input_names=["x"],
            dynamic_axes={"x": {0: "batch", 1: "tokens"}}, opset_version=17, dynamo=False,
            do_constant_folding=False,
        )  # fmt: skip
    exported, simple = (onnx.load_from_string(buffer.getvalue()) for _ in range(2))
    rng = np.random.default_rng(0)
    feeds = [{"x": rng.normal(size=(*size, 16)).astype(np.float32)} for size in ((1, 5), (3, 7))]
    simplify_reshapes(simple, feeds)
    constants = {
        node.output[0]: numpy_helper.to_array(node.attribute[0].t).tolist()
        for node in simple.graph.node
        if node.op_type == "Constant"
    }
    shapes = [constants.get(n.input[1]) for n in simple.graph.node if n.op_type == "Reshape"]
    assert shapes == [[0, 0, 4, 4], [0, 0, 16], None]  # the last one swaps sizes
    assert simple.graph.output == exported.graph.output
    for size in ((2, 3, 16), (1, 4, 16), (3, 1, 16)):
        x = rng.normal(size=size).astype(np.float32)
        np.testing.assert_array_equal(run(simple, x)[0], run(exported, x)[0])


def test_a_graph_with_branches_is_left_as_it_is() -> None:
    value = helper.make_tensor_value_info
    end = [value("branch", onnx.TensorProto.FLOAT, None)]
    branch = helper.make_graph([helper.make_node("Neg", ["key"], ["branch"])], "branch", [], end)
    graph = projections()
    graph.graph.initializer.append(numpy_helper.from_array(np.array(True), "always"))
    graph.graph.node.append(
        helper.make_node("If", ["always"], ["end"], then_branch=branch, else_branch=branch)
    )
    graph.graph.output.append(value("end", onnx.TensorProto.FLOAT, None))
    before = graph.SerializeToString(deterministic=True)
    simplify_reshapes(graph, [])
    merge_products(graph)
    assert graph.SerializeToString(deterministic=True) == before
