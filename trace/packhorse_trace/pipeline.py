"""From catalog entries to published artifacts: skip what is there, share what is alike."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from packhorse import artifact as records
from packhorse.catalog import ModelSpec
from packhorse.errors import PackhorseError, TraceError
from packhorse.settings import Settings
from packhorse.store.repository import Repository, hash_stream
from packhorse_trace.machine import this_machine
from packhorse_trace.samples import read_samples
from packhorse_trace.source import Source, read_source
from packhorse_trace.tracer import Compiled, Tracer, tracer_for

LABELLED = ("text-classification", "token-classification")
PAIRED = ("question-answering", "text-ranking")
"""Tasks whose models read two texts at once."""


@dataclass(frozen=True)
class Result:
    """What became of one model on one processor.

    Attributes:
        status: `traced`, `unchanged` or `failed`.
        reason: Why it failed.
        added_bytes: What the store did not hold before.
    """

    id: str
    processor: str
    status: str
    version: str = ""
    variant: str = ""
    seconds: float = 0.0
    added_bytes: int = 0
    reason: str = ""


@dataclass(frozen=True)
class Job:
    """One model to compile for one processor.

    Attributes:
        shape: Equal for jobs that one export and one measurement can serve.
    """

    spec: ModelSpec
    processor: str
    source: Source
    version: str
    variant: str
    shape: str


def plan_jobs(
    specs: Sequence[ModelSpec], repository: Repository, settings: Settings, force: bool = False
) -> tuple[list[Job], list[Result]]:
    """Sort out what is to be done, without importing torch.

    A model that was published before, and is what the catalog and the settings ask for, becomes
    its latest version again.

    Returns:
        Jobs, those of one shape together, and the results of models that need no work.
    """
    jobs: list[Job] = []
    results: list[Result] = []
    for spec in specs:
        for processor in spec.processors:
            try:
                source = read_source(spec)
                tracer = tracer_for(processor, settings)
                variant = tracer.variant(spec)
                version = source.version(spec, tracer.options())
                shape = f"{variant} {source.shape(spec)}"
            except Exception as err:  # a source may be wrong in any way; the others are not
                results.append(Result(spec.id, processor, "failed", reason=_reason(err)))
                continue
            if not force and _is_published(repository, spec, source, version, variant):
                repository.mark_latest(spec.id, version)
                results.append(Result(spec.id, processor, "unchanged", version, variant))
            else:
                jobs.append(Job(spec, processor, source, version, variant, shape))
    return sorted(jobs, key=lambda job: job.shape), results


def run_jobs(
    jobs: Sequence[Job], store: str, settings: Settings, done: Callable[[Result], None]
) -> None:
    """Compile, verify, measure and publish; a broken model does not stop the rest.

    Args:
        jobs: Those of one shape after one another, as `plan_jobs` gives them.
        done: Called with each result as it comes.
    """
    repository = Repository.open(store)
    tracers: dict[str, Tracer] = {}
    sibling: Sibling | None = None
    for job in jobs:
        start = time.monotonic()
        status, reason, added = "failed", "", 0
        try:
            if job.processor not in tracers:
                tracers[job.processor] = tracer_for(job.processor, settings)
            with tempfile.TemporaryDirectory(prefix="packhorse-trace-") as folder:
                artifact = _make(job, tracers[job.processor], settings, Path(folder), sibling)
                added = repository.publish(artifact, Path(folder))
            sibling = Sibling(job.shape, artifact.files, artifact.cost)
            status = "traced"
        except Exception as err:
            # Whatever one model makes a compiler do, the other thousands are still to be traced.
            reason = _reason(err)
        seconds = time.monotonic() - start
        done(
            Result(
                job.spec.id, job.processor, status, job.version, job.variant, seconds, added, reason
            )
        )


@dataclass(frozen=True)
class Sibling:
    """The model traced before, whose measurement serves for those of its shape."""

    shape: str
    files: list[records.File]
    cost: records.Cost

    def cost_of(self, shape: str, files: list[records.File]) -> records.Cost | None:
        """Return the measured cost with another model's blobs in place of this one's own.

        Returns:
            None where the shapes differ, or a blob has no counterpart of its size.
        """
        if shape != self.shape:
            return None
        own = {file.sha256 for file in self.files}
        there = {file.sha256 for file in files}
        spare: dict[int, list[str]] = {}
        for file in files:
            if file.sha256 not in own:
                spare.setdefault(file.bytes, []).append(file.sha256)
        shared = []
        for blob in self.cost.shared:
            if blob.sha256 not in there:
                if not spare.get(blob.bytes):
                    return None
                blob = records.Shared(spare[blob.bytes].pop(), blob.bytes)
            shared.append(blob)
        return msgspec.structs.replace(self.cost, shared=shared)


def _reason(err: Exception) -> str:
    return str(err) if isinstance(err, PackhorseError) else f"{type(err).__name__}: {err}"[:500]


def _is_published(
    repository: Repository, spec: ModelSpec, source: Source, version: str, variant: str
) -> bool:
    """A version named in the catalog does not tell whether its source has changed since."""
    if not repository.has(spec.id, version, variant):
        return False
    published = repository.artifact(spec.id, version, variant)
    return spec.version is None or published.source.revision == source.revision


def _make(
    job: Job,
    tracer: Tracer,
    settings: Settings,
    folder: Path,
    sibling: Sibling | None,
) -> records.Artifact:
    from packhorse_trace.tokenizer import write_tokenizer
    from packhorse_trace.torch_model import load_eager
    from packhorse_trace.verify import encode_texts, verify

    spec, source = job.spec, job.source
    eager = load_eager(source, spec.task)
    compiled = tracer.compile(eager, spec, job.shape, folder)
    width = compiled.outputs[0].shape[-1]
    if spec.task in LABELLED and width not in (-1, len(source.labels)):
        raise TraceError(
            f"{source.folder} names {len(source.labels)} labels (id2label), its head has {width}"
        )
    if spec.task == "text-ranking" and width != 1:
        raise TraceError(f"{source.folder} gives {width} scores: text-ranking needs one")
    write_tokenizer(source, folder / "tokenizer.json")
    files = [_file(path, folder) for path in sorted(folder.rglob("*")) if path.is_file()]
    samples = read_samples(spec.samples, pairs=spec.task in PAIRED)
    texts = encode_texts(folder / "tokenizer.json", samples, source.max_length)
    equality = verify(eager, tracer.runner(folder), compiled, texts, source.max_length, settings)
    cost = sibling.cost_of(job.shape, files) if sibling else None
    cost = cost or tracer.measure(folder, spec, source.max_length)
    return _record(job, compiled, files, equality, cost)


def _record(
    job: Job,
    compiled: Compiled,
    files: list[records.File],
    equality: records.Equality,
    cost: records.Cost,
) -> records.Artifact:
    spec, source = job.spec, job.source
    tokenizer = next(file for file in files if file.path == "tokenizer.json")
    embeds = spec.task == "feature-extraction"
    return records.Artifact(
        id=spec.id,
        version=job.version,
        variant=job.variant,
        task=spec.task,
        processor=job.processor,
        format=compiled.format,
        precision=compiled.precision,
        files=files,
        inputs=compiled.inputs,
        outputs=compiled.outputs,
        batch_sizes=compiled.batch_sizes,
        sequence_lengths=compiled.sequence_lengths,
        labels=source.labels if spec.task in LABELLED else None,
        pooling=source.pooling if embeds else None,
        normalize=embeds and source.normalize,
        tokenizer=records.Tokenizer(
            tokenizer.sha256,
            source.max_length,
            any(spec.name == "token_type_ids" for spec in compiled.inputs),
        ),
        source=records.Source(source.folder.name, source.revision),
        built_with=compiled.built_with,
        verified_on=this_machine(),
        equality=equality,
        cost=cost,
    )


def _file(path: Path, folder: Path) -> records.File:
    with path.open("rb") as stream:
        digest = hash_stream(stream)
    return records.File(path.relative_to(folder).as_posix(), digest, path.stat().st_size)
