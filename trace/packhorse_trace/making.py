"""One model's artifact: compiled, proven, measured, described. Publishing it is the caller's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from packhorse import artifact as records
from packhorse.catalog import ModelSpec
from packhorse.errors import NotEqual, TraceError
from packhorse.sessions import open_model
from packhorse.settings import Settings
from packhorse.store.repository import hash_stream
from packhorse.tensors import Array
from packhorse_trace.machine import this_machine
from packhorse_trace.planning import Job
from packhorse_trace.ready import ReadyFile
from packhorse_trace.samples import encode_texts, read_samples
from packhorse_trace.source import Source
from packhorse_trace.tracer import Compiled, Tracer

if TYPE_CHECKING:
    from packhorse_trace.torch_model import EagerModel

LABELLED = ("text-classification", "token-classification")
PAIRED = ("question-answering", "text-ranking")
"""Tasks whose models read two texts at once."""


@dataclass(frozen=True)
class Made:
    """What was made of a job.

    Attributes:
        artifact: Its files lie below `folder`.
        notes: What a person should know although all went well.
    """

    job: Job
    artifact: records.Artifact
    folder: Path
    notes: tuple[str, ...]

    @property
    def refused_variants(self) -> list[str]:
        """The variants that were tried before this one, and not published."""
        refused = self.artifact.refused
        names = refused if isinstance(refused, dict) else {}
        return [variant for precision, variant in self.job.choices if precision in names]

    def serves(self, job: Job) -> bool:
        """Tell whether the same would be made of another job: only the model's id differs."""
        mine, its = self.job, job
        return (
            (mine.shape, mine.choices, mine.source) == (its.shape, its.choices, its.source)
            and (mine.spec.samples, mine.spec.inputs) == (its.spec.samples, its.spec.inputs)
            and mine.spec.batch == its.spec.batch
            and mine.spec.sequence_length == its.spec.sequence_length
        )

    def lent_to(self, job: Job) -> Made:
        """Return the same, as another model's."""
        artifact = msgspec.structs.replace(self.artifact, id=job.spec.id, version=job.version)
        return Made(job, artifact, self.folder, self.notes)

    def cost_of(self, job: Job, files: list[records.File]) -> records.Cost | None:
        """Return the measured cost with another model's blobs in place of this one's own.

        Returns:
            None where the shapes differ, or a blob has no counterpart of its size.
        """
        if job.shape != self.job.shape:
            return None
        own = {file.sha256 for file in self.artifact.files}
        there = {file.sha256 for file in files}
        spare: dict[int, list[str]] = {}
        for file in files:
            if file.sha256 not in own:
                spare.setdefault(file.bytes, []).append(file.sha256)
        shared = []
        for blob in self.artifact.cost.shared:
            if blob.sha256 not in there:
                if not spare.get(blob.bytes):
                    return None
                blob = records.Shared(spare[blob.bytes].pop(), blob.bytes)
            shared.append(blob)
        return msgspec.structs.replace(self.artifact.cost, shared=shared)


def make(job: Job, tracer: Tracer, settings: Settings, folder: Path, sibling: Made | None) -> Made:
    """Make the first of a job's choices that proves equal.

    Args:
        folder: Empty; files are written into folders of their own below.
        sibling: What was made before; of the same shape, its measurement serves this one too.

    Raises:
        TraceError: None could be compiled and proven; says why, for each.
    """
    if isinstance(job.source, ReadyFile):
        return _make_ready(job, job.source, settings, folder)
    from packhorse_trace.torch_model import load_eager

    eager = load_eager(job.source, job.spec.task)
    refused: dict[str, str] = {}
    for choice in job.choices:
        precision = choice[0]
        try:
            made = _make(job, job.source, eager, choice, tracer, settings, folder, sibling)
        except TraceError as err:
            refused[precision] = str(err)
            continue
        if not refused:
            return made
        notes = [f"{precision}, since {name} was refused: {why}" for name, why in refused.items()]
        artifact = msgspec.structs.replace(made.artifact, refused=refused)
        return Made(job, artifact, made.folder, (*notes, *made.notes))
    if len(set(refused.values())) == 1:
        raise TraceError(next(iter(refused.values())))
    raise TraceError("; ".join(f"{precision}: {why}" for precision, why in refused.items()))


