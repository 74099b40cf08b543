"""What runs where: `.packhorse/deployment.json`, written by deploy, read by test and status
(DESIGN 12.6)."""

from __future__ import annotations

from pathlib import Path

import msgspec

from packhorse.artifact import decode_record
from packhorse.errors import Corrupt, InvalidInput
from packhorse.files import write_atomically

SCHEMA = 1
DEPLOYMENT_FILE = Path(".packhorse/deployment.json")
DEPLOYED_PLAN = Path(".packhorse/deployed-plan.yaml")
"""A copy of the plan that was deployed: the one in force, whatever is packed since."""


class RunningServer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One server; exactly one of `pid`, `container` and `service` says what it is."""

    url: str
    management_url: str | None
    models: list[str]
    pid: int | None = None
    container: str | None = None
    service: str | None = None


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """All servers of a deployment; `router_url` answers for every model, where there is one."""

    schema: int = SCHEMA
    runtime: str
    router_url: str | None
    servers: dict[str, RunningServer]

    def write(self, path: Path = DEPLOYMENT_FILE) -> None:
        """Write the record, whole or not at all."""
        write_atomically(path, msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n")


def load_deployment(path: Path = DEPLOYMENT_FILE) -> Deployment:
    """Read what runs.

    Raises:
        InvalidInput: Nothing is deployed, or the file is not such a record.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError as err:
        raise InvalidInput(
            f"nothing is deployed ({path} is missing): run packhorse deploy up"
        ) from err
    except OSError as err:
        raise InvalidInput(f"{path} cannot be read: {err.strerror}") from err
    try:
        return decode_record(data, Deployment, str(path), SCHEMA)
    except Corrupt as err:
        raise InvalidInput(
            f"{path} is damaged: stop the servers that run (pkill -f 'packhorse serve'), then "
            "remove the file"
        ) from err
