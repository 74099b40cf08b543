"""TorchScript, on CPU or on an NVIDIA GPU. torch is imported on use."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from packhorse.artifact import TensorSpec
from packhorse.errors import InvalidInput, MissingPackage
from packhorse.tensors import Array, make_feed

FILE = "model.pt"


class ScriptSession:
    """A loaded module; `run` is thread-safe and releases the interpreter lock."""

    def __init__(
        self, folder: Path, inputs: Sequence[TensorSpec], threads: int, gpu: bool = False
    ) -> None:
        """Load a module.

        Args:
            inputs: What it takes, in its order: TorchScript says neither types nor shapes.
            threads: Per inference; torch has one figure for the whole process.
            gpu: Run on the GPU where there is one.
        """
        self.inputs = list(inputs)
        torch = self._torch = import_torch()
        torch.set_num_threads(threads)
        self._device = "cuda" if gpu and torch.cuda.is_available() else "cpu"
        self._module = read_script(folder / FILE, self._device)

    def run(self, arrays: Mapping[str, Array]) -> list[Array]:
        torch, feed = self._torch, make_feed(self.inputs, arrays)
        tensors = [torch.from_numpy(feed[spec.name]).to(self._device) for spec in self.inputs]
        # Optimising for each shape anew gained nothing over texts of mixed lengths, and the first
        # call took 130 ms in place of 40 (MiniLM).
        with torch.inference_mode(), torch.jit.optimized_execution(False):
            return [to_array(tensor) for tensor in flatten(self._module(*tensors))]


def import_torch() -> Any:
    """Import torch.

    Raises:
        MissingPackage: It is not installed.
    """
    try:
        import torch
    except ImportError as err:
        raise MissingPackage("torch", "torch") from err
    # TorchScript is what servers without a compiler can load; its successors are not.
    warnings.filterwarnings("ignore", r"`torch\.jit", DeprecationWarning)
    return torch


def read_script(path: Path, device: str = "cpu") -> Any:
    """Load a TorchScript file as that and as nothing else: no pickle is ever run.

    Raises:
        InvalidInput: It is something else, or damaged.
    """
    torch = import_torch()
    if not _is_script(path):
        raise InvalidInput(
            f"{path.name} is not TorchScript (a pickle, perhaps, which is never loaded): save it "
            "with torch.jit.save"
        )
    try:
        module = torch.jit.load(str(path), map_location=device)
    except Exception as err:  # RuntimeError for most damage, other kinds for some
        reason = str(err).splitlines()[0][:300]
        raise InvalidInput(f"torch cannot load {path.name}: {reason}") from err
    module.eval()
    return module


def flatten(answer: Any) -> list[Any]:
    """Return a module's answer (a tensor, a sequence or a dictionary of them) as a list.

    Raises:
        InvalidInput: It holds something that is no tensor.
    """
    if isinstance(answer, Mapping):
        answer = list(answer.values())
    if isinstance(answer, (list, tuple)):
        return [tensor for part in answer for tensor in flatten(part)]
    if not isinstance(answer, import_torch().Tensor):
        raise InvalidInput(f"the module answers with {type(answer).__name__}: expected tensors")
    return [answer]


def to_array(tensor: Any) -> Array:
    """Copy a tensor to an array; half precision becomes single, which numpy and JSON have."""
    torch = import_torch()
    if tensor.dtype in (torch.bfloat16, torch.float16):
        tensor = tensor.float()
    return np.asarray(tensor.detach().cpu().numpy())


def _is_script(path: Path) -> bool:
    """Tell a TorchScript archive by its members: what `torch.save` writes has no code."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = {name.partition("/")[2] for name in archive.namelist()}
    except (OSError, zipfile.BadZipFile):
        return False
    return "constants.pkl" in names and any(name.startswith("code/") for name in names)
