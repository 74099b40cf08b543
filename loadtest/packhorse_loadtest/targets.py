"""Whom to ask: every model of a deployment, or of one server by its URL."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx

from packhorse.deployment import DEPLOYED_PLAN, load_deployment
from packhorse.errors import DeployError, InvalidInput
from packhorse.plan import load_plan


@dataclass(frozen=True)
class Target:
    """A model at a server, and what that server says of it.

    Attributes:
        base: URL of the server or of the router before it.
        task, version, variant: None where the server does not say.
    """

    model_id: str
    base: str
    task: str | None = None
    version: str | None = None
    variant: str | None = None

    def url(self, oip: bool) -> str:
        """Return where it answers, by the native protocol or the Open Inference Protocol."""
        name = quote(self.model_id)
        return f"{self.base}/v2/models/{name}/infer" if oip else f"{self.base}/predictions/{name}"


@dataclass(frozen=True)
class Fleet:
    """What is tested.

    Attributes:
        usd_per_hour: From the plan; None where there is none.
        servers: URLs of the servers behind the targets, whose metrics are read.
    """

    targets: list[Target]
    usd_per_hour: float | None
    servers: list[str] = field(default_factory=list)

    @property
    def models(self) -> int:
        """How many models there are; one that several servers hold is one."""
        return len({target.model_id for target in self.targets})


@dataclass(frozen=True)
class Access:
    """How servers are spoken to, beside the load itself.

    Attributes:
        insecure: Do not check certificates.
        headers: Sent with every request, as "Name: value".
    """

    insecure: bool = False
    headers: tuple[str, ...] = ()

    def get(self, url: str, timeout_s: float) -> httpx.Response:
        """Ask for a URL; errors are httpx's, or the system's."""
        headers = dict(line.split(": ", 1) for line in self.headers)
        return httpx.get(url, timeout=timeout_s, verify=not self.insecure, headers=headers)


def find_fleet(url: str | None, plan_file: Path | None, access: Access) -> Fleet:
    """Find the models to ask.

    Args:
        url: A server; None for what is deployed here.
        plan_file: The plan that says what the fleet costs; None for the deployed one, and for a
            URL none.
        access: How servers are spoken to.

    Raises:
        InvalidInput: Not the URL of a server, nothing is deployed, or no model is served.
    """
    if plan_file is None and url is None and DEPLOYED_PLAN.exists():
        plan_file = DEPLOYED_PLAN
    price = load_plan(plan_file).fleet.usd_per_hour if plan_file else None
    if url is not None:
        base = _checked(url)
        try:
            targets = list(_served(base, base, access))
        except DeployError as err:
            raise InvalidInput(f"--url {url}: {err}") from err
        servers = [base]
    else:
        deployment = load_deployment()
        targets, servers = [], [server.url for server in deployment.servers.values()]
        for server in deployment.servers.values():
            base = deployment.router_url or server.url
            known: dict[str, Target] = {}
            with suppress(DeployError):  # what does not answer is counted in the report
                known = {t.model_id: t for t in _served(server.url, base, access)}
            targets += [known.get(name) or Target(name, base) for name in server.models]
    if not targets:
        raise InvalidInput("no model is served there: deploy a plan that has some")
    return Fleet(targets, price, servers)


def fetch_json(url: str, access: Access) -> Any:
    """Read a JSON answer of a server.

    Raises:
        DeployError: There is none.
    """
    try:
        response = access.get(url, 10)
        response.raise_for_status()
        return response.json()
    except httpx.HTTPStatusError as err:
        raise DeployError(f"{url} answers with {err.response.status_code}") from err
    except (httpx.HTTPError, ValueError, OSError) as err:
        raise DeployError(f"no server answers at {url}: {err or type(err).__name__}") from err


def _served(server: str, base: str, access: Access) -> Iterable[Target]:
    listed = fetch_json(f"{server}/models", access)
    try:
        return [
            Target(str(row["id"]), base, row["task"], row.get("version"), row.get("variant"))
            for row in listed["models"]
        ]
    except (KeyError, TypeError, AttributeError) as err:
        raise DeployError(f"{server}/models is not a list of models: is packhorse there?") from err


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good:
        raise InvalidInput(f"--url {url!r} is not a server: write it as http://127.0.0.1:8080")
    return url.rstrip("/")
