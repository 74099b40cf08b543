"""The engine: models in, answers out, and nothing of HTTP.

One engine is one process that owns its device. Everything here runs on one event loop; pulling,
loading and inference run in threads.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any

from packhorse.errors import DeadlineExceeded, DoesNotFit, Quarantined, QueueFull
from packhorse.protocol import PredictRequest
from packhorse.settings import Settings
from packhorse.store.cache import Cache
from packhorse.store.repository import Repository
from packhorse_server.deadline import Deadline
from packhorse_server.loader import Loader
from packhorse_server.metrics import Metrics
from packhorse_server.model import Model
from packhorse_server.readiness import Readiness, parse_policy
from packhorse_server.registry import Entry, Registry, State
from packhorse_server.residency import Residency
from packhorse_server.resources import granted_cpus, memory_budget_bytes
from packhorse_server.scheduler import Scheduler
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
        self._loader = Loader(registry, repository, Cache(settings.cache), settings, clock)
        self.residency = Residency(
            settings.memory_bytes or memory_budget_bytes(),
            registry, self._loader.load, self._loader.unload, clock,
        )  # fmt: skip
        self.scheduler = Scheduler(settings.lanes or granted_cpus(), settings.max_queue_seconds)
        self.metrics = Metrics(self)
        self._keeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to pull and load; returns at once."""
        self._keeper = asyncio.create_task(self._loader.run(self._load_once))

    async def stop(self) -> None:
        """Stop loading and end the threads."""
        if self._keeper:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        self._loader.close()
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
        model, cold = await self._hold(entry, deadline)
        try:
            load_s = time.perf_counter() - start if cold else None
            texts, many = parse_inputs(
                request.inputs, model.task.takes_pairs, self.settings.max_inputs
            )
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
        return Prediction(
            [answer for answer, _ in answers] if many else answers[0][0],
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
        except (DoesNotFit, DeadlineExceeded):
            raise
        except Exception as err:
            self._loader.quarantine(entry, err)
            raise Quarantined(entry.id, entry.reason) from err

    def readiness(self) -> Readiness:
        """Say whether new requests should be sent here."""
        if self.draining:
            return Readiness(False, "draining")
        return self._policy.judge(self.registry)

    def retry(self, model_id: str) -> Entry:
        """Have a quarantined model tried again now.

        Raises:
            ModelNotFound: Not to be served here.
        """
        entry = self.registry.get(model_id)
        entry.retry_at = 0.0
        return entry

    async def _load_once(self, entry: Entry) -> None:
        if entry.artifact is not None:
            tokens = entry.artifact.cost.latency[0].tokens if entry.artifact.cost.latency else 0
            entry.seconds_per_text = entry.artifact.cost.seconds_at(tokens) if tokens else 0.0
        if entry.model is not None:
            await self.residency.evict(entry)
        await self.residency.acquire(entry, Deadline(LONGEST_LOAD_S))
        self.residency.release(entry)

    def count(self, state: State) -> int:
        """Return how many models are in a state."""
        return sum(entry.state is state for entry in self.registry)
