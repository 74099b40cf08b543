"""Which models are in memory: a ledger of bytes against a budget.

What models share through the page cache is counted once. Where the budget is short, the model
that was used longest ago gives way, unless it is pinned or answering.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable

from packhorse.artifact import Artifact
from packhorse.errors import DeadlineExceeded, DoesNotFit, Loading
from packhorse_server.deadline import Deadline
from packhorse_server.model import Model
from packhorse_server.registry import Entry

ROOM_POLL_S = 0.01
"""How often a load that needs room looks whether a request has ended meanwhile."""


class Residency:
    """The ledger, and the loads and evictions that keep it under budget.

    All methods run on the event loop; only `load` and `unload` do their work elsewhere.
    """

    def __init__(
        self,
        budget_bytes: int,
        entries: Iterable[Entry],
        load: Callable[[Entry], Awaitable[Model]],
        unload: Callable[[Model], Awaitable[None]],
        clock: Callable[[], float],
    ) -> None:
        self.budget_bytes = budget_bytes
        self.evictions = 0
        self.ages_at_eviction: Callable[[float], None] = lambda age: None
        self.on_load: Callable[[Entry, float], None] = lambda entry, seconds: None
        self._entries, self._clock = entries, clock
        self._load, self._unload = load, unload
        self._held: dict[Entry, Artifact] = {}
        self._shared: Counter[str] = Counter()
        self._blob_bytes: dict[str, int] = {}
        self._loading: dict[Entry, asyncio.Task[Model]] = {}
        self._giving_way: set[Entry] = set()
        self._room = asyncio.Lock()

    @property
    def resident_bytes(self) -> int:
        """Bytes that loaded models hold, shared ones once."""
        return sum(artifact.cost.private_bytes for artifact in self._held.values()) + sum(
            self._blob_bytes[digest] for digest, users in self._shared.items() if users
        )

    async def acquire(self, entry: Entry, deadline: Deadline) -> tuple[Model, bool]:
        """Hold a model in memory until `release`, loading it first if need be.

        However many wait for a model, it is loaded once; one that gives up does not stop it.

        Returns:
            The model, and whether it was cold: all who waited for the load found it so.

        Raises:
            DoesNotFit: It is larger than the budget that pinned models leave.
            DeadlineExceeded: It was not in memory in time.
            Loading: Another artifact has taken over from it.
        """
        while entry in self._giving_way:
            deadline.check()
            await asyncio.sleep(ROOM_POLL_S)
        if entry.replaced:
            raise Loading(entry.id)
        entry.in_flight += 1
        try:
            model, cold = entry.model, False
            if model is None:
                model, cold = await self._load_in_time(entry, deadline), True
        except BaseException:
            self.release(entry)
            raise
        entry.last_used = self._clock()
        return model, cold

    def release(self, entry: Entry) -> None:
        """Let go of what `acquire` held."""
        entry.in_flight -= 1

    async def _load_in_time(self, entry: Entry, deadline: Deadline) -> Model:
        task = self._loading.get(entry)
        if task is None:
            task = self._loading[entry] = asyncio.create_task(self._make_resident(entry))
            task.add_done_callback(lambda done: self._loaded(entry, done))
        done, _ = await asyncio.wait({task}, timeout=max(0.0, deadline.remaining_s()))
        if not done:
            raise DeadlineExceeded(deadline.timeout_s)
        return task.result()

    def _loaded(self, entry: Entry, task: asyncio.Task[Model]) -> None:
        del self._loading[entry]
        if not task.cancelled():
            task.exception()  # all who wanted it may have given up; unread, it would be logged

    async def evict(self, entry: Entry) -> None:
        """Take a model out of memory, whose requests have ended."""
        model, entry.model = entry.model, None
        if model is not None:
            self._strike(entry)
            await self._unload(model)

    async def retire(self, entry: Entry) -> None:
        """Take out of memory what has been replaced, once the last request that it answers ends."""
        entry.replaced = True
        while entry.in_flight or entry in self._loading:
            await asyncio.sleep(ROOM_POLL_S)
        await self.evict(entry)

    async def _make_resident(self, entry: Entry) -> Model:
        artifact = entry.artifact
        if artifact is None:
            raise RuntimeError(f"{entry.id} is made resident before it was pulled: this is a bug")
        async with self._room:
            try:
                await self._make_room(entry, artifact)
            finally:
                self._giving_way.clear()
            self._enter(entry, artifact)
        start = time.perf_counter()
        try:
            entry.model = await self._load(entry)
        except BaseException:
            self._strike(entry)
            raise
        self.on_load(entry, time.perf_counter() - start)
        return entry.model

    async def _make_room(self, entry: Entry, artifact: Artifact) -> None:
        self._require_fit(entry, artifact)
        while self.resident_bytes + self._need(artifact) > self.budget_bytes:
            if entry.replaced:
                raise Loading(entry.id)  # what took over may hold the room
            # A pinned model gives way to none but its successor.
            loaded = [
                e for e in self._entries
                if e.model is not None and (not e.pinned or e.id == entry.id)
            ]  # fmt: skip
            idle = [e for e in loaded if not e.in_flight]
            if not idle:
                # All are answering: the one used longest ago takes no more requests until it has
                # given way, or a busy model would keep the others out for ever.
                if loaded and not self._giving_way:
                    self._giving_way.add(min(loaded, key=lambda e: e.last_used))
                await asyncio.sleep(ROOM_POLL_S)
                continue
            victim = min(idle, key=lambda e: e.last_used)
            self.evictions += 1
            self.ages_at_eviction(self._clock() - victim.last_used)
            await self.evict(victim)
            self._giving_way.discard(victim)

    def _require_fit(self, entry: Entry, artifact: Artifact) -> None:
        """Refuse what would not fit even if all that can be evicted were, before any of it is."""
        fixed = [e for e in self._entries if e.pinned and e.id != entry.id and e in self._held]
        kept = [self._held[e] for e in fixed]
        blobs = {blob.sha256: blob.bytes for pinned in kept for blob in pinned.cost.shared}
        kept_bytes = sum(pinned.cost.private_bytes for pinned in kept) + sum(blobs.values())
        own = {b.sha256: b.bytes for b in artifact.cost.shared if b.sha256 not in blobs}
        need = artifact.cost.private_bytes + sum(own.values())
        if kept_bytes + need > self.budget_bytes:
            left = self.budget_bytes - kept_bytes
            raise DoesNotFit(entry.id, need, left, "this server's memory budget")

    def _need(self, artifact: Artifact) -> int:
        blobs = {blob.sha256: blob.bytes for blob in artifact.cost.shared}
        return artifact.cost.private_bytes + sum(
            size for digest, size in blobs.items() if not self._shared[digest]
        )

    def _enter(self, entry: Entry, artifact: Artifact) -> None:
        self._held[entry] = artifact
        for blob in artifact.cost.shared:
            self._shared[blob.sha256] += 1
            self._blob_bytes[blob.sha256] = blob.bytes

    def _strike(self, entry: Entry) -> None:
        for blob in self._held.pop(entry).cost.shared:
            self._shared[blob.sha256] -= 1
