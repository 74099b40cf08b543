"""The engine: models in, answers out, and nothing of HTTP.

One engine is one process that owns its device. Everything here runs on one event loop; pulling,
loading and inference run in threads.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from packhorse.errors import (
    DeadlineExceeded,
    DoesNotFit,
    Loading,
    NotReady,
    Quarantined,
    QueueFull,
)
from packhorse.protocol import PredictRequest
from packhorse.settings import Settings
from packhorse.store.cache import Cache
from packhorse.store.repository import Repository
from packhorse_server.deadline import Deadline
from packhorse_server.loader import Loader
from packhorse_server.metrics import Metrics
from packhorse_server.model import Model
from packhorse_server.readiness import Readiness, parse_policy
from packhorse_server.refresh import Refresher
from packhorse_server.registry import Entry, Registry, State
from packhorse_server.residency import Residency
from packhorse_server.resources import granted_cpus, memory_budget_bytes
from packhorse_server.scheduler import Scheduler
from packhorse_server.startup import report_start
from packhorse_server.tasks import parse_inputs

LONGEST_LOAD_S = 3600.0
"""How long a load at start may wait for room."""


@dataclass(frozen=True)
class Prediction:
    """An answer and how it came about.

    Attributes:
        answer: What the task makes, or a list of that where the inputs were a list.
        truncated: Whether any text was cut.
        queue_s, infer_s: Time before and on a lane.
        load_s: Time spent loading the model, where it was cold.
    """

    answer: Any
    version: str
    truncated: bool
    queue_s: float
    infer_s: float
    load_s: float | None


class Engine:
    """Serves a set of models from a store."""

    def __init__(self, registry: Registry, repository: Repository, settings: Settings) -> None:
        clock = time.monotonic
        self.settings = settings
        self.registry = registry
        self.draining = False
        self.started_at = clock()
        self._policy = parse_policy(settings.readiness)
        self.cache = Cache(settings.cache, settings.cache_bytes)
        self.loader = Loader(registry, repository, self.cache, settings, clock)
        self.residency = Residency(
            settings.memory_bytes or memory_budget_bytes(),
            registry, self.loader.load, self.loader.unload, clock,
        )  # fmt: skip
        self.scheduler = Scheduler(settings.lanes or granted_cpus(), settings.max_queue_seconds)
        self.metrics = Metrics(self)
        self._refresher = Refresher(
            registry, self.loader, self._swap, settings.refresh_seconds, clock
        )
        self._keepers: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin to pull and load; returns at once."""
        self._keepers = [
            asyncio.create_task(self.loader.run(self._load_once)),
            asyncio.create_task(self._refresher.run()),
            asyncio.create_task(report_start(self)),
        ]

    async def stop(self) -> None:
        """Stop loading and end the threads."""
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        self.loader.close()
        self.scheduler.close()

    async def predict(
        self, model_id: str, request: PredictRequest, deadline: Deadline
    ) -> Prediction:
        """Answer a request.

        Raises:
            ModelNotFound, NotReady, InvalidInput, QueueFull, DeadlineExceeded, DoesNotFit
        """
        entry = self.registry.get(model_id)
        entry.require_available()
        start = time.perf_counter()
        try:
            model, cold = await self._hold(entry, deadline)
        except Loading:
            if self.registry.get(model_id) is entry:
                raise
            return await self.predict(model_id, request, deadline)  # another has taken over
        try:
            load_s = time.perf_counter() - start if cold else None
            groups, many = parse_inputs(request.inputs, model.task, self.settings.max_inputs)
            texts = [text for group in groups for text in group]
            model.task.check(request.parameters)

            def work() -> list[tuple[Any, bool]]:
                answers = []
                for text in texts:
                    deadline.check()
                    answers.append(model.answer(text, request.parameters))
                return answers

            answers, queue_s, infer_s = await self.scheduler.run(entry, len(texts), deadline, work)
        finally:
            self.residency.release(entry)
        parts = iter([answer for answer, _ in answers])
        whole = [model.task.combine([next(parts) for _ in group]) for group in groups]
        return Prediction(
            whole if many else whole[0],
            model.artifact.version,
            any(cut for _, cut in answers),
            queue_s,
            infer_s,
            load_s,
        )

    async def _hold(self, entry: Entry, deadline: Deadline) -> tuple[Model, bool]:
        """Hold a model in memory; one that does not load any more is pulled anew."""
        waiting_s = entry.in_flight * entry.seconds_per_text
        if entry.model is None and waiting_s > self.settings.max_queue_seconds:
            raise QueueFull(entry.id, waiting_s)
        try:
            return await self.residency.acquire(entry, deadline)
        except (DoesNotFit, DeadlineExceeded, NotReady):
            raise
        except Exception as err:
            self.loader.quarantine(entry, err)
            raise Quarantined(entry.id, entry.reason) from err

    def readiness(self) -> Readiness:
        """Say whether new requests should be sent here."""
        if self.draining:
            return Readiness(False, "draining")
        return self._policy.judge(self.registry)

    def retry(self, model_id: str) -> Entry:
        """Have a model's state in the store looked at now, and a quarantined one tried again.

        Raises:
            ModelNotFound: Not to be served here.
        """
        entry = self.registry.get(model_id)
        self._refresher.ask(entry)
        return entry

    async def _load_once(self, entry: Entry) -> None:
        _predict_seconds(entry)
        if entry.model is not None:
            await self.residency.evict(entry)
        await self.residency.acquire(entry, Deadline(LONGEST_LOAD_S))
        self.residency.release(entry)

    async def _swap(self, old: Entry, new: Entry) -> None:
        """Load a model's new artifact, let it take over, and unload the old one."""
        _predict_seconds(new)
        await self.residency.acquire(new, Deadline(LONGEST_LOAD_S))
        new.state = State.AVAILABLE
        self.registry.replace(new)
        self.residency.release(new)
        await self.residency.retire(old)
        if old.folder is not None and old.folder != new.folder:
            self.cache.release(old.folder)

    def count(self, state: State) -> int:
        """Return how many models are in a state."""
        return sum(entry.state is state for entry in self.registry)


def _predict_seconds(entry: Entry) -> None:
    """Begin with the measured time of an inference, until requests have shown the real one."""
    if entry.artifact is not None:
        cost = entry.artifact.cost
        entry.seconds_per_text = cost.seconds_at(cost.latency[0].tokens) if cost.latency else 0.0
