"""ONNX Runtime on CPU. onnxruntime is imported on use."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packhorse.artifact import TensorSpec
from packhorse.errors import InvalidInput, MissingPackage
from packhorse.tensors import Array, make_feed

if TYPE_CHECKING:
    import onnxruntime

FILE = "model.onnx"
_TYPES = {
    "tensor(float)": "float32", "tensor(double)": "float64", "tensor(float16)": "float16",
    "tensor(int64)": "int64", "tensor(int32)": "int32", "tensor(int16)": "int16",
    "tensor(int8)": "int8", "tensor(uint64)": "uint64", "tensor(uint32)": "uint32",
    "tensor(uint16)": "uint16", "tensor(uint8)": "uint8", "tensor(bool)": "bool",
    "tensor(string)": "str",
}  # fmt: skip


class OnnxSession:
    """One session; `run` is thread-safe and releases the interpreter lock."""

    def __init__(self, folder: Path, threads: int) -> None:
        self._session = open_session(folder / FILE, threads)
        self.inputs = session_inputs(self._session)
        self.outputs = session_outputs(self._session)

    def run(self, arrays: Mapping[str, Array]) -> list[Array]:
        answers: list[Array] = self._session.run(None, make_feed(self.inputs, arrays))
        return answers


def import_onnxruntime() -> Any:
    """Import onnxruntime.

    Raises:
        MissingPackage: It is not installed.
    """
    try:
        import onnxruntime
    except ImportError as err:
        raise MissingPackage("onnxruntime", "onnx") from err
    return onnxruntime


def open_session(path: Path, threads: int) -> onnxruntime.InferenceSession:
    """Load a published model file; its graph was optimised when it was traced.

    Args:
        threads: Per inference. With one, the session starts no thread of its own.

    Raises:
        InvalidInput: The runtime cannot read the file.
        MissingPackage: onnxruntime is not installed.
    """
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # what fails is raised, and need not be printed too
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


def _spec(node: Any) -> TensorSpec:
    shape = [size if isinstance(size, int) else -1 for size in node.shape or []]
    return TensorSpec(node.name, _TYPES.get(node.type, node.type), shape)


def _first_line(err: Exception, path: Path) -> str:
    """What went wrong, without the folder: clients read it too."""
    line = (str(err).splitlines() or [type(err).__name__])[0]
    return line.replace(str(path), path.name).replace(str(path.parent), "")[:300]
