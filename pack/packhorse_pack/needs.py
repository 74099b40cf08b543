"""What models need, in whole bytes and whole micro-shares of a lane, rounded up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from packhorse.artifact import Artifact
from packhorse.catalog import ModelSpec
from packhorse.errors import Corrupt, InvalidInput
from packhorse.plan import PlannedModel
from packhorse.store.repository import Repository
from packhorse.units import MICRO

CPU_VARIANTS = {
    "auto": ("cpu-int8", "cpu-fp32"),
    "int8": ("cpu-int8",),
    "fp32": ("cpu-fp32",),
    "torchscript": ("cpu-torchscript",),
}
"""What a catalog's precision may have become, the first that is there."""
READY_VARIANTS = ("cpu-onnx", "cpu-torchscript")
"""What a ready-made file (task `tensor`) may have become."""


@dataclass(frozen=True)
class Item:
    """One replica of a model.

    Attributes:
        compute_micro: Micro-shares of a lane on the machine that measured.
    """

    model: PlannedModel
    memory_bytes: int
    compute_micro: int

    @property
    def id(self) -> str:
        """The model's id; replicas share it, and may not share a server."""
        return self.model.id


def read_needs(
    specs: Sequence[ModelSpec], repository: Repository
) -> tuple[list[Item], dict[str, str]]:
    """Look up every model's measured cost.

    Returns:
        The needs, and for each model that has none, why: it is not in the store, its record is
        broken, or it is for a processor that cannot be packed.
    """
    items: list[Item] = []
    missing: dict[str, str] = {}
    for spec in specs:
        try:
            artifact = _artifact(spec, repository)
        except (InvalidInput, Corrupt) as err:
            missing[spec.id] = str(err)
            continue
        model = PlannedModel(spec.id, artifact.version, artifact.variant, spec.pinned)
        for _ in range(spec.replicas):
            items.append(make_item(model, artifact, spec))
    return items, missing


def make_item(model: PlannedModel, artifact: Artifact, spec: ModelSpec) -> Item:
    """Turn a cost record and an expected rate into one replica's need."""
    seconds = Fraction(str(artifact.cost.seconds_at(spec.sequence_length)))
    rate = Fraction(str(spec.expected_rps)) / spec.replicas
    return Item(
        model,
        artifact.cost.private_bytes + artifact.cost.file_bytes,
        math.ceil(seconds * rate * MICRO),
    )


def _artifact(spec: ModelSpec, repository: Repository) -> Artifact:
    ready = spec.task == "tensor"
    variants = READY_VARIANTS if ready else CPU_VARIANTS.get(spec.precision)
    if "cpu" not in spec.processors or variants is None:
        raise InvalidInput(
            f"model {spec.id!r} ({spec.where}) is for {', '.join(spec.processors)} in "
            f"{spec.precision}: this version packs models for cpu"
        )
    version = spec.version or repository.latest(spec.id)
    if len(variants) > 1:
        published = repository.variants(spec.id, version)
        variants = tuple(name for name in variants if name in published) or variants
    return repository.artifact(spec.id, version, variants[0])
