"""Task `tensor` over a real socket: right bodies, wrong bodies, numbers that JSON can carry."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.running import Running, running
from tests.trace.test_pipeline import trace
from tests.trace.tiny import make_spec

pytestmark = pytest.mark.integration


def save_mixed(path: Path) -> Path:
    """y = x + int(k), shout = word, big = wide, over free rows."""
    nodes = [
        helper.make_node("Cast", ["k"], ["kf"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["x", "kf"], ["y"]),
        helper.make_node("Identity", ["word"], ["shout"]),
        helper.make_node("Identity", ["k"], ["k_out"]),
    ]
    inputs = [("x", TensorProto.FLOAT), ("k", TensorProto.INT32), ("word", TensorProto.STRING)]
    outputs = [
        ("y", TensorProto.FLOAT),
        ("shout", TensorProto.STRING),
        ("k_out", TensorProto.INT32),
    ]
    graph = helper.make_graph(
        nodes, "mixed",
        [helper.make_tensor_value_info(name, kind, ["n", 2]) for name, kind in inputs],
        [helper.make_tensor_value_info(name, kind, ["n", 2]) for name, kind in outputs],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


def save_log(path: Path) -> Path:
    value = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])
    graph = helper.make_graph([helper.make_node("Log", ["x"], ["y"])], "log", [value], [out])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path
    )
    return path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("tensor")
    files = {"mixed": save_mixed(folder / "mixed.onnx"), "log": save_log(folder / "log.onnx")}
    specs = [make_spec(f, name, task="tensor", precision="auto") for name, f in files.items()]
    assert [result.reason for result in trace(folder / "s", *specs)] == ["", ""]
    with running(str(folder / "s"), folder / "c", list(files)) as found:
        yield found


def tensors(**changes: dict[str, Any]) -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {
        "x": {"shape": [1, 2], "datatype": "FP32", "data": [1.5, 2]},
        "k": {"shape": [1, 2], "datatype": "INT32", "data": [10, 20]},
        "word": {"shape": [1, 2], "datatype": "BYTES", "data": ["ä", "b"]},
    }
    return [{"name": name, **row, **changes.get(name, {})} for name, row in rows.items()]


def test_tensors_of_every_kind_go_in_and_come_out(server: Running) -> None:
    answer = server.ask("mixed", tensors())
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert (found["model_name"], found["model_version"]) == (
        "mixed", answer.headers["x-packhorse-version"],
    )  # fmt: skip
    assert found["outputs"] == [
        {"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [11.5, 22.0]},
        {"name": "shout", "datatype": "BYTES", "shape": [1, 2], "data": ["ä", "b"]},
        {"name": "k_out", "datatype": "INT32", "shape": [1, 2], "data": [10, 20]},
    ]


def test_nested_data_and_wider_whole_numbers_are_taken(server: Running) -> None:
    asked = tensors(
        x={"shape": [2, 2], "data": [[1, 2], [3, 4]]},
        k={"shape": [2, 2], "datatype": "INT64", "data": [[0, 0], [1, 1]]},
        word={"shape": [2, 2], "data": [["a", "b"], ["c", "d"]]},
    )
    answer = server.ask("mixed", asked)
    assert answer.status_code == 200, answer.text
    rows = answer.json()["outputs"][0]
    assert np.array(rows["data"]).reshape(rows["shape"]).tolist() == [[1, 2], [4, 5]]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"x": {"name": "z"}}, "there is no input 'z': send x FP32 [-1, 2], k INT32"),
        ({"x": {"shape": [1, 3]}}, "shape [1, 3] of 'x': send [-1, 2]"),
        ({"x": {"shape": [0, 2], "data": []}}, "shape [0, 2] of 'x'"),
        ({"x": {"shape": [True, 2]}}, "shape [True, 2] of 'x'"),
        ({"x": {"shape": "12"}}, "shape '12' of 'x'"),
        ({"x": {"data": [1]}}, "data of 'x' has 1 values: shape [1, 2] needs 2"),
        ({"x": {"data": [[1], [2, 3]]}}, "data of 'x' is nested unevenly"),
        ({"x": {"data": ["1", "2"]}}, "data of 'x' is of kind"),
        ({"x": {"data": [None, 1]}}, "data of 'x' is of kind"),
        ({"x": {"data": 3}}, "data of 'x' is int: send a list of 2 values"),
        ({"x": {"data": [1e300, 0]}}, "too large for FP32"),
        ({"x": {"datatype": "BYTES"}}, "datatype 'BYTES' of 'x': send FP32"),
        ({"k": {"datatype": "FP32"}}, "datatype 'FP32' of 'k': send INT32"),
        ({"k": {"data": [1.5, 2]}}, "data of 'k' is of kind float64: send INT32"),
        ({"k": {"data": [2**40, 0]}}, "too large for INT32"),
        ({"k": {"data": [2**70, 0]}}, "data of 'k' is of kind object: send INT32"),
        ({"k": {"data": [True, False]}}, "data of 'k' is of kind bool: send INT32"),
        ({"word": {"data": ["a", 1]}}, "data of 'word' holds something that is no text"),
        ({"word": {"extra": 1}}, "expected name, shape, datatype and data"),
    ],
)
def test_a_wrong_tensor_is_named(server: Running, changes: Any, says: str) -> None:
    answer = server.ask("mixed", tensors(**changes))
    assert answer.status_code == 400, answer.text
    assert says in answer.json()["error"]
    assert server.ask("mixed", tensors()).status_code == 200


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ("a text", "inputs is no list of tensors: send x FP32"),
        ([], "inputs lacks input 'k'"),
        ([1], "inputs is no list of tensors"),
        (tensors()[:2], "inputs lacks input 'word'"),
        ([*tensors(), tensors()[0]], "input 'x' is given twice"),
    ],
)
def test_inputs_that_are_no_tensors_are_named(server: Running, inputs: Any, says: str) -> None:
    answer = server.ask("mixed", inputs)
    assert answer.status_code == 400, answer.text
    assert says in answer.json()["error"]


def test_an_answer_that_is_no_number_is_the_clients_mistake(server: Running) -> None:
    big = 3.4e38
    answer = server.ask("mixed", tensors(x={"data": [big, 0]}, k={"data": [2**31 - 1, 0]}))
    assert answer.status_code == 200  # rounds to the same
    answer = server.ask("log", [{"name": "x", "shape": [1], "datatype": "FP32", "data": [-1]}])
    assert answer.status_code == 400
    assert "no finite answer to these tensors" in answer.json()["error"]


def test_tensors_whose_sizes_do_not_match_are_the_clients_mistake(server: Running) -> None:
    asked = tensors(k={"shape": [3, 2], "data": [0] * 6}, x={"shape": [2, 2], "data": [0] * 4})
    answer = server.ask("mixed", asked)
    assert answer.status_code == 400, answer.text
    assert "the model cannot take these tensors" in answer.json()["error"]
