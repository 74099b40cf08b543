"""The open loop, run in the test's own process so that its event loop can be held up."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from packhorse_loadtest.job import Asked, Job, Load, Transport
from packhorse_loadtest.loops import Run
from packhorse_loadtest.recorder import Recorder
from tests.loadtest.stub import stub


def test_the_last_requests_are_sent_even_where_the_end_comes_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = [0.01 * n for n in range(20)]
    load = Load("open", 1, "trace", 100.0, order=[0] * len(times), times=times)
    with stub("a") as server:
        asked = Asked(f"{server.url}/predictions/a", 0)
        job = Job(load, Transport(), [asked], [['{"inputs":"x"}']], 0.0, times[-1] + 0.001, 5.0)

        async def hurried(monkeypatch: pytest.MonkeyPatch) -> Recorder:
            loop = asyncio.get_running_loop()
            call_later = loop.call_later

            def early(delay_s: float, call: Callable[..., Any], *args: Any) -> asyncio.TimerHandle:
                return call_later(delay_s - 0.05, call, *args)  # event loops count whole ms

            monkeypatch.setattr(loop, "call_later", early)
            return await Run(job, time.monotonic()).run()

        seen = asyncio.run(hurried(monkeypatch)).seen()
    assert (seen.sent, seen.ok) == (20, 20)
