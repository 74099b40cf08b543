"""Request bodies: what each model is asked, in the form that its task and the protocol take."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from packhorse.artifact import Artifact
from packhorse.errors import InvalidInput, PackhorseError
from packhorse.ids import blob_key
from packhorse.tensors import DATATYPES
from packhorse_loadtest.job import Asked
from packhorse_loadtest.targets import Access, Fleet, Target, fetch_json
from packhorse_loadtest.texts import make_texts

if TYPE_CHECKING:
    from packhorse.store.repository import Repository

READS_AT_ONCE = 16


@dataclass
class Bodies:
    """Which model is asked with which bodies.

    Attributes:
        asked: A model for each target of the fleet, in its order.
        sets: Request bodies (JSON); models that are asked the same share a set.
        notes: What a reader of the report has to know.
    """

    asked: list[Asked] = field(default_factory=list)
    sets: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def make_bodies(
    fleet: Fleet,
    texts: Sequence[str],
    tokens: tuple[int, int] | None,
    oip: bool,
    repository: Repository | None,
    seed: int,
    access: Access,
) -> Bodies:
    """Write the bodies of every target.

    Args:
        texts: What is asked where `tokens` is None.
        tokens: Least and most tokens of texts made for each model, with its own tokenizer if the
            store has it.
        oip: By the Open Inference Protocol.
        repository: The store, which knows tokenizers and inputs; None where it is not at hand.

    Raises:
        InvalidInput: It cannot be found out what a model takes.
    """
    made = Bodies()
    store = _Store(repository)
    if tokens or any(target.task == "tensor" for target in fleet.targets):
        store.read(fleet.targets)
    places: dict[tuple[str, ...], int] = {}
    asked_of: dict[tuple[Any, ...], list[str]] = {}
    for target in fleet.targets:
        inputs = _declared_inputs(target, store, oip, access)
        tokenizer = store.tokenizer_of(target) if tokens else None
        key = (target.task, json.dumps(inputs), tokenizer)
        if key not in asked_of:
            chosen = make_texts(tokens, store.tokenizer(tokenizer), seed) if tokens else texts
            asked_of[key] = list(_written(target.task, inputs, chosen, seed))
        if tokens and tokenizer is None and target.task != "tensor" and not made.notes:
            made.notes.append(
                f"--tokens counts words, as the tokenizer of {target.model_id} is not at hand "
                "(name the store that holds it with --store)"
            )
        bodies = asked_of[key]
        place = places.setdefault(tuple(bodies), len(made.sets))
        if place == len(made.sets):
            made.sets.append(bodies)
        made.asked.append(Asked(target.url(oip), place))
    return made


def native_inputs(task: str | None, text: str) -> object:
    """Make a native request's inputs of a text, as the task takes them (DESIGN 12.4)."""
    if task == "question-answering":
        return {"question": text, "context": text}
    if task == "text-ranking":
        return {"query": text, "texts": [text]}
    return text


def _written(
    task: str | None, inputs: list[dict[str, Any]] | None, texts: Sequence[str], seed: int
) -> Iterable[str]:
    """Yield a body for each text; one for tensors, which take none."""
    if inputs is None:
        for text in texts:
            yield json.dumps({"inputs": native_inputs(task, text)}, ensure_ascii=False)
    elif all(row["datatype"] == "BYTES" for row in inputs):
        for text in texts:
            rows = [{**row, "shape": [1] * len(row["shape"]), "data": [text]} for row in inputs]
            yield json.dumps({"inputs": rows}, ensure_ascii=False)
    else:
        yield json.dumps({"inputs": [_tensor(row, seed) for row in inputs]})


def _tensor(row: dict[str, Any], seed: int) -> dict[str, Any]:
    """Fill an input with numbers of its type; sizes that are free become one."""
    import numpy as np

    shape = [max(1, size) for size in row["shape"]]
    draw = np.random.default_rng(seed)
    kind = row["datatype"]
    data: list[Any]
    if kind == "BYTES":
        data = ["a"] * prod(shape)
    elif kind == "BOOL":
        data = draw.integers(0, 2, prod(shape)).astype(bool).tolist()
    elif kind.startswith("FP") or kind == "BF16":
        data = draw.random(prod(shape)).round(4).tolist()
    else:
        data = draw.integers(0, 2, prod(shape)).tolist()
    return {**row, "shape": shape, "data": data}


def _declared_inputs(
    target: Target, store: _Store, oip: bool, access: Access
) -> list[dict[str, Any]] | None:
    """Return the inputs that a model declares; None where a text is sent natively."""
    if not oip and target.task != "tensor":
        return None
    artifact = store.artifacts.get(target)
    if not oip and artifact is not None:
        return [
            {"name": spec.name, "datatype": DATATYPES[spec.dtype], "shape": list(spec.shape)}
            for spec in artifact.inputs
        ]
    try:
        found = fetch_json(f"{target.base}/v2/models/{quote(target.model_id)}", access)
        return [
            {"name": str(row["name"]), "datatype": str(row["datatype"]), "shape": [*row["shape"]]}
            for row in found["inputs"]
        ]
    except (PackhorseError, KeyError, TypeError) as err:
        raise InvalidInput(
            f"cannot find out which inputs {target.model_id} takes: the store does not hold it "
            f"(name one with --store), nor does its server say ({err})"
        ) from err


class _Store:
    """Records and tokenizers of a store that may not be there, each read once."""

    def __init__(self, repository: Repository | None) -> None:
        self._repository = repository
        self._tokenizers: dict[str, Any] = {}
        self.artifacts: dict[Target, Artifact] = {}

    def read(self, targets: Sequence[Target]) -> None:
        """Read the record of every target that has one."""
        with ThreadPoolExecutor(READS_AT_ONCE, thread_name_prefix="read") as pool:
            for target, artifact in zip(targets, pool.map(self._artifact, targets), strict=True):
                if artifact is not None:
                    self.artifacts[target] = artifact

    def tokenizer_of(self, target: Target) -> str | None:
        """Return the digest of a model's tokenizer."""
        artifact = self.artifacts.get(target)
        return artifact.tokenizer.sha256 if artifact and artifact.tokenizer else None

    def tokenizer(self, digest: str | None) -> Any:
        """Return a tokenizer that cuts nothing; None where there is none."""
        if digest is None or self._repository is None:
            return None
        if digest not in self._tokenizers:
            from tokenizers import Tokenizer

            data = self._repository.objects.read(blob_key(digest)) or b""
            self._tokenizers[digest] = Tokenizer.from_str(data.decode())
            self._tokenizers[digest].no_truncation()
            self._tokenizers[digest].no_padding()
        return self._tokenizers[digest]

    def _artifact(self, target: Target) -> Artifact | None:
        if self._repository is None or not target.version or not target.variant:
            return None
        try:
            return self._repository.artifact(target.model_id, target.version, target.variant)
        except PackhorseError:  # another store than this one holds it
            return None
