"""Ready-made files: published as they are, measured, and run by the engine, task `tensor`."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from packhorse.artifact import TensorSpec
from packhorse.catalog import load_catalog
from packhorse.errors import InvalidInput
from packhorse.tensors import read_tensor_specs
from packhorse_server.model import load_model
from packhorse_server.tasks import parse_inputs
from packhorse_server.tokenizers import Encoders
from packhorse_trace.planning import Result
from tests.trace.test_pipeline import pulled, trace
from tests.trace.tiny import make_spec, save_tiny

pytestmark = pytest.mark.integration
DRAW = np.random.default_rng(0)
ROWS = DRAW.standard_normal((40, 4)).astype(np.float32)
CLASSES = (ROWS[:, 0] > 0).astype(np.int64) + (ROWS[:, 1] > 0.5)


def publish(tmp_path: Path, file: Path, **facts: Any) -> Result:
    facts = {"task": "tensor", "precision": "auto", **facts}
    (result,) = trace(tmp_path / "s", make_spec(file, file.stem, **facts))
    return result


def ask(tmp_path: Path, model_id: str, variant: str, *tensors: dict[str, Any]) -> dict[str, Any]:
    """Have the engine's model answer, as the server does, and return its outputs by name."""
    artifact, folder = pulled(tmp_path, model_id, variant)
    model = load_model(artifact, folder, 1, Encoders())
    ((question,),), many = parse_inputs(list(tensors), model.task, 9)
    answer, cut = model.answer(question, {})
    assert (many, cut) == (False, False)
    assert answer["model_name"] == model_id
    return {row["name"]: np.array(row["data"]).reshape(row["shape"]) for row in answer["outputs"]}


def tensor(name: str, array: Any, datatype: str = "FP32") -> dict[str, Any]:
    rows = np.asarray(array)
    return {"name": name, "shape": list(rows.shape), "datatype": datatype, "data": rows.tolist()}


def save(model: Any, path: Path) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


def test_a_scikit_learn_model_answers_as_it_did(tmp_path: Path) -> None:
    from skl2onnx import to_onnx
    from sklearn.linear_model import LogisticRegression

    original = LogisticRegression().fit(ROWS, CLASSES)
    file = save(to_onnx(original, ROWS[:1]), tmp_path / "iris.onnx")  # its scores in a ZipMap
    result = publish(tmp_path, file)
    assert (result.status, result.reason, result.variant) == ("traced", "", "cpu-onnx")
    outputs = ask(tmp_path, "iris", "cpu-onnx", tensor("X", ROWS))
    assert outputs["output_label"].tolist() == original.predict(ROWS).tolist()
    wanted = original.predict_proba(ROWS)
    assert outputs["output_probability"] == pytest.approx(wanted, abs=1e-5)
    artifact, _ = pulled(tmp_path, "iris", "cpu-onnx")
    assert artifact.labels == ["0", "1", "2"]
    assert (artifact.tokenizer, artifact.precision) == (None, "fp32")
    assert artifact.inputs == [TensorSpec("X", "float32", [-1, 4])]
    assert artifact.equality.max_abs_diff < 1e-5
    assert artifact.equality.samples > 0
    assert artifact.cost.seconds_at(32) == artifact.cost.latency[0].p50_seconds > 0
    assert [r.status for r in trace(tmp_path / "s", make_spec(
        file, "iris", task="tensor", precision="auto"))] == ["unchanged"]  # fmt: skip


def test_an_xgboost_model_answers_as_it_did(tmp_path: Path) -> None:
    import xgboost
    from onnxmltools import convert_xgboost
    from onnxmltools.convert.common.data_types import FloatTensorType

    original = xgboost.XGBClassifier(n_estimators=5, max_depth=3).fit(ROWS, CLASSES)
    converted = convert_xgboost(original, initial_types=[("X", FloatTensorType([None, 4]))])
    assert publish(tmp_path, save(converted, tmp_path / "trees.onnx")).reason == ""
    outputs = ask(tmp_path, "trees", "cpu-onnx", tensor("X", ROWS))
    assert outputs["probabilities"] == pytest.approx(original.predict_proba(ROWS), abs=1e-5)


def test_a_lightgbm_model_answers_as_it_did(tmp_path: Path) -> None:
    import lightgbm
    from onnxmltools import convert_lightgbm
    from onnxmltools.convert.common.data_types import FloatTensorType

    original = lightgbm.LGBMRegressor(n_estimators=5, verbose=-1).fit(ROWS, ROWS[:, 2])
    converted = convert_lightgbm(original, initial_types=[("X", FloatTensorType([None, 4]))])
    assert publish(tmp_path, save(converted, tmp_path / "boost.onnx")).reason == ""
    outputs = ask(tmp_path, "boost", "cpu-onnx", tensor("X", ROWS))
    wanted = original.booster_.predict(ROWS)
    assert outputs["variable"][:, 0] == pytest.approx(wanted, abs=1e-5)


