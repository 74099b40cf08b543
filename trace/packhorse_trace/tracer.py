"""What a compiler for a processor must be able to do. One module each implements it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from packhorse.artifact import Cost, TensorSpec
from packhorse.catalog import ModelSpec
from packhorse.errors import TraceError
from packhorse.settings import Settings
from packhorse.tensors import Array
from packhorse_trace.source import Source

if TYPE_CHECKING:
    from packhorse_trace.torch_model import EagerModel

Runner = Callable[[Mapping[str, Array]], Array]
"""Token arrays, each (batch, tokens), to the artifact's first output."""


@dataclass(frozen=True)
class Compiled:
    """What a compiler made.

    Attributes:
        batch_sizes, sequence_lengths: Shapes that the artifact takes; [-1] is any.
        invariant: Whether an answer is the same in a padded batch as alone. Where it is not, the
            server sends texts one by one, and that is what is verified.
        unproven: Why it cannot be run here, and so neither compared nor measured; empty: it can.
        note: What else the record's figures do not show.
    """

    processor: str
    format: str
    precision: str
    inputs: list[TensorSpec]
    outputs: list[TensorSpec]
    batch_sizes: list[int]
    sequence_lengths: list[int]
    invariant: bool
    built_with: dict[str, str]
    unproven: str = ""
    note: str = ""


class Tracer(Protocol):
    """A compiler for one processor."""

    def prepare(self) -> None:
        """Make sure that the compiler is here, before a model is loaded for it.

        Raises:
            MissingPackage: It is not installed; names the image that has it.
        """

    def precisions(self, spec: ModelSpec) -> tuple[str, ...]:
        """Return the precisions to try, the best first; several where the catalog says `auto`.

        Raises:
            TraceError: This compiler cannot make what the catalog asks for.
        """

    def variant(self, spec: ModelSpec, source: Source, precision: str) -> str:
        """Name what `compile` will make, such as `cpu-int8`."""

    def options(self) -> dict[str, object]:
        """Return the settings that decide the artifact, beside the catalog's."""

    def compile(
        self, eager: EagerModel, spec: ModelSpec, precision: str, shape: str, folder: Path
    ) -> Compiled:
        """Write the artifact's files into an empty folder.

        Args:
            shape: Equal for models that differ in weights and labels only; what was exported for
                one may be used for the next.

        Raises:
            TraceError: The model cannot be compiled.
            MissingPackage: The compiler is not installed; names the image that has it.
        """

    def measure(self, compiled: Compiled, folder: Path, spec: ModelSpec, max_length: int) -> Cost:
        """Measure the files in a fresh process, alone on this machine."""


def tracer_for(processor: str, settings: Settings) -> Tracer:
    """Return the compiler for a processor.

    Raises:
        TraceError: There is none of that name.
    """
    if processor == "cpu":
        from packhorse_trace.cpu import CpuTracer

        return CpuTracer(settings)
    if processor == "gpu":
        from packhorse_trace.gpu import GpuTracer

        return GpuTracer(settings)
    if processor in ("inf1", "inf2"):
        from packhorse_trace.neuron import NeuronTracer

        return NeuronTracer(processor, settings)
    raise TraceError(f"processor {processor!r} is not known: use cpu, gpu, inf1 or inf2")


def choose_precisions(
    spec: ModelSpec, processor: str, known: tuple[str, ...], auto: tuple[str, ...]
) -> tuple[str, ...]:
    """Return what a catalog's `precision` stands for.

    Raises:
        TraceError: It is none of the known ones.
    """
    if spec.precision == "auto":
        return auto
    if spec.precision not in known:
        raise TraceError(
            f"precision {spec.precision!r} is not made for {processor}: use auto, "
            f"{', '.join(known)}"
        )
    return (spec.precision,)
