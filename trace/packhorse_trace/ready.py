"""Models that come compiled: an `.onnx` or `.pt` file, found and digested without torch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from packhorse.catalog import ModelSpec
from packhorse.errors import MissingPackage, TraceError
from packhorse_trace.source import file_digest, version_of

if TYPE_CHECKING:
    import onnx

SUFFIXES = {".onnx": "cpu-onnx", ".pt": "cpu-torchscript"}
"""What is taken, and the variant that it becomes: it is published as it is."""


@dataclass(frozen=True)
class ReadyFile:
    """A compiled model's file.

    Attributes:
        beside: Files that hold its weights (ONNX external data), in the same folder.
        revision: Digest of all of them.
    """

    path: Path
    beside: tuple[Path, ...]
    revision: str

    @property
    def name(self) -> str:
        """What the record calls the source."""
        return self.path.name

    @property
    def variant(self) -> str:
        """What it is published as."""
        return SUFFIXES[self.path.suffix]

    def version(self, spec: ModelSpec, options: dict[str, object]) -> str:
        """Return the catalog's version, or one of all that decides the answers."""
        return version_of(self.revision, spec, {"inputs": [str(i) for i in spec.inputs or ()]})


def read_ready(path: Path, spec: ModelSpec, processor: str) -> ReadyFile:
    """Find and digest a file.

    Raises:
        TraceError: Of a kind that is not taken, for another task than `tensor`, or with weights
            that are missing or lie outside its folder.
    """
    if path.suffix not in SUFFIXES:
        raise TraceError(
            f"source {path} is of no kind that is taken (nothing is ever unpickled): convert it to "
            "ONNX (skl2onnx, onnxmltools, torch.onnx) or save it with torch.jit.save as .pt"
        )
    if spec.task != "tensor":
        raise TraceError(
            f"source {path} is a compiled file, which only task 'tensor' takes: for "
            f"{spec.task!r}, give the model's folder in Hugging Face layout"
        )
    if processor != "cpu":
        raise TraceError(
            f"{path.name} is served on cpu: take {processor!r} out of the model's processors"
        )
    if spec.precision not in ("auto", "torchscript" if path.suffix == ".pt" else "fp32"):
        raise TraceError(
            f"{path.name} is published as it is, not in {spec.precision}: leave precision out"
        )
    beside = _external_files(path) if path.suffix == ".onnx" else ()
    digest = hashlib.sha256()
    for file in (path, *beside):
        digest.update(f"{file.name}\0{file_digest(file)}\n".encode())
    return ReadyFile(path, beside, digest.hexdigest())


def _external_files(path: Path) -> tuple[Path, ...]:
    try:
        import onnx
    except ImportError as err:
        raise MissingPackage("onnx", "trace") from err
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as err:  # protobuf's own classes
        raise TraceError(f"{path} is not an ONNX file: {str(err)[:200]}") from err
    if not model.graph.node and not model.graph.output:
        raise TraceError(f"{path} is not an ONNX file: it holds no graph")
    names = {
        entry.value
        for tensor in _tensors(model.graph)
        for entry in tensor.external_data
        if entry.key == "location"
    }
    folder = path.parent.resolve()
    for name in sorted(names):
        if not (folder / name).resolve().is_relative_to(folder):
            raise TraceError(f"{path}: weights {name[:100]!r} lie outside its folder: move them in")
        if not (folder / name).is_file():
            raise TraceError(
                f"{path} keeps its weights in {name[:100]!r}, which is not there: put it beside"
            )
    return tuple(folder / name for name in sorted(names))


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yield every tensor of a graph, those of loops and branches included."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for inner in (attribute.g, *attribute.graphs):
                yield from _tensors(inner)
