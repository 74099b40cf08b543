"""AWS Inferentia: TorchScript whose graph is a Neuron executable, of fixed shapes.

The SDKs are imported on use; loading a module puts it on a NeuronCore at once. Written from the
SDKs' documentation (torch-neuron 1.13, torch-neuronx 2.9); not run on hardware.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packhorse.errors import InvalidInput, MissingPackage
from packhorse.sessions.shapes import FixedShapes
from packhorse.sessions.torchscript import flatten, import_torch, read_script, to_array
from packhorse.tensors import Array, make_feed

if TYPE_CHECKING:
    from packhorse.sessions import Facts

SDKS = {"inf1": "torch_neuron", "inf2": "torch_neuronx"}
DEVICE = Path("/dev/neuron0")


def file_name(batch: int, length: int) -> str:
    """Name the file of one compiled shape."""
    return f"model-b{batch}-s{length}.pt"


def import_sdk(processor: str) -> Any:
    """Import a processor's SDK, without which torch knows none of its operators.

    Raises:
        MissingPackage: Not installed; it comes with the image of that processor.
    """
    import_torch()
    name = SDKS[processor]
    try:
        return importlib.import_module(name)
    except ImportError as err:
        raise MissingPackage(name, processor, image=True) from err


class NeuronSession:
    """A module for each compiled length, on the NeuronCores that the process owns."""

    def __init__(self, facts: Facts, folder: Path) -> None:
        """Load every length.

        Raises:
            InvalidInput: The record does not say which shapes there are, or a file is damaged.
        """
        sdk = import_sdk(facts.processor)
        if not facts.sequence_lengths or min(facts.batch_sizes + facts.sequence_lengths) < 1:
            raise InvalidInput("a neuron model must name its shapes: trace it again")
        self.inputs = list(facts.inputs)
        self._shapes = FixedShapes(
            facts.batch_sizes[0],
            tuple(sorted(facts.sequence_lengths)),
            tuple(len(spec.shape) == 3 and spec.shape[1] == -1 for spec in facts.outputs),
        )
        self._modules: dict[int, Any] = {}
        for length in self._shapes.lengths:
            module = read_script(folder / file_name(self._shapes.batch, length))
            if facts.processor == "inf2":
                # Weights kept apart from the executable would be copied for every call.
                sdk.move_trace_to_device(module, 0)
            self._modules[length] = module
        self._lock = threading.Lock()

    def run(self, arrays: Mapping[str, Array]) -> list[Array]:
        return self._shapes.run(self._run, make_feed(self.inputs, arrays))

    def _run(self, length: int, feed: dict[str, Array]) -> list[Array]:
        torch = import_torch()
        tensors = [torch.from_numpy(feed[spec.name]) for spec in self.inputs]
        with self._lock, torch.inference_mode():
            return [to_array(tensor) for tensor in flatten(self._modules[length](*tensors))]
