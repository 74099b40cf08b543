"""What a run of trace has to do: models that are published already need no compiler, no torch."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import msgspec

from packhorse.artifact import Artifact
from packhorse.catalog import ModelSpec
from packhorse.errors import PackhorseError
from packhorse.settings import Settings
from packhorse.store.objects import Found
from packhorse.store.repository import LIST_FROM, READS_AT_ONCE, Repository
from packhorse_trace.ready import ReadyFile, read_ready
from packhorse_trace.source import Source, locate, read_source
from packhorse_trace.tracer import Tracer, tracer_for


@dataclass(frozen=True)
class Result:
    """What became of one model on one processor.

    Attributes:
        status: `traced`, `unchanged` or `failed`.
        reason: Why it failed.
        added_bytes: What the store did not hold before.
        notes: What a person should know of it although it went well.
    """

    id: str
    processor: str
    status: str
    version: str = ""
    variant: str = ""
    seconds: float = 0.0
    added_bytes: int = 0
    reason: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Job:
    """One model to compile for one processor.

    Attributes:
        choices: Precisions to try in turn, each with its variant.
        shape: Equal for jobs that one export and one measurement can serve.
    """

    spec: ModelSpec
    processor: str
    source: Source | ReadyFile
    version: str
    choices: tuple[tuple[str, str], ...]
    shape: str

    @property
    def variants(self) -> str:
        """The variants that it may become, for messages."""
        return " or ".join(variant for _, variant in self.choices)


def plan_jobs(
    specs: Sequence[ModelSpec],
    repository: Repository,
    settings: Settings,
    force: bool = False,
) -> tuple[list[Job], list[Result]]:
    """Sort out what is to be done, without importing torch.

    A model that was published before, and is what the catalog and the settings ask for, becomes
    its latest version again.

    Returns:
        Jobs, those of one shape together, and the results of models that need no work.
    """
    sources = Sources(settings)
    listed = repository.listed() if len(specs) >= LIST_FROM else None

    def look(spec: ModelSpec) -> list[Job | Result]:
        found: list[Job | Result] = []
        for processor in spec.processors:
            try:
                job = sources.job(spec, processor)
                artifact = None if force else _published(job, repository, listed)
                if artifact is None:
                    found.append(job)
                    continue
                repository.mark_latest(spec.id, job.version, listed)
            except Exception as err:  # a source may be wrong in any way; the others are not
                found.append(Result(spec.id, processor, "failed", reason=reason_of(err)))
                continue
            found.append(
                Result(spec.id, processor, "unchanged", artifact.version, artifact.variant)
            )
        return found

    with ThreadPoolExecutor(READS_AT_ONCE, thread_name_prefix="plan") as pool:
        rows = [row for found in pool.map(look, specs) for row in found]
    jobs = [row for row in rows if isinstance(row, Job)]
    results = [row for row in rows if isinstance(row, Result)]
    # One source's copies stand together too: what was made of it is then there for all.
    return sorted(jobs, key=lambda job: (job.shape, job.source.revision)), results


def reason_of(err: Exception) -> str:
    """Say in a line why something failed."""
    return str(err) if isinstance(err, PackhorseError) else f"{type(err).__name__}: {err}"[:500]


class Sources:
    """Sources and compilers by name, each read once, however many entries name it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._tracers: dict[str, Tracer] = {}
        self._sources: dict[tuple[str, str], Source] = {}
        self._shapes: dict[tuple[object, ...], str] = {}

    def job(self, spec: ModelSpec, processor: str) -> Job:
        """Describe the work on one model.

        Raises:
            TraceError: The source or what the catalog asks for is wrong.
        """
        tracer = self._tracers.get(processor)
        if tracer is None:
            tracer = self._tracers[processor] = tracer_for(processor, self._settings)
        path = locate(spec)
        if path.is_file():
            ready = read_ready(path, spec, processor)
            choices: tuple[tuple[str, str], ...] = (("", ready.variant),)
            return Job(spec, processor, ready, ready.version(spec, {}), choices, ready.revision)
        source = self._source(spec)
        choices = tuple((p, tracer.variant(spec, source, p)) for p in tracer.precisions(spec))
        shape = f"{' '.join(variant for _, variant in choices)} {self._shape(source, spec)}"
        return Job(spec, processor, source, source.version(spec, tracer.options()), choices, shape)

    def _source(self, spec: ModelSpec) -> Source:
        key = (spec.source, spec.task)
        if key not in self._sources:
            self._sources[key] = read_source(spec)
        return self._sources[key]

    def _shape(self, source: Source, spec: ModelSpec) -> str:
        key = (source.folder, source.revision, spec.task, spec.sequence_length, spec.batch,
               spec.sequence_buckets, spec.precision)  # fmt: skip
        if key not in self._shapes:
            self._shapes[key] = source.shape(spec)
        return self._shapes[key]


def _published(
    job: Job, repository: Repository, listed: dict[str, Found] | None
) -> Artifact | None:
    """Return what is published of a job, if it is what the job would make.

    A version named in the catalog does not tell whether its source has changed since; and a
    second choice is what `auto` makes only where the first was tried and refused.
    """
    for index, (_, variant) in enumerate(job.choices):
        artifact = repository.published(job.spec.id, job.version, variant, listed)
        if artifact is None:
            continue
        refused = {} if artifact.refused is msgspec.UNSET else artifact.refused
        tried = all(precision in refused for precision, _ in job.choices[:index])
        if tried and (job.spec.version is None or artifact.source.revision == job.source.revision):
            return artifact
    return None
