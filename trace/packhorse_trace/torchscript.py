"""The original to TorchScript: traced, frozen, saved. For CPU and, under autocast, for GPU."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path
from typing import Any

import torch

from packhorse.artifact import TensorSpec
from packhorse.errors import TraceError
from packhorse_trace.samples import random_batch
from packhorse_trace.torch_model import EagerModel

SAMPLE = (2, 9)
"""(batch, tokens) of the inputs traced with: rows of different lengths, none of size one."""


def write_script(eager: EagerModel, path: Path, device: str = "cpu", autocast: Any = None) -> None:
    """Trace the original, freeze its weights into the graph, and save it.

    Args:
        autocast: Precision of matrix products (a torch dtype); None leaves all in fp32.

    Raises:
        TraceError: The original does something that tracing cannot record.
    """
    arrays = random_batch(*SAMPLE, eager.vocabulary)
    inputs = tuple(torch.from_numpy(arrays[name]).to(device) for name in eager.inputs)
    # Cached casts of weights would be recorded as if they were inputs.
    cast: Any = contextlib.nullcontext()
    if autocast is not None:
        cast = torch.autocast(device, dtype=autocast, cache_enabled=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    jit: Any = torch.jit  # untyped
    with warnings.catch_warnings(), torch.inference_mode(False), torch.no_grad():
        warnings.simplefilter("ignore")  # deprecated; and what was frozen, `verify` finds
        try:
            with cast:
                traced = jit.trace(eager.module.to(device), inputs, check_trace=False)
            jit.save(jit.freeze(traced.eval()), str(path))
        except Exception as err:  # of every layer of torch
            raise TraceError(
                f"cannot be traced to TorchScript: {str(err).splitlines()[0][:300]}"
            ) from err
        finally:
            eager.module.to("cpu")


def input_specs(eager: EagerModel) -> list[TensorSpec]:
    """Describe the inputs: token arrays of any batch and length."""
    return [TensorSpec(name, "int64", [-1, -1]) for name in eager.inputs]


def output_specs(eager: EagerModel) -> list[TensorSpec]:
    """Describe the one output, as the original gives it."""
    answer = eager.run(random_batch(1, 3, eager.vocabulary))
    axes = [-1, -1] if eager.per_token else [-1]
    return [TensorSpec(eager.module.output, "float32", [*axes, answer.shape[-1]])]


def torch_versions() -> dict[str, str]:
    """Return what built the artifact."""
    import platform

    import transformers

    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "transformers": transformers.__version__,
    }