def image_model(batch: int | str = "batch") -> onnx.ModelProto:
    weight = DRAW.standard_normal((5, 3, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["image", "weight"], ["features"], strides=[2, 2]),
        helper.make_node("Relu", ["features"], ["active"]),
        helper.make_node("GlobalAveragePool", ["active"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["scores"]),
    ]
    graph = helper.make_graph(
        nodes, "image",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [batch, 3, 299, 299])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, [batch, 5])],
        [numpy_helper.from_array(weight, "weight")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_an_image_model_of_a_fixed_batch_answers_as_it_did(tmp_path: Path) -> None:
    file = save(image_model(batch=1), tmp_path / "image.onnx")
    assert publish(tmp_path, file).reason == ""
    image = DRAW.standard_normal((1, 3, 299, 299)).astype(np.float32)
    outputs = ask(tmp_path, "image", "cpu-onnx", tensor("image", image))
    torched = torch.nn.functional.conv2d(
        torch.from_numpy(image),
        torch.from_numpy(numpy_helper.to_array(onnx.load(file).graph.initializer[0]).copy()),
        stride=2,
    )
    assert outputs["scores"] == pytest.approx(torched.relu().mean((2, 3)).numpy(), abs=1e-4)
    two = np.repeat(image, 2, axis=0)
    with pytest.raises(InvalidInput, match=r"shape \[2, 3, 299, 299\].*send \[1, 3, 299, 299\]"):
        ask(tmp_path, "image", "cpu-onnx", tensor("image", two))


def test_inputs_narrow_what_a_file_leaves_open(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", "columns"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 3])],
        [numpy_helper.from_array(np.ones((5, 3), np.float32), "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    file = save(model, tmp_path / "open.onnx")
    assert "give inputs in the catalog (models.yaml:1)" in publish(tmp_path, file).reason
    narrowed = read_tensor_specs({"x": "float32 [-1, 5]"})
    assert publish(tmp_path, file, inputs=narrowed).reason == ""
    outputs = ask(tmp_path, "open", "cpu-onnx", tensor("x", np.ones((2, 5))))
    assert outputs["y"].tolist() == [[5] * 3] * 2
    with pytest.raises(InvalidInput, match=r"shape \[2, 6\] of 'x': send \[-1, 5\]"):
        ask(tmp_path, "open", "cpu-onnx", tensor("x", np.ones((2, 6))))


def test_weights_in_a_second_file_are_brought_along(tmp_path: Path) -> None:
    big = DRAW.standard_normal((64, 512)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 512])],
        [numpy_helper.from_array(big, "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    file = tmp_path / "model.onnx"
    onnx.save(model, file, save_as_external_data=True, location="model.onnx.data")
    first = publish(tmp_path, file)
    assert first.reason == ""
    rows = DRAW.standard_normal((3, 64)).astype(np.float32)
    outputs = ask(tmp_path, "model", "cpu-onnx", tensor("x", rows))
    assert outputs["y"] == pytest.approx(rows @ big, abs=1e-4)
    data = (tmp_path / "model.onnx.data").read_bytes()
    (tmp_path / "model.onnx.data").write_bytes(bytes(8) + data[8:])
    assert publish(tmp_path, file).version != first.version  # the second file counts too
    (tmp_path / "model.onnx.data").unlink()
    assert "'model.onnx.data', which is not there" in publish(tmp_path, file).reason


def test_weights_outside_the_folder_are_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(bytes(64 * 1024))
    model = image_model()
    weight = model.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    entry = weight.external_data.add()
    entry.key, entry.value = "location", "../secret"
    (tmp_path / "inner").mkdir()
    result = publish(tmp_path, save(model, tmp_path / "inner/m.onnx"))
    assert "'../secret' lie outside its folder" in result.reason


class Scale(torch.nn.Module):
    def forward(self, x: torch.Tensor, factor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x * factor, x.sum(dim=1)


def test_a_torchscript_file_answers_as_it_did(tmp_path: Path) -> None:
    from packhorse.sessions.torchscript import import_torch

    import_torch()  # quiets torch's deprecations
    torch.jit.save(torch.jit.script(Scale()), str(tmp_path / "scale.pt"))
    declared = read_tensor_specs({"x": "float32 [-1, 3]", "factor": "float32 [1]"})
    result = publish(tmp_path, tmp_path / "scale.pt", inputs=declared)
    assert (result.reason, result.variant) == ("", "cpu-torchscript")
    asked = tensor("x", [[1, 2, 3], [4, 5, 6]]), tensor("factor", [2.0])
    outputs = ask(tmp_path, "scale", "cpu-torchscript", *asked)
    assert outputs["output_0"].tolist() == [[2, 4, 6], [8, 10, 12]]
    assert outputs["output_1"].tolist() == [6, 15]
    artifact, _ = pulled(tmp_path, "scale", "cpu-torchscript")
    assert [spec.shape for spec in artifact.outputs] == [[-1, 3], [-1]]
    undeclared = publish(tmp_path, tmp_path / "scale.pt")
    assert "give inputs in the catalog (models.yaml:1), such as inputs: {x: " in undeclared.reason
    short = publish(tmp_path, tmp_path / "scale.pt", inputs=declared[:1])
    assert "takes x, factor; inputs (models.yaml:1) gives x: give each" in short.reason
    wrong = read_tensor_specs({"x": "float32 [-1, 3]", "factor": "float32 [7]"})
    bad = publish(tmp_path, tmp_path / "scale.pt", inputs=wrong)
    assert "does not run on inputs as declared" in bad.reason


class Bomb:
    def __reduce__(self) -> Any:
        return (open, ("/tmp/packhorse-was-unpickled", "w"))


@pytest.mark.parametrize("how", ["pickle", "torch.save", "garbage", "empty"])
def test_a_pickle_posing_as_torchscript_is_refused_and_never_run(how: str, tmp_path: Path) -> None:
    file, trap = tmp_path / "m.pt", Path("/tmp/packhorse-was-unpickled")
    if how == "pickle":
        file.write_bytes(pickle.dumps(Bomb()))
    elif how == "torch.save":
        torch.save(Bomb(), file)
    else:
        file.write_bytes(b"\0garbage" * 9 if how == "garbage" else b"")
    result = publish(tmp_path, file, inputs=read_tensor_specs(["float32 [1]"]))
    assert result.status == "failed"
    assert "is not TorchScript (a pickle, perhaps, which is never loaded)" in result.reason
    assert not trap.exists()


def test_other_files_are_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "m.pkl").write_bytes(pickle.dumps(1))
    assert "nothing is ever unpickled" in publish(tmp_path, tmp_path / "m.pkl").reason
    (tmp_path / "m.onnx").write_bytes(b"no graph")
    assert "is not an ONNX file" in publish(tmp_path, tmp_path / "m.onnx").reason
    file = save(image_model(), tmp_path / "i.onnx")
    assert "only task 'tensor' takes" in publish(tmp_path, file, task="text-ranking").reason
    assert "published as it is, not in int8" in publish(tmp_path, file, precision="int8").reason
    assert "take 'gpu' out" in publish(tmp_path, file, processors=("gpu",)).reason
    folder = save_tiny(tmp_path / "folder")
    assert "task 'tensor' takes a file" in publish(tmp_path, folder).reason
    for wrong in ("int64 [1, 3, 299, 299]", "float32 [1, 3]", "float32 [1, 1, 299, 299]"):
        reason = publish(tmp_path, file, inputs=read_tensor_specs({"image": wrong})).reason
        assert (
            f"input 'image' is float32 [-1, 3, 299, 299]; inputs (models.yaml:1) says {wrong}"
            in reason
        )
    unknown = read_tensor_specs({"picture": "float32 [1, 3, 299, 299]"})
    assert (
        "takes image; inputs (models.yaml:1) gives picture"
        in publish(tmp_path, file, inputs=unknown).reason
    )


def test_inputs_are_written_in_the_catalog(tmp_path: Path) -> None:
    save(image_model(), tmp_path / "i.onnx")
    catalog = tmp_path / "models.yaml"
    catalog.write_text(
        "models: [{id: i, source: i.onnx, task: tensor, inputs: {image: 'float32 [1,3,299,299]'}}]"
    )
    (spec,) = load_catalog(catalog)
    assert spec.inputs == (TensorSpec("image", "float32", [1, 3, 299, 299]),)
    for wrong in ("'float32'", "[1, 3]", "{image: 'float33 [1]'}", "{image: 'float32 [0]'}"):
        catalog.write_text(f"models: [{{id: i, source: i.onnx, task: tensor, inputs: {wrong}}}]")
        with pytest.raises(InvalidInput, match=r"models.yaml:1.*inputs"):
            load_catalog(catalog)
