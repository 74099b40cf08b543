"""How fast a server's models come from S3, against a plain loop that downloads the same objects.

A hundred models of 25 MB that share nothing, and a hundred that share a trunk of 25 MB, from a real
S3 server on this machine into an empty folder; three rounds, the contenders in turn, each in a
process of its own. The plain loop checks nothing and keeps no record; it is written as well as the
SDK allows (16 threads, whole objects). Since all of them and the S3 server share this machine's
CPUs, hashing costs more here than where a network sets the pace. Run by `make bench`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from io import RawIOBase
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.harness import Figure
from packhorse.artifact import Artifact
from packhorse.ids import blob_key
from packhorse.progress import show_progress
from packhorse.store.cache import DOWNLOADS_AT_ONCE, Cache
from packhorse.store.repository import Repository
from packhorse.store.s3 import CONNECTIONS, S3Objects
from tests.onnx_models import make_artifact, write_tokenizer
from tests.s3 import s3_server

MODELS = 100
MODEL_BYTES = 25_000_000
ROUNDS = 3
STORE = "s3://models/bench"
PULLS_AT_ONCE = 8


def figures() -> list[Figure]:
    """Fill the store, let the contenders run in turn, and set them beside each other."""
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in CONTENDERS}
    with tempfile.TemporaryDirectory(prefix="packhorse-bench-") as name:
        folder = Path(name)
        (folder / "s3").mkdir()
        with s3_server(folder / "s3") as url:
            os.environ.update(
                AWS_ENDPOINT_URL=url, AWS_ACCESS_KEY_ID="ADMIN", AWS_SECRET_ACCESS_KEY="secret",
                AWS_EC2_METADATA_DISABLED="true",
            )  # fmt: skip
            fill(folder)
            with show_progress("pull", ROUNDS * len(runs)) as bar:
                for _ in range(ROUNDS):
                    for name in runs:
                        runs[name].append(run_apart(name, folder / "target"))
                        bar.advance(1, f"{name} {runs[name][-1]['seconds']:.2f} s")
    best = {
        name: max(row["bytes"] / row["seconds"] / 1e6 for row in rows)
        for name, rows in runs.items()
    }
    ours = best.pop("packhorse")
    what = f"{2 * MODELS} models pulled from S3"
    rows = [Figure(what, ours, "MB/s", value, name) for name, value in best.items()]
    peak = max(row["peak_bytes"] for row in runs["packhorse"]) / 1e6
    total = runs["packhorse"][0]["bytes"] / 1e6
    return [*rows, Figure("memory of the puller", peak, "MB", total, "what it pulls")]


def fill(folder: Path) -> None:
    """Publish the models."""
    repository = Repository.open(STORE)
    assert isinstance(repository.objects, S3Objects)
    repository.objects.client.create_bucket(Bucket=repository.objects.bucket)
    trunk = np.random.default_rng(MODELS).bytes(MODEL_BYTES)
    with show_progress("publish", 2 * MODELS) as bar:
        for number in range(2 * MODELS):
            alone = number < MODELS
            model = folder / "model"
            model.mkdir()
            write_tokenizer(model / "tokenizer.json")
            own = np.random.default_rng(number).bytes(MODEL_BYTES if alone else 100_000)
            (model / "own.bin").write_bytes(own)
            if not alone:
                (model / "trunk.bin").write_bytes(trunk)
            repository.publish(make_artifact(model, f"m{number}"), model)
            shutil.rmtree(model)
            bar.advance(1)


def run_apart(name: str, target: Path) -> dict[str, float]:
    """Run a contender in a process of its own, into an empty folder."""
    shutil.rmtree(target, ignore_errors=True)
    command = [sys.executable, "-m", "benchmarks.pull", name, str(target)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def contend(name: str, target: Path) -> None:
    """Be a contender: print the seconds, the bytes and the most memory held."""
    repository = Repository.open(STORE)
    artifacts = [record for _, record in repository.artifacts() if isinstance(record, Artifact)]
    target.mkdir()
    os.sync()  # what an earlier run wrote shall not be flushed at this one's cost
    start = time.perf_counter()
    CONTENDERS[name](repository, artifacts, target)
    seconds = time.perf_counter() - start
    blobs = {file.sha256: file.bytes for artifact in artifacts for file in artifact.files}
    there = {
        path.stat().st_ino: path.stat().st_size for path in target.rglob("*") if path.is_file()
    }
    assert sum(there.values()) >= sum(blobs.values())
    # Not getrusage's: that begins with what the parent held when it forked.
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    row = {"seconds": round(seconds, 2), "bytes": sum(blobs.values()), "peak_bytes": peak}
    print(msgspec.json.encode(row).decode())


def by_packhorse(repository: Repository, artifacts: list[Artifact], target: Path) -> None:
    """Pull as a server does that has read the manifests: blobs, hashes, links."""
    opened: Counter[str] = Counter()
    plain = repository.objects.open

    def counted(key: str, start: int = 0) -> RawIOBase:
        opened[key] += key.startswith("blobs/")
        return plain(key, start)

    repository.objects.open = counted  # type: ignore[method-assign] # to count what is opened
    cache = Cache(target)

    with ThreadPoolExecutor(PULLS_AT_ONCE) as pool:
        list(pool.map(lambda artifact: cache.pull(repository, artifact), artifacts))
    assert set(opened.values()) <= {0, 1}, "a blob was fetched more than once"


def by_plain_loop(repository: Repository, artifacts: list[Artifact], target: Path) -> None:
    """Download every object once, whole, to a file, without a look at its content."""
    objects = repository.objects
    assert isinstance(objects, S3Objects)
    client, at = objects.client, objects.at

    def download(digest: str) -> None:
        body = client.get_object(**at(blob_key(digest)))["Body"]
        with (target / digest).open("wb", buffering=0) as file:
            for chunk in body.iter_chunks(1024 * 1024):
                file.write(chunk)

    over_blobs(download, artifacts)


def by_download_file(repository: Repository, artifacts: list[Artifact], target: Path) -> None:
    """Download every object once with the SDK's own transfer, as its documentation shows."""
    import boto3
    from botocore.config import Config

    objects = repository.objects
    assert isinstance(objects, S3Objects)
    client = boto3.client("s3", config=Config(max_pool_connections=CONNECTIONS))

    def download(digest: str) -> None:
        at = objects.at(blob_key(digest))
        client.download_file(at["Bucket"], at["Key"], str(target / digest))

    over_blobs(download, artifacts)


def over_blobs(download: Callable[[str], None], artifacts: list[Artifact]) -> None:
    digests = {file.sha256 for artifact in artifacts for file in artifact.files}
    with ThreadPoolExecutor(DOWNLOADS_AT_ONCE) as pool:
        list(pool.map(download, digests))


CONTENDERS: dict[str, Callable[[Repository, list[Artifact], Path], None]] = {
    "plain loop": by_plain_loop,
    "packhorse": by_packhorse,
    "download_file": by_download_file,
}

if __name__ == "__main__":
    contend(sys.argv[1], Path(sys.argv[2]))
