"""The catalog: which models a user wants served (DESIGN section 3).

`repeat` and globs keep a catalog of thousands of models short; what leaves here is one
`ModelSpec` per model, checked, with absolute sources.
"""

from __future__ import annotations

import glob
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator

from packhorse.artifact import TensorSpec
from packhorse.document import Document
from packhorse.errors import InvalidInput
from packhorse.ids import check_model_id, check_version
from packhorse.settings import Processor
from packhorse.tensors import read_tensor_specs

Task = Literal[
    "text-classification",
    "token-classification",
    "question-answering",
    "feature-extraction",
    "text-ranking",
    "tensor",
]
Precision = Literal["auto", "fp32", "int8", "fp16", "bf16", "torchscript"]
Declared = Annotated[tuple[TensorSpec, ...], PlainValidator(read_tensor_specs)]


class Defaults(BaseModel):
    """What holds for every model that does not say otherwise."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    task: Task | None = None
    processors: tuple[Processor, ...] = Field(("cpu",), min_length=1)
    precision: Precision = "auto"
    sequence_length: int = Field(128, ge=1, le=131072)
    sequence_buckets: tuple[Annotated[int, Field(ge=1, le=131072)], ...] = ()
    batch: int = Field(1, ge=1, le=4096)
    expected_rps: float = Field(1.0, ge=0, le=1e9, allow_inf_nan=False)
    latency_target_ms: float | None = Field(None, gt=0, allow_inf_nan=False)
    replicas: int = Field(1, ge=1, le=1000)
    pinned: bool = False
    samples: str | None = None


class Entry(Defaults):
    """One entry of the catalog; with `repeat` or a glob in `source` it is many models."""

    id: str
    source: str
    version: Annotated[str, AfterValidator(check_version)] | None = None
    inputs: Declared | None = None
    repeat: int | None = Field(None, ge=1, le=1_000_000)


class CatalogFile(BaseModel):
    """The whole file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    schema_: Literal[1] = Field(1, alias="schema")
    defaults: dict[str, Any] = {}
    models: list[dict[str, Any]]


@dataclass(frozen=True)
class ModelSpec:
    """One model that shall be served.

    Attributes:
        source: Absolute path of a folder in Hugging Face layout or of an .onnx/.pt file; as it is
            written where no such path exists (a hub id, perhaps).
        samples: File with one text a line, on which precision is judged; None for built-in ones.
        sequence_length: Tokens that the model is planned for, and compiled for where shapes are
            fixed. On CPU longer texts are still answered, up to the model's own maximum.
        sequence_buckets: Shorter lengths to compile for too, where shapes are fixed.
        inputs: What a ready-made file takes, where it does not say so itself.
        where: File and line, for errors.
    """

    id: str
    source: str
    task: Task
    processors: tuple[Processor, ...]
    precision: Precision
    sequence_length: int
    sequence_buckets: tuple[int, ...]
    inputs: tuple[TensorSpec, ...] | None
    batch: int
    expected_rps: float
    latency_target_ms: float | None
    replicas: int
    pinned: bool
    version: str | None
    samples: Path | None
    where: str


def load_catalog(path: Path, processor: Processor = "cpu") -> list[ModelSpec]:
    """Read a catalog and write out its repeats and globs, in the order of the file.

    Args:
        processor: What models are compiled for where neither they nor the defaults say so.

    Raises:
        InvalidInput: Unknown key, duplicate or clashing id, reserved id segment, bad value; with
            the line and the remedy.
    """
    document = Document.read(path, "write one (docs/catalog.md), or name another file")
    file = document.validate(CatalogFile)
    defaults = document.validate(Defaults, file.defaults, ("defaults",))
    specs: list[ModelSpec] = []
    seen: dict[str, ModelSpec] = {}
    for index, raw in enumerate(file.models):
        at = ("models", index)
        entry = document.validate(Entry, {"processors": [processor], **file.defaults, **raw}, at)
        task = entry.task or defaults.task
        if task is None:
            raise document.error(at, f"model {entry.id!r} has no task: add one")
        for name, source, number in _expand(document, at, path.parent, entry):
            spec = _spec(document, at, path, entry, task, name, source, number)
            twin = seen.setdefault(spec.id.casefold(), spec)
            if twin is not spec:
                how = "is given twice" if twin.id == spec.id else f"clashes with {twin.id!r}"
                raise document.error(
                    (*at, "id"),
                    f"model id {spec.id!r} {how} ({twin.where}): on a disk that ignores case both "
                    "would be one folder; rename one",
                )
            specs.append(spec)
    return specs


def _expand(
    document: Document, at: tuple[Any, ...], folder: Path, entry: Entry
) -> list[tuple[str, str, int]]:
    """Return (name, source, number) for every model that the entry stands for."""
    numbers = range(1, entry.repeat + 1) if entry.repeat else (0,)
    if not glob.has_magic(entry.source):
        return [("", entry.source, number) for number in numbers]
    if entry.repeat:
        raise document.error((*at, "repeat"), "use either repeat or a glob in source, not both")
    found = sorted(glob.glob(str(folder / entry.source)))
    if not found:
        raise document.error(
            (*at, "source"), f"no file or folder matches {entry.source!r}: correct the glob"
        )
    return [(Path(match).stem if Path(match).is_file() else Path(match).name, match, number)
            for number, match in enumerate(found, 1)]  # fmt: skip


def _spec(
    document: Document, at: tuple[Any, ...], path: Path, entry: Entry, task: Task,
    name: str, source: str, number: int,
) -> ModelSpec:  # fmt: skip
    def filled(text: str, key: str) -> str:
        try:
            return text.format(name=name, i=number)
        except Exception as err:  # str.format reaches into attributes and widths
            raise document.error(
                (*at, key),
                f"{key} {text!r}: only {{name}} (of a glob) and {{i}} (of repeat) can be filled in",
            ) from err

    model_id = filled(entry.id, "id")
    try:
        check_model_id(model_id)
    except InvalidInput as err:
        raise document.error((*at, "id"), str(err)) from err
    root = path.parent.resolve()
    return ModelSpec(
        id=model_id,
        source=_located(root, source if name else filled(source, "source")),
        task=task,
        processors=entry.processors,
        precision=entry.precision,
        sequence_length=entry.sequence_length,
        sequence_buckets=entry.sequence_buckets,
        inputs=entry.inputs,
        batch=entry.batch,
        expected_rps=entry.expected_rps,
        latency_target_ms=entry.latency_target_ms,
        replicas=entry.replicas,
        pinned=entry.pinned,
        version=entry.version,
        samples=root / filled(entry.samples, "samples") if entry.samples else None,
        where=re.sub(r": .*", "", str(document.error(at, ""))),
    )


def _located(root: Path, source: str) -> str:
    path = root / source
    try:
        there = path.exists()
    except OSError:  # a name that is too long
        there = False
    return str(path) if there or source.startswith((".", "/", "~")) else source
