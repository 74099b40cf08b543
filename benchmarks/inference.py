"""What tracing gains and costs, and what serving costs, on the demo's models.

The CPU seconds of one whole trace of MiniLM (export, quantize, verify, measure, publish).
Interleaved slices of twenty calls each, as a server under load makes them, caches warm: eager
torch, frozen TorchScript, ONNX fp32 and ONNX int8 of one MiniLM, one thread, at 12 and 128 tokens;
and a request over HTTP against the same inference called directly.
Run by `make bench`, after `make demo`.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np

from benchmarks.harness import Figure
from packhorse.catalog import load_catalog
from packhorse.deployment import load_deployment
from packhorse.sessions.onnx import open_session, session_inputs
from packhorse.settings import load_settings
from packhorse.store.cache import Cache
from packhorse.store.repository import Repository
from packhorse.tensors import make_feed

if TYPE_CHECKING:
    from packhorse_trace.torch_model import EagerModel

ROUNDS = 20
SLICE = 20


def figures() -> list[Figure]:
    """Measure; the demo has to be deployed."""
    import torch

    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    rows = [Figure("trace of MiniLM, CPU", traced(), "s", 40, "what is allowed", "<= 1")]
    for tokens, against_script, against_fp32 in ((12, 3.5, 2.0), (128, 1.8, 1.5)):
        best = {name: 1 / seconds for name, seconds in interleaved(candidates(tokens)).items()}
        what = f"MiniLM int8, {tokens} tokens"
        # The bounds hold for CPUs without VNNI; with it int8 is faster.
        for other, wanted in (
            ("torchscript", f">= {against_script}"),
            ("fp32", f">= {against_fp32}"),
        ):
            rows.append(Figure(what, best["int8"], "/s", best[other], other, wanted))
        rows.append(Figure(what, best["int8"], "/s", best["eager"], "eager torch"))
    best = {name: seconds * 1e3 for name, seconds in interleaved(serving()).items()}
    name = "its inference, called directly"
    rows.append(Figure("a request over HTTP", best["request"], "ms", best["inference"], name))
    return rows


def candidates(tokens: int) -> dict[str, Callable[[], object]]:
    """One MiniLM three times, each ready to infer a text of that length."""
    from packhorse_trace.source import read_source
    from packhorse_trace.torch_model import load_eager

    spec = next(s for s in load_catalog(load_settings().catalog) if s.id == "embed/minilm-fp32")
    eager = load_eager(read_source(spec), spec.task)
    ids = np.random.default_rng(0).integers(1000, 20000, (1, tokens))
    arrays = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    arrays["token_type_ids"] = np.zeros_like(ids)
    return {
        "eager": lambda: eager.run(arrays),
        "torchscript": script(eager, arrays),
        "fp32": runner("embed/minilm-fp32", "cpu-fp32", arrays),
        "int8": runner("embed/minilm-int8", "cpu-int8", arrays),
    }


def script(eager: EagerModel, arrays: dict[str, Any]) -> Callable[[], object]:
    """The same, traced and frozen to TorchScript."""
    from packhorse.sessions.torchscript import FILE, ScriptSession
    from packhorse_trace.torchscript import input_specs, write_script

    with tempfile.TemporaryDirectory() as folder:
        write_script(eager, Path(folder) / FILE)
        session = ScriptSession(Path(folder), input_specs(eager), threads=1)
    return lambda: session.run(arrays)


def traced() -> float:
    """CPU seconds of a process that traces MiniLM to int8, its children's included."""
    with tempfile.TemporaryDirectory() as store:
        command = [sys.executable, "-m", "packhorse", "trace", "--only", "embed/minilm-int8"]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*command, "--store", store], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def runner(model_id: str, variant: str, arrays: dict[str, Any]) -> Callable[[], object]:
    settings = load_settings()
    repository = Repository.open(settings.store)
    artifact = repository.artifact(model_id, repository.latest(model_id), variant)
    session = open_session(Cache(settings.cache).pull(repository, artifact) / "model.onnx", 1)
    feed = make_feed(session_inputs(session), arrays)
    return lambda: session.run(None, feed)


def serving() -> dict[str, Callable[[], object]]:
    """A request to the demo's server, and the same text's inference in this process."""
    from packhorse_server.model import load_model
    from packhorse_server.tasks.text import Text
    from packhorse_server.tokenizers import Encoders

    model_id, text = "acme-shop/intent", "where is my parcel?"
    settings = load_settings()
    repository = Repository.open(settings.store)
    artifact = repository.artifact(model_id, repository.latest(model_id), "cpu-int8")
    folder = Cache(settings.cache).pull(repository, artifact)
    model = load_model(artifact, folder, 1, Encoders())
    client = httpx.Client(timeout=30)
    url = f"{load_deployment().router_url}/predictions/{model_id}"
    return {
        "request": lambda: client.post(url, json={"inputs": text}).raise_for_status(),
        "inference": lambda: model.answer(Text(text), {}),
    }


def interleaved(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Call each in turn, a slice at a time; return the seconds of a call in each one's best slice.

    Whatever else the machine does only ever adds time, and it adds more to some than to others.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(ROUNDS + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(SLICE):
                call()
            if number:  # the first ones warm up
                seconds[name].append((time.perf_counter() - start) / SLICE)
    return {name: min(values) for name, values in seconds.items()}
