"""Calls of torch-neuron (Inferentia 1, NeuronCore-v1), as its last version documents them.

torch-neuron 1.13.1.2.11, neuron-cc 1.24; "PyTorch Neuron trace Python API" and the command-line
reference of neuron-cc in the AWS Neuron documentation. Legacy; not run on hardware.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packhorse.errors import TraceError
from packhorse.settings import Settings

if TYPE_CHECKING:
    from packhorse_trace.neuron import Arguments

CASTS = {
    # By default every fp32 operator is cast to bf16; even `none` casts matrix products.
    "all": ["--fast-math", "all"],
    "matmult": ["--fast-math", "fp32-cast-matmult", "no-fast-relayout"],
    "none": ["--fast-math", "none"],
}
CONSTANTS_LIMIT_BYTES = 1_900_000_000
"""From so many bytes of weights on, they must be kept apart from the graph."""


class Inf1:
    """torch.neuron.trace."""

    precisions: tuple[str, ...] = ("bf16",)
    pipelines = True

    def check(self, settings: Settings) -> None:
        if settings.neuron_load != "eager":
            raise TraceError(
                f"neuron_load {settings.neuron_load!r} is not known to inf1: use eager"
            )

    def compile(self, sdk: Any, module: Any, inputs: tuple[Any, ...], arguments: Arguments) -> Any:
        flags = list(CASTS[arguments.cast])
        if arguments.cores > 1:
            flags += ["--neuroncore-pipeline-cores", str(arguments.cores)]
        weights = sum(p.numel() * p.element_size() for p in module.parameters())
        return sdk.trace(
            module,
            inputs,
            compiler_args=flags,
            compiler_workdir=arguments.workdir,
            separate_weights=weights >= CONSTANTS_LIMIT_BYTES,
        )

    def with_weights(self, sdk: Any, compiled: Any, module: Any) -> bool:
        return False

    def versions(self) -> tuple[str, ...]:
        return ("torch-neuron", "neuron-cc")
