"""A worker: takes a job from its standard input, sends load, says what it saw on standard output.

Run by `runner`, as `python -m packhorse_loadtest.worker`. It ends early on SIGTERM, with a report,
and at once when its parent is gone.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec

from packhorse_loadtest.job import Failed, Job, Said, Tick
from packhorse_loadtest.loops import Run

TICK_S = 0.5


def main() -> None:
    """Do one job."""
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=Job)
    _allow_files(job.transport.connections + 64)
    print(json.dumps("ready"), flush=True)
    line = sys.stdin.buffer.readline()
    if not line:
        return
    gc.freeze()
    try:
        _event_loop()(_work(job, float(line)))
    except OSError as err:
        _say(Failed(str(err)))


def _event_loop() -> Callable[[Coroutine[Any, Any, None]], None]:
    try:
        import uvloop
    except ImportError:  # there is none for Windows
        return asyncio.run
    return uvloop.run


async def _work(job: Job, start: float) -> None:
    loop = asyncio.get_running_loop()
    run = Run(job, start)
    loop.add_signal_handler(signal.SIGTERM, run.stop)
    loop.add_reader(sys.stdin.fileno(), os._exit, 1)  # only its end can be read there
    ticking = loop.create_task(_tick(run))
    recorder = await run.run()
    ticking.cancel()
    _say(recorder.seen())


async def _tick(run: Run) -> None:
    while True:
        await asyncio.sleep(TICK_S)
        seen = run.recorder
        warm = seen.warm
        p90_ms = warm.get_value_at_percentile(90) / 1000 if warm.get_total_count() else None
        _say(Tick(seen.sent, seen.ok, seen.errors.total(), p90_ms))


def _say(said: Said) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(said) + b"\n")
    sys.stdout.buffer.flush()


def _allow_files(wanted: int) -> None:
    """Raise the limit of open files as far as this user may."""
    try:
        import resource
    except ImportError:  # not a Unix
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


if __name__ == "__main__":
    main()
