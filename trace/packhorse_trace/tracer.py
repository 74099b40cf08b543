"""What a compiler for a processor must be able to do. One module each implements it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from packhorse.artifact import Cost, TensorSpec
from packhorse.catalog import ModelSpec
from packhorse.errors import TraceError
from packhorse.onnx_session import Array
from packhorse.settings import Settings

if TYPE_CHECKING:
    from packhorse_trace.torch_model import EagerModel

Runner = Callable[[Mapping[str, Array]], Array]
"""Token arrays, each (batch, tokens), to the artifact's one output."""


@dataclass(frozen=True)
class Compiled:
    """What a compiler made.

    Attributes:
        batch_sizes, sequence_lengths: Shapes that the artifact takes; [-1] is any.
        invariant: Whether an answer is the same in a padded batch as alone. Where it is not, the
            server sends texts one by one, and that is what is verified.
    """

    format: str
    precision: str
    inputs: list[TensorSpec]
    outputs: list[TensorSpec]
    batch_sizes: list[int]
    sequence_lengths: list[int]
    invariant: bool
    built_with: dict[str, str]


class Tracer(Protocol):
    """A compiler for one processor."""

    def variant(self, spec: ModelSpec) -> str:
        """Name what `compile` will make, such as `cpu-int8`.

        Raises:
            TraceError: This compiler cannot make what the catalog asks for.
        """

    def options(self) -> dict[str, object]:
        """Return the settings that decide the artifact, beside the catalog's."""

    def compile(self, eager: EagerModel, spec: ModelSpec, shape: str, folder: Path) -> Compiled:
        """Write the artifact's files into an empty folder.

        Args:
            shape: Equal for models that differ in weights and labels only; what was exported for
                one may be used for the next.

        Raises:
            TraceError: The model cannot be compiled.
        """

    def runner(self, folder: Path) -> Runner:
        """Load the files as a server will, for the comparison with the original."""

    def measure(self, folder: Path, spec: ModelSpec, max_length: int) -> Cost:
        """Measure the files in a fresh process, alone on this machine."""


def tracer_for(processor: str, settings: Settings) -> Tracer:
    """Return the compiler for a processor.

    Raises:
        TraceError: There is none in this version.
    """
    if processor == "cpu":
        from packhorse_trace.cpu import CpuTracer

        return CpuTracer(settings)
    raise TraceError(f"processor {processor!r} is not supported by this version: use cpu")
