"""A model as its author left it: a folder in Hugging Face layout, read without torch.

Reading and digesting a source must be cheap, since every run of `trace` does it for every entry
to see whether there is anything to do.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packhorse.catalog import ModelSpec
from packhorse.errors import MissingPackage, TraceError
from packhorse.store.repository import hash_stream

RECIPE = 3
"""Raised when tracing the same source makes another artifact, so that versions differ too."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_READ = (
    "config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "vocab.txt", "vocab.json", "merges.txt", "added_tokens.json", "spiece.model",
    "sentencepiece.bpe.model", "modules.json", "sentence_bert_config.json",
    "1_Pooling/config.json", "model.safetensors.index.json", "*.safetensors",
)  # fmt: skip
TOKENIZERS = (
    "tokenizer.json", "vocab.txt", "vocab.json", "spiece.model", "sentencepiece.bpe.model",
)  # fmt: skip
"""Files of which one holds a tokenizer's vocabulary."""
_NOT_SHAPE = frozenset(
    {"id2label", "label2id", "_name_or_path", "transformers_version", "torch_dtype", "dtype",
     "architectures"}
)  # fmt: skip
_digests: dict[tuple[int, int, int, int], str] = {}


@dataclass(frozen=True)
class Source:
    """A source folder.

    Attributes:
        config: `config.json`.
        revision: Digest of every file that tracing reads.
    """

    folder: Path
    config: dict[str, Any]
    revision: str

    @property
    def name(self) -> str:
        """What the record calls the source."""
        return self.folder.name

    def version(self, spec: ModelSpec, options: dict[str, object]) -> str:
        """Return the catalog's version, or one of all that decides the answers."""
        return version_of(self.revision, spec, options)

    def shape(self, spec: ModelSpec) -> str:
        """Return a digest that two sources share if only their weights and labels differ."""
        config = {key: value for key, value in self.config.items() if key not in _NOT_SHAPE}
        facts = [config, len(self.labels), spec.task, self.pooling, self.normalize,
                 self.max_length, spec.sequence_length, spec.sequence_buckets, spec.batch,
                 spec.precision]  # fmt: skip
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    @property
    def labels(self) -> list[str]:
        """Label names in the order of the outputs."""
        names: dict[str, str] = self.config.get("id2label") or {}
        if not names:  # left out where they are the default ones
            return [f"LABEL_{i}" for i in range(self.config.get("num_labels", 2))]
        return [names[key] for key in sorted(names, key=int)]

    @property
    def pooling(self) -> str:
        """How token vectors become one vector: `mean` or `cls`."""
        config = self._json("1_Pooling/config.json")
        modes = [key for key, on in config.items() if key.startswith("pooling_mode_") and on]
        if not config or modes == ["pooling_mode_mean_tokens"]:
            return "mean"
        if modes == ["pooling_mode_cls_token"]:
            return "cls"
        raise TraceError(f"{self.folder}: pooling {modes} is not supported: use mean or cls")

    @property
    def normalize(self) -> bool:
        """Whether vectors are scaled to length one."""
        kinds = [str(module["type"]).rpartition(".")[2] for module in self._json("modules.json")]
        if unknown := set(kinds) - {"Transformer", "Pooling", "Normalize"}:
            raise TraceError(f"{self.folder}: module {min(unknown)} is not supported: leave it out")
        return "Normalize" in kinds

    @property
    def parameters(self) -> int:
        """How many weights there are, by the headers of their files."""
        count = 0
        for path in sorted(self.folder.glob("*.safetensors")):
            with path.open("rb") as stream:
                (length,) = struct.unpack("<Q", stream.read(8))
                header = json.loads(stream.read(length))
            shapes = [tensor["shape"] for name, tensor in header.items() if name != "__metadata__"]
            count += sum(math.prod(shape) for shape in shapes)
        return count

    @property
    def max_length(self) -> int:
        """Most tokens that the model reads, special ones included."""
        limits = [512]
        if positions := self.config.get("max_position_embeddings"):
            # RoBERTa counts positions from after the padding id, and so loses that many.
            offset = self.config.get("pad_token_id", 1) + 1 if self._counts_from_padding else 0
            limits = [positions - offset]
        for name, key in (
            ("tokenizer_config.json", "model_max_length"),
            ("sentence_bert_config.json", "max_seq_length"),
        ):
            value = self._json(name).get(key)
            if isinstance(value, int) and value > 0:  # absent limits are written as 1e30
                limits.append(value)
        return min(limits)

    @property
    def _counts_from_padding(self) -> bool:
        return self.config.get("model_type") in ("roberta", "xlm-roberta", "camembert", "mpnet")

    def _json(self, name: str) -> Any:
        path = self.folder / name
        return json.loads(path.read_text("utf-8")) if path.is_file() else {}


