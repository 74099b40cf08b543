"""What a compiled model costs: memory, maps, load time, latency, in a process of its own.

A fresh process, since memory that earlier models freed would hide what this one takes. Linux's
/proc gives the figures; `python -m packhorse_trace.measure` is the child.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from packhorse.artifact import Cost, LoadSeconds, TensorSpec
from packhorse.catalog import ModelSpec
from packhorse.errors import TraceError
from packhorse.sessions import Session, open_model
from packhorse.sessions.neuron import SDKS
from packhorse.sessions.torchscript import import_torch
from packhorse.store.repository import hash_stream
from packhorse_trace.machine import machine_to_itself, this_machine
from packhorse_trace.samples import ones
from packhorse_trace.tracer import Compiled

BUDGET_S = 1.0
"""Time given to each latency figure; at least MIN_RUNS are made all the same."""
MIN_RUNS, MAX_RUNS = 10, 200


class Asked(msgspec.Struct):
    """What the child is told.

    Attributes:
        tokens: Lengths at which latency is measured; for a model that reads no texts, [1].
        batches: Batch sizes at which it is measured.
    """

    compiled: Compiled
    folder: str
    tokens: list[int]
    batches: list[int]
    threads: int


def token_counts(spec: ModelSpec, max_length: int) -> list[int]:
    """Return the lengths at which a model is measured: short, typical, and as it is planned."""
    tokens = {12, spec.sequence_length, 128} if max_length >= 128 else {12, max_length}
    return sorted({min(count, max_length) for count in tokens})


def measure_model(
    compiled: Compiled, folder: Path, tokens: list[int], batches: list[int], threads: int = 1
) -> Cost:
    """Measure the model in a folder, in a process of its own.

    Args:
        tokens, batches: See `Asked`.

    Raises:
        TraceError: The child failed; says with what.
    """
    asked = Asked(compiled, str(folder), tokens, batches, threads)
    command = [sys.executable, "-m", "packhorse_trace.measure"]
    with machine_to_itself():
        child = subprocess.run(
            command, capture_output=True, text=True, input=msgspec.json.encode(asked).decode()
        )
    if child.returncode != 0:
        last = (child.stderr.strip().splitlines() or ["no output"])[-1]
        raise TraceError(f"measuring failed with exit code {child.returncode}: {last[:300]}")
    return msgspec.json.decode(child.stdout, type=Cost)


def unmeasured(folder: Path, reason: str) -> Cost:
    """Make the record of a model that cannot run here: its size, and no time."""
    size = sum(path.stat().st_size for path in folder.rglob("model*"))
    return Cost(
        cpu=this_machine().cpu_model,
        runtime=f"not measured: {reason}",
        threads=0,
        private_bytes=size,
        file_bytes=0,
        shared=[],
        peak_bytes=size,
        maps=0,
        load_seconds=LoadSeconds(0.0, 0.0),
        latency=[],
    )


def _measure(asked: Asked) -> dict[str, Any]:
    compiled, folder = asked.compiled, Path(asked.folder)
    files = [path for path in folder.rglob("*") if path.is_file()]
    for path in files:  # a clean page that nobody maps leaves the page cache
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    from_disk = _seconds_to_load(asked)
    from_cache = min(_seconds_to_load(asked) for _ in range(3))
    # The runtime's own start-up is behind us: from here on, what grows is this model's.
    ctypes.CDLL(None).malloc_trim(0)
    anonymous, maps = _anonymous_bytes(), _count_maps()
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    resident = _status("VmRSS")
    session = _open(asked)
    inputs = compiled.inputs
    if compiled.format == "neuron":  # takes any shape up to the one that it names
        inputs = [TensorSpec(spec.name, spec.dtype, [-1, -1]) for spec in inputs]

    def run(batch: int, count: int) -> float:
        arrays = ones(inputs, batch, count)
        start = time.perf_counter()
        session.run(arrays)
        return time.perf_counter() - start

    for _ in range(2):
        run(min(asked.batches), max(asked.tokens))
    mapped = _mapped_files(folder)
    figures = {
        "cpu": this_machine().cpu_model,
        "runtime": _runtime(compiled),
        "threads": asked.threads,
        "private_bytes": _device_bytes(compiled, folder) or max(0, _anonymous_bytes() - anonymous),
        "file_bytes": sum(path.stat().st_size for path in mapped),
        "shared": [_shared(path) for path in mapped],
        "peak_bytes": max(0, _status("VmHWM") - resident),
        "maps": max(0, _count_maps() - maps),
        "load_seconds": {"page_cache": from_cache, "disk": from_disk},
    }
    figures["latency"] = [
        _latency(run, batch, count) for batch in asked.batches for count in asked.tokens
    ]
    return figures


def _device_bytes(compiled: Compiled, folder: Path) -> int:
    """Memory of the accelerator that the model takes; 0 for a CPU."""
    if compiled.processor == "gpu":
        return int(import_torch().cuda.max_memory_allocated())
    if compiled.processor in SDKS:  # no API says; executables and weights are what is copied
        return sum(path.stat().st_size for path in folder.glob("model-*.pt"))
    return 0


def _open(asked: Asked) -> Session:
    return open_model(asked.compiled, Path(asked.folder), asked.threads)


def _runtime(compiled: Compiled) -> str:
    names = {"onnx": "onnxruntime", "torchscript": "torch"}
    name = names.get(compiled.format) or SDKS[compiled.processor]
    return f"{name} {importlib.import_module(name).__version__}"


def _latency(run: Any, batch: int, count: int) -> dict[str, Any]:
    run(batch, count)
    samples: list[float] = []
    start = time.perf_counter()
    while len(samples) < MIN_RUNS or (
        len(samples) < MAX_RUNS and time.perf_counter() - start < BUDGET_S
    ):
        samples.append(run(batch, count))
    p50, p90 = np.percentile(samples, [50, 90])
    return {"batch": batch, "tokens": count, "p50_seconds": float(p50), "p90_seconds": float(p90)}


def _seconds_to_load(asked: Asked) -> float:
    start = time.perf_counter()
    _open(asked)
    return time.perf_counter() - start


def _shared(path: Path) -> dict[str, Any]:
    with path.open("rb") as stream:
        return {"sha256": hash_stream(stream), "bytes": path.stat().st_size}


def _mapped_files(folder: Path) -> list[Path]:
    """Files of the model that stay mapped: their pages are the page cache's, and shared."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = {line.split(maxsplit=5)[5] for line in lines if len(line.split(maxsplit=5)) == 6}
    return sorted(Path(path) for path in paths if path.startswith(f"{folder.resolve()}/"))


def _anonymous_bytes() -> int:
    text = Path("/proc/self/smaps_rollup").read_text()
    found = re.search(r"^Anonymous:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def _count_maps() -> int:
    return len(Path("/proc/self/maps").read_text().splitlines())


def _status(key: str) -> int:
    text = Path("/proc/self/status").read_text()
    found = re.search(rf"^{key}:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


if __name__ == "__main__":
    print(json.dumps(_measure(msgspec.json.decode(sys.stdin.read(), type=Asked))))
