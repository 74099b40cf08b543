"""Calls of torch-neuronx (Inferentia 2 and Trainium 1, NeuronCore-v2), as documented.

torch-neuronx 2.9; "PyTorch NeuronX Tracing API", "Weight replacement" and the command-line
reference of neuronx-cc in the AWS Neuron documentation. In maintenance; not run on hardware.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packhorse.errors import TraceError
from packhorse.settings import Settings

if TYPE_CHECKING:
    from packhorse_trace.neuron import Arguments

CASTS = {
    # The default is none: the opposite of Inferentia 1.
    "all": ["--auto-cast=all", "--auto-cast-type=bf16"],
    "matmult": ["--auto-cast=matmult", "--auto-cast-type=bf16"],
    "none": ["--auto-cast=none"],
}


class Inf2:
    """torch_neuronx.trace, with weights apart, so that one executable serves many fine-tunes."""

    precisions: tuple[str, ...] = ("bf16", "fp32")
    pipelines = False

    def check(self, settings: Settings) -> None:
        if settings.neuron_pipeline_cores not in (1, "auto"):
            raise TraceError(
                f"neuron_pipeline_cores {settings.neuron_pipeline_cores}: inf2 cannot split a "
                "model over cores: use 1 (a copy on each core)"
            )

    def compile(self, sdk: Any, module: Any, inputs: tuple[Any, ...], arguments: Arguments) -> Any:
        flags = ["--model-type=transformer", *CASTS[arguments.cast]]
        if not arguments.device:
            flags += ["--target", "inf2"]
        compiled = sdk.trace(
            module,
            inputs,
            compiler_workdir=arguments.workdir,
            compiler_args=flags,
            inline_weights_to_neff=False,
            cpu_backend=not arguments.device,
        )
        if arguments.load == "async":  # flags that are saved with the module: before, that is
            sdk.async_load(compiled, True)
        elif arguments.load == "lazy":
            sdk.lazy_load(compiled, True)
        return compiled

    def with_weights(self, sdk: Any, compiled: Any, module: Any) -> bool:
        sdk.replace_weights(compiled, module)
        return True

    def versions(self) -> tuple[str, ...]:
        return ("torch-neuronx", "neuronx-cc")
