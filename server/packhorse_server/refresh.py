"""Follow the store: a newer version, or one published again, takes over without a restart.

The new artifact is pulled and loaded beside the old one, which answers until then. Whatever keeps
the new one from serving leaves the old one in place, with the reason beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

from packhorse.artifact import Artifact
from packhorse.errors import PackhorseError
from packhorse.ids import artifact_prefix, model_key
from packhorse_server.loader import LONGEST_RETRY_S, Loader
from packhorse_server.registry import Entry, Registry, State

log = logging.getLogger(__name__)


class Refresher:
    """Looks into the store at intervals.

    Args:
        swap: Makes an entry's successor resident, lets it take over, and retires the old one.
    """

    def __init__(
        self,
        registry: Registry,
        loader: Loader,
        swap: Callable[[Entry, Entry], Awaitable[None]],
        interval_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._registry, self._loader = registry, loader
        self._swap, self._interval_s, self._clock = swap, interval_s, clock
        self._asked = asyncio.Event()

    def ask(self, entry: Entry) -> None:
        """Have the store asked about a model now."""
        entry.tags, entry.retry_at = None, 0.0
        self._asked.set()

    async def run(self) -> None:
        """Look at every interval for as long as the server runs."""
        while True:
            # A fleet that was started at once shall not ask at once for ever.
            pause_s = self._interval_s * random.uniform(0.8, 1.2) or None
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._asked.wait(), pause_s)
            self._asked.clear()
            try:
                await self._look()
            except Exception as err:  # whatever it is, the next look may succeed
                known = isinstance(err, PackhorseError)
                log.warning("store not looked at reason=%s", err, exc_info=None if known else err)

    async def _look(self) -> None:
        entries = [entry for entry in self._registry if entry.state is State.AVAILABLE]
        keys = {entry: _keys(entry) for entry in entries}
        tags = await self._loader.tags([key for own in keys.values() for key in own])
        for entry in entries:
            now = {key: tags[key] for key in keys[entry] if key in tags}
            waits = now == entry.refused_tags and entry.retry_at > self._clock()
            if entry.tags != now and not waits:
                await self._follow(entry, now)

    async def _follow(self, entry: Entry, tags: dict[str, str]) -> None:
        folder: Path | None = None
        try:
            artifact = await self._loader.newest(entry)
            if artifact != entry.artifact:
                folder = await self._loader.pull(entry, artifact)
                await self._take_over(entry, artifact, folder)
        except Exception as err:  # whatever it is, the model that serves is as good as before
            if folder is not None and self._registry.get(entry.id) is entry:
                self._loader.cache.release(folder)
            self._leave(entry, err, tags)
            return
        current = self._registry.get(entry.id)
        current.tags, current.update_error, current.attempts = tags, "", 0

    async def _take_over(self, entry: Entry, artifact: Artifact, folder: Path) -> None:
        async with self._loader.load_slots:
            await self._swap(entry, entry.successor(artifact, folder))
        log.info(
            "replaced model=%s version=%s digest=%s",
            entry.id, artifact.version, artifact.digest[:12],
        )  # fmt: skip

    def _leave(self, entry: Entry, err: Exception, tags: dict[str, str]) -> None:
        entry.refused_tags = tags
        wait_s = min(self._interval_s * 2 ** min(entry.attempts, 16), LONGEST_RETRY_S)
        entry.attempts += 1
        entry.retry_at = self._clock() + wait_s
        entry.update_error = f"served as before, since what the store holds now fails: {err}"
        log.warning(
            "not replaced model=%s attempts=%d reason=%s", entry.id, entry.attempts, err,
            exc_info=None if isinstance(err, PackhorseError) else err,
        )  # fmt: skip


def _keys(entry: Entry) -> list[str]:
    """Return the keys of the store whose change may mean another artifact."""
    if entry.artifact is None:
        return []
    artifact = entry.artifact
    prefix = artifact_prefix(artifact.id, artifact.version, artifact.variant)
    latest = [] if entry.version else [f"models/{model_key(entry.id)}/latest.json"]
    return [*latest, f"{prefix}/artifact.json"]
