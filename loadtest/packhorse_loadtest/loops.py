"""Open and closed loops: what sends the planned requests of one worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from packhorse_loadtest.client import Address, Client, Request
from packhorse_loadtest.connection import Answer
from packhorse_loadtest.job import Job
from packhorse_loadtest.recorder import Recorder
from packhorse_loadtest.schedule import Planned, planned_requests
from packhorse_loadtest.timer import Timer

BURST = 64
"""Most requests sent in a row; answers that wait to be read are read in between."""
GIVE_UP_S = 2.0
"""A tester that falls this far behind by its own doing cannot reach the rate."""
STOP_S = 1.0
"""What answers may still take after the user has interrupted a run."""
BUSY_SHARE = 0.85
"""The share of its core from which on a worker may have measured itself."""


class Run:
    """One worker's run, from its start to the last answer.

    Args:
        start: When the warm-up begins, on the clock of `time.monotonic`.
    """

    def __init__(self, job: Job, start: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._job = job
        self._start = start
        self._begin = start + job.warmup_s
        self._end = float("inf") if job.duration_s is None else self._begin + job.duration_s
        self._planned = planned_requests(job)
        self.recorder = Recorder()
        self._sending, self._outstanding, self._all_due = True, 0, False
        self._over = asyncio.Event()
        self._timer = Timer(self._loop, self._send_due)
        self._next: Planned | None = None
        self._cpu_s = 0.0
        addresses: dict[str, Address] = {}
        self._clients: dict[str, Client] = {}
        self._heads: list[tuple[Client, bytes, list[bytes]]] = []
        bodies = [[body.encode() for body in choices] for choices in job.bodies]
        for asked in job.asked:
            origin = asked.url.split("/", 3)[2]
            if origin not in addresses:
                addresses[origin] = Address(asked.url, job.transport)
                most = _part(job.transport.connections, job.worker, job.workers)
                self._clients[origin] = Client(addresses[origin], job.transport, max(1, most))
            head = addresses[origin].head(asked.url)
            self._heads.append((self._clients[origin], head, bodies[asked.bodies]))

    async def run(self) -> Recorder:
        """Send what is planned, wait for the answers, and return what was seen."""
        while (ahead_s := self._start - time.monotonic()) > 0:  # loops may wake up too early
            await asyncio.sleep(ahead_s)
        self._cpu_s, since = time.process_time(), time.monotonic()
        if self._job.load.loop == "open":
            self._send_due()
        else:
            for _ in range(_part(self._job.load.concurrency, self._job.worker, self._job.workers)):
                self._ask_next()
        if self._job.duration_s is not None:
            self._loop.call_later(max(0.0, self._end - time.monotonic()), self._time_is_up)
        await self._over.wait()
        recorder = self.recorder
        recorder.cpu_share = (time.process_time() - self._cpu_s) / (time.monotonic() - since)
        for client in self._clients.values():
            recorder.waited += client.waited
            client.close()
        self._timer.close()
        return recorder

    def stop(self) -> None:
        """Send nothing more; the answers that are on their way may still come."""
        if self._sending:
            self.recorder.stopped_s = max(0.0, time.monotonic() - self._begin)
            self._cease(min(STOP_S, self._job.drain_s))

    def _time_is_up(self) -> None:
        """End the run; an open loop first sends what was due, however late it comes to it."""
        self._all_due = True
        if self._job.load.loop == "open":
            self._send_due()
        else:
            self._cease()

    def _cease(self, drain_s: float | None = None) -> None:
        if not self._sending:
            return
        self._sending = False
        if self._outstanding:
            drain_s = self._job.drain_s if drain_s is None else drain_s
            self._loop.call_later(drain_s, self._over.set)
        else:
            self._over.set()

    # An open loop.

    def _send_due(self) -> None:
        for _ in range(BURST):
            if not self._sending:
                return
            if self._next is None:
                self._next = next(self._planned, None)
                if self._next is None:
                    self._cease()
                    return
            due = self._start + self._next.due_s
            if due >= self._end:
                if self._all_due:
                    self._cease()
                return  # else the run ends at its time
            now = time.monotonic()
            if now < due:
                self._timer.set(due)
                return
            if now - due > GIVE_UP_S and self._is_busy():
                self.recorder.behind_s = now - due
                self._cease()
                return
            planned, self._next = self._next, None
            self._ask(planned, due)
            if due >= self._begin:
                self.recorder.lagged(now - due)
        self._timer.set(time.monotonic())

    def _is_busy(self) -> bool:
        share = (time.process_time() - self._cpu_s) / (time.monotonic() - self._start)
        return share > BUSY_SHARE

    # A closed loop.

    def _ask_next(self) -> None:
        """Let one user ask."""
        if not self._sending:
            return
        planned = next(self._planned, None)
        if planned is None:
            if not self._outstanding:
                self._cease()
            self._planned = _nothing()
            return
        self._ask(planned, time.monotonic())

    # Both.

    def _ask(self, planned: Planned, since: float) -> None:
        client, head, bodies = self._heads[planned.asked]
        body = bodies[int(planned.body * len(bodies))]
        data = b"%b%d\r\n\r\n%b" % (head, len(body), body)
        self._outstanding += 1
        if since >= self._begin:
            self.recorder.sent += 1
        client.submit(Request(data, since, self._done))

    def _done(self, request: Request, answer: Answer) -> None:
        self._outstanding -= 1
        if request.since >= self._begin:
            now = time.monotonic()
            if answer.error is None:
                self.recorder.answered(now - request.since, answer.cold)
            else:
                self.recorder.failed(answer.error)
            self.recorder.last_s = now - self._begin
        if not self._sending:
            if not self._outstanding:
                self._over.set()
        elif self._job.load.loop == "closed":
            if self._job.load.think_s:
                self._loop.call_later(self._job.load.think_s, self._ask_next)
            else:
                # Not here and now: a server that is gone would be asked again without end.
                self._loop.call_soon(self._ask_next)


def _part(total: int, worker: int, workers: int) -> int:
    """Return a worker's part of what all workers have together."""
    return total // workers + (worker < total % workers)


def _nothing() -> Iterator[Planned]:
    yield from ()
