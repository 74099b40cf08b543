"""ONNX Runtime sessions, opened in one way wherever a model runs.

Trace verifies and measures through this module and servers run through it, so what was proven
and measured is what serves. onnxruntime is imported on use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from packhorse.artifact import TensorSpec
from packhorse.errors import InvalidInput, MissingPackage

if TYPE_CHECKING:
    import onnxruntime

Array = npt.NDArray[Any]
OPTIONAL_INPUTS = frozenset({"token_type_ids"})
"""Inputs that a tokenizer may leave out; zeros mean "one text" to every model that has them."""

_ONNX_TYPES = {
    "tensor(float)": "float32", "tensor(double)": "float64", "tensor(float16)": "float16",
    "tensor(int64)": "int64", "tensor(int32)": "int32", "tensor(int8)": "int8",
    "tensor(uint8)": "uint8", "tensor(bool)": "bool", "tensor(string)": "str",
}  # fmt: skip


def open_session(path: Path, threads: int) -> onnxruntime.InferenceSession:
    """Load a published model file; its graph was optimised when it was traced.

    Args:
        threads: Per inference. With one, the session starts no thread of its own.

    Raises:
        InvalidInput: The runtime cannot read the file.
        MissingPackage: onnxruntime is not installed.
    """
    try:
        import onnxruntime
    except ImportError as err:
        raise MissingPackage("onnxruntime", "onnx") from err
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    # Idle workers of one model must not burn the CPU that another model's inference needs.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # The arena keeps the largest activation ever seen; hundreds of models would each keep one.
    options.enable_cpu_mem_arena = False
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as err:  # the runtime raises a dozen unrelated classes for a bad file
        raise InvalidInput(
            f"ONNX Runtime cannot load {path.name}: {_first_line(err, path)}"
        ) from err


def session_inputs(session: onnxruntime.InferenceSession) -> list[TensorSpec]:
    """Describe a session's inputs."""
    return [_spec(node) for node in session.get_inputs()]


def session_outputs(session: onnxruntime.InferenceSession) -> list[TensorSpec]:
    """Describe a session's outputs."""
    return [_spec(node) for node in session.get_outputs()]


def make_feed(inputs: Sequence[TensorSpec], arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Choose what a graph wants from what a tokenizer gives, by name and in the graph's dtypes.

    Args:
        inputs: The graph's declared inputs.
        arrays: Token arrays, each (batch, tokens).

    Raises:
        InvalidInput: The graph wants an input that nothing provides.
    """
    feed: dict[str, Array] = {}
    for spec in inputs:
        if spec.name in arrays:
            feed[spec.name] = arrays[spec.name].astype(spec.dtype, copy=False)
        elif spec.name in OPTIONAL_INPUTS and arrays:
            feed[spec.name] = np.zeros_like(next(iter(arrays.values())), dtype=spec.dtype)
        else:
            raise InvalidInput(
                f"the graph wants input {spec.name!r}, which the tokenizer does not give: "
                f"it gives {', '.join(sorted(arrays))}"
            )
    return feed


def _spec(node: Any) -> TensorSpec:
    shape = [size if isinstance(size, int) else -1 for size in node.shape]
    return TensorSpec(node.name, _ONNX_TYPES.get(node.type, node.type), shape)


def _first_line(err: Exception, path: Path) -> str:
    """What went wrong, without the folder: clients read it too."""
    line = (str(err).splitlines() or [type(err).__name__])[0]
    return line.replace(str(path), path.name).replace(str(path.parent), "")[:300]
