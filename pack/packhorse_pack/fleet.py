"""What may be rented: instance types, and how much of each a server may use."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from packhorse.document import Document
from packhorse.errors import InvalidInput
from packhorse.prices import InstanceType, instance_type, instance_types
from packhorse.settings import Bytes
from packhorse.units import MIB, MICRO


class TypeOverride(BaseModel):
    """What a user knows better about a type than the catalogue."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    usd_per_hour: float | None = Field(None, ge=0, allow_inf_nan=False)
    relative_speed: float | None = Field(
        None, gt=0, allow_inf_nan=False,
        description="Inferences per second of a lane, against the machine that measured.",
    )  # fmt: skip


def _named(types: object) -> object:
    """Let a plain list of names stand for types as the catalogue has them."""
    return dict.fromkeys(types) if isinstance(types, list) else types


class FleetFile(BaseModel):
    """`fleet.yaml`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    types: Annotated[dict[str, TypeOverride | None], BeforeValidator(_named)] = Field(min_length=1)
    m_max: float = Field(0.83, gt=0, le=1, description="Most of the memory that is filled.")
    c_max: float = Field(0.83, gt=0, le=1, description="Most of the compute that is filled.")
    daemonset_bytes: Bytes = Field(
        512 * MIB, description="Memory for what runs on every node beside the server."
    )
    runtime_bytes: Bytes = Field(
        160 * MIB,
        description="Memory of a server without models: 98 MiB measured, and room for requests.",
    )


@dataclass(frozen=True)
class Offer:
    """A server that can be rented, with what models may take of it.

    Attributes:
        memory_bytes, compute_micro: Whole bytes and micro-shares of a lane, rounded down.
        usd_micro: Micro-dollars per hour.
    """

    type: InstanceType
    lanes: int
    memory_bytes: int
    compute_micro: int
    usd_micro: int
    speed_is_assumed: bool

    @property
    def name(self) -> str:
        """The instance type's name."""
        return self.type.name


def load_offers(path: Path | None) -> list[Offer]:
    """Read a fleet file, or take every CPU type of the catalogue; in order of price and name.

    Raises:
        InvalidInput: A type that is not in the catalogue, an unknown key, a bad value.
    """
    if path is None:
        cpus = [name for name, row in instance_types().items() if row.family == "cpu"]
        fleet = FleetFile.model_validate({"types": dict.fromkeys(cpus)})
    else:
        fleet = Document.read(path).validate(FleetFile)
    offers = [_offer(instance_type(name), row, fleet) for name, row in fleet.types.items()]
    for offer in offers:
        if offer.type.family != "cpu":
            raise InvalidInput(
                f"{path}: {offer.name} is an {offer.type.family} type: this version packs models "
                "for cpu; take it out"
            )
    return sorted(offers, key=lambda offer: (offer.usd_micro, offer.name))


def _offer(kind: InstanceType, override: TypeOverride | None, fleet: FleetFile) -> Offer:
    price = kind.usd_per_hour
    speed: float | None = None
    if override is not None:
        price = kind.usd_per_hour if override.usd_per_hour is None else override.usd_per_hour
        speed = override.relative_speed
    usable = kind.allocatable_bytes - fleet.daemonset_bytes - fleet.runtime_bytes
    compute = kind.vcpus * MICRO * _exact(fleet.c_max) * _exact(speed or 1.0)
    return Offer(
        type=kind,
        lanes=kind.vcpus,
        memory_bytes=max(0, int(usable * _exact(fleet.m_max))),
        compute_micro=int(compute),
        usd_micro=-int(-_exact(price) * MICRO // 1),
        speed_is_assumed=speed is None,
    )


def _exact(value: float) -> Fraction:
    """The number as it was written: 0.83, not the binary fraction next to it."""
    return Fraction(str(value))
