"""The models that shall be served, and how far each has come."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from packhorse.artifact import Artifact
from packhorse.errors import Loading, ModelNotFound, PackhorseError, Quarantined
from packhorse.plan import PlannedModel
from packhorse_server.model import Model


class State(str, enum.Enum):
    """How far a model has come; `AVAILABLE` is pulled, verified and loaded once."""

    PENDING = "pending"
    LOADING = "loading"
    AVAILABLE = "available"
    QUARANTINED = "quarantined"


@dataclass(eq=False)
class Entry:
    """One model that shall be served. Changed on the event loop only.

    Where another artifact takes over, it comes with an entry of its own, and the old one stays
    with the requests that it answers.

    Attributes:
        id, pinned: As the plan says.
        version, variant: As the plan says; None is the newest, and whatever runs here.
        error: Why it is quarantined.
        retry_at: When it is tried again, on the engine's clock.
        artifact, folder: Set once pulled.
        model: Set while resident.
        in_flight: Requests that hold the model in memory.
        waiting_s: Predicted seconds of its work that waits for a lane.
        seconds_per_text: Running mean of its inference time.
        requests, request_seconds: What was answered, and how long it took in all.
        tags: What the store said of its keys when they were read last; None: not asked yet.
        refused_tags: What the store said of an artifact that could not take over.
        update_error: Why what the store holds now does not take over.
        replaced: Whether another artifact has taken over.
    """

    id: str
    version: str | None = None
    variant: str | None = None
    pinned: bool = False
    state: State = State.PENDING
    error: PackhorseError | None = None
    attempts: int = 0
    retry_at: float = 0.0
    artifact: Artifact | None = None
    folder: Path | None = None
    model: Model | None = None
    last_used: float = 0.0
    in_flight: int = 0
    waiting_s: float = 0.0
    seconds_per_text: float = 0.0
    requests: int = 0
    request_seconds: float = 0.0
    tags: dict[str, str] | None = None
    refused_tags: dict[str, str] | None = None
    update_error: str = ""
    replaced: bool = False

    @property
    def reason(self) -> str:
        """Why the model cannot answer, or is not the newest; empty where all is well."""
        return str(self.error) if self.error else self.update_error

    def successor(self, artifact: Artifact, folder: Path) -> Entry:
        """Make the entry of an artifact that shall take over."""
        return Entry(
            self.id, self.version, self.variant, self.pinned, State.LOADING,
            artifact=artifact, folder=folder,
        )  # fmt: skip

    def require_available(self) -> None:
        """Raise what a request for this model is answered with, unless it can be served.

        Raises:
            Loading: Not yet.
            Quarantined: It is broken.
            DoesNotFit: It is larger than the memory there is.
        """
        if self.state is State.AVAILABLE:
            return
        if self.state is State.QUARANTINED and self.error is not None:
            if self.error.code == "does_not_fit":
                raise self.error
            raise Quarantined(self.id, self.reason)
        raise Loading(self.id)


class Registry:
    """The entries, by id."""

    def __init__(self, wanted: Iterable[PlannedModel | str]) -> None:
        self._entries: dict[str, Entry] = {}
        for model in wanted:
            entry = (
                Entry(model)
                if isinstance(model, str)
                else Entry(model.id, model.version, model.variant, model.pinned)
            )
            self._entries[entry.id] = entry

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def replace(self, entry: Entry) -> None:
        """Let an entry take over from the one of its id, counters and all."""
        old = self._entries[entry.id]
        entry.requests, entry.request_seconds = old.requests, old.request_seconds
        entry.last_used = old.last_used
        self._entries[entry.id] = entry

    def get(self, model_id: str) -> Entry:
        """Return an entry.

        Raises:
            ModelNotFound: Not to be served here.
        """
        entry = self._entries.get(model_id)
        if entry is None:
            raise ModelNotFound(model_id)
        return entry
