"""The open loop, run in the test's own process so that its event loop can be held up."""

from __future__ import annotations

import time

import uvloop

from packhorse_loadtest.job import Asked, Job, Load, Transport
from packhorse_loadtest.loops import Run
from packhorse_loadtest.recorder import Recorder
from tests.loadtest.stub import stub


def test_the_last_requests_are_sent_even_where_the_end_comes_early() -> None:
    times = [0.01 * n for n in range(20)]
    load = Load("open", 1, "trace", 100.0, order=[0] * len(times), times=times)
    with stub("a") as server:
        asked = Asked(f"{server.url}/predictions/a", 0)
        job = Job(load, Transport(), [asked], [['{"inputs":"x"}']], 0.0, times[-1] + 0.001, 5.0)

        async def hurried() -> Recorder:
            # uvloop counts a delay from when it last looked at the clock, which is now long ago.
            time.sleep(0.1)
            return await Run(job, time.monotonic()).run()

        seen = uvloop.run(hurried()).seen()
    assert (seen.sent, seen.ok) == (20, 20)
