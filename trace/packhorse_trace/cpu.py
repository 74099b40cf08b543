"""The compiler for CPUs: ONNX, fp32 or int8."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from packhorse.artifact import Cost
from packhorse.catalog import ModelSpec
from packhorse.errors import TraceError
from packhorse.onnx_session import (
    Array,
    make_feed,
    open_session,
    session_inputs,
    session_outputs,
)
from packhorse.settings import Settings
from packhorse_trace.measure import measure_onnx
from packhorse_trace.tracer import Compiled, Runner

if TYPE_CHECKING:
    import onnx

    from packhorse_trace.torch_model import EagerModel


class CpuTracer:
    """Compile for ONNX Runtime's CPU provider."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._shape = ""
        self._graph: onnx.ModelProto | None = None

    def variant(self, spec: ModelSpec) -> str:
        if spec.precision not in ("fp32", "int8"):
            raise TraceError(
                f"precision {spec.precision!r} is not supported on cpu by this version: "
                "use fp32 or int8"
            )
        return f"cpu-{spec.precision}"

    def options(self) -> dict[str, object]:
        return {"reduce_range": self._settings.reduce_range}

    def compile(self, eager: EagerModel, spec: ModelSpec, shape: str, folder: Path) -> Compiled:
        # Imported here: whoever only asks for names must not wait for torch.
        import onnx
        import onnxruntime
        import torch
        import transformers

        from packhorse_trace.onnx_export import export_graph, with_weights
        from packhorse_trace.onnx_files import write_model

        model = None
        if self._graph is not None and self._shape == shape:
            model = with_weights(self._graph, eager)
        if model is None:
            model = export_graph(eager)
            self._shape, self._graph = shape, model
        int8 = spec.precision == "int8"
        write_model(model, folder, int8, self._settings.reduce_range)
        session = open_session(folder / "model.onnx", threads=1)
        return Compiled(
            format="onnx",
            precision=spec.precision,
            inputs=session_inputs(session),
            outputs=session_outputs(session),
            batch_sizes=[-1],
            sequence_lengths=[-1],
            # int8 takes one activation scale per tensor, so neighbours and padding move it.
            invariant=not int8,
            built_with={
                "python": platform.python_version(),
                "torch": str(torch.__version__),
                "transformers": transformers.__version__,
                "onnx": onnx.__version__,
                "onnxruntime": onnxruntime.__version__,
            },
        )

    def runner(self, folder: Path) -> Runner:
        session = open_session(folder / "model.onnx", threads=1)
        inputs = session_inputs(session)

        def run(arrays: Mapping[str, Array]) -> Array:
            answer: Array = session.run(None, make_feed(inputs, arrays))[0]
            return answer

        return run

    def measure(self, folder: Path, spec: ModelSpec, max_length: int) -> Cost:
        tokens = {12, spec.sequence_length, 128} if max_length >= 128 else {12, max_length}
        return measure_onnx(
            folder, sorted({min(count, max_length) for count in tokens}), sorted({1, spec.batch})
        )
