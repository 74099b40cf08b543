"""The compiler for AWS Inferentia: a Neuron executable for each fixed shape.

What both generations share is here; `inf1` and `inf2` make their SDK's calls. Written from the
SDKs' documentation and held to it by tests; not run on hardware.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from packhorse.artifact import Cost, TensorSpec
from packhorse.catalog import ModelSpec
from packhorse.errors import TraceError
from packhorse.sessions.neuron import DEVICE, file_name, import_sdk
from packhorse.settings import Settings
from packhorse_trace.inf1 import Inf1
from packhorse_trace.inf2 import Inf2
from packhorse_trace.measure import measure_model, unmeasured
from packhorse_trace.source import Source
from packhorse_trace.tracer import Compiled, choose_precisions

if TYPE_CHECKING:
    from packhorse_trace.torch_model import EagerModel

WEIGHTS_PER_CORE_STEP = 2e7
"""`auto` pipelines a model over 4 cores for every so many weights, as AWS's tuning guide has it."""


class Sdk(Protocol):
    """One generation's SDK.

    Attributes:
        precisions: What it can be told to compute in; the first is `auto`'s.
        pipelines: Whether a model can be split over cores.
    """

    precisions: tuple[str, ...]
    pipelines: bool

    def check(self, settings: Settings) -> None:
        """Refuse settings that this generation does not have.

        Raises:
            TraceError: Names the setting and what is allowed.
        """

    def compile(self, sdk: Any, module: Any, inputs: tuple[Any, ...], arguments: Arguments) -> Any:
        """Compile a module for inputs of exactly these shapes."""

    def with_weights(self, sdk: Any, compiled: Any, module: Any) -> bool:
        """Put another module's weights into what was compiled; False where the SDK cannot."""

    def versions(self) -> tuple[str, ...]:
        """Name the packages whose versions decide the executable."""


@dataclass(frozen=True)
class Arguments:
    """What a compilation is asked for.

    Attributes:
        cast: `matmult`, `all` or `none`: which operators compute in bf16.
        cores: Over how many the model is pipelined; 1 is a copy on each.
        load: `eager`, `async` or `lazy`: when weights go to the device.
        workdir: Folder for the compiler's own files.
        device: Whether a Neuron device is here.
    """

    cast: str
    cores: int
    load: str
    workdir: str
    device: bool


class NeuronTracer:
    """Compile for `inf1` or `inf2`."""

    def __init__(self, processor: str, settings: Settings) -> None:
        self._processor, self._settings = processor, settings
        self._sdk: Sdk = Inf1() if processor == "inf1" else Inf2()
        self._compiled: dict[int, Any] = {}
        self._shape = ""

    def prepare(self) -> None:
        import_sdk(self._processor)

    def precisions(self, spec: ModelSpec) -> tuple[str, ...]:
        self._sdk.check(self._settings)
        known = self._sdk.precisions
        return choose_precisions(spec, self._processor, known, known[:1])

    def variant(self, spec: ModelSpec, source: Source, precision: str) -> str:
        length = max(lengths(spec, source.max_length))
        return (
            f"{self._processor}-{precision}-b{spec.batch}-s{length}"
            f"-p{self._cores(source.parameters)}"
        )

    def options(self) -> dict[str, object]:
        return {"cast": self._settings.neuron_cast, "load": self._settings.neuron_load}

    def compile(
        self, eager: EagerModel, spec: ModelSpec, precision: str, shape: str, folder: Path
    ) -> Compiled:
        sdk = import_sdk(self._processor)
        from packhorse.sessions.torchscript import import_torch
        from packhorse_trace.samples import random_batch
        from packhorse_trace.torchscript import output_specs, torch_versions

        torch = import_torch()
        if self._shape != shape:
            self._compiled, self._shape = {}, shape
        here = DEVICE.exists()
        folder.mkdir(parents=True, exist_ok=True)
        cast = "none" if precision == "fp32" else self._settings.neuron_cast
        buckets = lengths(spec, eager.max_length)
        with tempfile.TemporaryDirectory(prefix="packhorse-neuron-") as workdir:
            arguments = Arguments(
                cast, self._cores(eager.parameters), self._settings.neuron_load, workdir, here
            )
            for length in buckets:
                arrays = random_batch(spec.batch, length, eager.vocabulary)
                inputs = tuple(torch.from_numpy(arrays[name]) for name in eager.inputs)
                compiled = self._reused(sdk, length, eager)
                if compiled is None:
                    try:
                        with warnings.catch_warnings():
                            warnings.simplefilter("ignore")  # what was frozen, `verify` finds
                            compiled = self._sdk.compile(sdk, eager.module, inputs, arguments)
                    except Exception as err:  # of the compiler: a subprocess, of every kind
                        raise TraceError(
                            f"the Neuron compiler refuses batch {spec.batch} of {length} tokens: "
                            f"{str(err).splitlines()[0][:300]}"
                        ) from err
                    self._compiled[length] = compiled
                torch.jit.save(compiled, str(folder / file_name(spec.batch, length)))
        return Compiled(
            processor=self._processor,
            format="neuron",
            precision=precision,
            inputs=_fixed(eager, spec.batch, max(buckets)),
            outputs=output_specs(eager),
            batch_sizes=[spec.batch],
            sequence_lengths=buckets,
            invariant=True,
            built_with={**torch_versions(), **_versions(self._sdk.versions())},
            unproven="" if here else f"there is no Neuron device here ({DEVICE})",
        )

    def measure(self, compiled: Compiled, folder: Path, spec: ModelSpec, max_length: int) -> Cost:
        if compiled.unproven:
            return unmeasured(folder, compiled.unproven)
        return measure_model(compiled, folder, compiled.sequence_lengths, [spec.batch])

    def _cores(self, weights: int) -> int:
        asked = self._settings.neuron_pipeline_cores
        cores = max(1, 4 * round(weights / WEIGHTS_PER_CORE_STEP)) if asked == "auto" else asked
        return int(cores) if self._sdk.pipelines else 1

    def _reused(self, sdk: Any, length: int, eager: EagerModel) -> Any:
        """Return what a sibling was compiled to, with this model's weights, or None."""
        compiled = self._compiled.get(length)
        if compiled is None or not self._sdk.with_weights(sdk, compiled, eager.module):
            return None
        return compiled


def lengths(spec: ModelSpec, max_length: int) -> list[int]:
    """Return the lengths to compile for, in tokens, ascending."""
    asked = {spec.sequence_length, *spec.sequence_buckets}
    return sorted({min(length, max_length) for length in asked})


def _fixed(eager: EagerModel, batch: int, length: int) -> list[TensorSpec]:
    return [TensorSpec(name, "int64", [batch, length]) for name in eager.inputs]


def _versions(packages: Sequence[str]) -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # in a test, or a build of one's own
            found[package] = "unknown"
    return found
