"""The record of one compiled model version and variant: `artifact.json` (DESIGN 12.3).

It is written last when a model is published, so that whoever finds it finds all of it. It names
every file by digest, says how equal the model is to its original, and what it costs to run.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, TypeVar

import msgspec

from packhorse.errors import Corrupt, InvalidInput
from packhorse.ids import artifact_prefix, blob_key, check_model_id, check_variant, check_version

SCHEMA = 1
Record = TypeVar("Record", bound=msgspec.Struct)
Count = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]


class File(msgspec.Struct, frozen=True):
    """A file of the model: `path` inside the model's folder, content by digest."""

    path: str
    sha256: str
    bytes: Count


class TensorSpec(msgspec.Struct, frozen=True):
    """A graph input or output; -1 in `shape` is any size, `dtype` a numpy name."""

    name: str
    dtype: str
    shape: list[int]


class Tokenizer(msgspec.Struct, frozen=True):
    """The tokenizer: most tokens a text is cut to, and whether the graph tells pairs apart."""

    sha256: str
    max_length: Positive
    pair: bool


class Source(msgspec.Struct, frozen=True):
    """Where the model came from; `revision` is the digest of its input files."""

    uri: str
    revision: str


class VerifiedOn(msgspec.Struct, frozen=True):
    """The machine on which equality was shown; int8 answers depend on it."""

    cpu_model: str
    features: list[str]


class Equality(msgspec.Struct, frozen=True):
    """How the artifact's outputs compare with the eager original's.

    Attributes:
        reference: What it was compared with.
        samples: Inputs compared.
        max_abs_diff: Largest absolute difference of any output number.
        label_agreement: Share of texts with the same best label; None where there are no labels.
        max_score_diff: Largest change of a label's probability, where numbers were rounded.
        score_noise: Size of the scores' changes by rounding, per size of their own differences
            from text to text (root mean squares); None where there is one text.
    """

    reference: str
    samples: int
    max_abs_diff: float
    label_agreement: float | None
    max_score_diff: float | msgspec.UnsetType = msgspec.UNSET
    score_noise: float | msgspec.UnsetType | None = msgspec.UNSET


class Shared(msgspec.Struct, frozen=True):
    """A blob whose bytes stay file-backed, held once however many models use it."""

    sha256: str
    bytes: Count


class LoadSeconds(msgspec.Struct, frozen=True):
    """Time to load with the files in the page cache, and from disk."""

    page_cache: Seconds
    disk: Seconds


class Latency(msgspec.Struct, frozen=True):
    """Time of one inference of `batch` texts of `tokens` tokens."""

    batch: Positive
    tokens: Positive
    p50_seconds: Seconds
    p90_seconds: Seconds


class Cost(msgspec.Struct, frozen=True):
    """What running the model costs, measured in a fresh process.

    Attributes:
        private_bytes: Memory that is this model's alone after an inference.
        file_bytes: Page cache that it keeps in use; evictable, and shared through `shared`.
        peak_bytes: Most memory held at once, above that of the empty process.
        maps: Entries that it adds to the process's memory map.
    """

    cpu: str
    runtime: str
    threads: Count
    private_bytes: Count
    file_bytes: Count
    shared: list[Shared]
    peak_bytes: Count
    maps: Count
    load_seconds: LoadSeconds
    latency: list[Latency]

    def seconds_at(self, tokens: int) -> float:
        """Return the P50 seconds of a batch-1 inference of the length measured next above.

        Above the longest length measured, the longest's time grows in proportion.
        """
        rows = sorted((row for row in self.latency if row.batch == 1), key=lambda row: row.tokens)
        if not rows:
            raise InvalidInput(
                f"the cost record holds no batch-1 latency ({self.runtime}): trace the model "
                "where it can be measured"
            )
        for row in rows:
            if row.tokens >= tokens:
                return row.p50_seconds
        return rows[-1].p50_seconds * tokens / rows[-1].tokens


