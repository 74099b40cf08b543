"""Instance types with their prices, sizes and pod limits: data with a date, in one place.

Pack, loadtest and serverless all price with these; `fleet.yaml` may override any of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import yaml

from packhorse.errors import InvalidInput
from packhorse.units import GIB, MIB

KUBE_RESERVED_MIB, KUBE_RESERVED_MIB_PER_POD, EVICTION_MIB = 255, 11, 100
"""EKS AL2023 nodeadm: kube-reserved 255 MiB + 11 MiB a pod slot; hard eviction at 100 MiB."""
VM_OVERHEAD = (75, 1000)
"""Share of the nominal memory that the hypervisor keeps, as Karpenter assumes it: 7.5 %."""


@dataclass(frozen=True)
class Accelerator:
    """The accelerators of an instance: `count` chips, each with `cores` and its own memory."""

    name: str
    count: int
    memory_gib: int
    cores: int


@dataclass(frozen=True)
class InstanceType:
    """One instance type.

    Attributes:
        family: The processor that models are compiled for.
        price_date: Day on which the price was read.
    """

    name: str
    family: str
    vcpus: int
    memory_gib: int
    usd_per_hour: float
    max_pods: int
    price_date: str
    accelerator: Accelerator | None = None

    @property
    def allocatable_bytes(self) -> int:
        """Memory that EKS lets pods have: nominal, less the hypervisor's and Kubernetes's."""
        nominal = self.memory_gib * GIB
        kept, whole = VM_OVERHEAD
        reserved = KUBE_RESERVED_MIB + KUBE_RESERVED_MIB_PER_POD * self.max_pods + EVICTION_MIB
        return nominal - -(-nominal * kept // whole) - reserved * MIB


@cache
def instance_types() -> dict[str, InstanceType]:
    """Return the catalogue by name."""
    data = yaml.safe_load(files(__package__).joinpath("instances.yaml").read_text("utf-8"))
    date = str(data["price_date"])
    found = {}
    for name, row in data["instances"].items():
        chips = row.pop("accelerator", None)
        found[name] = InstanceType(
            name=name, price_date=date, accelerator=Accelerator(**chips) if chips else None, **row
        )
    return found


def instance_type(name: str) -> InstanceType:
    """Return one type.

    Raises:
        InvalidInput: Not in the catalogue.
    """
    types = instance_types()
    if name not in types:
        raise InvalidInput(f"instance type {name!r} is not in the catalogue: {', '.join(types)}")
    return types[name]
