"""The plan: which model is on which server, and what that costs (DESIGN 12.5).

A plan is a Helm values file. A person can read it and a reviewer can diff it; unknown keys are
refused, since a misspelt one would change a fleet silently.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import yaml

from packhorse.document import Document
from packhorse.errors import InvalidInput
from packhorse.files import write_atomically
from packhorse.ids import check_model_id, check_variant, check_version

SCHEMA = 1
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
"""A server's name is a DNS label: a Service, a file and a folder are called by it."""


class PlannedModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model on a server."""

    id: str
    version: str
    variant: str
    pinned: bool = False


class Replicas(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How many copies of a server run."""

    min: int
    max: int


class Server(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True,
    rename={"instance_type": "instanceType"},
):  # fmt: skip
    """A server: one process with a device and the models that it holds.

    Attributes:
        memory_bytes: Memory that its models may hold.
        lanes: Inferences that run at once.
    """

    name: str
    family: str
    instance_type: str
    zone: str | None = None
    replicas: Replicas = Replicas(1, 1)
    lanes: int
    memory_bytes: int
    models: list[PlannedModel]


class Fleet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the fleet costs, and the proven least.

    Attributes:
        gap: (price - bound) / price: 0 where the plan is proven to be the cheapest.
        price_date: Day on which the prices were read.
        assumed: What was not measured and is taken for granted, in words.
    """

    usd_per_hour: float
    bound_usd_per_hour: float
    gap: float
    worst_case_usd_per_hour: float
    price_date: str
    certificate_sha256: str
    assumed: list[str]


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole plan."""

    schema: int = SCHEMA
    fleet: Fleet
    servers: list[Server]

    def server(self, name: str) -> Server:
        """Return the server of that name; an empty name means the only one.

        Raises:
            InvalidInput: No such server, or no name where there are several.
        """
        names = [server.name for server in self.servers]
        if not name and len(names) == 1:
            return self.servers[0]
        if name not in names:
            raise InvalidInput(
                f"server {name!r} is not in the plan: it has {', '.join(names) or 'none'}"
            )
        return self.servers[names.index(name)]

    def encode(self) -> str:
        """Write the plan as YAML, in the order of the contract."""
        return yaml.safe_dump(msgspec.to_builtins(self), sort_keys=False, width=100)

    def write(self, path: Path) -> None:
        """Write the plan to a file, whole or not at all."""
        write_atomically(path, self.encode().encode())


def load_plan(path: Path) -> Plan:
    """Read a plan.

    Raises:
        InvalidInput: Missing, unknown key, newer schema, duplicate server or model.
    """
    document = Document.read(path, "run packhorse pack, or pass --plan")
    if isinstance(document.data, dict) and document.data.get("schema") not in (SCHEMA, None):
        raise document.error(("schema",), f"schema {document.data['schema']!r}: expected {SCHEMA}")
    try:
        plan = msgspec.convert(document.data, Plan)
    except msgspec.ValidationError as err:
        raise InvalidInput(f"{path}: {err}") from err
    seen: set[str] = set()
    for index, server in enumerate(plan.servers):
        at = ("servers", index)
        if server.name in seen:
            raise document.error(at, f"server {server.name!r} is given twice: rename one")
        seen.add(server.name)
        if not _NAME.fullmatch(server.name):
            raise document.error(
                at, f"server name {server.name!r}: use 1 to 63 of a-z, 0-9 and '-', as in cpu-0"
            )
        if server.lanes < 1 or server.memory_bytes < 1:
            raise document.error(at, f"server {server.name!r} has no lanes or no memory_bytes")
        held: set[str] = set()
        for number, model in enumerate(server.models):
            where = (*at, "models", number)
            try:
                check_model_id(model.id)
                check_version(model.version)
                check_variant(model.variant)
            except InvalidInput as err:
                raise document.error(where, str(err)) from err
            if model.id in held:
                raise document.error(where, f"model {model.id!r} is twice on {server.name!r}")
            held.add(model.id)
    return plan
