import asyncio
import threading
import time

import pytest

from packhorse.errors import DeadlineExceeded, QueueFull
from packhorse_server.deadline import Deadline
from packhorse_server.registry import Entry
from packhorse_server.scheduler import Scheduler


def test_work_runs_off_the_event_loop_and_its_time_is_told() -> None:
    async def main() -> None:
        scheduler = Scheduler(1, 1.0)
        entry = Entry("m")
        name, queue_s, infer_s = await scheduler.run(
            entry, 1, Deadline(5), lambda: threading.current_thread().name
        )
        assert name.startswith("lane")
        assert queue_s >= 0
        assert infer_s >= 0
        assert entry.seconds_per_text > 0
        scheduler.close()

    asyncio.run(main())


def test_more_work_than_the_queue_takes_is_refused_at_once() -> None:
    async def main() -> None:
        scheduler = Scheduler(1, max_queue_seconds=1.0)
        entry = Entry("m", seconds_per_text=0.4)
        gate = threading.Event()
        running = []
        for _ in range(3):  # one runs, two wait: 0.8 s
            running.append(
                asyncio.create_task(scheduler.run(entry, 1, Deadline(30), lambda: gate.wait(5)))
            )
            await asyncio.sleep(0.05)
        with pytest.raises(QueueFull) as refusal:
            await scheduler.run(entry, 1, Deadline(30), lambda: gate.wait(5))
        assert refusal.value.retry_after_s == 1
        gate.set()
        await asyncio.gather(*running)
        assert (entry.waiting_s, scheduler.waiting_s) == (0.0, 0.0)
        scheduler.close()

    asyncio.run(main())


def test_many_models_together_are_bounded_too() -> None:
    async def main() -> None:
        scheduler = Scheduler(1, max_queue_seconds=1.0)
        gate = threading.Event()
        entries = [Entry(f"m{i}", seconds_per_text=0.6) for i in range(3)]
        running = []
        for entry in entries[:2]:
            running.append(
                asyncio.create_task(scheduler.run(entry, 1, Deadline(30), lambda: gate.wait(5)))
            )
            await asyncio.sleep(0.05)
        with pytest.raises(QueueFull):
            await scheduler.run(entries[2], 1, Deadline(30), lambda: gate.wait(5))
        gate.set()
        await asyncio.gather(*running)
        scheduler.close()

    asyncio.run(main())


def test_one_request_is_taken_however_long_it_is_when_nothing_waits() -> None:
    async def main() -> None:
        scheduler = Scheduler(1, max_queue_seconds=0.1)
        answer = await scheduler.run(Entry("m", seconds_per_text=9), 10, Deadline(5), lambda: "ok")
        assert answer[0] == "ok"
        scheduler.close()

    asyncio.run(main())


def test_service_time_is_the_lanes_and_not_the_event_loops() -> None:
    async def main() -> None:
        scheduler = Scheduler(1, 1.0)
        entry = Entry("m")
        working = asyncio.create_task(scheduler.run(entry, 1, Deadline(5), lambda: None))
        await asyncio.sleep(0)
        time.sleep(0.2)  # the loop is busy with something else
        _, _, infer_s = await working
        assert infer_s < 0.1
        assert entry.seconds_per_text < 0.1
        scheduler.close()

    asyncio.run(main())


def test_work_whose_deadline_passes_in_the_queue_never_runs() -> None:
    async def main() -> None:
        scheduler = Scheduler(1, 10.0)
        entry = Entry("m", seconds_per_text=0.1)
        gate, ran = threading.Event(), threading.Event()
        first = asyncio.create_task(scheduler.run(entry, 1, Deadline(30), lambda: gate.wait(5)))
        await asyncio.sleep(0.05)
        with pytest.raises(DeadlineExceeded, match="within 50 ms"):
            await scheduler.run(entry, 1, Deadline(0.05), ran.set)
        gate.set()
        await first
        await scheduler.run(entry, 1, Deadline(5), lambda: None)  # the lane has got past it
        assert not ran.is_set()
        assert entry.waiting_s == 0.0
        scheduler.close()

    asyncio.run(main())


def test_a_model_whose_work_outlives_its_deadline_stays_held_until_it_ends() -> None:
    async def main() -> None:
        scheduler = Scheduler(1, 10.0)
        entry = Entry("m")
        gate = threading.Event()
        with pytest.raises(DeadlineExceeded):
            await scheduler.run(entry, 1, Deadline(0.05), lambda: gate.wait(5))
        assert entry.in_flight == 1
        gate.set()
        await scheduler.run(entry, 1, Deadline(5), lambda: None)
        await asyncio.sleep(0.01)
        assert entry.in_flight == 0
        scheduler.close()

    asyncio.run(main())
