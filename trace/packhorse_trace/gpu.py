"""The compiler for NVIDIA GPUs: TorchScript whose matrix products run in half precision.

Tracing under autocast records each cast, so that a server needs no autocast of its own. Where
there is no GPU, the same is made and compared on the CPU, as far as that goes; what it costs on a
GPU then stays unknown, and the record says so.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from packhorse.artifact import Cost
from packhorse.catalog import ModelSpec
from packhorse.sessions.torchscript import FILE, import_torch
from packhorse.settings import Settings
from packhorse_trace.measure import measure_model, token_counts, unmeasured
from packhorse_trace.source import Source
from packhorse_trace.tracer import Compiled, choose_precisions

if TYPE_CHECKING:
    from packhorse_trace.torch_model import EagerModel

NO_GPU = "made and compared on a CPU, since there is no GPU here: its cost is not measured"


class GpuTracer:
    """Trace under autocast."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def prepare(self) -> None:
        import_torch()

    def precisions(self, spec: ModelSpec) -> tuple[str, ...]:
        return choose_precisions(spec, "gpu", ("fp16", "bf16", "fp32"), ("fp16", "fp32"))

    def variant(self, spec: ModelSpec, source: Source, precision: str) -> str:
        return f"gpu-{precision}"

    def options(self) -> dict[str, object]:
        return {}

    def compile(
        self, eager: EagerModel, spec: ModelSpec, precision: str, shape: str, folder: Path
    ) -> Compiled:
        torch = import_torch()
        from packhorse_trace.torchscript import (
            input_specs,
            output_specs,
            torch_versions,
            write_script,
        )

        here = bool(torch.cuda.is_available())
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": None}[precision]
        write_script(eager, folder / FILE, "cuda" if here else "cpu", dtype)
        return Compiled(
            processor="gpu",
            format="torchscript",
            precision=precision,
            inputs=input_specs(eager),
            outputs=output_specs(eager),
            batch_sizes=[-1],
            sequence_lengths=[-1],
            invariant=True,
            built_with={
                **torch_versions(),
                "device": torch.cuda.get_device_name() if here else "cpu",
                "cuda": str(torch.version.cuda or "none"),
            },
            note="" if here else NO_GPU,
        )

    def measure(self, compiled: Compiled, folder: Path, spec: ModelSpec, max_length: int) -> Cost:
        if compiled.note:
            return unmeasured(folder, compiled.note)
        return measure_model(
            compiled, folder, token_counts(spec, max_length), sorted({1, 8, spec.batch})
        )
