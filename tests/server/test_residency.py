import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from packhorse.artifact import Shared
from packhorse.errors import DeadlineExceeded, DoesNotFit
from packhorse_server.deadline import Deadline
from packhorse_server.model import Model
from packhorse_server.registry import Entry
from packhorse_server.residency import Residency
from tests.onnx_models import make_artifact, write_graph, write_tokenizer

TRUNK = Shared("a" * 64, 100)


class Loaded:
    """Stands where a model does; residency looks at nothing but its artifact."""

    def __init__(self, entry: Entry) -> None:
        self.artifact = entry.artifact


class Ledger:
    """A residency whose loads and unloads are counted."""

    def __init__(
        self, folder: Path, budget: int, sizes: Sequence[int], shared: Sequence[Shared] = ()
    ) -> None:
        write_graph(folder / "model.onnx", 2)
        write_tokenizer(folder / "tokenizer.json")
        self.entries = [
            Entry(
                f"m{i}", artifact=make_artifact(folder, f"m{i}", private_bytes=size, shared=shared)
            )
            for i, size in enumerate(sizes)
        ]
        self.loads: list[str] = []
        self.unloads: list[str] = []
        self.now = 0.0
        self.residency = Residency(budget, self.entries, self.load, self.unload, self.clock)

    def clock(self) -> float:
        self.now += 1
        return self.now

    async def load(self, entry: Entry) -> Model:
        self.loads.append(entry.id)
        await asyncio.sleep(0)
        return cast(Model, Loaded(entry))

    async def unload(self, model: Model) -> None:
        self.unloads.append(model.artifact.id)

    async def use(self, index: int) -> bool:
        _, cold = await self.residency.acquire(self.entries[index], Deadline(5))
        self.residency.release(self.entries[index])
        return cold


def test_a_model_is_loaded_once_however_many_wait(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, 1000, [10])

    async def main() -> list[bool]:
        return await asyncio.gather(*(ledger.use(0) for _ in range(50)))

    assert all(asyncio.run(main()))  # each waited for the load
    assert ledger.loads == ["m0"]


def test_what_models_share_is_counted_once(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, 1000, [10, 20], [TRUNK])

    async def main() -> None:
        await ledger.use(0)
        assert ledger.residency.resident_bytes == 110
        await ledger.use(1)
        assert ledger.residency.resident_bytes == 130
        await ledger.residency.evict(ledger.entries[0])
        assert ledger.residency.resident_bytes == 120
        await ledger.residency.evict(ledger.entries[1])
        assert ledger.residency.resident_bytes == 0

    asyncio.run(main())


def test_the_model_used_longest_ago_gives_way(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, 20, [10, 10, 10])

    async def main() -> None:
        for index in (0, 1, 0, 2):
            await ledger.use(index)

    asyncio.run(main())
    assert ledger.unloads == ["m1"]
    assert ledger.residency.evictions == 1
    assert ledger.residency.resident_bytes == 20


def test_a_pinned_model_is_not_evicted(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, 20, [10, 10, 10])
    ledger.entries[0].pinned = True

    async def main() -> None:
        for index in (0, 1, 2, 1, 2):
            await ledger.use(index)

    asyncio.run(main())
    assert set(ledger.unloads) == {"m1", "m2"}


def test_a_model_in_use_is_not_evicted_and_the_next_waits_for_it(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, 10, [10, 10])

    async def main() -> None:
        await ledger.residency.acquire(ledger.entries[0], Deadline(5))
        waiting = asyncio.create_task(ledger.use(1))
        await asyncio.sleep(0.05)
        assert ledger.unloads == []
        assert not waiting.done()
        ledger.residency.release(ledger.entries[0])
        assert await asyncio.wait_for(waiting, 5)

    asyncio.run(main())
    assert ledger.unloads == ["m0"]


def test_a_busy_model_gives_way_to_one_that_waits(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, 10, [10, 10])
    stop = asyncio.Event()

    async def keep_busy() -> None:
        while not stop.is_set():
            await ledger.residency.acquire(ledger.entries[0], Deadline(5))
            await asyncio.sleep(0.02)
            ledger.residency.release(ledger.entries[0])

    async def main() -> None:
        busy = [asyncio.create_task(keep_busy()) for _ in range(4)]
        await asyncio.sleep(0.05)
        assert await asyncio.wait_for(ledger.use(1), 2)
        stop.set()
        await asyncio.gather(*busy)

    asyncio.run(main())


def test_a_request_for_a_cold_model_keeps_its_deadline_and_the_load_goes_on(
    tmp_path: Path,
) -> None:
    ledger = Ledger(tmp_path, 10, [10])
    go_on = asyncio.Event()

    async def slow(entry: Entry) -> Model:
        await go_on.wait()
        return await ledger.load(entry)

    ledger.residency._load = slow

    async def main() -> None:
        with pytest.raises(DeadlineExceeded):
            await ledger.residency.acquire(ledger.entries[0], Deadline(0.05))
        assert ledger.entries[0].in_flight == 0
        go_on.set()
        await ledger.use(0)
        assert ledger.loads == ["m0"]

    asyncio.run(main())


def test_a_model_larger_than_the_budget_is_named_and_changes_nothing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, 15, [10, 16])

    async def main() -> None:
        await ledger.use(0)
        with pytest.raises(DoesNotFit, match="'m1' needs 16 B; .* offers 15 B"):
            await ledger.use(1)
        assert ledger.unloads == []
        assert ledger.residency.resident_bytes == 10

    asyncio.run(main())


def test_a_model_that_pinned_ones_leave_no_room_for_is_refused(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, 200, [50, 60], [TRUNK])
    ledger.entries[0].pinned = True

    async def main() -> None:
        await ledger.use(0)  # 150 of 200, of which 100 would be shared
        with pytest.raises(DoesNotFit, match="'m1' needs 60 B; .* offers 50 B"):
            await ledger.use(1)
        assert ledger.unloads == []

    asyncio.run(main())


def test_a_load_that_fails_takes_no_room(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path, 15, [10])

    async def fail(entry: Entry) -> Model:
        raise RuntimeError

    ledger.residency._load = fail

    async def main() -> None:
        with pytest.raises(RuntimeError):
            await ledger.use(0)
        assert ledger.residency.resident_bytes == 0
        assert ledger.entries[0].in_flight == 0

    asyncio.run(main())
