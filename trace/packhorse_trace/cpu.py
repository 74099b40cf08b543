"""The compiler for CPUs: ONNX in int8 or fp32, and TorchScript."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from packhorse.artifact import Cost
from packhorse.catalog import ModelSpec
from packhorse.errors import TraceError
from packhorse.sessions.onnx import (
    FILE,
    import_onnxruntime,
    open_session,
    session_inputs,
    session_outputs,
)
from packhorse.settings import Settings
from packhorse_trace.measure import measure_model, token_counts
from packhorse_trace.source import Source
from packhorse_trace.tracer import Compiled, choose_precisions

if TYPE_CHECKING:
    import onnx

    from packhorse_trace.torch_model import EagerModel


class CpuTracer:
    """Compile for ONNX Runtime's CPU provider, or for torch."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._rows = settings.int8_scales == "row"
        self._shape = ""
        self._graph: onnx.ModelProto | None = None

    def prepare(self) -> None:
        import_onnxruntime()

    def precisions(self, spec: ModelSpec) -> tuple[str, ...]:
        return choose_precisions(spec, "cpu", ("int8", "fp32", "torchscript"), ("int8", "fp32"))

    def variant(self, spec: ModelSpec, source: Source, precision: str) -> str:
        return f"cpu-{precision}"

    def options(self) -> dict[str, object]:
        options: dict[str, object] = {"reduce_range": self._settings.reduce_range}
        return {**options, "int8_scales": "row"} if self._rows else options

    def compile(
        self, eager: EagerModel, spec: ModelSpec, precision: str, shape: str, folder: Path
    ) -> Compiled:
        if precision == "torchscript":
            return _compile_script(eager, folder)
        # Imported here: whoever only asks for names must not wait for torch.
        import onnx
        import onnxruntime

        from packhorse_trace.onnx_export import export_graph, with_weights
        from packhorse_trace.onnx_files import write_model
        from packhorse_trace.torchscript import torch_versions

        if self._graph is None or self._shape != shape:
            self._shape, self._graph = shape, export_graph(eager, template=True)
        model = with_weights(self._graph, eager)
        if model is None:  # a weight without a place of its own
            model = export_graph(eager)
        int8 = precision == "int8"
        try:
            write_model(model, folder, int8, self._settings.reduce_range, self._rows)
        except Exception as err:  # of the quantizer, the checker and the runtime
            reason = str(err).splitlines()[0][:300] if str(err) else type(err).__name__
            raise TraceError(f"cannot be written as ONNX in {precision}: {reason}") from err
        session = open_session(folder / FILE, threads=1)
        return Compiled(
            processor="cpu",
            format="onnx",
            precision=precision,
            inputs=session_inputs(session),
            outputs=session_outputs(session),
            batch_sizes=[-1],
            sequence_lengths=[-1],
            # With one activation scale per tensor, neighbours and padding move an int8 answer.
            invariant=not int8 or self._rows,
            built_with={
                **torch_versions(),
                "onnx": onnx.__version__,
                "onnxruntime": onnxruntime.__version__,
                **({"int8_scales": "row"} if int8 and self._rows else {}),
            },
        )

    def measure(self, compiled: Compiled, folder: Path, spec: ModelSpec, max_length: int) -> Cost:
        return measure_model(
            compiled, folder, token_counts(spec, max_length), sorted({1, spec.batch})
        )


def _compile_script(eager: EagerModel, folder: Path) -> Compiled:
    from packhorse.sessions.torchscript import FILE as SCRIPT
    from packhorse_trace.torchscript import input_specs, output_specs, torch_versions, write_script

    write_script(eager, folder / SCRIPT)
    return Compiled(
        processor="cpu",
        format="torchscript",
        precision="fp32",
        inputs=input_specs(eager),
        outputs=output_specs(eager),
        batch_sizes=[-1],
        sequence_lengths=[-1],
        invariant=True,
        built_with=torch_versions(),
    )
