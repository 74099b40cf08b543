"""Bring every wanted model to `available`, and try again those that failed.

A broken model is quarantined with its reason; its neighbours neither wait for it nor fail with
it. Repair in the store is picked up at the next try, without a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from packhorse.artifact import Artifact
from packhorse.errors import InvalidInput, PackhorseError
from packhorse.settings import Settings
from packhorse.store.cache import Cache
from packhorse.store.repository import Repository
from packhorse_server.model import Model, load_model
from packhorse_server.registry import Entry, Registry, State
from packhorse_server.tokenizers import Encoders

log = logging.getLogger(__name__)
LOADS_AT_ONCE = 2
LOOKUPS_AT_ONCE = 4
PULLS_AT_ONCE = 8
"""More than are loaded at once, since a pull waits for the network and a load for the CPU."""
LONGEST_RETRY_S = 300.0
VARIANT_ORDER = ("cpu-int8", "cpu-fp32", "cpu-onnx", "cpu-torchscript")
"""Which variant serves where the plan names none: the smaller and faster first."""


class Loader:
    """Pulls and loads in threads of its own, so that lanes stay free for requests."""

    def __init__(
        self,
        registry: Registry,
        repository: Repository,
        cache: Cache,
        settings: Settings,
        clock: Callable[[], float],
    ) -> None:
        self._registry, self._repository, self.cache = registry, repository, cache
        self._settings, self._clock = settings, clock
        self._encoders = Encoders()
        self.wanted: dict[str, Artifact] = {}  # what was found for each, pulled or not
        self._pool = ThreadPoolExecutor(LOADS_AT_ONCE, thread_name_prefix="load")
        self._lookups = ThreadPoolExecutor(LOOKUPS_AT_ONCE, thread_name_prefix="lookup")
        self._pulls = ThreadPoolExecutor(PULLS_AT_ONCE, thread_name_prefix="pull")
        self.load_slots = asyncio.Semaphore(LOADS_AT_ONCE)

    async def load(self, entry: Entry) -> Model:
        """Load a pulled model into memory."""
        if entry.artifact is None or entry.folder is None:
            raise RuntimeError(f"{entry.id} is loaded before it was pulled: this is a bug")
        return await asyncio.get_running_loop().run_in_executor(
            self._pool, load_model, entry.artifact, entry.folder,
            self._settings.threads_per_inference, self._encoders,
        )  # fmt: skip

    async def unload(self, model: Model) -> None:
        """Give a model's memory back."""
        await asyncio.get_running_loop().run_in_executor(self._pool, model.backend.unload)

    async def run(self, load_once: Callable[[Entry], Awaitable[None]]) -> None:
        """Bring entries to `available` for as long as the server runs.

        Args:
            load_once: Makes a pulled model resident and lets go of it.
        """
        tasks: set[asyncio.Task[None]] = set()
        try:
            while True:
                now = self._clock()
                for entry in self._registry:
                    due = entry.state is State.QUARANTINED and entry.retry_at <= now
                    if entry.state is State.PENDING or due:
                        entry.state = State.LOADING
                        task = asyncio.create_task(self._make_available(entry, load_once))
                        tasks.add(task)
                        task.add_done_callback(tasks.discard)
                await asyncio.sleep(min(0.2, self._settings.retry_seconds))
        finally:
            for task in tasks:
                task.cancel()

    def close(self) -> None:
        """End the threads; a load that runs is left to end by itself."""
        self._lookups.shutdown(wait=False, cancel_futures=True)
        self._pulls.shutdown(wait=False, cancel_futures=True)
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _make_available(
        self, entry: Entry, load_once: Callable[[Entry], Awaitable[None]]
    ) -> None:
        start = self._clock()
        try:
            artifact = await self.newest(entry)
            folder = await self.pull(entry, artifact)
            if entry.folder is not None and entry.folder != folder:
                self.cache.release(entry.folder)
            entry.artifact, entry.folder = artifact, folder
            async with self.load_slots:
                await load_once(entry)
        except Exception as err:
            self.quarantine(entry, err)
            return
        entry.error, entry.attempts = None, 0
        entry.state = State.AVAILABLE
        log.info("available model=%s seconds=%.2f", entry.id, self._clock() - start)

    def quarantine(self, entry: Entry, err: Exception) -> None:
        """Set a model aside with its reason, and say when it is tried again."""
        known = isinstance(err, PackhorseError)
        entry.error = (
            err if isinstance(err, PackhorseError) else InvalidInput(f"{type(err).__name__}: {err}")
        )
        entry.state = State.QUARANTINED
        doublings = min(entry.attempts, 16)  # a float overflows after 1,023
        wait_s = min(self._settings.retry_seconds * 2**doublings, LONGEST_RETRY_S)
        entry.attempts += 1
        entry.retry_at = self._clock() + wait_s
        log.warning(
            "quarantined model=%s attempts=%d retry_in=%.0fs reason=%s",
            entry.id, entry.attempts, wait_s, entry.error, exc_info=None if known else err,
        )  # fmt: skip

    async def newest(self, entry: Entry) -> Artifact:
        """Read which artifact the store holds for an entry.

        Raises:
            InvalidInput: None; StoreError: it cannot be read.
        """
        return await asyncio.get_running_loop().run_in_executor(self._lookups, self._newest, entry)

    async def tags(self, keys: list[str]) -> dict[str, str]:
        """Read what changes where a key of the store is written anew."""
        return await asyncio.get_running_loop().run_in_executor(
            self._lookups, self._repository.tags, keys
        )

    async def pull(self, entry: Entry, artifact: Artifact) -> Path:
        """Bring an artifact here, whose folder then is in use until it is released."""
        # What failed before may have been damaged in the cache: it is read again.
        return await asyncio.get_running_loop().run_in_executor(
            self._pulls, self.cache.pull, self._repository, artifact, entry.attempts > 0
        )

    def _newest(self, entry: Entry) -> Artifact:
        version = entry.version or self._repository.latest(entry.id)
        variant = entry.variant or self._choose_variant(entry.id, version)
        artifact = self._repository.artifact(entry.id, version, variant)
        self.wanted[entry.id] = artifact
        return artifact

    def _choose_variant(self, model_id: str, version: str) -> str:
        published = self._repository.variants(model_id, version)
        for variant in VARIANT_ORDER:
            if variant in published:
                return variant
        raise InvalidInput(
            f"model {model_id!r} version {version} has no variant for cpu: it has "
            f"{', '.join(published) or 'none'}: trace it for cpu"
        )