class Artifact(msgspec.Struct, frozen=True, kw_only=True):
    """One compiled model. Field meanings: DESIGN 12.3, and two that are left out where empty.

    Attributes:
        refused: Precisions that `auto` tried before this one, and why each was not published.
        note: What the figures do not show, such as a latency that could not be measured.
    """

    schema: int = SCHEMA
    id: str
    version: str
    variant: str
    task: str
    processor: str
    format: str
    precision: str
    files: list[File]
    inputs: list[TensorSpec]
    outputs: list[TensorSpec]
    batch_sizes: list[int]
    sequence_lengths: list[int]
    labels: list[str] | None
    pooling: str | None
    normalize: bool
    tokenizer: Tokenizer | None
    source: Source
    built_with: dict[str, str]
    verified_on: VerifiedOn
    equality: Equality
    cost: Cost
    refused: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    note: str | msgspec.UnsetType = msgspec.UNSET

    @property
    def total_bytes(self) -> int:
        """Bytes of all files together."""
        return sum(file.bytes for file in self.files)

    @property
    def prefix(self) -> str:
        """The store key prefix of this artifact, without a final slash."""
        return artifact_prefix(self.id, self.version, self.variant)

    @property
    def digest(self) -> str:
        """The sha256 of the record, which changes when the version is published anew."""
        return hashlib.sha256(self.encode()).hexdigest()

    def encode(self) -> bytes:
        """Write the record as it is stored: indented, for people who look into the bucket."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"

    @classmethod
    def decode(cls, data: bytes, name: str) -> Artifact:
        """Read a record; `name` says in errors where it lies.

        Raises:
            Corrupt: Not a record, of a newer schema, or with a path that leads out of its folder.
        """
        artifact = decode_record(data, cls, name, SCHEMA)
        try:
            check_model_id(artifact.id)
            check_version(artifact.version)
            check_variant(artifact.variant)
            _check_files(artifact.files)
            _check_tokenizer(artifact)
        except InvalidInput as err:
            raise Corrupt(f"{name}: {err}") from err
        return artifact


def decode_record(data: bytes, kind: type[Record], name: str, schema: int) -> Record:
    """Decode a JSON record of ours.

    Raises:
        Corrupt: Not JSON, a field missing or of another type, or written by a newer packhorse.
    """
    try:
        found = msgspec.json.decode(data, type=dict)
        number = found.get("schema")
        if isinstance(number, int) and number > schema:
            raise Corrupt(
                f"{name} has schema {number}; this packhorse reads up to {schema}: upgrade it"
            )
        return msgspec.convert(found, kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as err:
        raise Corrupt(f"{name} is not a valid record: {err}: publish it again") from err


def _check_files(files: list[File]) -> None:
    paths = set()
    for file in files:
        blob_key(file.sha256)
        _check_path(file.path)
        if file.path in paths:
            raise InvalidInput(f"file {file.path!r} is named twice")
        paths.add(file.path)
    for path in paths:
        parts = path.split("/")
        if above := paths & {"/".join(parts[:count]) for count in range(1, len(parts))}:
            raise InvalidInput(f"file {path!r} lies in {min(above)!r}, which is a file too")


def _check_tokenizer(artifact: Artifact) -> None:
    """Servers share tokenizers by digest: a record may not lend another's name to its own."""
    if artifact.tokenizer is None:
        return
    own = [file.sha256 for file in artifact.files if file.path == "tokenizer.json"]
    if own != [artifact.tokenizer.sha256]:
        raise InvalidInput(
            f"tokenizer {artifact.tokenizer.sha256[:80]!r} is not the digest of tokenizer.json"
        )


def _check_path(path: str) -> None:
    parts = path.split("/")
    if not path or "\\" in path or "\0" in path or any(part in ("", ".", "..") for part in parts):
        raise InvalidInput(f"file path {path!r} leads out of the model's folder")
