"""What a compiled model costs: memory, maps, load time, latency, in a process of its own.

A fresh process, since memory that earlier models freed would hide what this one takes. Linux's
/proc gives the figures; `python -m packhorse_trace.measure` is the child.
"""

from __future__ import annotations

import ctypes
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

from packhorse.artifact import Cost
from packhorse.errors import TraceError
from packhorse.onnx_session import make_feed, open_session, session_inputs
from packhorse.store.repository import hash_stream
from packhorse_trace.machine import machine_to_itself, this_machine

BUDGET_S = 1.0
"""Time given to each latency figure; at least MIN_RUNS are made all the same."""
MIN_RUNS, MAX_RUNS = 10, 200


def measure_onnx(folder: Path, tokens: list[int], batches: list[int]) -> Cost:
    """Measure the ONNX model in a folder.

    Args:
        tokens: Lengths at which latency is measured.
        batches: Batch sizes at which it is measured.

    Raises:
        TraceError: The child failed; says with what.
    """
    command = [sys.executable, "-m", "packhorse_trace.measure", str(folder)]
    command += [json.dumps({"tokens": tokens, "batches": batches})]
    with machine_to_itself():
        child = subprocess.run(command, capture_output=True, text=True)
    if child.returncode != 0:
        last = (child.stderr.strip().splitlines() or ["no output"])[-1]
        raise TraceError(f"measuring failed with exit code {child.returncode}: {last[:300]}")
    return msgspec.json.decode(child.stdout, type=Cost)


def _measure(folder: Path, tokens: list[int], batches: list[int]) -> dict[str, Any]:
    import onnxruntime

    model = folder / "model.onnx"
    files = [path for path in folder.rglob("*") if path.is_file()]
    for path in files:  # a clean page that nobody maps leaves the page cache
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    from_disk = _seconds_to_load(model)
    from_cache = min(_seconds_to_load(model) for _ in range(3))
    # The runtime's own start-up is behind us: from here on, what grows is this model's.
    ctypes.CDLL(None).malloc_trim(0)
    anonymous, maps = _anonymous_bytes(), _count_maps()
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    resident = _status("VmRSS")
    session = open_session(model, threads=1)
    inputs = session_inputs(session)

    def run(batch: int, count: int) -> float:
        ones = np.ones((batch, count), dtype=np.int64)
        feed = make_feed(inputs, {"input_ids": ones, "attention_mask": ones})
        start = time.perf_counter()
        session.run(None, feed)
        return time.perf_counter() - start

    for _ in range(2):
        run(1, max(tokens))
    mapped = _mapped_files(folder)
    figures = {
        "cpu": this_machine().cpu_model,
        "runtime": f"onnxruntime {onnxruntime.__version__}",
        "threads": 1,
        "private_bytes": max(0, _anonymous_bytes() - anonymous),
        "file_bytes": sum(path.stat().st_size for path in mapped),
        "shared": [_shared(path) for path in mapped],
        "peak_bytes": max(0, _status("VmHWM") - resident),
        "maps": max(0, _count_maps() - maps),
        "load_seconds": {"page_cache": from_cache, "disk": from_disk},
    }
    figures["latency"] = [_latency(run, batch, count) for batch in batches for count in tokens]
    return figures


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


def _seconds_to_load(model: Path) -> float:
    start = time.perf_counter()
    open_session(model, threads=1)
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
    asked = json.loads(sys.argv[2])
    print(json.dumps(_measure(Path(sys.argv[1]), asked["tokens"], asked["batches"])))