def _make(
    job: Job, source: Source, eager: EagerModel, choice: tuple[str, str], tracer: Tracer,
    settings: Settings, folder: Path, sibling: Made | None,
) -> Made:  # fmt: skip
    from packhorse_trace.tokenizer import write_tokenizer

    (precision, variant), spec = choice, job.spec
    folder = folder / variant
    compiled = tracer.compile(eager, spec, precision, job.shape, folder)
    _check_width(spec.task, source, compiled.outputs[0].shape[-1])
    write_tokenizer(source, folder / "tokenizer.json")
    files = file_records(folder)
    compiled_length = max(compiled.sequence_lengths)  # -1 is any
    longest = min(source.max_length, compiled_length) if compiled_length > 0 else source.max_length
    equality, notes = prove(eager, compiled, spec, folder, longest, settings)
    cost = sibling.cost_of(job, files) if sibling else None
    cost = cost or tracer.measure(compiled, folder, spec, longest)
    embeds = spec.task == "feature-extraction"
    artifact = _record(
        job, variant, compiled, files, equality, cost,
        labels=source.labels if spec.task in LABELLED else None,
        pooling=source.pooling if embeds else None,
        normalize=embeds and source.normalize,
        tokenizer=records.Tokenizer(
            next(file.sha256 for file in files if file.path == "tokenizer.json"),
            longest,
            any(item.name == "token_type_ids" for item in compiled.inputs),
        ),
    )  # fmt: skip
    return Made(job, artifact, folder, notes)


def prove(
    eager: EagerModel, compiled: Compiled, spec: ModelSpec, folder: Path, longest: int,
    settings: Settings,
) -> tuple[records.Equality, tuple[str, ...]]:  # fmt: skip
    """Compare what was made with its original, where it can run.

    Returns:
        The figures, and notes for a person.

    Raises:
        NotEqual: It differs, or cannot run here and may not be published unproven.
    """
    from packhorse_trace.verify import verify

    if compiled.unproven:
        if not settings.publish_unproven:
            raise NotEqual(
                f"compiled, but {compiled.unproven}, so it could not be compared with its "
                "original: trace it there, or set publish_unproven"
            )
        note = f"neither compared nor measured: {compiled.unproven}"
        return records.Equality(f"none: {compiled.unproven}", 0, 0.0, None), (note,)
    samples = read_samples(spec.samples, pairs=spec.task in PAIRED)
    texts = encode_texts(folder / "tokenizer.json", samples, longest)
    session = open_model(compiled, folder, threads=1)

    def run(arrays: Mapping[str, Array]) -> Array:
        return session.run(arrays)[0]

    equality, doubts = verify(eager, run, compiled, texts, longest, settings)
    notes = (*doubts, compiled.note) if spec.samples is None else (compiled.note,)
    return equality, tuple(note for note in notes if note)


def _make_ready(job: Job, source: ReadyFile, settings: Settings, folder: Path) -> Made:
    from packhorse_trace.ready_import import import_ready

    ((_, variant),) = job.choices
    folder = folder / variant
    compiled, equality, cost, labels = import_ready(source, job.spec, settings, folder)
    artifact = _record(
        job, variant, compiled, file_records(folder), equality, cost,
        labels=labels, pooling=None, normalize=False, tokenizer=None,
    )  # fmt: skip
    return Made(job, artifact, folder, ())


def _check_width(task: str, source: Source, width: int) -> None:
    if task in LABELLED and width not in (-1, len(source.labels)):
        raise TraceError(
            f"{source.folder} names {len(source.labels)} labels (id2label), its head has {width}"
        )
    if task == "text-ranking" and width != 1:
        raise TraceError(f"{source.folder} gives {width} scores: text-ranking needs one")


def _record(
    job: Job, variant: str, compiled: Compiled, files: list[records.File],
    equality: records.Equality, cost: records.Cost, *, labels: list[str] | None,
    pooling: str | None, normalize: bool, tokenizer: records.Tokenizer | None,
) -> records.Artifact:  # fmt: skip
    return records.Artifact(
        id=job.spec.id,
        version=job.version,
        variant=variant,
        task=job.spec.task,
        processor=compiled.processor,
        format=compiled.format,
        precision=compiled.precision,
        files=files,
        inputs=compiled.inputs,
        outputs=compiled.outputs,
        batch_sizes=compiled.batch_sizes,
        sequence_lengths=compiled.sequence_lengths,
        labels=labels,
        pooling=pooling,
        normalize=normalize,
        tokenizer=tokenizer,
        source=records.Source(job.source.name, job.source.revision),
        built_with=compiled.built_with,
        verified_on=this_machine(),
        equality=equality,
        cost=cost,
        note=compiled.note or msgspec.UNSET,
    )


def file_records(folder: Path) -> list[records.File]:
    """Describe the files below a folder, in order of their paths."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb") as stream:
                digest = hash_stream(stream)
            name = path.relative_to(folder).as_posix()
            found.append(records.File(name, digest, path.stat().st_size))
    return found
