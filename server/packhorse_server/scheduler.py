"""Lanes on which inferences run, and the bounded queue before them.

What waits is bounded in predicted seconds, per model and in all, so that under overload a
request is refused at once and never answered too late.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from packhorse.errors import DeadlineExceeded, QueueFull
from packhorse_server.deadline import Deadline
from packhorse_server.registry import Entry

T = TypeVar("T")


def _let_go(entry: Entry, late: asyncio.Future[T]) -> None:
    entry.in_flight -= 1
    if not late.cancelled():
        late.exception()  # nobody waits for it; unread, it would be logged as lost


class Scheduler:
    """A pool of lane threads. The methods run on the event loop."""

    def __init__(self, lanes: int, max_queue_seconds: float) -> None:
        self.lanes = lanes
        self.waiting_s = 0.0
        self._max_queue_s = max_queue_seconds
        self._pool = ThreadPoolExecutor(lanes, thread_name_prefix="lane")

    async def run(
        self, entry: Entry, texts: int, deadline: Deadline, work: Callable[[], T]
    ) -> tuple[T, float, float]:
        """Run work for a model on a lane.

        Args:
            texts: How many inferences the work is, for predicting its time.

        Returns:
            What the work returned, the seconds it waited and the seconds it ran.

        Raises:
            QueueFull: Too much work waits already.
            DeadlineExceeded: The deadline passed before the work began or ended.
        """
        predicted_s = texts * entry.seconds_per_text
        if entry.waiting_s and entry.waiting_s + predicted_s > self._max_queue_s:
            raise QueueFull(entry.id, entry.waiting_s)
        if self.waiting_s and self.waiting_s + predicted_s > self._max_queue_s * self.lanes:
            raise QueueFull(entry.id, self.waiting_s / self.lanes)
        queued = time.perf_counter()
        loop = asyncio.get_running_loop()
        self._wait(entry, predicted_s)
        started = [0.0]

        def begin() -> tuple[T, float]:
            started[0] = time.perf_counter()
            loop.call_soon_threadsafe(self._wait, entry, -predicted_s)
            deadline.check()
            answer = work()
            # Here and not on the event loop, whose own queue would be taken for inference.
            return answer, time.perf_counter() - started[0]

        job = self._pool.submit(begin)
        future = asyncio.wrap_future(job)
        await asyncio.wait({future}, timeout=max(0.0, deadline.remaining_s()))
        if not future.done():
            if job.cancel():  # still queued: it will never run
                self._wait(entry, -predicted_s)
            else:
                entry.in_flight += 1  # it still runs: the model must stay in memory until it ends
                future.add_done_callback(lambda late: _let_go(entry, late))
            raise DeadlineExceeded(deadline.timeout_s)
        result, infer_s = future.result()
        per_text = infer_s / texts
        known = entry.seconds_per_text
        entry.seconds_per_text = 0.8 * known + 0.2 * per_text if known else per_text
        return result, started[0] - queued, infer_s

    def close(self) -> None:
        """End the lanes once their work is done."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _wait(self, entry: Entry, seconds: float) -> None:
        # Sums of floats do not return to zero exactly; an empty queue must.
        entry.waiting_s = max(0.0, round(entry.waiting_s + seconds, 6))
        self.waiting_s = max(0.0, round(self.waiting_s + seconds, 6))
