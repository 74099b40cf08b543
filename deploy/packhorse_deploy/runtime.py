"""What a runtime must be able to do. One module each implements it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from packhorse.deployment import Deployment
from packhorse.errors import InvalidInput
from packhorse.plan import Plan
from packhorse.settings import Settings


@dataclass(frozen=True)
class ServerStatus:
    """How a server is.

    Attributes:
        state: `ready`, `starting`, `unready`, or `down`.
        detail: Why, in words.
    """

    name: str
    url: str
    state: str
    detail: str


class Runtime(Protocol):
    """Somewhere to run servers."""

    def up(self, plan: Plan, settings: Settings) -> Deployment:
        """Bring the plan to life and wait until every server is ready.

        Servers that run already with the same models and settings are left alone.

        Raises:
            DeployError: A server did not become ready; says why.
        """

    def status(self, deployment: Deployment) -> list[ServerStatus]:
        """Ask every server how it is."""

    def logs(self, server: str, follow: bool) -> Iterator[str]:
        """Yield a server's log, line by line."""

    def down(self, deployment: Deployment) -> None:
        """Stop what `up` started, letting requests finish."""


def runtime_for(name: str) -> Runtime:
    """Return a runtime by its name in the settings.

    Raises:
        InvalidInput: Not in this version.
    """
    if name == "process":
        from packhorse_deploy.process import ProcessRuntime

        return ProcessRuntime()
    raise InvalidInput(f"runtime {name!r} is not supported by this version: use process")