def read_source(spec: ModelSpec) -> Source:
    """Find and digest a model's source.

    Raises:
        TraceError: Missing folder, or one without config or weights; says which.
    """
    folder = locate(spec)
    if spec.task == "tensor":
        raise TraceError(
            f"source {folder} is a folder, and task 'tensor' takes a file: give an .onnx or .pt "
            "file, or the task that the folder's model does"
        )
    if not (folder / "config.json").is_file():
        raise TraceError(f"source {folder} has no config.json: give a folder that has")
    if not any(folder.glob("*.safetensors")):
        pickled = " (pickled weights are never read: save them as safetensors)"
        raise TraceError(
            f"source {folder} has no *.safetensors weights"
            f"{pickled if any(folder.glob('*.bin')) else ': save the model there'}"
        )
    if not any((folder / name).is_file() for name in TOKENIZERS):
        # transformers would make one up that knows no word.
        raise TraceError(
            f"source {folder} has no tokenizer ({', '.join(TOKENIZERS)}): save it there"
        )
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except ValueError as err:
        raise TraceError(f"{folder / 'config.json'} is not JSON: {err}") from err
    if not isinstance(config, dict):
        raise TraceError(f"{folder / 'config.json'} is not a configuration: it holds no object")
    kind = config.get("problem_type")
    if spec.task == "text-classification" and kind not in (None, "single_label_classification"):
        raise TraceError(
            f"{folder}: problem_type {kind!r} is not supported by this version, which answers with "
            "one label's share against the others'"
        )
    files = sorted({path for pattern in _READ for path in folder.glob(pattern)})
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(folder).as_posix()}\0{file_digest(path)}\n".encode())
    return Source(folder, config, digest.hexdigest())


def version_of(revision: str, spec: ModelSpec, options: dict[str, object]) -> str:
    """Return the catalog's version, or 12 hex digits of all that decides the answers."""
    if spec.version:
        return spec.version
    text = json.dumps([RECIPE, revision, spec.task, sorted(options.items())])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def locate(spec: ModelSpec) -> Path:
    """Find a source's file or folder, on the hub perhaps.

    Raises:
        TraceError: It is neither here nor there.
    """
    path = Path(spec.source).expanduser()
    if path.exists():
        return path
    if not _HUB_ID.fullmatch(spec.source):
        raise TraceError(f"source {spec.source} does not exist ({spec.where}): correct the path")
    try:
        from huggingface_hub import snapshot_download
    except ImportError as err:
        raise MissingPackage("huggingface_hub", "trace") from err
    try:
        return Path(snapshot_download(spec.source, allow_patterns=list(_READ)))
    except Exception as err:  # network, permission, no such model: the hub raises many kinds
        raise TraceError(
            f"source {spec.source!r} ({spec.where}) is neither a folder here nor a model that the "
            f"hub gives: {str(err).splitlines()[0][:200]}"
        ) from err


def file_digest(path: Path) -> str:
    """Hash a file once a run, however many sources link to it."""
    stat = path.stat()
    key = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)
    if key not in _digests:
        with path.open("rb") as stream:
            _digests[key] = hash_stream(stream)
    return _digests[key]
