"""When a server calls itself ready: a policy over which models are available."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from packhorse.errors import InvalidInput
from packhorse_server.registry import Entry, State


@dataclass(frozen=True)
class Readiness:
    """The answer, and in words why."""

    ready: bool
    reason: str


@dataclass(frozen=True)
class Policy:
    """`all` is a quorum of 1. With `required`, those models alone decide."""

    quorum: float = 1.0
    required: tuple[str, ...] = ()

    def judge(self, entries: Iterable[Entry]) -> Readiness:
        """Say whether the server is ready. An empty set never is: nothing could be answered."""
        found = list(entries)
        missing = [entry for entry in found if entry.state is not State.AVAILABLE]
        if not found:
            return Readiness(False, "no model is to be served: check the plan, or --models")
        if self.required:
            waiting = sorted(set(self.required) - {e.id for e in found if e not in missing})
            if waiting:
                return Readiness(False, f"required models are not available: {_few(waiting)}")
        elif len(found) - len(missing) < math.ceil(self.quorum * len(found)):
            names = [f"{entry.id} ({entry.reason or entry.state.value})" for entry in missing]
            return Readiness(False, f"models are not available: {_few(names)}")
        return Readiness(True, f"{len(found) - len(missing)} of {len(found)} models are available")


def parse_policy(text: str) -> Policy:
    """Read the setting `readiness`.

    Raises:
        InvalidInput: Not `all`, `quorum:SHARE` or `required:ID,…`.
    """
    kind, _, value = text.replace(" ", "").partition(":")
    if kind == "all" and not value:
        return Policy()
    if kind == "required" and value.strip("[],"):
        return Policy(required=tuple(name for name in value.strip("[]").split(",") if name))
    if kind == "quorum":
        try:
            quorum = float(value)
        except ValueError:
            quorum = 0.0
        if 0 < quorum <= 1:
            return Policy(quorum=quorum)
    raise InvalidInput(f"readiness {text!r}: write all, quorum:0.95 or required:id,id")


def _few(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
